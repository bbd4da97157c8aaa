"""What a layer truly costs on this machine: time in turns, peak memory in a process of its own, and two lower bounds.

A layer can be no faster than its matrix products at the machine's best rate, nor than the bytes that it must read and
write at the machine's best bandwidth. Timings are taken in turns, so that a busy machine slows all alike.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.benchmark import Timer

from attnconv.attention import ContentAttention, PositionalAttention, QuadraticAttention
from attnconv.attention.precision import Computation, choose, computing
from attnconv.config import ModelConfig, TrainConfig
from attnconv.cost import cost
from attnconv.models import build_model
from attnconv.training import build_optimizers

FORMS = ("separable", "dense", "full covariance", "content", "conv 3x3", "value projection")
"""What can be measured: attention in four forms, and what a convolution and the value projection alone cost."""


@dataclass(frozen=True)
class Case:
    """One layer on random images."""

    form: str
    side: int
    """H = W, pixels."""
    channels: int = 64
    """C = D."""
    heads: int = 9
    batch: int = 1
    training: bool = True
    """Forward and backward; else forward only, without gradients."""
    bfloat16: bool = False
    """Products in bfloat16; else in float32 by the faster library."""

    def call(self) -> Callable[[], object]:
        """A function that does it once."""
        layer, x = self._layer(), torch.randn(self.batch, self.side, self.side, self._input_channels())
        if self.form == "conv 3x3":
            x = x.permute(0, 3, 1, 2)
        device = x.device
        computation = choose(device, "bfloat16" if self.bfloat16 else "float32")

        def forward() -> Tensor:
            with torch.no_grad(), computing(computation, device), computation.autocast(device):
                return layer(x)

        def both() -> object:
            leaf = x.detach().requires_grad_()
            with computing(computation, device):
                with computation.autocast(device):
                    out = layer(leaf)
                return torch.autograd.grad(out, [leaf, *layer.parameters()], torch.ones_like(out))

        return both if self.training else forward

    def _input_channels(self) -> int:
        return self.channels * (self.heads if self.form == "value projection" else 1)

    def _layer(self) -> nn.Module:
        sizes = (self.channels, self.channels, self.heads)
        if self.form == "content":
            return ContentAttention(*sizes, max_size=self.side, key_size=16)
        if self.form == "conv 3x3":
            return nn.Conv2d(self.channels, self.channels, 3, padding=1).to(memory_format=torch.channels_last)
        if self.form == "value projection":
            return nn.Linear(self.heads * self.channels, self.channels)
        if self.form == "full covariance":
            return QuadraticAttention(*sizes, covariance="full")
        return QuadraticAttention(*sizes, mixing=self.form)

    @property
    def flops(self) -> int:
        """Of the matrix products, with nothing computed twice: those of the definition in this form."""
        pixels, c, h = self.side**2, self.channels, self.heads
        values = 2 * pixels * h * c * c
        mixing = {"separable": 2 * self.side, "dense": pixels, "full covariance": pixels, "content": pixels}
        total = values + 2 * pixels * h * c * mixing.get(self.form, 0)
        if self.form == "content":
            total += 2 * pixels * h * 16 * (2 * c + pixels + self.side)  # q and k, q . k, q . r
        if self.form == "conv 3x3":
            total = 2 * pixels * 9 * c * c
        return self.batch * total * (3 if self.training else 1)

    @property
    def bytes(self) -> int:
        """Input and output, and when training their gradients and the input again: each once."""
        once = 4 * self.batch * self.side**2
        wide = self._input_channels()
        return once * (3 * wide + 2 * self.channels if self.training else wide + self.channels)


def in_turns(calls: Mapping[str, Callable[[], object]], repeats: int, budget: float = 60.0) -> dict[str, list[float]]:
    """Seconds of every call in every round, after one to warm up. Beyond ``budget`` seconds, three rounds will do."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - started > budget:
            break
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - before)
    return times


def matrix_rate(bfloat16: bool = False) -> float:
    """FLOP/s of this project's typical product at the best that the CPU reaches, by either library."""
    rows, inner, columns = 4096, 576, 64
    x, weight = torch.randn(rows, inner), torch.randn(columns, inner)
    if bfloat16:
        x, weight = x.bfloat16(), weight.bfloat16()
    best = math.inf
    for onednn in (False, True):
        with computing(Computation(onednn=onednn), x.device):
            best = min(best, fastest("torch.nn.functional.linear(x, weight)", x=x, weight=weight))
    return 2 * rows * inner * columns / best


def byte_rate(megabytes: int = 128) -> float:
    """Bytes read and written in a second by a copy that no cache holds."""
    a = torch.ones(megabytes * 2**18)
    return 2 * a.nbytes / fastest("b.copy_(a)", a=a, b=torch.empty_like(a))


def fastest(statement: str, **names: Tensor) -> float:
    """Seconds of a statement at best: what else the machine does can only make it slower."""
    timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=0.3).times)


def lower_bound(case: Case, flop_rate: float, bandwidth: float) -> tuple[float, float]:
    """Seconds that the matrix products, and the bytes, of a case take at best."""
    return case.flops / flop_rate, case.bytes / bandwidth


def peak_memory(case: Case) -> int:
    """Bytes that a case adds to a fresh process at its peak, by the operating system's count."""
    code = "import sys; from measure import _child; _child(sys.argv[1])"
    given = json.dumps(vars(case) | {"threads": torch.get_num_threads()})
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code, given], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case} failed in a process of its own: {done.stderr[-500:]}")
    return int(done.stdout)


def _child(given: str) -> None:
    values = json.loads(given)
    torch.set_num_threads(values.pop("threads"))
    case = Case(**values)
    Case(**values | {"side": 4, "batch": 1}).call()()  # what libraries allocate once
    call = case.call()
    before = _highest()
    call()
    print(_highest() - before)


def _highest() -> int:
    """The most memory that this process ever held, in bytes."""
    if sys.platform == "linux":  # getrusage counts what a process held before it became this one
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def training_step(model: ModelConfig, recipe: TrainConfig, plain: bool = False) -> Callable[[], float]:
    """A function that takes steps on random images (forward, backward, clipping, optimizer) and times the last.

    ``plain``: by the plain operations in PyTorch's default float32, the base that speeds are held against.
    """
    network = build_model(model)
    optimizers = build_optimizers(network, recipe)
    images = torch.randn(recipe.batch_size, model.image_channels, *model.image_size)
    labels = torch.randint(0, model.classes, (recipe.batch_size,))
    device = images.device
    computation = Computation() if plain else choose(device, recipe.precision)
    for layer in network.modules():
        if plain and isinstance(layer, PositionalAttention):
            layer.value.register_forward_hook(lambda *_: None)  # values that are hooked take the plain operations

    def step() -> None:
        network.zero_grad()
        with computation.autocast(device):
            logits = network(images)
        F.cross_entropy(logits.float(), labels).backward()
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        for optimizer in optimizers:
            optimizer.step()

    def settled() -> float:
        """Seconds of a step after one that the memory's allocator learns from."""
        with contextlib.nullcontext() if plain else computing(computation, device):
            step()
            start = time.perf_counter()
            step()
            return time.perf_counter() - start

    return settled


def step_flops(model: ModelConfig, batch: int) -> int:
    """Of a training step's matrix products, with nothing computed twice: three times the forward pass."""
    return 3 * batch * cost(model).separable


class Clock(TorchDispatchMode):
    """Seconds of each kind of operation inside: ``with Clock() as clock: ...``, then ``clock.seconds``."""

    KINDS = {
        "matrix products": ("mm", "addmm", "bmm", "baddbmm"),
        "LayerNorm": ("native_layer_norm", "native_layer_norm_backward"),
        "GELU": ("gelu", "gelu_backward"),
        "optimizer, clipping": ("_fused_adamw_", "linalg_vector_norm", "_foreach_norm", "_foreach_mul_"),
        "copies, sums, additions": ("copy_", "_to_copy", "clone", "sum", "add", "add_", "mul", "mul_", "zeros", "cat"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.seconds = dict.fromkeys([*self.KINDS, "everything else"], 0.0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        start = time.perf_counter()
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        kind = next((kind for kind, names in self.KINDS.items() if name in names), "everything else")
        self.seconds[kind] += time.perf_counter() - start
        return result
