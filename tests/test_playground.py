"""The playground without a browser: its arithmetic against the library's layers, and its page."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from attnconv.attention import QuadraticAttention
from attnconv.equivalence import conv_to_attention
from companion import figures
from companion.explorer import Knobs, Playground, widgets
from node import in_node, needs_node, run_tests


@needs_node
def test_the_front_end_with_node():
    run_tests("playground.test.mjs")


@needs_node
@pytest.mark.parametrize(
    "size, alpha, padding, moved",
    [
        (3, 50, True, 0),
        (3, 0.7, True, 0),
        (4, 2, True, 0.3),
        (5, 0.1, False, 0.9),
        (3, 50, False, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_the_browser_computes_what_the_layers_do(size, alpha, padding, moved):
    """Conv2d, its heads with zeros around the image and without, at any sharpness, on and off
    their taps.
    """
    generator = torch.Generator().manual_seed(3)
    image = torch.rand(1, 1, 11, 8, generator=generator).double()
    conv = nn.Conv2d(1, 1, size, padding="same", bias=False).double().requires_grad_(False)
    conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator))
    layer = conv_to_attention(conv, alpha).requires_grad_(False)
    layer.centres += moved * torch.randn(size**2, 2, generator=generator)
    if not padding:
        bare = QuadraticAttention(1, 1, size**2).double().requires_grad_(False)
        bare.centres, bare.spreads = layer.centres, layer.spreads
        bare.value.weight.copy_(conv.weight.flatten(1))
        bare.value.bias.zero_()
    heads = [
        dict(tap=tap, centre=centre, on=True) for tap, centre in enumerate(layer.centres.tolist())
    ]
    state = dict(size=size, alpha=alpha, padding=padding, heads=heads)
    state["kernel"] = conv.weight.flatten().tolist()
    given = dict(height=11, width=8, pixels=image.flatten().tolist())
    got = in_node(f"""
        const sums = new play.Sums().update({json.dumps(state)}, {json.dumps(given)});
        const out = [sums.convolved, sums.total];""")
    total = layer(image) if padding else bare(image[..., None][0])
    expected = torch.stack([conv(image).flatten(), total.flatten()])
    assert torch.allclose(torch.tensor(got, dtype=torch.float64), expected, atol=1e-12)


def test_the_page_is_whole_and_needs_nothing(tmp_path: Path):
    page = Playground().export_html(tmp_path / "playground.html").read_text()
    assert len(page.encode()) < 300_000 and page.count("<noscript><img") == 1
    assert "import {" not in page and "import(" not in page
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)|url\((?!data:)|https?://", page)
    data = json.loads(re.search(r"<script id='data' type='text/plain'>(.*?)</script>", page)[1])
    assert data["state"] == "alpha=50"
    assert [one["name"] for one in data["pictures"]] == ["hopper", "boot", "shapes", "pixel"]
    for picture in data["pictures"]:
        pixels = base64.b64decode(picture["data"])
        assert len(pixels) == picture["height"] * picture["width"] <= 64 * 64


def knobs():
    return Knobs(lambda: figures.signed_images([np.ones((3, 3))], ["ones"]))


@pytest.mark.parametrize("make", [Playground, knobs])
def test_it_is_a_picture_where_it_cannot_run(make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATTNCONV_STATIC", "1")
    shown: list[dict] = []
    monkeypatch.setattr(widgets, "display", lambda bundle, **_: shown.append(bundle))
    make()._ipython_display_()
    [bundle] = shown
    assert set(bundle) == {"image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    monkeypatch.delenv("ATTNCONV_STATIC")
    make()._ipython_display_()
    _, live, picture = shown
    assert "application/vnd.jupyter.widget-view+json" in live
    assert "attnconv-last" in picture["text/html"] and "data:image/png" in picture["text/html"]


def test_the_still_picture_shows_the_sharpness():
    torch.set_default_dtype(torch.float64)
    axes = Playground(0.7).figure().axes[:4]
    torch.set_default_dtype(torch.float32)
    assert [ax.get_title() for ax in axes][:3] == ["Picture", "Conv2d", "Nine heads, α = 0.7"]
    _, expected, got, apart = (ax.images[0].get_array() for ax in axes)
    np.testing.assert_allclose(got - expected, apart, atol=1e-5)
    assert abs(apart).max() > 0.1 and abs(expected).max() > abs(got).max(), "a soft head blurs"


@pytest.mark.parametrize("alpha", [0.0, -1.0, 51.0, float("nan")])
def test_a_sharpness_out_of_range_is_refused(alpha: float):
    with pytest.raises(ValueError, match="from 0.02"):
        Playground(alpha)
