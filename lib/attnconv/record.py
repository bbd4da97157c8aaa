"""Training on a GPU that is at hand for a limited time only, and bringing the runs home.

`train_all` trains presets one after the other until the time is up, and goes on where it stopped when called again.
`pack` leaves what has to be kept in a few small files; `unpack`, on another machine, checks these and puts them back
into run folders, where figures and tables are then made without training. What is in the files: docs/paper-scale.md.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import signal
import threading
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from attnconv import heads
from attnconv.attention import ContentAttention
from attnconv.data import Dataset, normalize
from attnconv.models import AttentionNet
from attnconv.runs import Run, RunError, find_runs, writing
from attnconv.training import TrainingError, evaluate, load_run
from attnconv.workspace import Workspace

MAX_FILES = 8
"""Files that `pack` leaves at most."""
MAX_FILE = 16 * 2**20 - 2**18
"""Bytes of content in each at most: below 16 MiB with all headers."""
MAX_TOTAL = 64 * 2**20 - 2**20
"""Bytes of content in all of them at most: below 64 MiB."""
ARCHIVE = "record.zip"
PACKED = ".packed.json"
"""In the folder of run folders: what earlier calls of `pack` have left, which is not packed again."""
SMALL = ("config.json", "metrics.jsonl", "heads.npz", "attention.npz", "check.json")
"""A run folder's files that travel as they are."""
KEPT_IN_FLOAT32 = 2**14
"""Tensors with fewer numbers (biases, norms, centres, spreads, embeddings) keep their type; others become bfloat16."""

AVERAGED = 100
"""Test images over which attention with content is averaged: the paper's number."""
COMPARED = 16
"""Test images over which agreement between queries, and content's share, are measured."""
SINGLE_IMAGES = (0, 7, 23)
"""Test images whose attention is kept one by one."""


# ---- what heads attend to -------------------------------------------------------------------------------------------


def queries(height: int, width: int) -> list[heads.Query]:
    """The query pixels at which attention is kept: the middle, and three off it (figures 7 to 10 move the query)."""
    middle = (height // 2, width // 2)
    return [middle, (height // 4, width // 4), (height // 3, width // 2), (2 * height // 3, width // 3)]


@torch.no_grad()
def measure_attention(model: AttentionNet, data: Dataset) -> dict[str, np.ndarray]:
    """What every head attends to, all that the figures need: with it, neither weights nor images are read again.

    Returns:
        ``queries`` (Q, 2), ``mean`` (Q, L, h, H, W) float16: P at these queries, and ``agreement`` (L, h) of
        `heads.translation_consistency`; NaN for heads that a layer does not have. With content, ``mean`` is over the
        first `AVERAGED` test images and ``agreement`` over the first `COMPARED`, as is ``content_share`` (L, h) of
        `heads.score_shares`; there are also ``images`` (n,), their ``pixels`` (n, H', W', C) and ``labels`` (n,), and
        ``single`` (n, Q, L, h, H, W) float16.
    """
    layers, (height, width) = model.attention_layers, model.config.grid
    content = isinstance(layers[0], ContentAttention)
    inputs: list[Tensor | None] = [None] * len(layers)
    if content:
        device = next(model.parameters()).device
        x = normalize(data.test_images[:AVERAGED].to(device), data.mean, data.std)
        inputs = model.eval().layer_inputs(x)
    images = [image for image in SINGLE_IMAGES if content and image < len(inputs[0])]

    places = queries(height, width)
    shape = (len(places), len(layers), max(layer.heads for layer in layers), height, width)
    mean, single = np.full(shape, np.nan, np.float16), np.full((len(images), *shape), np.nan, np.float16)
    for q, query in enumerate(places):
        for index, (layer, seen) in enumerate(zip(layers, inputs, strict=True)):
            maps = heads.query_maps(layer, query, height, width, seen)  # with content (B, h, H, W), else (h, H, W)
            mean[q, index, : layer.heads] = maps.mean(0) if content else maps
            if content:
                single[:, q, index] = maps[images]
    agreement, share = np.full((2, *shape[1:3]), np.nan)
    for index, (layer, seen) in enumerate(zip(layers, inputs, strict=True)):
        p = layer.probabilities(seen[:COMPARED]).mean(0) if content else layer.probabilities(height, width)
        agreement[index, : layer.heads] = heads.translation_consistency(p.cpu().numpy()).agreement
        if content:
            parts = (part.cpu().numpy() for part in layer.score_parts(seen[:COMPARED]))
            share[index] = heads.score_shares(*parts).content_share
    found = dict(queries=np.array(places), mean=mean, agreement=agreement)
    if content:
        found |= dict(content_share=share, images=np.array(images), single=single, averaged=np.array(len(inputs[0])))
        found |= dict(pixels=data.test_images[images].cpu().numpy(), labels=data.test_labels[images].cpu().numpy())
    return found


def save_attention(run: Run, data: Dataset, device: torch.device | None = None) -> None:
    """Write a finished run's ``attention.npz``, unless it is there or the run has no heads."""
    file = run.path / "attention.npz"
    if run.model.kind != "resnet" and not file.is_file():
        model, _ = load_run(run.path, device)
        with writing(file) as temporary:
            np.savez_compressed(temporary, **measure_attention(model, data))


# ---- training until the time is up ----------------------------------------------------------------------------------


def train_all(
    work: Workspace,
    presets: Iterable[str],
    seeds: Iterable[int],
    *,
    seconds: float | None = None,
    folder: Path | None = None,
) -> tuple[list[str], list[str]]:
    """Train presets in this order, seed by seed, for that many seconds; what failed and what is left, in words.

    It stops a little earlier than asked: the run under way gets a checkpoint, and ``folder`` is packed, as after every
    run (see `pack`). Called again, it goes on where it stopped; finished runs are found, and cost nothing.
    """
    todo = [(name, seed) for seed in seeds for name in presets]
    failed = []
    for name, seed in todo:
        work.profile.configs(name, seed)  # a wrong name costs no time
    if folder:
        _make(folder)
    reserve = 0.0 if seconds is None else min(24.0, max(2.0, 0.1 * seconds))
    try:
        with _stop_after(None if seconds is None else seconds - reserve, reserve / 2):
            while todo:
                name, seed = todo[0]
                try:
                    run = work.run(name, seed, fresh=True)
                    _check(run, work.data)
                    print(f"{run.title}, seed {seed}: {run.test_accuracy:.2%}, {len(run.metrics)} epochs", flush=True)
                except TrainingError as error:  # the others are worth the time that is left
                    print(f"{name}, seed {seed}: {error}", flush=True)
                    failed.append(f"{name}, seed {seed}")
                todo.pop(0)
                if folder and todo and _items(work.folder / "runs"):
                    pack(work.folder / "runs", folder)
    except KeyboardInterrupt as stopped:
        print(f"Time is up, or stopped by hand. {stopped}".rstrip(), flush=True)
    finally:
        if folder and _items(work.folder / "runs"):
            say_left(pack(work.folder / "runs", folder))
    return failed, [f"{name}, seed {seed}" for name, seed in todo]


def say_left(left: list[str]) -> None:
    """Print what `pack` had no room for."""
    if left:
        print("Not packed yet; take the files away, then call `attnconv pack`:", *left, sep="\n", flush=True)


@contextlib.contextmanager
def _stop_after(seconds: float | None, patience: float) -> Iterator[None]:
    """Press Ctrl-C when the time is up: training then saves a checkpoint. Once more, if that takes too long."""
    if seconds is None:
        yield
        return
    if not seconds > 0:
        raise KeyboardInterrupt
    moments = (min(after, threading.TIMEOUT_MAX) for after in (seconds, seconds + patience))
    timers = [threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)) for after in moments]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _check(run: Run, data: Dataset) -> None:
    """Measure what needs weights and data while both are here: attention, and the accuracy of the rounded weights."""
    if run.recorded:
        return
    save_attention(run, data)
    file = run.path / "check.json"
    if not file.is_file():
        model, _ = load_run(run.path)
        model.load_state_dict({name: rounded(tensor) for name, tensor in model.state_dict().items()})
        found = evaluate(model, data)
        with writing(file) as temporary:
            temporary.write_text(json.dumps({"test_accuracy_of_rounded_weights": found.accuracy}) + "\n")


def rounded(tensor: Tensor) -> Tensor:
    """A tensor as it travels: large matrices in bfloat16, which halves them; small tensors as they are."""
    large = tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() >= KEPT_IN_FLOAT32
    return (tensor.to(torch.bfloat16) if large else tensor).detach().cpu().contiguous()


# ---- packing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Weights:
    """One run's tensors, as an item to be packed whole or not at all."""

    run: Run
    kind: str
    """``weights`` of a finished run, ``resume`` for the checkpoint of one under way."""
    source: Path

    @property
    def key(self) -> str:
        return f"{self.run.path.name}.{self.kind}"

    @property
    def tag(self) -> str:
        """Changes with the content."""
        return str(self.source.stat().st_mtime_ns)

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Shards below `MAX_FILE` under their file names."""
        if self.kind == "weights":
            tensors = safetensors.torch.load_file(self.source)
        else:
            tensors = torch.load(self.source, map_location="cpu", weights_only=True)["model"]
        shards, size = [{}], 0
        for name, tensor in tensors.items():
            tensor = rounded(tensor)
            if shards[-1] and size + tensor.nbytes > MAX_FILE:
                shards.append({})
                size = 0
            shards[-1][name] = tensor
            size += tensor.nbytes
        count = len(shards)
        return {f"{self.key}-{i + 1}-of-{count}.safetensors": shard for i, shard in enumerate(shards)}


def pack(runs: Path, folder: Path) -> list[str]:
    """Leave what has to be kept of a folder of run folders in ``folder``; what did not fit, in words.

    There are at most `MAX_FILES` files, within `MAX_FILE` and `MAX_TOTAL` bytes: one archive with what is small, for
    all runs, and the weights in shards, finished runs first (the earlier finished, the earlier packed), then the runs
    under way. An item is packed whole or not at all. What an earlier call has left in ``folder`` stays while it is
    there; once taken away it is not packed again (remove ``.packed.json`` from ``runs`` to have all of it again).
    """
    items = _items(runs)
    if not items:
        raise RunError(
            f"{runs} holds no runs to pack (recorded ones are not packed again); name the folder with --output."
        )
    _make(folder)
    memory = runs / PACKED
    before = json.loads(memory.read_text()) if memory.is_file() else {}
    here = _index(folder)["files"] if (folder / ARCHIVE).is_file() else {}
    kept = {item.key for item in items if any(folder.glob(f"{glob.escape(item.key)}-*-of-*.safetensors"))}
    wanted = [item for item in items if before.get(item.key) != item.tag or item.key in kept]

    archive, unpacked = _archive({item.run.path.name: item for item in items}, before, {item.key for item in wanted})
    space, places = MAX_TOTAL - sum(map(len, archive.values())), MAX_FILES - 1
    files, left = {}, unpacked
    fresh: dict[Path, Path] = {}  # new files beside their places, where `unpack` does not see them
    for old in folder.glob(".*.new"):
        old.unlink()
    for item in wanted:
        if f"{item.run.path.name}/config.json" not in archive:  # weights alone are no run
            before.pop(item.key, None)
            continue
        parts = item.parts()
        size = sum(tensor.nbytes for shard in parts.values() for tensor in shard.values())
        if size > space or len(parts) > places:
            left.append(f"  {item.run.path.name}: {item.kind}, {len(parts)} files, {size / 2**20:.0f} MiB")
            before.pop(item.key, None)  # what an earlier call left of it is removed below
            continue
        space, places = space - size, places - len(parts)
        for name, shard in parts.items():
            path = folder / name
            if not (name in here and path.is_file() and before.get(item.key) == item.tag):
                path = fresh[folder / name] = folder / f".{name}.new"
                safetensors.torch.save_file(shard, path)
            files[name] = dict(item=item.key, run=item.run.path.name, kind=item.kind)
            files[name] |= dict(bytes=path.stat().st_size, sha256=_sha256(path))
        before[item.key] = item.tag
    fresh[folder / ARCHIVE] = folder / f".{ARCHIVE}.new"
    _write_archive(fresh[folder / ARCHIVE], archive, files)
    for path, new in fresh.items():  # killed from here on, a matter of milliseconds, the folder would not be whole
        os.replace(new, path)
    for path in folder.glob("*-of-*.safetensors"):
        if path.name not in files:
            path.unlink()
    with writing(memory) as temporary:
        temporary.write_text(json.dumps(before, indent=1) + "\n")
    return left


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be a folder for packed runs ({error.strerror}); name another.") from None


def _items(runs: Path) -> list[_Weights]:
    """Everything large, in the order of its importance. Recorded runs came from elsewhere: they are not packed."""
    found = [Run(file.parent) for file in runs.glob("*/config.json")]
    found = [run for run in found if not run.recorded]
    done = [_Weights(run, "weights", run.path / "model.safetensors") for run in found if run.finished]
    under_way = [_Weights(run, "resume", run.path / "checkpoint" / "state.pt") for run in found if not run.finished]
    under_way = [item for item in under_way if item.source.is_file()]
    return [*sorted(done, key=lambda i: int(i.tag)), *sorted(under_way, key=lambda i: -int(i.tag))]


def _archive(items: dict[str, _Weights], before: dict[str, str], wanted: set[str]) -> tuple[dict[str, bytes], list]:
    """Small files under their names in the archive, those of runs that have news first; and what is too much."""
    archive: dict[str, bytes] = {}
    left, size = [], 0
    for name, item in sorted(items.items(), key=lambda pair: pair[1].key not in wanted):
        small = {file: (item.run.path / file).read_bytes() for file in SMALL if (item.run.path / file).is_file()}
        if item.kind == "resume":
            small["state.pt"] = _without_tensors(item.source)
        amount = sum(map(len, small.values()))
        if size + amount > MAX_FILE:
            left += [f"  {name}: metrics and heads, {amount / 2**20:.1f} MiB"] if item.key in wanted else []
            continue
        size += amount
        archive |= {f"{name}/{file}": content for file, content in small.items()}
    return archive, left


def _without_tensors(checkpoint: Path) -> bytes:
    """A checkpoint without its weights and without the optimizer's momentum, which would be twice as large."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    state |= dict(model={}, optimizer=[dict(one, state={}) for one in state["optimizer"]])
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _write_archive(path: Path, archive: dict[str, bytes], files: dict[str, dict]) -> None:
    index = dict(format=1, packed=time.strftime("%Y-%m-%dT%H:%M:%S%z"), files=files)
    with writing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("index.json", json.dumps(index, indent=1))
        for name, content in archive.items():
            file.writestr(name, content)


def _index(folder: Path) -> dict[str, Any]:
    with _opened(folder / ARCHIVE) as file:
        return json.loads(file.read("index.json"))


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(archive) as file:
            if broken := file.testzip():
                raise zipfile.BadZipFile(f"bad checksum of {broken}")
            yield file
    except FileNotFoundError:
        raise RunError(f"{archive.parent} was not packed by attnconv: it has no {ARCHIVE}.") from None
    except RunError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, KeyError, json.JSONDecodeError) as error:
        raise RunError(f"{archive} is damaged ({error}); copy it again.") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- unpacking ------------------------------------------------------------------------------------------------------


def unpack(folders: Iterable[Path], runs: Path, without_weights: Sequence[str] = ()) -> list[str]:
    """Put packed folders back into run folders; what became of each run, in words. All files are checked first.

    ``without_weights``: presets (``quadratic_full``) or their seeds (``quadratic-seed1``) whose weights stay behind.
    Finished runs are marked as a record: they stand in for training on machines that lack the data set, or have it in
    another form (see `Workspace.run`). Runs under way can go on: their weights were rounded, their momentum is zero.

    Raises:
        RunError: a file is missing, damaged or belongs to another folder, or a run folder that is already there holds
            another run or another training of the same one; or nothing packed is of that preset or seed.
    """
    said = []
    checked = [(folder, *_checked(folder)) for folder in map(Path, folders)]  # all of them first
    names = [name for _, _, small in checked for name in small]
    for word in without_weights:
        if not any(name.startswith(f"{word}-") for name in names):
            raise RunError(f"--without-weights {word}: no such run is packed here; there are {', '.join(names)}.")
    for folder, index, small in checked:
        arrivals = {name: _Arrival(folder, name, files, index) for name, files in small.items()}
        for name, arrival in arrivals.items():
            if arrival.kind == "weights" and name.startswith(tuple(f"{word}-" for word in without_weights)):
                arrival.kind, arrival.shards = None, []
        for name, arrival in arrivals.items():
            arrival.compare(Run(runs / name))
        said += [f"{name}: {arrival.write(runs / name)}" for name, arrival in arrivals.items()]
    _write_manifest(runs)
    return said


def _checked(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, bytes]]]:
    """A packed folder's index, and the small files of each run; `RunError` names the first file that is not right."""
    with _opened(folder / ARCHIVE) as file:
        index = json.loads(file.read("index.json"))
        small: dict[str, dict[str, bytes]] = {}
        for member in file.namelist():
            run, _, name = member.partition("/")
            if name:
                if run != Path(run).name or run in ("", ".", "..") or name not in (*SMALL, "state.pt"):
                    raise RunError(f"{folder / ARCHIVE} holds {member}, which no run folder has; it is not ours.")
                small.setdefault(run, {})[name] = file.read(member)
    for name, facts in index["files"].items():
        path = folder / name
        if not path.is_file():
            raise RunError(f"{path} is missing: {ARCHIVE} beside it lists it. Copy it again.")
        if _sha256(path) != facts["sha256"]:
            raise RunError(f"{path} is damaged, or of another call: its checksum differs. Copy it again.")
        if facts["run"] not in small:
            raise RunError(f"{folder / ARCHIVE} lists {name}, but not the run {facts['run']}. Copy it again.")
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in index["files"]:
            raise RunError(f"{path} does not belong to the {ARCHIVE} beside it: keep each call's files in one folder.")
    for run, files in small.items():
        if "config.json" not in files:
            raise RunError(f"{folder / ARCHIVE} has no config.json of {run}. Copy it again.")
    return index, small


class _Arrival:
    """A run of a packed folder on its way into a run folder."""

    def __init__(self, folder: Path, name: str, small: dict[str, bytes], index: dict[str, Any]):
        self.small, self.packed = small, index["packed"]
        self.config = json.loads(small["config.json"])
        self.metrics = small.get("metrics.jsonl", b"").splitlines()
        files = {file: facts for file, facts in index["files"].items() if facts["run"] == name}
        self.kind = next((facts["kind"] for facts in files.values()), None)
        self.shards = [folder / file for file in files]
        self.finished = "state.pt" not in small and len(self.metrics) == self.config["train"]["epochs"]
        self.news = True

    def compare(self, run: Run) -> None:
        """Refuse to mix two runs; see whether this one has anything that is not there yet."""
        if not (run.path / "config.json").is_file():
            return
        if run.config["hash"] != self.config["hash"]:
            raise RunError(f"{run.path} holds another run ({run.config['hash']}, not {self.config['hash']}).")
        there = run.path / "metrics.jsonl"
        lines = there.read_bytes().splitlines() if there.is_file() else []
        common = min(len(lines), len(self.metrics))
        if lines[:common] != self.metrics[:common]:
            raise RunError(f"{run.path} holds another training of the same configuration; move one of them away.")
        weights = (run.path / "model.safetensors").is_file()
        checkpoint = (run.path / "checkpoint" / "state.pt").is_file()
        missing = not (weights if self.finished else run.finished or checkpoint)
        brings = len(self.metrics) == len(lines) and (self.kind is not None or (self.finished and not run.finished))
        measured = run.recorded and self.finished and any(not (run.path / name).is_file() for name in self.small)
        self.news = len(self.metrics) > len(lines) or (missing and brings) or measured

    def write(self, path: Path) -> str:
        """Write the run folder, config.json last; what was done, in words."""
        if not self.news:
            return "nothing new"
        tensors: dict[str, Tensor] = {}
        for shard in self.shards:
            tensors |= safetensors.torch.load_file(shard)
        for name in (*SMALL[1:], *SMALL[:1]):
            if name == "config.json" and tensors:
                self._write_tensors(path, tensors)
            if name in self.small:
                with writing(path / name) as temporary:
                    temporary.write_bytes(self._content(name))
        epochs = f"{len(self.metrics)} of {self.config['train']['epochs']} epochs"
        if self.finished:
            return f"finished, {'with' if (path / 'model.safetensors').is_file() else 'without'} weights"
        return f"{epochs}, " + ("to be resumed" if tensors else "without its checkpoint, to be trained from the start")

    def _content(self, name: str) -> bytes:
        if name != "config.json" or not self.finished:
            return self.small[name]
        check = json.loads(self.small.get("check.json", b"{}"))
        record = dict(packed=self.packed, weights="large matrices in bfloat16", **check)
        return (json.dumps(self.config | dict(record=record), indent=1) + "\n").encode()

    def _write_tensors(self, path: Path, tensors: dict[str, Tensor]) -> None:
        if self.kind == "weights":
            with writing(path / "model.safetensors") as temporary:  # load_run makes float32 of it
                safetensors.torch.save_file(tensors, temporary)
        else:
            state = torch.load(io.BytesIO(self.small["state.pt"]), weights_only=True)
            with writing(path / "checkpoint" / "state.pt") as temporary:
                torch.save(state | dict(model=tensors), temporary)


def _write_manifest(runs: Path) -> None:
    """``runs.json``: where every run comes from, and what its files must be."""
    entries = {}
    for run in find_runs(runs):
        data = run.config["data"]
        entry = dict(preset=run.preset, title=run.title, seed=run.train.seed, test_accuracy=run.test_accuracy)
        entry |= dict(epochs=len(run.metrics), batch_size=run.train.batch_size, lr=run.train.lr)
        entry |= dict(data=f"{data['name']} ({data['form']})", seconds=round(sum(m["seconds"] for m in run.metrics), 1))
        entry |= dict(sessions=run.config.get("sessions", []), record=run.config.get("record"))
        files = sorted(file for file in run.path.iterdir() if file.is_file() and not file.name.startswith("."))
        entry["sha256"] = {file.name: _sha256(file) for file in files}
        entries[run.path.name] = entry
    with writing(runs / "runs.json") as temporary:
        temporary.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
