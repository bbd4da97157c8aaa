"""Data of one's own, end to end: docs/how-to.md is run as it stands, on a small folder of
images.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attnconv.config import REPOSITORY
from companion import cli

PAGE = (REPOSITORY / "docs" / "how-to.md").read_text()
OWN = PAGE[PAGE.index("## Your own images") : PAGE.index("## What `make reproduce` leaves")]
SMALL = (
    "--epochs",
    "1",
    "--set",
    "layers=2",
    "--set",
    "hidden=8",
    "--set",
    "heads=4",
    "--set",
    "mlp=8",
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Dark and light squares of 12 x 12 pixels: 12 + 4 images of each."""
    random = np.random.default_rng(0)
    for split, number in (("train", 12), ("test", 4)):
        for label, name in enumerate(("cat", "dog")):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(1, number + 1):
                pixels = random.integers(128 * label, 128 * label + 128, (12, 12, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{i}.png")
    return tmp_path / "images"


def test_a_folder_of_images_is_trained_on_looked_at_and_swapped(
    images, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def here(text):
        return text.replace("/path/to/images", str(images)).replace(
            "outputs/mine", str(tmp_path / "mine")
        )

    [command] = re.findall(r"```sh\n.venv/bin/attnconv (.*?)\n```", OWN)
    assert cli.main([*here(command).split(), *SMALL]) == 0
    [script] = re.findall(r"```python\n(.*?)```", OWN, re.DOTALL)
    capsys.readouterr()
    names: dict = {}
    exec(compile(here(script), "docs/how-to.md", "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [
        "attention",
        "layer 1 as a 3 x 3 convolution",
        "layer 2 as a 3 x 3 convolution",
    ]
    assert all(0 <= float(line.split(":")[1]) <= 1 for line in said)
    assert names["images"].classes == ("cat", "dog") and len(names["images"].train_labels) == 24
    assert names["swapped"].config.kernels != names["network"].config.kernels
    assert "<html" in (tmp_path / "mine" / "explorer.html").read_text()
