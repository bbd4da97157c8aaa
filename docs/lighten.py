"""Leave the weights out of runs whose measures are kept, so that a committed record stays small.

``.venv/bin/python docs/lighten.py outputs/evening/study/quadratic-*``: what reads accuracies,
answers, heads and swaps goes on as before; `load_run` says that there are no weights.
"""

import sys
from pathlib import Path

from attnconv.training.runs import Run

for folder in map(Path, sys.argv[1:]):
    run = Run(folder)
    weights = folder / "model.safetensors"
    if not weights.is_file() or not run.arrays("predictions.npz"):
        print(f"{folder}: left as it is: no weights, or no predictions.npz")
        continue
    (folder / "no-weights").touch()
    weights.unlink()
