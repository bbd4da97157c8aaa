"""How numbers travel to the browser: arrays in few bits, a tree of them as one gzip file, and that
file as text.
"""

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Tree = dict[str, Any]
"""What `pack` takes: texts for names, and numbers, texts, bytes, lists or such trees for values."""


def array(values: ArrayLike) -> Tree:
    """An array for the browser: little-endian uint8, uint16 or float32."""
    values = np.asarray(values)
    if values.dtype not in (np.uint8, np.uint16):
        values = values.astype(np.float32)
    return {"dtype": values.dtype.name, "shape": list(values.shape), "data": values.tobytes()}


def padded(layers: Sequence[Tensor]) -> Tensor:
    """Arrays (h, ...) of layers stacked, NaN where a layer has fewer heads."""
    tensors = [layer.detach().float().cpu() for layer in layers]
    return pad_sequence(tensors, batch_first=True, padding_value=torch.nan)


def rounded(values: Tensor) -> NDArray[np.float16]:
    """Numbers in half precision. Of many numbers, the matrices of a model, six of the ten bits
    after the leading one are kept: off by 2^-7 at most.
    """
    codes: NDArray = values.detach().half().cpu().numpy().view(np.uint16)
    if values.dim() > 1 and values.numel() > 1000:
        codes = (codes + 8) & 0xFFF0
    return codes.view(np.float16)


def in_halves(numbers: NDArray[np.float16]) -> tuple[bytes, bytes]:
    """The high bytes of numbers, and their low ones: they compress better apart."""
    low, high = numbers.reshape(-1, 1).view(np.uint8).T
    return high.tobytes(), low.tobytes()


def pack(tree: Any) -> bytes:
    """A tree of dictionaries, lists, numbers, texts and bytes as one gzip file: length, JSON, then
    all bytes.
    """
    blobs = bytearray()

    def place(blob: bytes) -> dict[str, list[int]]:
        blobs.extend(blob)
        return {"$bytes": [len(blobs) - len(blob), len(blob)]}

    header = json.dumps(tree, default=place, allow_nan=False).encode()
    as_file = 31  # the window of zlib that writes a gzip file, without a date
    gzip = zlib.compressobj(6, zlib.DEFLATED, as_file, 9, zlib.Z_FILTERED)
    return gzip.compress(struct.pack("<I", len(header)) + header + blobs) + gzip.flush()


def as_text(content: bytes) -> str:
    """Bytes as text in a script of a page, 5 letters for 4: base 85 as in RFC 1924, with a comma
    for each ``<``.
    """
    return base64.b85encode(content).decode().replace("<", ",")
