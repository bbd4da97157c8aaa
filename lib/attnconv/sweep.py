"""A sweep of presets and seeds, as commands for schedulers that exist: one job per line, or a Slurm array.

Nothing here schedules. Every job is an ``attnconv train`` that can be stopped and started again at any time. No torch
is imported here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from attnconv.config import Profile

SLURM = """\
#!/bin/bash
#SBATCH --job-name=attnconv
#SBATCH --array=1-{count}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus={processes}
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
# One task per line below. A task that is stopped leaves a checkpoint; submitted again, it goes on from there.
job=$(sed -n "$SLURM_ARRAY_TASK_ID p" <<'JOBS'
{jobs}
JOBS
)
echo "$job"
bash -c "$job; exit \\$?" & pid=$!  # more than one command: bash stays the parent of what it runs
trap 'pkill -TERM -P "$pid"; wait "$pid"' TERM
wait "$pid"
"""


def jobs(
    profile: Profile,
    presets: Sequence[str] = (),
    seeds: Sequence[int] = (),
    *,
    named: str = "",
    options: Sequence[str] = (),
    processes: int = 1,
) -> list[str]:
    """One shell command per preset and seed (default: the profile's), presets varying fastest.

    A preset that starts from another one's run comes after it in the same command: each run is trained by one job.
    ``named`` is the profile as the jobs can find it: its name, or a path. ``options`` are passed on to ``attnconv
    train``; with ``processes`` > 1 torchrun starts that many for each job.
    """
    presets, seeds = list(presets or profile.runs), list(seeds or profile.seeds)
    start = (
        ["attnconv"]
        if processes == 1
        else ["torchrun", "--standalone", f"--nproc-per-node={processes}", "-m", "attnconv"]
    )

    def command(preset: str, seed: int) -> str:
        before = profile.configs(preset, seed)[1].start_from  # refuses an unknown preset
        words = [*start, "train", preset, "--profile", named or profile.name, "--seed", str(seed), *options]
        return (f"{command(before, seed)} && " if before else "") + shlex.join(words)

    started_from = {profile.configs(preset)[1].start_from for preset in presets}
    return [command(preset, seed) for seed in seeds for preset in presets if preset not in started_from]


def slurm(commands: Sequence[str], processes: int = 1) -> str:
    """A Slurm array script with one task for each command, and as many GPUs for each as it has processes."""
    return SLURM.format(count=len(commands), jobs="\n".join(commands), processes=processes)
