"""Other vision transformers: what `examine` says of their layers, and what `swap` puts there."""

from inspect import signature

import pandas as pd
import pytest
import timm
import torch
import torchvision
from torch import nn

from attnconv import others
from attnconv.others import attend, examine, fit, swap, watch


def ready(network: nn.Module) -> nn.Module:
    """With biases, which are 0 at first."""
    for name, part in network.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(part, std=0.3)
    return network.double().eval()


def vit(**options) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    network = timm.models.VisionTransformer(num_classes=5, **{**sizes, **options})
    for part in network.parameters():  # far from even attention
        if part.dim() > 1:
            nn.init.normal_(part, std=0.3)
    return ready(network)


def torchvisions() -> nn.Module:
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(32, 8, 2, 3, 24, 48, num_classes=5)
    nn.init.normal_(network.heads.head.weight)
    return ready(network)


class Encoder(nn.Module):
    """PyTorch's own encoder on 16 patches, the batch in the middle, or first."""

    def __init__(self, batch_first: bool):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(24, 3, 48, dropout=0, batch_first=batch_first)
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(24, 5)
        self.batch_first = batch_first

    def forward(self, x):
        tokens = self.kept = self.patches(x).flatten(2).mT
        if not self.batch_first:
            return self.classes(self.encoder(tokens.transpose(0, 1)).mean(0))
        return self.classes(self.encoder(tokens).mean(1))


NETWORKS = {
    "timm, class token": vit,
    "timm, registers": lambda: vit(reg_tokens=4),
    "timm, mean": lambda: vit(class_token=False, global_pool="avg", qk_norm=True),
    "torchvision": torchvisions,
    "PyTorch's encoder": lambda: ready(Encoder(True)),
    "PyTorch's encoder, batch second": lambda: ready(Encoder(False)),
}
IMAGES = torch.randn(6, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def convit(locality: float, gate: float) -> nn.Module:
    """ConViT with attention by position alone where the gate is open."""
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 36, "depth": 3, "num_heads": 9}
    network = timm.models.ConVit(num_classes=5, local_up_to_layer=2, **sizes)
    for block in network.blocks[:2]:
        block.attn.locality_strength = locality
        block.attn.local_init()
        nn.init.constant_(block.attn.gating_param, gate)
        nn.init.normal_(block.attn.v.weight, std=0.3)
    return network.double().eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_watching_changes_nothing_and_explains_every_layer(name):
    network = NETWORKS[name]()
    kept = {}

    def keep(layer, inputs, output):
        of_layer = inputs[0], output[0] if isinstance(output, tuple) else output
        kept[layer] = [one if name[-6:] != "second" else one.transpose(0, 1) for one in of_layer]

    seen = watch(network, IMAGES)
    for layer in seen:
        network.get_submodule(layer.name).register_forward_hook(keep)
    with torch.no_grad():
        network(IMAGES)
    assert [layer.side for layer in seen] == [4, 4]
    for layer, (x, y) in zip(seen, kept.values(), strict=True):
        torch.testing.assert_close(layer.x, x[:, -16:])
        torch.testing.assert_close(layer.y, y[:, -16:])
        elsewhere = 1 - layer.p.sum(3, keepdim=True)
        if name == "timm, registers":
            assert (elsewhere > 0).all()
        else:  # what patches do not get, the class token gets
            p = torch.cat([elsewhere, layer.p], 3)[..., -x.shape[1] :]
            torch.testing.assert_close(attend(layer.module, p, x) + layer.bias, layer.y)


def test_the_mean_by_shift_is_that_of_a_loop():
    p = torch.rand(2, 25, 25, dtype=torch.float64)
    maps = others.mean_by_shift(p)
    for row in range(-4, 5):
        for column in range(-4, 5):
            found = []
            for query in range(25):
                there = query // 5 + row, query % 5 + column
                if 0 <= there[0] < 5 and 0 <= there[1] < 5:
                    found.append(p[:, query, 5 * there[0] + there[1]])
            expected = torch.stack(found).mean(0)
            torch.testing.assert_close(maps[:, row + 4, column + 4], expected, rtol=1e-12, atol=0)


def test_what_heads_do_is_that_of_a_loop():
    layer = watch(vit(), IMAGES)[0]
    found, maps = others.describe_heads(layer)
    p = layer.p
    distance, same, elsewhere = torch.zeros(3, 3, dtype=torch.float64)
    for query in range(16):
        elsewhere += (1 - p[:, :, query].sum(2)).mean(0) / 16
        for key in range(16):
            shift = key // 4 - query // 4, key % 4 - query % 4
            mean = maps[:, shift[0] + 3, shift[1] + 3]
            distance += p[:, :, query, key].mean(0) / 16 * (shift[0] ** 2 + shift[1] ** 2) ** 0.5
            same += torch.minimum(p[:, :, query, key], mean).mean(0) / 16
    expected = {"distance": distance / (1 - elsewhere), "same": same, "elsewhere": elsewhere}
    for name, by_head in expected.items():
        torch.testing.assert_close(torch.tensor(found[name]), by_head)


def relative_error(layer, p, pixels=slice(None)) -> float:
    """Of attention p in the place of a layer, on some rows and columns of patches."""
    errors = layer.y - layer.bias - attend(layer.module, p, layer.x)
    grid = (2, (layer.side, layer.side))
    wanted = (layer.y - layer.bias).mT.unflatten(*grid)[..., pixels, pixels]
    return float(errors.mT.unflatten(*grid)[..., pixels, pixels].norm() / wanted.norm())


@torch.no_grad()
def error_inside(network: nn.Module) -> float:
    """Relative error of a 3 x 3 in the first layer, where all of it is on the image."""
    layer = watch(network, IMAGES[:3])[0]
    return relative_error(layer, fit(layer, 3), slice(1, -1))


def test_heads_that_look_by_position_are_a_convolution_but_for_the_border():
    # Sharp heads on nine taps, as in Theorem 1. At the border they look elsewhere.
    by_position = convit(locality=40.0, gate=40.0)
    found = examine(by_position, IMAGES[:3], sizes=(1,)).layers[:2]
    assert (found[["same", "error 1"]] > 0.8).all(axis=None)
    assert error_inside(by_position) < 0.2
    assert error_inside(convit(locality=40.0, gate=-40.0)) > 0.3


def shift(query: int, key: int) -> tuple[int, int]:
    """Rows and columns from a patch to another, of 4 x 4."""
    return key // 4 - query // 4, key % 4 - query % 4


def by_taps(taps: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Attention (1, h, 16, 16) with taps (h, 3, 3) by shift, and a share (h,) of all patches."""
    p = (mean / 16)[:, None, None].repeat(1, 16, 16)
    for query in range(16):
        for key in range(16):
            row, column = shift(query, key)
            if max(abs(row), abs(column)) <= 1:
                p[:, query, key] += taps[:, row + 1, column + 1]
    return p[None]


@torch.no_grad()
def test_a_layer_that_is_a_convolution_is_found():
    layer = watch(vit(), IMAGES)[0]
    always = by_taps(torch.randn(3, 3, 3).double(), torch.tensor([0.5, -0.2, 0.1]).double())
    layer = layer._replace(y=attend(layer.module, always, layer.x) + layer.bias)
    found = fit(layer, 3, mean=True)
    torch.testing.assert_close(found, always, rtol=1e-3, atol=1e-3)
    assert relative_error(layer, found) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_swap_convolves_patches_and_leaves_other_tokens(name):
    network = NETWORKS[name]()
    layer = watch(network, IMAGES)[0]
    always = fit(layer, 3, mean=True)
    far = always[0, :, 0, 15]  # no tap of a 3 x 3 leads so far: a share of the mean of all
    taps = torch.stack([always[0, :, 5, key] for key in (0, 1, 2, 4, 5, 6, 8, 9, 10)], 1)
    taps = (taps - far[:, None]).unflatten(1, (3, 3))
    torch.testing.assert_close(always, by_taps(taps, 16 * far))
    value, out = others.values(layer.module)
    kernel = torch.einsum("hij,dhe,hec->dcij", taps, out, value)
    of_all = torch.einsum("h,dhe,hec->dc", 16 * far, out, value)
    image = layer.x.mT.unflatten(2, (4, 4))
    convolved = nn.functional.conv2d(image, kernel, layer.bias, padding=1).flatten(2).mT
    convolved += (layer.x.mean(1) @ of_all.T)[:, None]
    kept = []

    def keep(module, inputs, output):
        given = output[0] if isinstance(output, tuple) else output
        kept.append(given if getattr(module, "batch_first", True) else given.transpose(0, 1))

    own = network.get_submodule(layer.name).register_forward_hook(keep)
    before = network(IMAGES)
    own.remove()
    swapped = swap(network, {1: 3}, images=IMAGES, mean=True)
    swapped.get_submodule(layer.name).register_forward_hook(keep)
    answers = swapped(IMAGES)
    torch.testing.assert_close(kept[1][:, -16:], convolved)
    torch.testing.assert_close(kept[1][:, :-16], kept[0][:, :-16])
    assert not torch.allclose(answers, before)  # the network goes through it
    torch.testing.assert_close(
        swapped.float()(IMAGES.float()).double(), answers, rtol=0.01, atol=0.01
    )


@torch.no_grad()
def test_no_convolution_of_its_heads_comes_nearer_than_the_fit():
    network = vit()
    layer = watch(network, IMAGES)[1]
    always = fit(layer, 3)
    best = relative_error(layer, always)
    for seed in range(5):
        taps = 0.01 * torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(seed))
        moved = always + by_taps(taps.double(), torch.zeros(3).double())
        assert relative_error(layer, moved) > best
    assert relative_error(layer, fit(layer, 3, mean=True)) < best
    assert examine(network, IMAGES, sizes=(3,)).layers["error 3"][1] == pytest.approx(best)


def test_points_lost_are_counted_against_labels_or_the_networks_own_answers():
    network = vit()
    labels = torch.arange(6) % 5
    own = network(IMAGES).argmax(1)
    swapped = swap(network, {1: 1}, images=IMAGES)(IMAGES).argmax(1)
    table = examine(network, IMAGES, sizes=(1,)).layers
    assert table["lost 1"][0] == pytest.approx(100 * (own != swapped).double().mean().item())
    lost = (own == labels).double().mean() - (swapped == labels).double().mean()
    for given in (labels, labels[:, None], labels.tolist()):
        table = examine(network, IMAGES, given, sizes=(1,)).layers
        assert table["lost 1"][0] == pytest.approx(100 * lost.item())


def test_the_network_stays_as_it_was():
    network = vit().train()
    before = {name: part.clone() for name, part in network.state_dict().items()}
    examine(network, IMAGES, sizes=(1,))
    swap(network, {1: 1}, images=IMAGES)
    attention = network.blocks[0].attn
    assert network.training and attention.fused_attn and not attention._forward_hooks
    for name, part in network.state_dict().items():
        assert torch.equal(part, before[name])


@pytest.mark.parametrize("name", ["timm, mean", "PyTorch's encoder"])
def test_attention_may_be_called_by_keyword(name, monkeypatch):
    network = NETWORKS[name]()
    network(IMAGES)  # some keep what they computed
    found = examine(network, IMAGES, sizes=(3,)).layers
    attention = watch(network, IMAGES)[0].module

    def call(module, *inputs, **named):
        given = dict(zip(signature(module.forward).parameters, inputs, strict=False))
        return nn.Module.__call__(module, **given, **named)

    monkeypatch.setattr(type(attention), "__call__", call)
    pd.testing.assert_frame_equal(examine(network, IMAGES, sizes=(3,)).layers, found)


def test_a_network_may_go_on_in_place():
    tables, before = [], IMAGES.clone()
    for add in (torch.add, torch.Tensor.add_):
        network = vit()
        network.blocks[0].ls1.register_forward_hook(lambda *given, add=add: add(given[2], 1))
        network.register_forward_pre_hook(lambda _, given, add=add: add(given[0], 1))
        tables.append(examine(network, IMAGES, sizes=(3,)).layers)
    pd.testing.assert_frame_equal(*tables)
    assert torch.equal(IMAGES, before)


def refused(words, network, images=IMAGES):
    with pytest.raises(ValueError, match=words):
        examine(network, images)


def test_what_cannot_be_examined_is_refused_by_name():
    swin = timm.models.SwinTransformer(
        32, 4, embed_dim=24, depths=(2,), num_heads=(3,), window_size=4
    )
    refused(r"layers\.0\.blocks\.0\.attn does not attend", swin.double())
    refused("No attention is found", torchvision.models.resnet18().double())
    gated = vit()
    gated.blocks[0].attn.gate = nn.Linear(24, 24).double()
    refused(r"blocks\.0\.attn does more than average", gated)
    images = IMAGES[..., :16]
    refused(r"must be square, not of shape \(6, 3, 32, 16\)", vit(img_size=(32, 16)), images)
    shared = vit()
    shared.blocks[1] = shared.blocks[0]
    refused(r"blocks\.0\.attn does .* a second call", shared)
    refused(r"blocks\.0\.attn .* is in float16", vit().half(), IMAGES.half())
    unknown = vit()
    attention = unknown.blocks[0].attn
    attention.qkv = nn.Sequential(attention.qkv)
    refused(r"blocks\.0\.attn is attention of an unknown form", unknown)
    one_more_key = nn.MultiheadAttention(24, 3, add_bias_kv=True, batch_first=True)
    encoder = Encoder(True)
    encoder.encoder.layers[0].self_attn = one_more_key
    refused(r"self_attn is attention of an unknown form", encoder.double())
    unknown.forward = lambda x: [x]
    refused("more than logits", unknown)
    silent = vit()
    silent.blocks[0].attn.forward = lambda x, **_: x
    refused("attn_drop is never called", silent)
    for sizes, words in ({3: 1}, "no layer 3"), ({1: 2}, "must be odd, not 2"):
        with pytest.raises(ValueError, match=words):
            swap(vit(), sizes, images=IMAGES)
    with pytest.raises(RuntimeError, match="size 64"):  # other patches than it was fitted to
        swap(vit(dynamic_img_size=True), {1: 1}, images=IMAGES)(IMAGES.repeat(1, 1, 2, 2))
