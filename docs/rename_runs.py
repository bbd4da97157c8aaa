"""Bring recorded run folders to the present form: config.json, and names by content.

``PYTHONPATH=lib python docs/rename_runs.py [FOLDER ...]`` takes folders of runs (default: those of
the record) or single run folders. What has the present form already is left as it is. Which folder
became which is added to ``docs/renamed.tsv``; there it also finds runs that others go on from.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from attnconv.config import REPOSITORY, ModelConfig, TrainConfig, replace, run_name

RECORD = [REPOSITORY / "outputs" / name for name in ("evening/runs", "evening/study", "paper")]
TABLE = Path(__file__).with_name("renamed.tsv")
GONE = {"checkpoint_seconds", "prune"}
MADE = ("environment", "sessions", "kept")  # how it was made, and which heads pruning left


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_bytes())


def old_runs(places: list[Path]) -> dict[Path, dict[str, Any]]:
    """The folders of the former form among places and right below them, and their config.json."""
    found = {}
    for place in places:
        for file in [place / "config.json", *sorted(place.glob("*/config.json"))]:
            if file.is_file() and "hash" in read(file.parent):
                found[file.parent] = read(file.parent)
    return found


def rewritten(config: dict[str, Any], start: str | None) -> dict[str, Any]:
    """A config.json in the present form; ``start``: the run that it goes on from."""
    recipe = {name: value for name, value in config["train"].items() if name not in GONE}
    recipe["compile"] = "compiled" in config["environment"]["computation"]
    recipe["start_from"] = start
    return {
        "preset": config["preset"],
        "model": ModelConfig(**config["model"]).model_dump(mode="json"),
        "train": TrainConfig(**recipe).model_dump(mode="json"),
        "data": {name: value for name, value in config["data"].items() if name != "key"},
        **{name: config[name] for name in MADE if name in config},
    }


def new_name(config: dict[str, Any], start: dict[str, Any] | None) -> str:
    """A rewritten run's name: of the model that was asked for, before heads were pruned."""
    model = ModelConfig(**config["model"])
    if start and config.get("kept"):
        model = replace(model, {"heads": ModelConfig(**start["model"]).heads})
    return run_name(config["preset"], model, TrainConfig(**config["train"]), config["data"])


def main(places: list[Path]) -> None:
    old = old_runs(places)
    lines = TABLE.read_text().splitlines() if TABLE.is_file() else []
    renamed = dict(line.split("\t") for line in lines)  # from former names to present ones
    ordered = sorted(old, key=lambda folder: old[folder]["train"].get("start_from") is not None)
    for folder in ordered:  # those that go on from others come last
        config = old[folder]
        start = None
        if config["train"].get("start_from"):
            former = [name for name in renamed if name.endswith("-" + config["start"])]
            if not former:
                raise SystemExit(f"{folder}: {config['start']}, which it goes on from, is not here")
            start = renamed[former[0]]
        new = rewritten(config, start)
        around = [place / start for place in {folder.parent, *RECORD} if start]
        before = [read(place) for place in around if (place / "config.json").is_file()]
        if start and config.get("kept") and not before:
            raise SystemExit(f"{folder}: {start}, from which it was pruned, is not here")
        target = folder.with_name(new_name(new, before[0] if before else None))
        if target.exists():
            raise SystemExit(f"{folder}: {target.name} is there already")
        if not config.get("weights_kept", True):
            (folder / "no-weights").touch()
        (folder / "config.json").write_text(json.dumps(new, indent=1) + "\n")
        os.rename(folder, target)
        renamed[folder.name] = target.name
        TABLE.write_text("".join(f"{was}\t{now}\n" for was, now in renamed.items()))
    print(f"{len(ordered)} run folders renamed")


if __name__ == "__main__":
    main([Path(word).resolve() for word in sys.argv[1:]] or RECORD)
