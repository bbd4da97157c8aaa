"""The optimizers of a recipe: which parameters learn by what, and how fast.

What says where heads look (centres, spreads, learned encodings) can learn at a rate of its own.
"""

from collections import defaultdict

import torch
from torch import nn

from attnconv.attention import QuadraticAttention
from attnconv.config import TrainConfig


def position_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Centres and spreads of all quadratic layers."""
    layers = [m for m in model.modules() if isinstance(m, QuadraticAttention)]
    return [parameter for layer in layers for parameter in (layer.centres, layer.spreads)]


def encoding_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The vectors of learned encodings: one for each shift and, without content, those with which heads score them."""
    names = ("row_embedding", "column_embedding", "row_scores", "column_scores")
    return [parameter for name, parameter in model.named_parameters() if name.endswith(names)]


def own_rates(model: nn.Module, config: TrainConfig) -> dict[nn.Parameter, float]:
    """Peak learning rates of centres and spreads, and of learned encodings that have one: never decayed or clipped."""
    rate = config.position_lr or (config.adamw_lr if config.optimizer == "muon" else config.lr)
    rates = dict.fromkeys(position_parameters(model), rate)
    return rates | (dict.fromkeys(encoding_parameters(model), config.encoding_lr) if config.encoding_lr else {})


def build_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """SGD (the paper's), AdamW, or AdamW and Muon. Each group of parameters keeps its ``peak_lr``.

    With AdamW and Muon, biases and norms have no weight decay either. Muon takes the weights between the input and the
    classifier.
    """
    sgd, muon, own = config.optimizer == "sgd", config.optimizer == "muon", own_rates(model, config)
    lr = config.adamw_lr if muon else config.lr
    inner: list[nn.Parameter] = []
    parts: dict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
    for name, p in model.named_parameters():
        if p in own:
            parts[own[p], 0.0].append(p)
        elif muon and name.startswith(("blocks.", "stages.")) and name.endswith(".weight") and p.dim() > 1:
            inner.append(p)
        else:
            parts[lr, config.weight_decay if p.dim() > 1 or sgd else 0.0].append(p)
    groups = [dict(params=part, peak_lr=rate, weight_decay=decay) for (rate, decay), part in parts.items()]
    if sgd:
        return [torch.optim.SGD(groups, lr=lr, momentum=config.momentum, fused=True)]
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(config.momentum, config.beta2), fused=True)
    return [adamw, Muon(inner, config)] if inner else [adamw]


class Muon(torch.optim.Muon):
    """PyTorch's Muon takes matrices only. This one takes any weight, and steps (D, C, k, k) as a matrix (D, C k k)."""

    def __init__(self, weights: list[nn.Parameter], config: TrainConfig):
        self.weights = weights
        self.matrices = [nn.Parameter(weight.detach().flatten(1).clone()) for weight in weights]
        group = dict(params=self.matrices, peak_lr=config.lr, weight_decay=config.weight_decay)
        super().__init__([group], momentum=config.momentum)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # torch's also take a closure, which training has no use for
        for weight, matrix in zip(self.weights, self.matrices, strict=True):
            matrix.copy_(weight.flatten(1))
            matrix.grad = None if weight.grad is None else weight.grad.flatten(1)
        super().step()
        for weight, matrix in zip(self.weights, self.matrices, strict=True):
            weight.copy_(matrix.view_as(weight))
            matrix.grad = None
