"""How convolutional is another vision transformer, layer by layer?

`examine` looks at the attention of networks from timm and torchvision, and at any
``nn.MultiheadAttention``, on a square of patches. Class tokens and registers may come before the
patches. `swap` puts convolutions in the place of some layers.

Every convolution here is made of the layer's own heads: head h gives the tap at shift s the matrix
a[h, s] W_out[h] W_value[h]. Attention that always looked alike would be that convolution exactly,
with a[h, s] its probability at shift s: this is Theorem 1, read backwards. The a are fitted by
least squares to what the layer computes on some images. Nothing is trained.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    import pandas as pd

FITTED = 16  # images that a convolution is fitted to
ANSWERED = 32  # images that count for what is lost
RIDGE = 1e-6  # of the fit, as a share of the mean square of what taps see


class Seen(NamedTuple):
    """One attention layer while images go through its network: N tokens, the last side * side of
    which are patches.
    """

    name: str
    module: Any
    side: int
    x: Tensor  # (B, N, C), what it sees
    p: Tensor  # (B, h, N, N), its probabilities, query x key
    y: Tensor  # (B, N, D), its output


class Examination(NamedTuple):
    """What `examine` finds."""

    layers: "pd.DataFrame"  # a row a layer
    heads: "pd.DataFrame"  # a row a head
    maps: list[Tensor]  # of each layer `mean_by_shift`


@torch.no_grad()
def watch(network: nn.Module, images: Tensor) -> tuple[Tensor, list[Seen]]:
    """A network's answers to images, and its attention layers in the order of their work.

    `ValueError` where there are none, or one is not attention of every token to all tokens.
    """
    seen: list[Seen] = []
    kept: dict[nn.Module, Tensor] = {}
    hooks = []

    def ask(module: nn.Module, inputs: tuple, options: dict) -> tuple[tuple, dict]:
        return inputs, {**options, "need_weights": True, "average_attn_weights": False}

    def keep(dropout: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept[dropout] = inputs[0]

    def note(module: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        y, p = output if isinstance(output, tuple) else (output, kept[module.attn_drop])
        x, y = _batch_first(module, inputs[0]), _batch_first(module, y)
        side = math.isqrt(x.shape[1])  # the largest square of the tokens is the image
        seen.append(Seen(names[module], module, side, x, p, y))

    names = {module: name for name, module in network.named_modules()}
    for module in names:
        if isinstance(module, nn.MultiheadAttention):
            hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
        elif all(hasattr(module, part) for part in ("num_heads", "attn_drop", "proj")):  # timm's
            module.fused_attn = False  # the fused kernel never makes P
            hooks.append(module.attn_drop.register_forward_pre_hook(keep))
        else:
            continue
        hooks.append(module.register_forward_hook(note))
    answers = network(images)
    for hook in hooks:
        hook.remove()
    if not seen:
        raise ValueError("No attention is found: timm's and nn.MultiheadAttention's are known.")
    for layer in seen:
        _check(layer, len(images))
    return answers, seen


def _batch_first(module: nn.Module, x: Tensor) -> Tensor:
    return x if getattr(module, "batch_first", True) else x.transpose(0, 1)


def _check(layer: Seen, images: int) -> None:
    """Raise a ValueError where a layer is not probabilities, values and a projection."""
    tokens = layer.x.shape[1]
    if layer.p.shape[0] != images or layer.p.shape[2:] != (tokens, tokens):
        raise ValueError(
            f"{layer.name} does not attend from each token to all tokens (windows, perhaps): "
            "such a network cannot be examined."
        )
    by_head, bias = values(layer.module)
    again = torch.einsum("bhqk,bkc,hdc->bqd", layer.p[:1], layer.x[:1], by_head) + bias
    if (again - layer.y[:1]).norm() > 1e-2 * layer.y[:1].norm():
        raise ValueError(
            f"{layer.name} does more than average values and project them (a gate? a norm?): "
            "such a network cannot be examined."
        )


def values(module: Any) -> tuple[Tensor, Tensor]:
    """W_out[h] W_value[h] of every head, (h, D, C), and the bias (D,) of all heads together."""
    if isinstance(module, nn.MultiheadAttention):
        weight, bias, out = module.in_proj_weight, module.in_proj_bias, module.out_proj
    else:
        linear = module.v if hasattr(module, "v") else module.qkv
        weight, bias, out = linear.weight, linear.bias, module.proj
    value = weight[-out.in_features :].unflatten(0, (module.num_heads, -1))  # (h, e, C)
    by_head = torch.einsum("dhe,hec->hdc", out.weight.unflatten(1, value.shape[:2]), value)
    constant: Tensor = torch.zeros_like(out.weight[:, 0]) if out.bias is None else out.bias
    if bias is not None:
        constant = constant + out.weight @ bias[-out.in_features :]
    return by_head, constant


def _grid(tokens: Tensor, side: int) -> Tensor:
    """The patches among tokens (B, N, C), as an image (B, C, side, side)."""
    return tokens[:, -(side**2) :].mT.unflatten(2, (side, side))


def shift_index(side: int) -> Tensor:
    """The number of the shift from each patch to each: (side^2, side^2), query x key; shifts are
    numbered row by row, as the pixels of a map (2 side - 1, 2 side - 1).
    """
    position = torch.arange(side)
    shift = position - position[:, None] + side - 1
    both = (2 * side - 1) * shift[:, None, :, None] + shift[None, :, None, :]
    return both.reshape(side**2, side**2)


def mean_by_shift(p: Tensor) -> Tensor:
    """Mean of P among patches (h, side^2, side^2) over the queries from which a shift leads to a
    patch: float64 (h, 2 side - 1, 2 side - 1), no shift in the middle.
    """
    side = math.isqrt(p.shape[1])
    index = shift_index(side).flatten()
    total = torch.zeros(len(p), (2 * side - 1) ** 2, dtype=torch.float64)
    total.index_add_(1, index, p.double().flatten(1))
    return (total / index.bincount()).unflatten(1, (2 * side - 1, 2 * side - 1))


def describe_heads(layer: Seen) -> tuple[dict[str, Tensor], Tensor]:
    """What each head does, over all images and patches (see `examine`), and `mean_by_shift`."""
    patches = layer.side**2
    p = layer.p[:, :, -patches:, -patches:].cpu()
    mean = p.double().mean(0)
    maps = mean_by_shift(mean)
    always = maps.flatten(1)[:, shift_index(layer.side)].to(p)
    place = torch.arange(layer.side, dtype=torch.float64)
    place = torch.cartesian_prod(place, place)
    on_patches = mean.sum(-1).mean(-1)
    found = {
        "distance": (mean * torch.cdist(place, place)).sum(-1).mean(-1) / on_patches,
        "same": torch.minimum(p, always).sum(-1).mean((0, 2)),
        "elsewhere": 1 - on_patches,
    }
    return found, maps


class PatchConvolution(nn.Module):
    """A hook on an attention layer: patches are convolved, other tokens attend as before.

    Args:
        layer: the attention.
        taps: (h, K, K), what each head gives to each tap.
        mean: (h,), what each head gives to the mean of all patches.
    """

    def __init__(self, layer: Seen, taps: Tensor, mean: Tensor):
        super().__init__()
        by_head, bias = values(layer.module)
        self.side = layer.side
        self.weight = nn.Parameter(torch.einsum("hij,hdc->dcij", taps.to(by_head), by_head))
        self.mean = nn.Parameter(torch.einsum("h,hdc->dc", mean.to(by_head), by_head))
        self.bias = nn.Parameter(bias.clone())

    def convolve(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) -> patches (B, D, side, side)."""
        image = _grid(x, self.side)
        of_all = image.mean((2, 3)) @ self.mean.T  # (B, D)
        return F.conv2d(image, self.weight, self.bias, padding="same") + of_all[..., None, None]

    def forward(self, attention: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        """Write over the patches in what the attention has just given."""
        y = output[0] if isinstance(output, tuple) else output
        patches = self.convolve(_batch_first(attention, inputs[0])).flatten(2).mT
        _batch_first(attention, y)[:, -(self.side**2) :] = patches


def fit(layer: Seen, size: int, *, mean: bool = False) -> PatchConvolution:
    """The convolution nearest to what a layer computes on the first 16 images, by least squares
    over images, patches and channels; with ``mean`` each patch may get a share of the mean of all.
    """
    by_head, bias = values(layer.module)
    margin = (size // 2,) * 4
    gram: Any = 0
    moment: Any = 0
    for x, y in zip(layer.x[:FITTED], layer.y[:FITTED], strict=True):
        image, wanted = (_grid(tokens[None], layer.side)[0] for tokens in (x, y))
        seen = torch.einsum("hdc,cij->hdij", by_head, image)
        windows = F.pad(seen, margin).unfold(2, layer.side, 1).unfold(3, layer.side, 1)
        features = windows.flatten(2, 3).transpose(1, 2).flatten(2)  # (h, K K, D N)
        of_all = seen.mean((2, 3), keepdim=True).expand_as(seen).flatten(1)  # (h, D N)
        features = torch.cat([features.flatten(0, 1), of_all[: len(of_all) * mean]])
        gram = gram + (features @ features.T).double()
        moment = moment + (features @ (wanted - bias[:, None, None]).flatten()).double()
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    heads = len(by_head)
    found = F.pad(torch.linalg.solve(gram, moment), (0, heads * (not mean)))
    taps, of_mean = found[:-heads], found[-heads:]
    return PatchConvolution(layer, taps.unflatten(0, (heads, size, size)), of_mean)


@torch.no_grad()
def swap(
    network: nn.Module, kernel_sizes: Mapping[int, int], *, images: Tensor, mean: bool = False
) -> nn.Module:
    """A copy of a vision transformer in which some layers convolve: {layer: kernel size}, the first
    is 1.

    Args:
        images: (B, channels, H, W), normalised: see `fit`.
        mean: see `fit`.

    Raises:
        ValueError: there is no such layer; an even size; as `examine`.
    """
    swapped = copy.deepcopy(network).eval()
    _, seen = watch(swapped, images[:FITTED])
    for number, size in kernel_sizes.items():
        if not 1 <= number <= len(seen):
            raise ValueError(f"There is no layer {number}: layers are 1 to {len(seen)}.")
        layer = seen[number - 1]
        if size not in range(1, 2 * layer.side, 2):
            raise ValueError(f"Layer {number}: a kernel's side must be odd, not {size}.")
        layer.module.convolution = fit(layer, size, mean=mean)  # a part of the network: it moves
        layer.module.register_forward_hook(layer.module.convolution)
    return swapped.train(network.training)


@torch.no_grad()
def examine(
    network: nn.Module,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    sizes: Sequence[int] = (1, 3, 5),
) -> Examination:
    """How near the layers of a vision transformer come to convolutions, on images (B, channels, H,
    W), normalised. All P are held at once: 64 images of a ViT-S/16 take 1 GB.

    Returns:
        A row a head, and its mean in the row of its layer: ``distance`` (of what it looks at, in
        patches), ``same`` (share of its attention that is the same for all images and queries),
        ``elsewhere`` (share on class tokens and registers).
        A row a layer: for each kernel size K ``error K`` of the `fit`, relative, root mean square;
        ``lost K``, points of accuracy lost on the first 32 images with it in the layer's place,
        nothing else changed (without labels: percent of answers that change). ``lost mean`` is the
        control: no neighbours, but the mean of all patches.

    Raises:
        ValueError: no attention is found; a layer does not attend from every patch to all patches,
            or does more than average values and project them.
    """
    import pandas as pd

    network = copy.deepcopy(network).eval()
    answers, seen = watch(network, images)
    own = answers[:ANSWERED].argmax(1)
    wanted = own if labels is None else labels[:ANSWERED]

    def lost(layer: Seen, place: PatchConvolution) -> float:
        hook = layer.module.register_forward_hook(place)
        swapped = network(images[:ANSWERED]).argmax(1)
        hook.remove()
        return 100 * ((own == wanted).double() - (swapped == wanted).double()).mean().item()

    layers, heads, maps = [], [], []
    for number, layer in enumerate(seen, start=1):
        found, shifts = describe_heads(layer)
        frame = pd.DataFrame({name: values.numpy() for name, values in found.items()})
        row = {"layer": number, "name": layer.name, **frame.mean()}
        for size in sizes:
            place = fit(layer, size)
            row[f"error {size}"] = relative_error(layer, place)
            row[f"lost {size}"] = lost(layer, place)
        row["lost mean"] = lost(layer, fit(layer, 1, mean=True))
        layers.append(row)
        heads.append(frame.assign(layer=number, head=range(1, len(frame) + 1)))
        maps.append(shifts)
    return Examination(pd.DataFrame(layers), pd.concat(heads, ignore_index=True), maps)


def relative_error(layer: Seen, place: PatchConvolution) -> float:
    """|layer - convolution| / |layer - bias| over all patches."""
    whole = _grid(layer.y, layer.side)
    instead = place.convolve(layer.x)
    return ((whole - instead).norm() / (whole - place.bias[:, None, None]).norm()).item()
