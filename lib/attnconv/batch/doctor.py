"""``attnconv doctor``: what this machine has. All that it asks about is imported late: it may be missing."""

import shutil
import tomllib
from importlib import import_module, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def package(line: str) -> str:
    """The version of a dependency, a line of pyproject.toml; an error where it is missing, old or does not import."""
    wanted = import_module("packaging.requirements").Requirement(line)
    version = metadata.version(wanted.name)
    if not wanted.specifier.contains(version, prereleases=True):
        raise ValueError(f"{version}, but needed is {wanted}")
    if wanted.name in ("torch", "torchvision", "ipykernel"):
        import_module(wanted.name)
    return version


def gpu() -> str:
    """GPUs, if torch can use them."""
    names = import_module("attnconv.batch.run").device()["gpu"]
    if names and not import_module("torch").cuda.is_available():
        raise ValueError(f"{', '.join(names)}: this torch cannot use it; install one built for its driver")
    return ", ".join(names) or "none: only the paper profile needs one"


def data(name: str) -> str:
    """Where a data set is, once all of it was read. The embedded one must be there, byte for byte."""
    sources = import_module("attnconv.training.data")
    try:
        found = sources.find_data(name)
        sources.content_key(found)
        return f"{found.form}, {found.path}"
    except sources.MissingData:
        if name == "embedded":
            raise
        return "not here: downloaded when first used, or bring it with --data PATH"


def run(folder: Path) -> str:
    """How far a run is."""
    found = import_module("attnconv.training.runs").Run(folder)
    epochs = f"{len(found.metrics)} of {found.train.epochs} epochs, can be resumed"
    return f"finished, {found.test_accuracy:.1%} test accuracy" if found.finished else epochs


def doctor() -> int:
    """Print all of it; the exit status is 1 when something is missing."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    checks = [(line, package, line) for line in lines] + [("GPU", gpu)]
    checks += [("disk", lambda: f"{shutil.disk_usage(ROOT).free / 2**30:.0f} GiB free; 2 may be needed")]
    checks += [(f"data: {name}", data, name) for name in ("embedded", "cifar10", "fashion-mnist")]
    files = sorted((ROOT / "outputs").glob("*/runs/*/config.json"))
    checks += [(f"run: {file.parts[-4]}/{file.parts[-2]}", run, file.parent) for file in files]
    troubles = 0
    for name, check, *arguments in checks:
        try:
            print(f"ok  {name:<20} {check(*arguments)}")
        except Exception as error:  # whatever it is, the other checks go on
            troubles += 1
            print(f"!!  {name:<20} {type(error).__name__}: {error}")
    remedy = "For a package: 'make clean', then 'make doctor'. For a run: remove its folder and train again."
    print(f"\n{troubles} to put right (!! above). {remedy}" if troubles else "\nAll is well.")
    return 1 if troubles else 0
