"""Leave the weights out of runs whose measures are kept, so that a committed record stays small.

``.venv/bin/python docs/lighten.py outputs/evening/study/quadratic-*``: what reads accuracies,
answers, heads and swaps goes on as before; `load_run` says that there are no weights."""

import json
import sys
from pathlib import Path

from attnconv.training.runs import Run, writing

for folder in map(Path, sys.argv[1:]):
    run = Run(folder)
    run.check()
    if run.without_weights or run.right is None:
        print(
            f"{folder}: left as it is: "
            f"{'no weights' if run.without_weights else 'no predictions.npz'}"
        )
        continue
    config = json.loads((folder / "config.json").read_text()) | {"weights_kept": False}
    with writing(folder / "config.json") as temporary:
        temporary.write_text(json.dumps(config, indent=1) + "\n")
    (folder / "model.safetensors").unlink()
