"""The networks of section 4 and what they cost, against the paper's Table 1 and PyTorch's own
counter.
"""

import zlib

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnconv.config import PRESETS, ConfigError, ModelConfig, replace
from attnconv.cost import cost
from attnconv.models import build_model, predict

TABLE_1 = {  # parameters in millions, FLOPs in billions
    "resnet18": (11.2, 1.1),
    "quadratic": (12.1, 6.2),
    "learned": (12.3, 6.2),
    "learned_content": (29.5, 15.0),
}


@pytest.mark.parametrize("name", TABLE_1)
def test_costs_are_those_of_table_1(name):
    counted = cost(PRESETS[name].model)
    parameters, flops = TABLE_1[name]
    assert counted.parameters / 1e6 == pytest.approx(parameters, rel=0.01)
    assert counted.paper / 1e9 == pytest.approx(flops, rel=0.02)


SMALL = dict(
    layers=2,
    heads=3,
    hidden=8,
    mlp=8,
    key_size=4,
    resnet_width=8,
    downsampling=4,
    image_size=(12, 20),
)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("name", [*PRESETS, "small keys"])
def test_exact_flops_agree_with_pytorchs_counter(name, dense):
    """P is built where it drops out, and where the encoding does not factor."""
    small = ModelConfig(**SMALL, kind="learned_content")
    config = small if name == "small keys" else PRESETS[name].model
    config = replace(config, {"attention_dropout": 0.1 * dense})
    with torch.device("meta"):
        model = build_model(config)
        image = torch.empty(2, config.image_channels, *config.image_size)
        with FlopCounterMode(display=False) as counter:
            model(image)
    with torch.inference_mode():  # where linear maps may be batched, too
        counted = cost(config)
    expected = counted.dense if dense else counted.separable
    assert counter.get_total_flops() / 2 == pytest.approx(expected)


KINDS = [
    *{
        replace(PRESETS[n].model, {"heads": 1}).model_dump_json(): n for n in reversed(PRESETS)
    }.values()
]
"""Of presets that have the same model, but for its number of heads, the first."""


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_preset_builds_runs_and_learns(name, channels):
    torch.manual_seed(0)
    model = build_model(
        replace(PRESETS[name].model, {**SMALL, "image_channels": channels, "classes": 7})
    )
    logits = model(torch.randn(4, channels, 12, 20))
    assert logits.shape == (4, 7)
    logits.logsumexp(1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


STARTS = {  # of an earlier version: names and shapes of the state, and a sum over its values
    "resnet18": (1068194593, -275.624781),
    "quadratic": (1196347168, 12.720798),
    "quadratic_full": (2019312239, 15.001864),
    "learned": (780699840, 14.751739),
    "learned_content": (942844809, 20.071211),
    "disc": (1196347168, 10.734437),
}


@pytest.mark.parametrize("name", STARTS)
def test_models_start_as_they_always_did(name):
    """Runs that were trained earlier are loaded, resumed and repeated: same names, same random
    numbers in turn.
    """
    torch.manual_seed(0)
    disc = dict(centre_start="disc", centre_std=1.0) if name == "disc" else {}
    state = build_model(
        replace(PRESETS["quadratic" if disc else name].model, SMALL | disc)
    ).state_dict()
    names = zlib.crc32(repr([(key, tuple(value.shape)) for key, value in state.items()]).encode())
    values = torch.cat([value.double().flatten() for value in state.values()])
    total = (values * torch.linspace(-1, 1, len(values), dtype=torch.float64)).sum().item()
    assert (names, total) == (STARTS[name][0], pytest.approx(STARTS[name][1], abs=1e-4))


@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_heads_start_as_the_configuration_says(covariance):
    sizes = dict(layers=1, heads=900, hidden=1, covariance=covariance)
    (layer,) = build_model(ModelConfig(**sizes, centre_std=5.0, spread_start=3.0)).attention_layers
    assert layer.centres.std().item() == pytest.approx(5, rel=0.1)
    spreads = layer.spreads if covariance == "isotropic" else layer.spreads.diagonal(dim1=1, dim2=2)
    assert spreads.mean().item() == pytest.approx(3, abs=0.01) and 0.005 < spreads.std() < 0.02
    (disc,) = build_model(
        ModelConfig(**sizes, centre_std=5.0, centre_start="disc")
    ).attention_layers
    assert 9.9 < disc.centres.norm(dim=1).max() < 10, "a disc of two standard deviations"


@pytest.mark.parametrize("kind", ["quadratic", "learned", "learned_content"])
def test_attention_drops_out_where_the_configuration_says_so(kind):
    x = torch.randn(2, 3, 5, 8)
    for share in (0.0, 0.5):
        layer, _ = build_model(
            ModelConfig(**SMALL, kind=kind, attention_dropout=share)
        ).attention_layers
        assert torch.equal(layer(x), layer(x)) == (share == 0), "its masks differ"


def test_a_block_is_what_the_paper_says():
    """Attention and a perceptron with GELU; after each its dropout, the sum with the input, and
    a norm of that.
    """
    torch.manual_seed(0)
    block, _ = build_model(ModelConfig(**SMALL, dropout=0.4)).double().blocks
    for name, p in block.named_parameters():
        nn.init.normal_(p) if "norm" in name else nn.init.normal_(p, std=1e-3)
    x = 1e-3 * torch.randn(2, 3, 5, 8, dtype=torch.float64)  # so small that the norms' eps shows

    def norm(x, own):
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt() * own.weight
            + own.bias
        )

    torch.manual_seed(1)
    y = norm(
        x + F.dropout(F.linear(block.attention(x), block.output.weight, block.output.bias), 0.4),
        block.norm1,
    )
    up, _, down = block.mlp
    hidden = F.linear(y, up.weight, up.bias)
    hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    expected = norm(y + F.dropout(F.linear(hidden, down.weight, down.bias), 0.4), block.norm2)
    torch.manual_seed(1)
    torch.testing.assert_close(block(x), expected)


def test_the_baseline_is_torchvisions_resnet18_behind_a_stem_for_small_images():
    torch.manual_seed(0)
    model = build_model(ModelConfig(kind="resnet")).double().eval()
    twin = torchvision.models.resnet18(num_classes=10)
    twin.conv1, twin.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    twin = twin.double().eval()
    twin.load_state_dict(dict(zip(twin.state_dict(), model.state_dict().values(), strict=True)))
    images = torch.randn(2, 3, 16, 20, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), twin(images))


def test_space_to_depth_loses_nothing():
    model = build_model(ModelConfig(**SMALL, image_channels=1))
    model.embed = torch.nn.Identity()
    images = torch.randn(2, 1, 12, 20)
    pixels = model.pixels(images)
    assert pixels.shape == (2, 3, 5, 16)
    assert torch.equal(torch.nn.functional.pixel_shuffle(pixels.permute(0, 3, 1, 2), 4), images)


def test_layer_inputs_are_what_the_layers_see():
    model = build_model(ModelConfig(**SMALL)).eval()
    images = torch.randn(2, 3, 12, 20)
    seen = []
    for layer in model.attention_layers:
        layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model(images)
    torch.testing.assert_close(model.layer_inputs(images), seen[:2])


def test_a_network_averages_over_pixels_between_its_blocks_and_its_classifier():
    model = build_model(ModelConfig(**SMALL)).eval()
    images = torch.randn(2, 3, 12, 20)
    x = model.pixels(images)
    for block in model.blocks:
        x = block(x)
    expected = F.linear(
        x.flatten(1, 2).sum(1) / 15, model.classifier.weight, model.classifier.bias
    )  # 3 x 5 pixels
    torch.testing.assert_close(model(images), expected)


def test_down_sampling_must_divide_the_image():
    with pytest.raises(ConfigError, match="downsampling = 4 must divide.*30x30"):
        build_model(ModelConfig(image_size=(30, 30), downsampling=4))


def test_predict_draws_nothing_and_leaves_each_part_in_its_mode():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    model[1].eval()
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(predict(model, images), predict(model, images))
    assert [module.training for module in model.modules()] == [True, True, False, True]


@pytest.mark.parametrize("kind", ["quadratic", "learned", "learned_content"])
def test_heads_may_differ_between_layers_down_to_none(kind):
    model = build_model(ModelConfig(**SMALL | {"kind": kind, "heads": (2, 0)}))
    assert [layer.heads for layer in model.attention_layers] == [2, 0]
    assert model(torch.randn(1, 3, 12, 20)).shape == (1, 10)
    assert cost(model.config).parameters == sum(p.numel() for p in model.parameters())
