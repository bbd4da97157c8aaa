"""The batch runner on toy notebooks: plan, refusals, what is done again and what not, failures,
interrupts. Most toys run in this process, without a kernel."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from attnconv.config import PRESETS, ConfigError
from companion import cli, workspace
from companion import reproduce as runner
from companion.explorer import Playground
from companion.profile import Profile
from companion.reproduce import Batch, Job, plan, reproduce
from conftest import PER_RUN, Toys, result, write

NOTEBOOKS = workspace.REPOSITORY / "notebooks"
TRAINED = """import pathlib
folder = pathlib.Path(output, 'runs', f'{preset}-seed{seed}-0')
folder.mkdir(parents=True, exist_ok=True)
if not (folder / 'model.safetensors').exists():
    (folder / 'model.safetensors').write_text('trained')"""


def without_kernel(batch: Batch, job: Job) -> SimpleNamespace:
    """`Batch.start` for toys: their cells, in this process."""
    results = batch.output / ".running" / job.name / "results"
    copy = results / "notebooks" / f"{job.name}.ipynb"
    copy.parent.mkdir(parents=True)
    notebook = deepcopy(job.notebook)
    names: dict[str, object] = {}
    parameters = batch.parameters | dict(zip(("preset", "seed"), job.run, strict=False))
    os.environ["ATTNCONV_RESULTS"] = str(results)
    try:
        for cell in notebook.cells:
            exec(cell.source, names)
            names |= parameters
    except Exception:
        return SimpleNamespace(join=lambda _: None, exitcode=1)
    finally:
        del os.environ["ATTNCONV_RESULTS"]
    nbformat.write(notebook, copy)
    copy.with_suffix(".html").write_text(str(notebook.cells))
    runner.move_into_place(results, copy, batch.key(job), batch.output)
    return SimpleNamespace(join=lambda _: None, exitcode=0)


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """What is the same for all toys is found once: the picture of the first page, and which
    packages are installed."""
    picture = Playground().png()
    installed = []
    for one in metadata.distributions():
        installed.append(SimpleNamespace(name=one.name, version=one.version))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Playground, "png", lambda _: picture)
        patch.setattr(runner, "metadata", SimpleNamespace(distributions=lambda: installed))
        yield


@pytest.fixture
def light(toys: Toys, monkeypatch) -> Toys:
    monkeypatch.setattr(Batch, "start", without_kernel)
    monkeypatch.chdir(toys.notebooks)
    return toys


def run(toys: Toys, **options) -> int:
    return reproduce(
        "toy", notebooks=toys.notebooks, **{"output": toys.output, "jobs": 1} | options
    )


# What there is to do


def planned(toys: Toys) -> dict[str, list[str]]:
    profile = runner.load_profile(toys.notebooks / "profiles" / "toy.yaml")
    return {name: job.needs for name, job in plan(toys.notebooks, profile).items()}


def test_a_per_run_notebook_is_planned_once_per_preset_and_seed(toys):
    toys.profile("runs: [quadratic_pruned, quadratic_full]\nseeds: [0, 3]\n")
    toys.add("03_train", parameters=PER_RUN, per_run=True)
    toys.add("02_theory", needs=["04"])
    toys.add("04_heads", needs=["03:quadratic_full", "03:learned"])  # learned is not run here
    jobs = planned(toys)
    full, pruned = ([f"03_train-quadratic_{kind}-seed{seed}" for seed in (0, 3)]
                    for kind in ("full", "pruned"))  # fmt: skip
    assert jobs == {
        **dict.fromkeys([*pruned, *full], []),
        "04_heads": full,
        "02_theory": ["04_heads"],
    }
    order = [*jobs]
    assert all(order.index(need) < order.index(name) for name in jobs for need in jobs[name])


def test_a_profile_fits_all_presets_and_its_data_lie_beside_it(toys):
    file = toys.notebooks / "profiles" / "toy.yaml"
    toys.profile("data: images\n")
    assert runner.load_profile(file).data == f"{file.parent}/images"
    on_taps = "runs: [quadratic]\nmodel: {centre_start: taps}\n"
    for text, words in ("data: 5\n", "data = 5"), (on_taps, "toy.yaml.*quadratic_16: .*heads = 16"):
        toys.profile(text)
        with pytest.raises(ConfigError, match=words):
            runner.load_profile(file)


def test_what_the_notebooks_need_is_there():
    jobs = plan(NOTEBOOKS, Profile(name="all", runs=[*PRESETS]))
    assert {name[:2] for name in jobs} == {f"{n:02}" for n in range(13)}
    assert {name[:2] for name in jobs["00_what_was_found"].needs} == {
        f"{n:02}" for n in range(1, 12)
    }


@pytest.mark.parametrize(
    ("notes", "options", "message"),
    [
        ({"needs": ["07"]}, {}, "no notebook '07' to run. Notebooks: 02"),
        ({"needs": ["02"]}, {}, "cycle"),
        ({}, {"only": ["9"]}, "no notebook '9' to run. Notebooks: 02"),
        ({}, {"data": "/nowhere"}, "no data set at /nowhere"),
        ({}, {"output": workspace.RECORD}, "not written over .*outputs/evening"),
        ({}, {"output": workspace.RECORD / "new"}, "not written over .*outputs/evening"),
        ({}, {"only": ["02:typo"]}, "'02:typo' is no job of this profile"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(light: Toys, notes, options, message):
    light.add("02_a", **notes)
    with pytest.raises(ValueError, match=message):
        run(light, **options)
    assert not light.executed() and not light.output.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reproduce --profile quik", "no profile 'quik'"),
        ("reproduce --profile smoke --only 99", "no notebook '99'"),
        ("reproduce --profile smoke --output file --only 01", "file"),
        ("train quadratic --profile smoke --output file", "file"),
        (f"train quadratic --profile smoke --output {workspace.RECORD}", "not written over"),
        ("train quadratc", "no preset 'quadratc'. There are resnet18, quadratic,"),
        ("train quadratic --epochs 0", "epochs"),
        ("train quadratic --set head=3", "head = 3: there are only kind, covariance,"),
        ("train quadratic --set seed=3", "seed cannot be changed"),
        ("train quadratic --set heads=[", "not valid YAML"),
        ("train quadratic --set clip", "clip: write NAME=VALUE"),
        ("train quadratic_pruned --profile smoke --set batch_size=0 --output out", "batch_size"),
    ],
)
def test_the_command_says_an_error_in_one_line_before_it_does_anything(
    words, said, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnconv: ") and error.count("\n") == 1 and said in error
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_command_that_is_stopped_says_how_to_go_on_and_a_bug_is_raised(monkeypatch, capsys):
    for error in (KeyboardInterrupt(), RuntimeError("illegal memory access")):
        monkeypatch.setattr(cli, "_train", lambda error=error, **_: (_ for _ in ()).throw(error))
        if isinstance(error, RuntimeError):
            with pytest.raises(RuntimeError, match="illegal"):
                cli.main(["train", "quadratic"])
        else:
            assert cli.main(["train", "quadratic"]) == 130
            assert "run the same command again" in capsys.readouterr().err


def images(folder: Path, size: int = 28, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """A data set: twelve training images and four test images of each class."""
    random = np.random.default_rng(0)
    for split, number in (("train", 12), ("test", 4)):
        for kind in classes:
            (folder / split / kind).mkdir(parents=True, exist_ok=True)
            for i in range(number):
                pixels = random.integers(0, 255, (size, size, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / kind / f"{i}.png")
    return folder


def test_images_with_too_few_positions_are_refused_before_anything_is_trained(tmp_path):
    tiny = images(tmp_path / "tiny", 8)
    with pytest.raises(ConfigError, match=r"Images of \(8, 8\) pixels are too small"):
        reproduce("quick", data=str(tiny), output=tmp_path / "out", dry=True)


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"size": 9}, "must divide the image size 9x9"),
        ({"classes": ("cat",)}, "has one class, cat"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(light: Toys, shape, message, dry):
    light.add("03_train", parameters=PER_RUN, per_run=True)
    light.add("04_heads", needs=["03"])
    data = str(images(light.output.parent / "data", **shape))
    with pytest.raises(ValueError, match=message):
        run(light, data=data, only=["04"], dry=dry)
    assert not light.executed()


def test_a_dry_run_without_the_data_set_says_so_and_downloads_nothing(light, monkeypatch):
    monkeypatch.setenv("ATTNCONV_DATA", str(light.output / "nothing"))
    light.add("02_a")
    with pytest.raises(ValueError, match="cifar10 is not on this machine.*--data PATH"):
        run(light, data="cifar10", dry=True)


# What is done again


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Toys:
    """Toys that were all run once, with a library, a lock and a data set of their own."""
    folder = tmp_path_factory.mktemp("drawn")
    toys = Toys(folder)
    toys.profile("description: toys\nruns: [quadratic, learned]\n")
    toys.add("02_theory", result("figures/02-a.png"), result("tables/02-a.csv"))
    toys.add("03_train", TRAINED, parameters=PER_RUN, per_run=True)
    toys.add("04_heads", result("tables/04-a.csv"), needs=["03:quadratic"])
    toys.add("05_both", needs=["03"], reads=["resnet18"])
    toys.add("06_sum", result("tables/06-a.csv"), needs=["02", "04"])
    for name in ("attnconv/a.py", "companion/front/b.js", "companion/__pycache__/c.pyc"):
        write(folder / "lib" / name, "1")
    images(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch, folder)
        assert run(toys, data=str(folder / "data")) == 0
    assert toys.executed() == ["02", "03:quadratic", "03:learned", "04", "05", "06"]
    return toys


def prepare(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(Batch, "start", without_kernel)
    patch.setattr(runner, "LIBRARY", folder / "lib")
    patch.setattr(runner, "REPOSITORY", folder)
    patch.chdir(folder / "notebooks")


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def put(name: str, text: str = "new") -> Callable[[Path], None]:
    return lambda folder: write(folder / name, text)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def repaint(folder: Path) -> None:
    Image.new("RGB", (28, 28)).save(folder / "data" / "test" / "dog" / "0.png")


def move(folder: Path) -> None:
    shutil.copytree(folder / "data", folder / "moved" / "data")
    shutil.rmtree(folder / "data")


ALL = "02 03:learned 03:quadratic 04 05 06"
THEORY, HEADS = "notebooks/02_theory.ipynb", "notebooks/04_heads.ipynb"
TRAIN = "notebooks/03_train.ipynb"
RUN = "outputs/runs/quadratic-seed0-0/"
PROFILE = "notebooks/profiles/toy.yaml"
CHANGES = {
    "nothing": (put("notes.txt"), ""),
    "a cell, with the same results": (edit(THEORY, "import os", "import  os"), "02"),
    "a cell, with other results": (edit(THEORY, "'x'", "'y'"), "02 06"),
    "a parameter's default": (edit(THEORY, "embedded", "cifar10"), "02"),
    "metadata": (edit(HEADS, '"needs": [', '"alone": true, "needs": ['), "04"),
    "outputs, as Jupyter saves them": (edit(THEORY, '_count": null', '_count": 3'), ""),
    "a needed notebook": (edit(TRAIN, "import", "import "), "03:learned 03:quadratic"),
    "the profile": (edit(PROFILE, "runs", "swap_images: 3\nruns"), ALL),
    "the profile's description": (edit(PROFILE, "toys", "other toys"), ""),
    "a preset less": (edit(PROFILE, ", learned", ""), "02 03:quadratic 04 05 06"),
    "a file of attnconv": (edit("lib/attnconv/a.py", "1", "2"), ALL),
    "a file of companion": (edit("lib/companion/front/b.js", "1", "2"), ALL),
    "a new file of the library": (put("lib/attnconv/new.py"), ALL),
    "a file of the library less": (remove("lib/attnconv/a.py"), ALL),
    "compiled Python": (edit("lib/companion/__pycache__/c.pyc", "1", "2"), ""),
    "a pixel": (repaint, ALL),
    "an image less": (remove("data/train/cat/3.png"), ALL),
    "where the data are": (move, ""),
    "a run's weights": (put(RUN + "model.safetensors"), "03:quadratic 04 05"),
    "a run less, which is trained again": (remove(RUN + "model.safetensors"), "03:quadratic"),
    "what is measured of a run": (put(RUN + "attention.npz"), ""),
    "another seed": (put("outputs/runs/quadratic-seed7-1/model.safetensors"), "04 05"),
    "another preset": (put("outputs/runs/resnet18-seed0-1/model.safetensors"), "05"),
    "an unfinished run": (put("outputs/runs/quadratic-seed8-1/metrics.jsonl"), ""),
    "a short run": (put("outputs/study/quadratic-seed0-1/model.safetensors"), ""),
    "a figure": (put("outputs/figures/02-a.png"), "02"),
    "a figure emptied": (put("outputs/figures/02-a.png", ""), "02"),
    "a figure less": (remove("outputs/figures/02-a.png"), "02"),
    "a table": (put("outputs/tables/04-a.csv"), "04"),
    "a figure of the reader": (put("outputs/figures/02-mine.png"), ""),
    "a copy": (edit("outputs/" + HEADS, "import", "import "), "04"),
    "a page": (put("outputs/notebooks/04_heads.html"), "04"),
    "a copy emptied": (put("outputs/" + HEADS, ""), "04"),
    "a copy less": (remove("outputs/" + HEADS), "04"),
    "a copy that says nothing": (edit("outputs/" + HEADS, '"made"', '"mode"'), "04"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "again"), CHANGES.values(), ids=CHANGES)
def test_a_change_repeats_what_depends_on_it_and_nothing_else(
    drawn: Toys, tmp_path, monkeypatch, change, again
):
    folder = tmp_path / "changed"
    shutil.copytree(drawn.notebooks.parent, folder)
    toys = Toys(tmp_path / "unused")
    toys.notebooks, toys.output = folder / "notebooks", folder / "outputs"
    prepare(monkeypatch, folder)
    change(folder)
    [data] = folder.glob("**/data")
    assert run(toys, data=str(data)) == 0
    assert sorted(toys.executed()) == again.split()
    assert run(toys, data=str(data)) == 0
    assert not toys.executed()


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(light: Toys, capsys):
    light.add("02_a", result("tables/02-a.csv"))
    light.add("03_b", needs=["02"])
    light.add("04_c")
    assert run(light) == 0
    (light.output / "tables" / "02-a.csv").unlink()
    before = {file: file.stat().st_mtime_ns for file in light.output.rglob("*")}
    capsys.readouterr()
    assert run(light, dry=True) == 0
    told = dict(reversed(line.split()[-2:]) for line in capsys.readouterr().out.splitlines()[2:])
    assert told == {"02_a": "do", "03_b": "do", "04_c": "date"}  # to do, up to date
    assert {file: file.stat().st_mtime_ns for file in light.output.rglob("*")} == before


def test_an_installed_version_counts(light: Toys, monkeypatch):
    light.add("02_a")
    assert run(light) == 0 and run(light) == 0 and light.executed() == ["02"]
    other = [SimpleNamespace(name="torch", version="0")]
    monkeypatch.setattr(runner.metadata, "distributions", lambda: other)
    assert run(light) == 0 and light.executed() == ["02"]


def test_only_what_is_named_and_what_it_needs_and_force_only_what_is_named(light: Toys):
    light.add("02_theory")
    light.add("03_train", parameters=PER_RUN, per_run=True)
    light.add("04_heads", needs=["03:quadratic"])
    assert run(light, only=["4"]) == 0 and light.executed() == ["03:quadratic", "04"]
    assert run(light, only=["04"], force=True) == 0 and light.executed() == ["04"]
    assert run(light, only=["03:learned"]) == 0 and light.executed() == ["03:learned"]
    assert run(light) == 0 and light.executed() == ["02"]


def test_what_is_changed_meanwhile_is_for_the_next_run(toys: Toys):
    later = toys.notebooks / "03_b.ipynb"
    change = f"import pathlib; file = pathlib.Path({str(later)!r})"
    toys.add("02_a", f"{change}; file.write_text(file.read_text().replace('old', 'new'))")
    toys.add("03_b", result("figures/03-b.png", "old"), needs=["02"])
    for content in ("old", "new"):
        assert run(toys, jobs=1) == 0
        assert (toys.output / "figures" / "03-b.png").read_text() == content


def test_results_are_not_written_over_the_notebooks(light: Toys):
    light.add("02_a")
    with pytest.raises(ConfigError, match="not written over"):
        reproduce("toy", notebooks=light.notebooks, output=light.notebooks.parent)


def test_a_failure_stops_only_what_needs_it(light: Toys, capsys):
    light.add("02_wrong", result("figures/02-a.png"), result("figures/02-b.png"))
    assert run(light) == 0
    light.add("02_wrong", result("figures/02-a.png", "new"), "1 / 0")
    light.add("03_needs_it", needs=["02"])
    light.add("04_needs_that", needs=["03"])
    light.add("05_fine")
    light.executed()
    capsys.readouterr()
    assert run(light) == 1 and light.executed() == ["02", "05"]
    out = capsys.readouterr().out
    assert "failed      02_wrong\n" in out and out.count("not run ") == 2
    assert (light.output / "figures" / "02-a.png").read_text() == "x"  # the earlier success

    light.add("02_wrong", result("figures/02-a.png", "new"))
    write(light.output / "figures" / "02-mine.png", "of a reader")
    assert run(light) == 0 and light.executed() == ["02", "03", "04"]
    figures = {file.name: file.read_text() for file in (light.output / "figures").iterdir()}
    assert figures == {"02-a.png": "new", "02-mine.png": "of a reader"}  # 02-b is made no more
    assert not (light.output / ".running").exists()


def test_nothing_runs_beside_a_notebook_that_measures_time(toys: Toys):
    for name, alone in (("02_a", False), ("03_b", True), ("04_c", False), ("05_d", False)):
        toys.add(name, alone=alone)
    jobs = plan(toys.notebooks, Profile(name="toy"))
    batch = Batch(jobs, "", toys.output, [], [], 2, False, {}, {})
    batch.start = lambda job: job.name
    assert [batch.begin(job) for job in jobs.values()] == [True, False, True, False]
    assert [*batch.running] == ["02_a", "04_c"]
    batch.running.clear()
    assert [batch.begin(jobs[name]) for name in ("03_b", "05_d")] == [True, False]


def test_two_runs_into_one_folder_are_refused(light: Toys):
    light.add("02_theory")
    light.output.mkdir()
    with FileLock(light.output / ".lock"):
        with pytest.raises(ConfigError, match="Another process is at work in"):
            run(light)


# With kernels


def test_a_copy_shows_its_parameters_and_nothing_of_this_machine(tmp_path, monkeypatch):
    toys = Toys(tmp_path / "a name with spaces")
    toys.profile("runs: [quadratic]\n")
    # Neither a kernel that the user has registered nor what the user runs at each start is used.
    spec = {"argv": ["/bin/false"], "display_name": "no", "language": "python"}
    for place in ("JUPYTER_PATH", "JUPYTER_DATA_DIR"):
        write(tmp_path / place / "kernels" / "python3" / "kernel.json", json.dumps(spec))
        monkeypatch.setenv(place, str(tmp_path / place))
    write(tmp_path / "profile_default" / "startup" / "mine.py", "mine = 1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cell = "assert 'mine' not in globals()"
    bar = "from tqdm.auto import tqdm\nfor _ in tqdm([1]): print('seen')"
    path = toys.add("03_train", cell, "3", bar, parameters=PER_RUN, per_run=True)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_markdown_cell("[a](03_train.ipynb) [b](05_no.ipynb)"))
    nbformat.write(notebook, path)
    assert run(toys) == 0
    name = "03_train-quadratic-seed0"
    copy, page = (toys.output / "notebooks" / f"{name}{suffix}" for suffix in (".ipynb", ".html"))
    before = copy.read_bytes()
    executed = nbformat.read(copy, as_version=4)
    given = 'profile = "toy"\ndata = ""\noutput = "../outputs"\npreset = "quadratic"\nseed = 0'
    assert executed.cells[0].source == given
    assert executed.cells[3].outputs[0].data["text/plain"] == "3"
    assert [output.name for output in executed.cells[4].outputs] == ["stdout"]  # and no bar
    assert executed.cells[-1].source == f"[a]({name}.ipynb) [b](05_no.ipynb)"
    assert all(str(tmp_path) not in file.read_text() for file in (copy, page))
    assert run(toys, force=True) == 0
    assert copy.read_bytes() == before  # no time of day, no random id


def test_the_error_of_a_notebook_is_said_and_its_copy_shows_where(toys: Toys, capfd, monkeypatch):
    # The server of the other tests began with another stderr than this test's.
    monkeypatch.setattr(runner, "FORKED", multiprocessing.get_context("fork"))
    kept = toys.output / "failed" / "02_wrong.ipynb"
    for cell, said in (("import os; os._exit(1)", "died"), ("int('wrong')", "ValueError: invalid")):
        toys.add("02_wrong", "fine = 1", cell)
        assert run(toys) == 1
        error = capfd.readouterr().err
        assert said in error and error.endswith(f"\n{kept}\n")
        assert cell in kept.read_text()
    assert not (toys.output / "notebooks").exists()
    toys.add("02_wrong", "fine = 1")
    assert run(toys) == 0 and not kept.exists()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])  # Ctrl-C, SIGHUP: as SIGTERM
def test_an_interrupt_leaves_no_kernel_and_no_half_result(toys: Toys, number):
    write(toys.output / "figures" / "02-a.png", "an earlier success")
    pids = "open('PIDS', 'w').write(f'{os.getpid()} {os.getppid()} ')"
    toys.add("02_long", result("figures/02-a.png", "new"), f"{pids}; sum(range(10**12))  # deaf")
    call = f"lambda **_: runner.reproduce('toy', notebooks=Path({str(toys.notebooks)!r}),"
    code = f"""import sys; from pathlib import Path; from companion import cli, reproduce as runner
cli._reproduce = {call} output={str(toys.output)!r}); sys.exit(cli.main(['reproduce']))"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    file, until = toys.notebooks / "PIDS", time.time() + 300
    while not (file.exists() and file.read_text().endswith(" ")) and time.time() < until:
        time.sleep(0.05)
    running = [int(pid) for pid in file.read_text().split()]
    assert all(map(alive, running))
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    until = time.time() + 30
    while any(map(alive, running)) and time.time() < until:
        time.sleep(0.05)
    assert not any(map(alive, running))
    assert (toys.output / "figures" / "02-a.png").read_text() == "an earlier success"
    assert not (toys.output / "notebooks" / "02_long.ipynb").exists()
    if number != signal.SIGKILL:
        assert process.returncode == 130 and "run the same command again" in said
        assert not (toys.output / ".running").exists()
