"""Training in several processes, as torchrun starts them: who am I, which images are mine, what do all agree on.

The batch size of a recipe stays that of the whole run: each process takes its share of every batch, and gradients are
averaged by `DistributedDataParallel`, so one process and several follow the same loss curve (BatchNorm aside: on a CPU
each process normalises by its own share). One process alone takes the plain path, with no collective at all.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnconv.data import Plan


@dataclass(frozen=True)
class Processes:
    """This process (``rank``) among ``size`` that train one run."""

    rank: int = 0
    size: int = 1

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def writer(self) -> bool:
        """Whether this process writes the run folder and speaks to the user: one does."""
        return self.rank == 0

    def plan(self, plan: Plan, batch_size: int) -> tuple[Plan, int]:
        """This process's share of an epoch's plan, and how many images of a full batch that is."""
        if not self.several:
            return plan, batch_size
        place = torch.arange(len(plan.order), device=plan.order.device) % batch_size  # in its batch
        mine = place % self.size == self.rank
        parts = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
        own = Plan(**{name: None if part is None else part[mine] for name, part in parts.items()})
        return own, len(range(self.rank, batch_size, self.size))

    def share(self, tensor: Tensor) -> Tensor:
        """Every ``size``-th entry along the first axis, from this process's rank on."""
        return tensor[self.rank :: self.size]

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        tensor = tensor.clone()
        if self.several:
            dist.all_reduce(tensor)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any process raised it. Goes between CPUs: it does not wait for a GPU."""
        if not self.several:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return [bool(flag) for flag in raised]

    def wait(self) -> None:
        """Until all processes are here."""
        self.any(False)

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model as the training step calls it."""
        if not self.several:
            return model
        if device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    def same_buffers(self, model: nn.Module) -> None:
        """Give every process the first one's buffers (running averages of BatchNorm)."""
        if self.several:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)


def join() -> Processes:
    """The processes that torchrun started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Processes()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(own_device())
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(leave)
    return Processes(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    """Undo `join`."""
    if dist.is_initialized():
        dist.destroy_process_group()


def own_device() -> torch.device:
    """CUDA where there is one (this process's own under torchrun), else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if "LOCAL_RANK" in os.environ else torch.device("cuda")


def is_loss_of_a_process(error: RuntimeError) -> bool:
    """Whether an error says that another process of the run went away."""
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in ("gloo", "nccl"))
