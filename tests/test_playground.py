"""The playground without a browser: its arithmetic against the library's layers, and its page."""

from __future__ import annotations

import base64
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from attnconv.attention import QuadraticAttention
from attnconv.equivalence import conv_to_attention, tap_shifts
from companion import figures
from companion.explorer import Knobs, Playground, assets
from node import in_node, needs_node, run_tests


@needs_node
def test_the_front_end_with_node() -> None:
    run_tests("playground.test.mjs")


@needs_node
def test_the_browser_computes_what_the_layers_do() -> None:
    """Conv2d, its heads with zeros around the image and without, at any sharpness, on and off
    their taps.
    """
    rng = np.random.default_rng(3)
    warnings.filterwarnings("ignore", "Using padding='same'")
    image = torch.from_numpy(rng.random((11, 8)))
    cases = []
    for size, alpha, padding, moved in (
        (3, 50.0, True, 0.0),
        (3, 0.7, True, 0.0),
        (4, 2.0, True, 0.3),
        (5, 0.1, False, 0.9),
        (3, 50.0, False, 0.0),
    ):
        kernel = rng.standard_normal((size, size))
        centres = tap_shifts((size, size)).double().numpy() + moved * rng.standard_normal(
            (size**2, 2)
        )
        cases.append(dict(size=size, alpha=alpha, padding=padding, kernel=kernel.ravel().tolist()))
        cases[-1]["heads"] = [
            dict(tap=tap, centre=list(centre), on=True) for tap, centre in enumerate(centres)
        ]
    given = dict(height=11, width=8, pixels=image.flatten().tolist())
    answers = in_node(f"""
        const given = {json.dumps(given)};
        const sums = {json.dumps(cases)}.map((state) => new play.Sums().update(state, given));
        const out = sums.map(({{ convolved, total }}) => [convolved, total]);""")
    for case, (convolved, total) in zip(cases, answers, strict=True):
        size = case["size"]
        conv = nn.Conv2d(
            1, 1, size, padding="same", bias=False, dtype=torch.float64
        ).requires_grad_(False)
        conv.weight[0, 0] = torch.tensor(case["kernel"]).view(size, size)
        expected = conv(image[None, None])[0, 0].flatten()
        assert torch.allclose(torch.tensor(convolved, dtype=torch.float64), expected, atol=1e-12)
        centres = torch.tensor([head["centre"] for head in case["heads"]], dtype=torch.float64)
        if case["padding"]:
            layer = conv_to_attention(conv, case["alpha"]).requires_grad_(False)
            layer.centres[:] = centres
            expected = layer(image[None, None])[0, 0].flatten()
        else:
            layer = QuadraticAttention(1, 1, size**2).double().requires_grad_(False)
            layer.centres[:], layer.spreads[:] = centres, (2 * case["alpha"]) ** 0.5
            p = layer.probabilities(11, 8)  # (h, H, W, H, W)
            expected = torch.einsum(
                "hijkl,kl,h->ij", p, image, torch.tensor(case["kernel"]).double()
            ).flatten()
        assert torch.allclose(torch.tensor(total, dtype=torch.float64), expected, atol=1e-12), case


def test_the_pictures_are_small_and_named() -> None:
    widget = Playground()
    assert [picture["name"] for picture in widget.pictures] == ["hopper", "boot", "shapes", "pixel"]
    for picture in widget.pictures:
        pixels = base64.b64decode(picture["data"])
        assert len(pixels) == picture["height"] * picture["width"] <= 64 * 64
        assert np.ptp(np.frombuffer(pixels, np.uint8)) > 200 and picture["credit"]
    assert "public domain" in widget.pictures[0]["credit"] and "MIT" in widget.pictures[1]["credit"]


def test_the_page_is_whole_and_needs_nothing(tmp_path: Path) -> None:
    page = Playground().export_html(tmp_path / "playground.html").read_text()
    assert len(page.encode()) < 300_000
    assert "import {" not in page and "import(" not in page
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)|url\((?!data:)|https?://", page)
    data = json.loads(
        re.search(r"<script id='data' type='text/plain'>(.*?)</script>", page).group(1)
    )
    assert data["state"] == "alpha=50" and len(data["pictures"]) == 4
    assert page.count("<noscript><img") == 1


@pytest.mark.parametrize(
    "make", [Playground, lambda: Knobs(figures.schema)], ids=["playground", "knobs"]
)
def test_it_is_a_picture_where_it_cannot_run(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCONV_STATIC", "1")
    shown: list[dict] = []
    monkeypatch.setattr(assets, "display", lambda bundle, **_: shown.append(bundle))
    make()._ipython_display_()
    [bundle] = shown
    assert set(bundle) == {"image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    monkeypatch.delenv("ATTNCONV_STATIC")
    make()._ipython_display_()
    _, live, picture = shown
    assert "application/vnd.jupyter.widget-view+json" in live
    assert "attnconv-last" in picture["text/html"] and "data:image/png" in picture["text/html"]


def test_the_still_picture_shows_the_sharpness() -> None:
    axes = Playground(0.7).figure().axes[:4]
    titles = [ax.get_title() for ax in axes]
    assert (
        titles[:3] == ["Picture", "Conv2d", "Nine heads, α = 0.7"]
        and float(titles[3].split()[-1]) > 0.1
    )
    photo, expected, got, apart = (ax.images[0].get_array() for ax in axes)
    np.testing.assert_allclose(got - expected, apart, atol=1e-5)
    assert expected[:, 1:-1].shape[0] == photo.shape[0] and abs(expected).max() > abs(got).max(), (
        "a soft head blurs"
    )
    exact = [ax.get_title() for ax in Playground(50).figure().axes]
    assert float(exact[3].split()[-1]) < 1e-5


@pytest.mark.parametrize("alpha", [0.0, -1.0, 51.0, float("nan")])
def test_a_sharpness_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="from 0.02"):
        Playground(alpha)
