"""How convolutional is another vision transformer, layer by layer?

`examine` looks at the attention of networks from timm and torchvision, and at any
``nn.MultiheadAttention``, on a square of patches. Class tokens and registers may come before the
patches, twice as many as a side of the square has patches at most: the largest square of the tokens
is taken for the image. `swap` puts convolutions in the place of some layers.

Every convolution here is made of the layer's own heads: head h gives the tap at shift s the matrix
a[h, s] W_out[h] W_value[h]. Attention that always looked alike would be that convolution exactly,
with a[h, s] its probability at shift s: this is Theorem 1, read backwards. So the convolution runs
as such attention. The a are fitted by least squares to what the layer computes on some images.
Nothing is trained.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, einsum, nn, no_grad
from torch.nn.functional import fold, pad, unfold

from attnconv.equivalence.surgery import copied

FITTED = 16  # images that a convolution is fitted to
ANSWERED = 32  # images that count for what is lost
RIDGE = 1e-6  # of the fit, as a share of the mean square of what taps see


class Seen(NamedTuple):
    """What one attention layer does with side * side patches of B images."""

    name: str
    module: Any  # of a copy of the network
    side: int
    x: Tensor  # (B, side^2, C), what it sees of patches
    p: Tensor  # (B, h, side^2, side^2), its probabilities, query x key
    y: Tensor  # (B, side^2, D), its output
    bias: Tensor  # (D,), what it adds everywhere


class Examination(NamedTuple):
    """What `examine` finds."""

    layers: pd.DataFrame  # a row a layer
    heads: pd.DataFrame  # a row a head
    maps: list[Tensor]  # of each layer `mean_by_shift`


@no_grad()
def watch(network: nn.Module, images: Tensor) -> list[Seen]:
    """A network's attention layers on some images, in the order of their work.

    `ValueError` where there are none, or one does more than `attend`, not on all tokens, or twice.
    """
    if images.dim() != 4 or images.shape[2] != images.shape[3]:
        raise ValueError(f"Images must be square, not of shape {tuple(images.shape)}.")
    network = copied(network).eval()
    seen: list[Seen] = []

    def note(name, module, inputs, named, output):
        try:
            x = tokens(module, (*inputs, *named.values()))
            y = tokens(module, output)
            p = probabilities(module, inputs, named)
            rest = y - attend(module, p, x)
        except (AttributeError, TypeError, RuntimeError) as error:
            raise ValueError(f"{name} is attention of an unknown form ({error}).") from error
        count = x.shape[1]
        if p[:, 0].shape != (len(images), count, count):
            raise ValueError(
                f"{name} does not attend from each token to all tokens (windows, perhaps): "
                "such a network cannot be examined."
            )
        bias = rest.mean((0, 1))
        is_near = (rest - bias).norm() <= 1e-2 * y.norm()  # NaN is not
        # Sums over images, patches and channels overflow in float16.
        if name in [layer.name for layer in seen] or not is_near or y.dtype == torch.half:
            raise ValueError(
                f"{name} does more than average values and project them once (a gate? a norm? "
                "a second call? a convolution?), or is in float16: such a network cannot be "
                "examined."
            )
        side = math.isqrt(count)  # the largest square of the tokens is the image
        first = count - side**2
        # Copies, as a network may go on with ``y += x``.
        patches = x[:, first:].clone(), p[:, :, first:, first:], y[:, first:].clone()
        seen.append(Seen(name, module, side, *patches, bias))

    for name, module in network.named_modules():
        if isinstance(module, nn.MultiheadAttention) or hasattr(module, "attn_drop"):
            module.register_forward_hook(partial(note, name), with_kwargs=True)
    if not isinstance(network(images.clone()), Tensor):  # it may change them
        raise ValueError("A network that gives more than logits cannot be examined.")
    if not seen:
        raise ValueError("No attention is found: timm's and nn.MultiheadAttention's are known.")
    return seen


def tokens(module: Any, given: Any) -> Tensor:
    """Of what goes into an attention layer or comes out of it, the tokens: (B, N, C)."""
    first = given[0] if isinstance(given, tuple) else given
    return first if getattr(module, "batch_first", True) else first.transpose(0, 1)


def probabilities(module: Any, inputs: tuple, named: dict[str, Any]) -> Tensor:
    """How an attention layer attends: (B, h, N, N), query x key."""
    if isinstance(module, nn.MultiheadAttention):
        named = named | {"need_weights": True, "average_attn_weights": False}
        return module.forward(*inputs[:4], **named)[1]  # type: ignore
    kept: list[Tensor] = []
    module.attn_drop.register_forward_pre_hook(lambda _, given: kept.extend(given))
    module.fused_attn = False  # the fused kernel never makes P
    module.forward(*inputs, **named)
    if not kept:
        raise ValueError("An attn_drop is never called: such a network cannot be examined.")
    return kept[0]


def values(module: Any) -> tuple[Tensor, Tensor]:
    """W_value of each head (h, e, C), and W_out (D, h, e)."""
    if isinstance(module, nn.MultiheadAttention):
        weight, out = module.in_proj_weight, module.out_proj.weight
    else:
        linear = getattr(module, "v", None) or getattr(module, "v_proj", None) or module.qkv
        weight, out = linear.weight, module.proj.weight
    value = weight[-out.shape[1] :].unflatten(0, (module.num_heads, -1))
    return value, out.unflatten(1, (module.num_heads, -1))


def attend(module: Any, p: Tensor, x: Tensor) -> Tensor:
    """What a layer gives with probabilities p (B or 1, h, N, N) on x (B, N, C), but the bias."""
    value, out = values(module)
    return einsum("bkc,hec,bhqk,dhe->bqd", x, value, p, out)


def mean_by_shift(p: Tensor) -> Tensor:
    """Mean of P among patches (h, side^2, side^2) over the queries from which a shift leads to a
    patch: (h, 2 side - 1, 2 side - 1), no shift in the middle.
    """
    side = math.isqrt(p.shape[1])
    shifts = 2 * side - 1  # along each axis
    # The keys of a query are a window among all shifts; the last query's is the first.
    windows = p.flip(1)
    return (fold(windows, shifts, side) / fold(torch.ones_like(windows), shifts, side)).squeeze(1)


def describe_heads(layer: Seen) -> tuple[pd.DataFrame, Tensor]:
    """What each head does, over all images and patches (see `examine`), and `mean_by_shift`."""
    p = layer.p.cpu()
    mean = p.double().mean(0)
    maps = mean_by_shift(mean)
    always = unfold(maps[:, None], layer.side).flip(1)
    place = torch.ones(layer.side, layer.side).nonzero().double()  # row and column of each patch
    on_patches = mean.sum(2).mean(1)
    frame = pd.DataFrame(
        {
            "distance": (mean * torch.cdist(place, place)).sum(2).mean(1) / on_patches,
            "same": torch.minimum(p, always).sum(3).mean((0, 2)),
            "elsewhere": 1 - on_patches,
        }
    )
    return frame, maps


def convolve(attention, inputs, named, output):
    """A hook on an attention layer: patches attend `always` alike, other tokens as before."""
    x = tokens(attention, (*inputs, *named.values()))
    y = tokens(attention, output)
    first = x.shape[1] - math.isqrt(x.shape[1]) ** 2  # of the patches; others than `always` fail
    y[:, first:] = attend(attention, attention.always, x[:, first:]) + attention.constant


def put(network: nn.Module, layer: Seen, always: Tensor) -> Any:
    """Put a convolution, as `fit` returns it, in the place of a network's layer: its hook."""
    attention = network.get_submodule(layer.name)
    attention.register_buffer("always", always)
    attention.register_buffer("constant", layer.bias)
    return attention.register_forward_hook(convolve, with_kwargs=True)


def fit(layer: Seen, size: int, *, mean: bool = False) -> Tensor:
    """The convolution nearest to what a layer computes on the first 16 images, by least squares
    over images, patches and channels; with ``mean`` each patch may get a share of the mean of all.

    Returns:
        It as attention: what each head gives to each patch, (1, h, side^2, side^2), query x key.
    """
    if size < 1 or size % 2 == 0:
        raise ValueError(f"{layer.name}: a kernel's side must be odd, not {size}.")
    side = layer.side
    x = layer.x[:FITTED]
    one_key = torch.eye(side**2).to(x).view(-1, 1, side, side)
    taps = unfold(one_key, size, padding=size // 2)  # key, tap, query
    taps = pad(taps, (0, 0, 0, mean), value=1 / side**2)  # the mean is one more
    seen = einsum("bkc,hec,dhe->hkbd", x, *values(layer.module))
    pairs = einsum("hkbd,glbd->hkgl", seen, seen)
    moment = einsum("hkbd,bqd,ktq->ht", seen, layer.y[:FITTED] - layer.bias, taps).double()
    gram = einsum("ktq,hkgl,luq->htgu", taps, pairs, taps).double().reshape(moment.numel(), -1)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    shares = torch.linalg.solve(gram, moment.flatten()).view_as(moment).to(x)
    return einsum("ht,ktq->hqk", shares, taps)[None]


@no_grad()
def swap(
    network: nn.Module, kernel_sizes: dict[int, int], *, images: Tensor, mean: bool = False
) -> nn.Module:
    """A copy of a vision transformer in which some layers convolve: {layer: kernel size}, the first
    is 1.

    Args:
        images: (B, channels, H, W), normalised: see `fit`.
        mean: see `fit`.

    Raises:
        ValueError: there is no such layer; an even size; as `examine`.
    """
    swapped = copied(network)
    seen = watch(network, images[:FITTED])
    for number, size in kernel_sizes.items():
        if not 1 <= number <= len(seen):
            raise ValueError(f"There is no layer {number}: layers are 1 to {len(seen)}.")
        layer = seen[number - 1]
        put(swapped, layer, fit(layer, size, mean=mean))
    return swapped


@no_grad()
def examine(
    network: nn.Module,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    sizes: tuple[int, ...] = (1, 3, 5),
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
            does more than average values and project them, is called twice, or is in float16; an
            even size.
    """
    seen = watch(network, images)
    network = copied(network).eval()
    few = images[:ANSWERED]
    own = network(few.clone()).argmax(1)
    wanted = own if labels is None else torch.as_tensor(labels)[:ANSWERED].to(own).view_as(own)

    layers, heads, maps = [], [], []
    for number, layer in enumerate(seen, 1):
        frame, by_shift = describe_heads(layer)
        row = {"layer": number, "name": layer.name, **frame.mean()}
        whole = layer.y - layer.bias
        kernels = {str(size): fit(layer, size) for size in sizes}
        kernels["mean"] = fit(layer, 1, mean=True)
        for kernel, p in kernels.items():
            rest = whole - attend(layer.module, p, layer.x)
            row[f"error {kernel}"] = float(rest.norm() / whole.norm())
            hook = put(network, layer, p)
            swapped = network(few.clone()).argmax(1)
            hook.remove()
            lost = (own == wanted).double() - (swapped == wanted).double()
            row[f"lost {kernel}"] = float(100 * lost.mean())
        layers.append(row)
        heads.append(frame.assign(layer=number, head=frame.index + 1))
        maps.append(by_shift)
    return Examination(pd.DataFrame(layers), pd.concat(heads, ignore_index=True), maps)
