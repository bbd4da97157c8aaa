"""`attnconv sweep`: jobs that a shell takes, none trained twice."""

import shlex
import subprocess

import pytest

from attnconv.cli import main, parser


def sweep(capsys, *words):
    assert main(["sweep", *words]) == 0
    return capsys.readouterr().out


def test_one_job_for_each_preset_and_seed_that_attnconv_train_takes(capsys):
    lines = sweep(
        capsys, "quadratic", "learned", "--seeds", "0", "3", "--set", "lr=0.2", "--output", "a b"
    ).splitlines()
    found = []
    for line in lines:
        command, *words = shlex.split(line)
        options = parser().parse_args(words)
        assert (command, words[0]) == ("attnconv", "train")
        assert (options.profile, options.changes, options.output) == ("paper", ["lr=0.2"], "a b")
        found.append((options.preset, options.seed))
    assert found == [("quadratic", 0), ("learned", 0), ("quadratic", 3), ("learned", 3)]


def test_a_run_that_starts_from_another_waits_for_it_in_the_same_job(capsys):
    lines = sweep(capsys, "quadratic_full", "quadratic_pruned", "--profile", "quick").splitlines()
    assert len(lines) == 1
    first, second = lines[0].split(" && ")
    assert "train quadratic_full " in first and "train quadratic_pruned " in second


def test_several_processes_start_by_torchrun(capsys):
    (line,) = sweep(capsys, "quadratic", "--processes", "4").splitlines()
    assert line.startswith("torchrun --standalone --nproc-per-node=4 -m attnconv train quadratic --profile paper")


def test_a_slurm_array_runs_the_line_of_its_task(capsys, tmp_path):
    script = sweep(capsys, "quadratic", "learned", "--form", "slurm")
    assert "#SBATCH --array=1-2" in script
    (tmp_path / "attnconv").write_text('#!/bin/bash\necho "called: $*"\n')
    (tmp_path / "attnconv").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "called: train learned --profile paper --seed 0" in done.stdout, done.stderr


def test_the_time_limit_of_slurm_reaches_the_training(capsys, tmp_path):
    script = sweep(capsys, "quadratic", "--form", "slurm")
    (tmp_path / "attnconv").write_text(
        "#!/bin/bash\ntrap 'echo stopped; exit' TERM\necho begun\nsleep 60 > /dev/null & wait\n"
    )
    (tmp_path / "attnconv").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1"}
    (tmp_path / "job.sh").write_text(script)
    job = subprocess.Popen(["bash", tmp_path / "job.sh"], env=environment, stdout=subprocess.PIPE, text=True)
    while job.stdout.readline() != "begun\n":
        pass
    job.terminate()
    assert job.communicate(timeout=30)[0] == "stopped\n"


def test_jobs_find_a_profile_by_its_path(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text("runs: [quadratic]\n")
    assert f"--profile {tmp_path}/mine.yaml" in sweep(capsys, "--profile", str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    "words", [["quadratc"], ["quadratic", "--set", "lr=-1"], ["--set", "lr=-1"], ["--processes", "0"]]
)
def test_mistakes_cost_no_time(words, capsys):
    assert main(["sweep", *words]) == 2
    assert capsys.readouterr().err.startswith("attnconv: ")
