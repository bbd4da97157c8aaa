"""What must work where only the wheel is installed; run by .ci/wheel, outside the repository."""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image

import attnconv
from attnconv.config import ModelConfig, TrainConfig
from attnconv.equivalence import convert, swap
from attnconv.training import load_run, train
from attnconv.training.data import load_data

assert Path(attnconv.__file__).is_relative_to(sys.prefix), attnconv.__file__
for package in ("matplotlib", "pandas", "papermill", "jupyterlab", "IPython"):
    assert importlib.util.find_spec(package) is None, (
        f"{package} is installed, and was not asked for"
    )

# README: convert a network, swap a layer.
cnn = torchvision.models.resnet18().eval()
images = torch.randn(2, 3, 64, 64)
assert torch.allclose(convert(cnn)(images), cnn(images), rtol=1e-4, atol=1e-4)

with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    for split, number in (("train", 12), ("test", 4)):
        for label, name in enumerate(("dark", "light")):
            (folder / "images" / split / name).mkdir(parents=True)
            for i in range(number):
                pixels = np.random.default_rng(i).integers(0, 128, (8, 8, 3), np.uint8) + np.uint8(
                    128 * label
                )
                Image.fromarray(pixels).save(folder / "images" / split / name / f"{i}.png")
    data = load_data(folder / "images")
    small = ModelConfig(
        image_size=(8, 8), classes=2, layers=2, heads=4, hidden=16, mlp=16, key_size=8
    )
    train(small, TrainConfig(epochs=1, batch_size=8), data, folder / "run")
    network, _ = load_run(folder / "run")
    swapped = swap(network, {1: 3})
    assert swapped(torch.randn(2, 3, 8, 8)).shape == (2, 2)

# All files of both packages came along; .ci/wheel names those of the repository.
here = Path(attnconv.__file__).parents[1]
lost = [name for name in sys.argv[1:] if not (here / name).is_file()]
assert sys.argv[1:] and not lost, f"not in the wheel: {lost}"

# The command: what it cannot do here it says in a line.
command = Path(sys.executable).with_name("attnconv")
assert (
    attnconv.__version__
    in subprocess.run([command, "--version"], capture_output=True, text=True).stdout
)
for words, hint in (
    (["reproduce"], "[notebooks]"),
    (["train", "quadratic"], "clone of the repository"),
):
    done = subprocess.run([command, *words], capture_output=True, text=True)
    assert done.returncode == 2 and hint in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )
print(f"The wheel of attnconv {attnconv.__version__} works outside the repository.")
