"""Make `fashion-mnist-sample.npz` from the full Fashion-MNIST, byte for byte the same each time.

    python make_sample.py [IDX_FOLDER] [--output FILE]

IDX_FOLDER holds the four gzipped idx files; the default is where Debian's package
`dataset-fashion-mnist` puts them (``apt-get install dataset-fashion-mnist``). The sample is the
first 600 training and the first 100 test images of each class, kept in published order, with their
labels unchanged.

The arrays are packed with bzip2, whose output, unlike zlib's, does not depend on which library
packed it. """

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
PER_CLASS = {"train": 600, "test": 100}
PUBLISHED = {"train": "train", "test": "t10k"}  # our split: the published file's prefix


def read_split(folder: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 28, 28) and labels (N,), both uint8, as published."""
    images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28), np.frombuffer(labels, np.uint8, offset=8)


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as an .npz file whose bytes depend on nothing but the arrays."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980-01-01
            member.create_system, member.external_attr = 3, 0o644 << 16
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
            archive.writestr(member, content.getvalue(), zipfile.ZIP_BZIP2, compresslevel=9)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEBIAN, help="folder with the idx files")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("fashion-mnist-sample.npz"))
    options = parser.parse_args()

    arrays = {}
    for split, prefix in PUBLISHED.items():
        images, labels = read_split(options.folder, prefix)
        rows = np.sort(np.concatenate([np.flatnonzero(labels == c)[: PER_CLASS[split]] for c in range(len(CLASSES))]))
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[rows], labels[rows]
    arrays["classes"] = np.array(CLASSES, dtype="<U11")

    content = pack(arrays)
    options.output.write_bytes(content)
    print(f"{options.output}: {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
