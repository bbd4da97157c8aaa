"""The optimizers of a recipe: which parameters learn by what, and how fast.

What says where heads look (centres, spreads, learned encodings) can learn at a rate of its own.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor, nn

from attnconv.config import TrainConfig


def position_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Centres and spreads of all quadratic layers."""
    return [
        parameter
        for name, parameter in model.named_parameters()
        if name.endswith(("centres", "spreads"))
    ]


def encoding_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The vectors of learned encodings: one for each shift and, without content, those with
    which heads score them.
    """
    names = ("row_embedding", "column_embedding", "row_scores", "column_scores")
    return [parameter for name, parameter in model.named_parameters() if name.endswith(names)]


def own_rates(model: nn.Module, config: TrainConfig) -> dict[nn.Parameter, float]:
    """Peak learning rates of centres and spreads, and of learned encodings that have one: never
    decayed or clipped.
    """
    rates = dict.fromkeys(position_parameters(model), config.position_lr or config.rest_lr)
    return rates | (
        dict.fromkeys(encoding_parameters(model), config.encoding_lr) if config.encoding_lr else {}
    )


def build_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """SGD (the paper's), AdamW, or Muon for the weights between input and classifier and AdamW for
    all others. Each group keeps its ``peak_lr``. Except with SGD, biases and norms have no weight
    decay either."""
    sgd, muon, own = config.optimizer == "sgd", config.optimizer == "muon", own_rates(model, config)
    lr = config.rest_lr
    inner: list[nn.Parameter] = []
    parts: dict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
    for name, p in model.named_parameters():
        if p in own:
            parts[own[p], 0.0].append(p)
        elif (
            muon
            and name.startswith(("blocks.", "stages."))
            and name.endswith(".weight")
            and p.dim() > 1
        ):
            inner.append(p)
        else:
            parts[lr, config.weight_decay if p.dim() > 1 or sgd else 0.0].append(p)
    groups = [
        dict(params=part, peak_lr=rate, weight_decay=decay) for (rate, decay), part in parts.items()
    ]
    if sgd:
        return [torch.optim.SGD(groups, lr=lr, momentum=config.momentum, fused=True)]
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(config.momentum, config.beta2), fused=True)
    return [adamw, Muon(inner, config)] if inner else [adamw]


class Muon(torch.optim.Optimizer):
    """Muon (Jordan and others, 2024): SGD with Nesterov's momentum, each step replaced by a nearly
    orthogonal matrix.

    As `torch.optim.Muon`, to the bit with ``bfloat16``, for any weight: a kernel (D, C, k, k) steps
    as a matrix (D, C k k). A CPU without instructions for bfloat16 takes forty times as long; there
    products are in float32."""

    bfloat16 = True

    def __init__(self, weights: list[nn.Parameter], config: TrainConfig):
        group = dict(params=weights, peak_lr=config.lr, weight_decay=config.weight_decay)
        super().__init__([group], dict(lr=config.lr, momentum=config.momentum))

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # torch's also take a closure, which training has no use for
        (group,) = self.param_groups
        lr, momentum = group["lr"], group["momentum"]
        for weight in group["params"]:
            if weight.grad is None:
                continue
            gradient = weight.grad.flatten(1)
            if not (state := self.state[weight]):
                state["momentum_buffer"] = torch.zeros_like(gradient)
            average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            update = orthogonal(
                gradient.lerp(average, momentum), torch.bfloat16 if self.bfloat16 else torch.float32
            )
            rows, columns = gradient.shape
            weight.mul_(1 - lr * group["weight_decay"])
            scale = math.sqrt(
                max(1, rows / max(1, columns))
            )  # a layer without heads has no columns
            weight.add_(update.view_as(weight), alpha=-lr * scale)


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """U S V^T (m, n) with all singular values brought near 1, between 0.7 and 1.2: five
    Newton-Schulz iterations.
    """
    x = matrix.to(dtype, copy=True)
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    x.div_(x.norm().clamp(min=1e-7))
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(
            x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.T if matrix.shape[0] > matrix.shape[1] else x
