"""The batch runner on toy notebooks: plan, refusals, what is done again and what not, failures,
interrupts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

import companion.reproduce as runner
from attnconv.config import PRESETS, ConfigError
from attnconv.training.data import DataError
from attnconv.training.runs import RunError, held
from companion import cli, workspace
from companion.plan import named, plan, read_notebook, select
from companion.profile import Profile
from companion.reproduce import reproduce
from conftest import PER_RUN, Toys, planned, put_run, result, write


def run(toys: Toys, **options) -> int:
    return reproduce(
        "toy", notebooks=toys.notebooks, **{"output": toys.output, "at_once": 1} | options
    )


def manifest(toys: Toys) -> dict:
    return json.loads((toys.output / "manifest.json").read_text())


def status(toys: Toys) -> dict[str, str]:
    return {name: entry["status"] for name, entry in manifest(toys)["notebooks"].items()}


# What there is to do


def test_a_per_run_notebook_is_planned_once_per_preset_and_seed_after_what_it_starts_from(
    toys: Toys,
) -> None:
    toys.profile("runs: [quadratic_pruned, quadratic_full]\nseeds: [0, 3]\n")
    toys.add("03_train", parameters=PER_RUN, per_run=True)
    toys.add("02_theory")
    toys.add(
        "04_heads", needs=["03:quadratic_full", "03:learned"]
    )  # learned is not in this profile
    jobs = planned(toys)
    full, pruned = (
        [f"03_train-quadratic_{name}-seed{seed}" for seed in (0, 3)] for name in ("full", "pruned")
    )
    assert list(jobs) == ["02_theory", full[0], pruned[0], full[1], pruned[1], "04_heads"]
    assert jobs[pruned[1]].needs == (full[1],) and set(jobs["04_heads"].needs) == {*full}
    assert jobs["04_heads"].reads == {"runs/quadratic_full/*", "runs/learned/*"}
    assert jobs[pruned[1]].reads == {"runs/quadratic_full/3", "runs/quadratic_pruned/3"}
    assert jobs[full[1]].parameters == {"profile": "toy", "preset": "quadratic_full", "seed": 3}


def test_a_notebook_of_a_part_that_the_study_lacks_is_left_out_and_not_waited_for(
    toys: Toys,
) -> None:
    toys.add("11_few", part="few")
    toys.add("12_sum", needs=["11"])
    toys.profile("runs: [quadratic]\n")
    assert [(name, job.needs) for name, job in planned(toys).items()] == [("12_sum", ())]
    toys.profile("runs: [quadratic]\nstudy: {few: {images: [10, 20]}}\n")
    assert [(name, job.needs) for name, job in planned(toys).items()] == [
        ("11_few", ()),
        ("12_sum", ("11_few",)),
    ]


def test_a_long_notebook_has_its_turn_earlier_but_after_what_it_needs(toys: Toys) -> None:
    for name, about in {"02_a": {}, "03_b": {}, "10_c": {}, "11_long": {"after": "02"}}.items():
        toys.add(name, **about)
    assert list(planned(toys)) == ["02_a", "11_long", "03_b", "10_c"]
    toys.add("11_long", after="02", needs=["10"])
    assert list(planned(toys)) == ["02_a", "03_b", "10_c", "11_long"]


def test_only_picks_notebooks_or_single_runs_and_brings_what_they_need(toys: Toys) -> None:
    toys.add("02_theory")
    toys.add("03_train", parameters=PER_RUN, per_run=True)
    toys.add("04_heads", needs=["03:quadratic"])
    jobs = planned(toys)
    assert select(jobs, ["3:learned"]) == {"03_train-learned-seed0": True}
    both = [("03_train-quadratic-seed0", False), ("04_heads", True)]
    assert list(select(jobs, ["4"]).items()) == both  # whether it was asked for, or is needed
    with pytest.raises(
        ConfigError, match=r"no notebook '09'.*02, 03, 04, 03:quadratic, 03:learned"
    ):
        select(jobs, ["09"])


def test_notebooks_that_need_each_other_are_refused(toys: Toys) -> None:
    toys.add("04_a", needs=["05"])
    toys.add("05_b", needs=["04"])
    with pytest.raises(ConfigError, match="in a circle: .*04_a, 05_b"):
        planned(toys)


def test_what_notebooks_need_is_there() -> None:
    notebooks = [
        read_notebook(path)
        for path in sorted((workspace.REPOSITORY / "notebooks").glob("[0-9]*.ipynb"))
    ]
    jobs = plan(notebooks, Profile(name="all", runs=tuple(PRESETS), study={"few": {}}), {})
    assert len({job.notebook.number for job in jobs.values()}) == len(notebooks)
    assert all(named(jobs.values(), word) for notebook in notebooks for word in notebook.needs)


# Refused before anything runs


def refused(toys: Toys, message: str, kind: type = ConfigError, **options) -> None:
    with pytest.raises(kind, match=message):
        run(toys, **options)
    assert not toys.executed()
    assert not toys.output.exists()


def test_other_mistakes_are_refused(toys: Toys, tmp_path: Path) -> None:
    toys.add("02_theory", parameters="profile = 'toy'\n")
    refused(toys, "must also set data, output")
    path = toys.add("02_theory", need=["03"])
    refused(toys, "02_theory.ipynb is not a readable notebook .*Notebook.need")
    path = toys.add("02_theory")
    refused(toys, "no notebook '9'", only=["9"])
    refused(toys, "--jobs 0", at_once=0)
    refused(
        toys, "There is no data set that can be read at", DataError, data=str(tmp_path / "nowhere")
    )
    toys.profile("train: {epoch: 3}\n")
    refused(toys, "toy.yaml: TrainConfig.epoch = 3")
    toys.profile("runs: [quadratic]\n")
    path.write_text("{")
    refused(toys, "not a readable notebook")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reproduce --profile quik", "no profile 'quik'"),
        ("reproduce --profile smoke --only 99", "no notebook '99'"),
        ("reproduce --profile smoke --output file", "/file"),
        ("train quadratic --profile smoke --output file", "/file"),
        ("train quadratc", "no preset 'quadratc'. There are resnet18, quadratic,"),
        ("train quadratic --epochs 0", "TrainConfig.epochs = 0"),
        ("train quadratic --set head=3", "known name"),
        (
            "train quadratic_pruned --profile smoke --set validation=200 --output out",
            "200 validation images cannot be",
        ),
    ],
)
def test_the_command_says_an_error_in_one_line_before_it_does_anything(
    words, said, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    out, error = capsys.readouterr()
    assert not out and error.startswith("attnconv: ") and error.count("\n") == 1 and said in error
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


TOO_MUCH = [
    MemoryError(),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"
    ),
]


@pytest.mark.parametrize("error", TOO_MUCH)
def test_too_little_memory_is_said_in_one_line(error, monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli, "_train", lambda **options: (_ for _ in ()).throw(error))
    assert cli.main(["train", "quadratic"]) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("attnconv: There is not enough memory")
        and said.count("\n") == 1
        and "batch" in said
    )


def test_other_errors_that_speak_of_memory_are_raised(monkeypatch) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(cli, "_train", lambda **options: (_ for _ in ()).throw(error))
    with pytest.raises(RuntimeError, match="illegal"):
        cli.main(["train", "quadratic"])


def test_a_command_that_is_stopped_says_how_to_go_on(monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli, "_train", lambda **options: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert cli.main(["train", "quadratic"]) == 130
    assert "run the same command again" in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_the_command_without_a_word() -> None:
    code = (
        "import sys; from companion import cli; cli._train = lambda **options: print('x' * 10**6); "
    )
    code += "sys.exit(cli.main(['train', 'quadratic']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 141)
    process.stderr.close()


def test_changes_go_to_the_configuration_that_has_them() -> None:
    assert cli.changes(["heads=16", "lr=0.1", "augment=false"]) == (
        {"heads": 16},
        {"lr": 0.1, "augment": False},
    )


# Real executions


def test_what_is_done_is_not_done_again_until_an_input_changes(tmp_path: Path, monkeypatch) -> None:
    toys = Toys(tmp_path / "a {name} with spaces")
    toys.profile("runs: [quadratic]\n")
    # Neither a kernel that the user has registered as python3 nor what the user runs at each start
    # must be used.
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "no", "language": "python"})
    )
    write(tmp_path / "profile_default" / "startup" / "mine.py", "mine = 1")
    write(
        tmp_path / "profile_default" / "ipython_config.py",
        "c.InteractiveShellApp.exec_lines = ['mine = 1']",
    )
    write(tmp_path / "mine.py", "mine = 1")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "mine.py"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    facts = "sys.executable, os.getcwd(), os.environ['OMP_NUM_THREADS'], 'MPLBACKEND is', os.environ.get('MPLBACKEND')"
    toys.add("02_theory", f"import os, sys; assert 'mine' not in globals(); print({facts})")
    toys.add("03_train", "print(preset, seed)", parameters=PER_RUN, per_run=True)
    heads = toys.add("04_heads", result("figures/04-f.png"), needs=["03:quadratic"])
    linked = nbformat.read(heads, as_version=4)
    linked.cells += [
        nbformat.v4.new_markdown_cell(
            "[03](03_train.ipynb) [02](02_theory.ipynb) [05](05_none.ipynb)"
        )
    ]
    nbformat.write(linked, heads)
    train, threads = "03_train-quadratic-seed0", max(1, runner.cores() // 2)

    assert run(toys, at_once=2) == 0
    order = toys.executed()
    assert sorted(order) == ["02", "03:quadratic", "04"] and order.index(
        "03:quadratic"
    ) < order.index("04")
    record = manifest(toys)
    assert status(toys) == {"02_theory": "done", train: "done", "04_heads": "done"}
    assert record["data"]["form"] == "embedded sample" and len(record["data"]["sha256"]) == 64
    assert record["versions"]["python"] and record["device"]["cores"]
    made = {"figures/04-f.png", "notebooks/04_heads.ipynb", "notebooks/04_heads.html"}
    assert record["notebooks"]["04_heads"]["made"].keys() == made
    assert str(tmp_path) not in json.dumps(record)
    for file in (toys.output / "notebooks" / f"04_heads{suffix}" for suffix in (".ipynb", ".html")):
        assert str(tmp_path) not in file.read_text()
    copies = (toys.output / "notebooks" / f"{name}.ipynb" for name in ("02_theory", "04_heads"))
    copy, other = (nbformat.read(file, as_version=4) for file in copies)
    assert (
        other.cells[-1].source
        == "[03](03_train-quadratic-seed0.ipynb) [02](02_theory.ipynb) [05](05_none.ipynb)"
    )
    said = "".join(
        output.get("text", "")
        for cell in copy.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert (
        said.startswith(f"{sys.executable} {toys.notebooks.resolve()} {threads} MPLBACKEND is")
        and "agg" not in said
    )

    assert run(toys) == 0
    assert toys.executed() == []

    toys.add("02_theory", "print('changed')\nobject()")
    (toys.output / "figures" / "04-f.png").unlink()
    put_run(toys, "quadratic")
    assert run(toys) == 0
    assert toys.executed() == ["02", "03:quadratic", "04"]

    copy = toys.output / "notebooks" / "02_theory.ipynb"
    before = copy.read_bytes()
    assert run(toys, only=["02"], force=True) == 0
    assert toys.executed() == ["02"]
    assert copy.read_bytes() == before  # no time of day, no random id, no address
    assert run(toys, only=["04"], force=True) == 0
    assert toys.executed() == ["04"], "not what it needs"
    assert not (toys.output / ".running").exists()


def test_nothing_runs_beside_a_notebook_that_measures_time(toys: Toys) -> None:
    """03 measures time; the others run beside each other."""
    toys.profile("runs: [quadratic]\n")
    log = "import pathlib, time; p = pathlib.Path(output, 'tables'); p.mkdir(parents=True, exist_ok=True)\n"
    log += "(p / 'NAME-a').touch(); seen = set(); end = time.time() + 30\n"
    log += "while len(seen) < 2 and time.time() < end: time.sleep(0.05); seen |= {f.name[:2] for f in p.glob('*-a')}\n"
    log += "seen -= {f.name[:2] for f in p.glob('*-b')}; (p / 'NAME-b').write_text(' '.join(sorted(seen)))"
    toys.add("02_theory", log.replace("NAME", "02"))
    toys.add("03_speed", log.replace("NAME", "03"), alone=True)
    toys.add("04_heads", log.replace("NAME", "04"))
    assert run(toys, at_once=2) == 0
    first, alone, other = (
        (toys.output / "tables" / f"{name}-b").read_text() for name in ("02", "03", "04")
    )
    assert alone == "03" and "02 04" in (first, other) and "03" not in first + other


def test_a_failure_is_shown_kept_and_stops_only_what_needs_it(
    toys: Toys, capsys: pytest.CaptureFixture
) -> None:
    toys.add("02_wrong", "fine = 1", "lines = 2\nfine / 0  # here it goes wrong")
    toys.add("03_needs_it", needs=["02"])
    toys.add("04_needs_that", needs=["03"])
    toys.add("05_fine")
    assert run(toys) == 1
    assert toys.executed() == ["02", "05"]
    out = capsys.readouterr().out
    assert "fine / 0  # here it goes wrong" in out and "ZeroDivisionError: division by zero" in out
    assert "\x1b" not in out
    assert "needs 02 wrong, which failed" in out and "needs 03 needs it, which did not run" in out
    assert status(toys) == {"02_wrong": "failed", "05_fine": "done"}
    assert "ZeroDivisionError" in (toys.output / "failed" / "02_wrong.ipynb").read_text()

    toys.add("02_wrong", "import os, signal", "os.kill(os.getpid(), signal.SIGKILL)")
    assert run(toys, only=["02"]) == 1
    assert "Kernel died, perhaps for lack of memory" in capsys.readouterr().out


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL]
)  # Ctrl-C and SIGHUP are handled as SIGTERM is
def test_an_interrupt_leaves_no_kernel_and_the_earlier_copy(
    toys: Toys, number: signal.Signals
) -> None:
    (toys.output / "notebooks").mkdir(parents=True)
    earlier = toys.output / "notebooks" / "02_long.ipynb"
    earlier.write_text("an earlier success")
    write(toys.output / "figures" / "02-a.png", "an earlier success")
    sleep = "import subprocess, time; helper = subprocess.Popen(['sleep', '60'])\n" + result(
        "figures/02-a.png", "new"
    )
    toys.add(
        "02_long", sleep, "open('PIDS', 'w').write(f'{os.getpid()} {helper.pid} '); time.sleep(60)"
    )
    call = f"reproduce('toy', notebooks=Path({str(toys.notebooks)!r}), output={str(toys.output)!r})"
    code = f"import sys; from pathlib import Path; from companion.reproduce import reproduce; sys.exit({call})"
    runner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = toys.notebooks / "PIDS"
    until = time.time() + 60
    while not (pids.exists() and pids.read_text().endswith(" ")) and time.time() < until:
        time.sleep(0.05)
    running = [int(pid) for pid in pids.read_text().split()]
    assert all(map(alive, running))
    runner.send_signal(number)
    out, _ = runner.communicate(timeout=120)
    until = time.time() + 20
    while (
        any(map(alive, running[:1] if number == signal.SIGKILL else running))
        and time.time() < until
    ):
        time.sleep(0.05)
    if number == signal.SIGKILL:
        os.kill(
            running.pop(), signal.SIGKILL
        )  # what a notebook started is not a kernel: nobody is left to end it
    assert not any(map(alive, running))
    assert (
        earlier.read_text()
        == (toys.output / "figures" / "02-a.png").read_text()
        == "an earlier success"
    )
    if number != signal.SIGKILL:
        assert runner.returncode == 130
        assert "run the same command again" in out
        assert not (toys.output / ".running").exists()
        assert status(toys) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_two_runs_into_one_folder_are_refused_and_an_ignored_signal_stays_ignored(
    toys: Toys, number
) -> None:
    toys.add("02_theory")
    toys.output.mkdir()
    for given, then in (
        (signal.SIG_IGN, signal.SIG_IGN),
        (signal.SIG_DFL, signal.default_int_handler),
    ):
        before = signal.signal(number, given)
        try:
            with (
                held(toys.output, wait=False),
                pytest.raises(RunError, match="Another process is at work in"),
            ):
                run(toys)
            assert signal.getsignal(number) is then  # so it ends a run as Ctrl-C does
        finally:
            signal.signal(number, before)


def test_leftovers_of_killed_runs_are_removed_but_not_where_a_model_is_trained(toys: Toys) -> None:
    half = [".running/02_a/results/figures/02-a.png", ".manifest-0123cdef.json"]
    kept = [
        "figures/04-a.png",
        "runs/b/.heads-0123cdef.npz",
        "notebooks/02_a.ipynb",
        ".gitignore",
        ".lock",
    ]
    kept += [".my-settings.json"]  # the user's
    for name in [*half, *kept]:
        write(toys.output / name, "")
    runner.remove_leftovers(toys.output)
    assert not [name for name in half if (toys.output / name).exists()]
    assert all((toys.output / name).exists() for name in kept)


def test_results_move_into_place_together_and_what_is_no_longer_made_goes(toys: Toys) -> None:
    def content() -> dict[str, str]:
        files = [
            file for file in toys.output.glob("*/*") if file.parent.name in ("figures", "tables")
        ]
        return {file.name: file.read_text() for file in files}

    toys.add(
        "02_a", result("figures/02-a.png"), result("figures/02-b.png"), result("tables/02-a.csv")
    )
    assert run(toys) == 0
    copies = [toys.output / "notebooks" / f"02_a{suffix}" for suffix in (".ipynb", ".html")]
    before = [copy.read_text() for copy in copies]
    write(toys.output / "figures" / "02-mine.png", "of a reader")

    toys.add("02_a", result("figures/02-a.png", "new"), "1 / 0")
    assert run(toys) == 1
    assert content() == {
        "02-a.png": "x",
        "02-b.png": "x",
        "02-a.csv": "x",
        "02-mine.png": "of a reader",
    }
    assert [copy.read_text() for copy in copies] == before

    toys.add("02_a", result("figures/02-a.png", "new"))
    assert run(toys) == 0
    assert content() == {"02-a.png": "new", "02-mine.png": "of a reader"}
    assert not (toys.output / "failed" / "02_a.ipynb").exists()
    assert {"figures/02-a.png", "notebooks/02_a.ipynb"} < manifest(toys)["notebooks"]["02_a"][
        "made"
    ].keys()


def test_what_changes_while_a_notebook_runs_is_seen_the_next_time(
    toys: Toys, monkeypatch, tmp_path
) -> None:
    """And a relative data folder is the same in it as here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNCONV_DATA", "images")
    same = f"import os; assert os.environ['ATTNCONV_DATA'] == {str(tmp_path / 'images')!r}"
    edit = "import pathlib; p = pathlib.Path('02_a.ipynb'); p.write_text(p.read_text().replace('# old', '# new'))  # old"
    toys.add("02_a", edit, same)
    assert run(toys) == 0 and toys.executed() == ["02"]
    assert run(toys) == 0 and toys.executed() == ["02"]
    assert run(toys) == 0 and toys.executed() == []


def test_notebooks_and_a_record_are_not_written_over(toys: Toys, monkeypatch):
    path = toys.add("02_a", "print(1)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="would be written over its notebooks"):
        run(toys, output=toys.notebooks.parent)
    assert path.read_bytes() == before
    monkeypatch.setattr(runner, "OUTPUTS", toys.output)
    write(toys.output / "toy" / "strip.npz", b"")
    with pytest.raises(ConfigError, match="is a committed record"):
        run(toys, output=toys.output / "toy")


def test_a_profile_is_one_of_the_notebooks_own(toys: Toys, tmp_path):
    toys.add("02_a", "print(1)")
    write(tmp_path / "mine" / "toy.yaml", "runs: [learned]\n")
    with pytest.raises(ConfigError, match="must be the name of a file in"):
        reproduce(
            str(tmp_path / "mine" / "toy"), notebooks=toys.notebooks, output=toys.output, dry=True
        )
