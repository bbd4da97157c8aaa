"""The optimizers of a recipe: which parameters learn by what, and how fast.

What says where heads look (centres, spreads, learned encodings) can learn at a rate of its own.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor, nn

from attnconv.config import TrainConfig

POSITIONS = ("centres", "spreads")
"""Parameters of quadratic layers that say where heads look."""
ENCODINGS = ("row_embedding", "column_embedding", "row_scores", "column_scores")
"""Those of learned encodings: a vector for each shift and, without content, those that score it."""


def own_rate(name: str, config: TrainConfig) -> float | None:
    """Peak learning rate of a parameter that is never decayed or clipped: of centres and spreads,
    and of learned encodings where ``encoding_lr`` is set. None for all others.
    """
    if name.endswith(POSITIONS):
        return config.position_lr or config.rest_lr
    return config.encoding_lr if name.endswith(ENCODINGS) else None


def build_optimizers(
    model: nn.Module, config: TrainConfig, products: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """SGD (the paper's), AdamW, or AdamW and Muon, which trains the weights between input and
    classifier, its ``products`` in that type.

    Each group keeps its ``peak_lr``. But for SGD, biases and norms have no weight decay either.
    """
    sgd = config.optimizer == "sgd"
    matrices = []
    others = defaultdict(list)  # by rate and decay
    for name, parameter in model.named_parameters():
        rate = own_rate(name, config)
        is_matrix = parameter.dim() > 1
        is_inner = name.startswith(("blocks.", "stages.")) and name.endswith(".weight")
        if rate is not None:
            others[rate, 0.0].append(parameter)
        elif config.optimizer == "muon" and is_matrix and is_inner:
            matrices.append(parameter)
        else:
            decay = config.weight_decay if is_matrix or sgd else 0.0
            others[config.rest_lr, decay].append(parameter)
    groups = [
        {"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in others.items()
    ]
    if sgd:
        return [torch.optim.SGD(groups, momentum=config.momentum, fused=True)]
    adamw = torch.optim.AdamW(groups, betas=(config.momentum, config.beta2), fused=True)
    return [adamw, Muon(matrices, config, products)] if matrices else [adamw]


class Muon(torch.optim.Optimizer):
    """Muon (Jordan and others, 2024): SGD with Nesterov's momentum, each step replaced by a nearly
    orthogonal matrix.

    As `torch.optim.Muon`, to the bit where ``products`` are in bfloat16, but for any weight: a
    kernel (D, C, k, k) steps as a matrix (D, C k k).
    """

    def __init__(self, weights: list[nn.Parameter], config: TrainConfig, products: torch.dtype):
        settings = {
            "lr": config.lr,
            "peak_lr": config.lr,
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
        }
        super().__init__(weights, settings)
        self.products = products

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # torch's take a closure, too
        (group,) = self.param_groups
        for weight in group["params"]:
            if weight.grad is None:  # frozen
                continue
            gradient = weight.grad.flatten(1)
            average = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(gradient))
            average.lerp_(gradient, 1 - group["momentum"])
            update = orthogonal(gradient.lerp(average, group["momentum"]), self.products)
            rows, columns = gradient.shape
            scale = math.sqrt(max(1, rows / max(1, columns)))  # a layer without heads has none
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.add_(update.view_as(weight), alpha=-group["lr"] * scale)


def orthogonal(matrix: Tensor, products: torch.dtype) -> Tensor:
    """U S V^T (m, n) with all singular values brought near 1, between 0.7 and 1.2: five
    Newton-Schulz iterations, on the side that is shorter.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T, products).T
    x = matrix.to(products, copy=True)
    x.div_(x.norm().clamp(min=1e-7))
    for _ in range(5):
        gram = x @ x.T
        polynomial = torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.addmm(x, polynomial, x, beta=3.4445)
    return x
