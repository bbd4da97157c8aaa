"""Arrays on their way to the browser: few bits a number where that is enough, one gzip file of
all, that as text.
"""

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class ExplorerError(ValueError):
    """Something the explorer was asked and cannot do; its message is shown in the page."""


def quantize(values: ArrayLike | Tensor, bits: int = 8) -> dict[str, Any]:
    """Rows of finite numbers (..., n) as whole ones of 8 or 16 bits; each row has its own offset
    and step.

    ``low + step * code`` is within step / 2 of the value, step = (max - min) / (2^bits - 1) of the
    row. A softmax over a row changes by at most a factor exp(step)."""
    values = torch.as_tensor(values).float().cpu().numpy()
    low, high = values.min(-1), values.max(-1)
    step = (high - low) / (2**bits - 1)
    codes = np.rint((values - low[..., None]) / np.where(step > 0, step, 1)[..., None])
    codes = codes.clip(0, 2**bits - 1).astype({8: np.uint8, 16: np.uint16}[bits])
    return {"codes": array(codes), "low": array(low), "step": array(step)}


def array(values: ArrayLike) -> dict[str, Any]:
    """An array for the browser: little-endian uint8, uint16 or float32."""
    values = np.asarray(values)
    if values.dtype not in (np.uint8, np.uint16):
        values = values.astype(np.float32)
    return {"dtype": values.dtype.name, "shape": list(values.shape), "data": values.tobytes()}


def padded(layers: Sequence[ArrayLike | Tensor]) -> Tensor:
    """Arrays (h, ...) of layers stacked, NaN where a layer has fewer heads."""
    tensors = [torch.as_tensor(layer).detach().float().cpu() for layer in layers]
    return pad_sequence(tensors, batch_first=True, padding_value=torch.nan)


def pack(tree: Any) -> bytes:
    """A tree of dictionaries, lists, numbers, texts and bytes as one gzip file: length, JSON,
    then all bytes.
    """
    blobs = bytearray()

    def place(blob: bytes) -> dict[str, list[int]]:
        blobs.extend(blob)
        return {"$bytes": [len(blobs) - len(blob), len(blob)]}

    header = json.dumps(tree, default=place, allow_nan=False).encode()
    gzip = zlib.compressobj(
        6, zlib.DEFLATED, 31, 9, zlib.Z_FILTERED
    )  # 31: as a file, without a date
    return gzip.compress(struct.pack("<I", len(header)) + header + blobs) + gzip.flush()


def as_text(content: bytes) -> str:
    """Bytes as text in a script of a page, 5 letters for 4: base 85 as in RFC 1924, with a comma
    for each ``<``.
    """
    return base64.b85encode(content).decode().replace("<", ",")


def rounded(values: Tensor) -> tuple[bytes, bytes]:
    """Numbers in half precision: their high bytes, and their low ones, which compress better apart.

    Of many numbers (the matrices of a model) six of the ten bits after the leading one are kept:
    off by 2^-7 at most."""
    codes = values.detach().half().cpu().numpy().view(np.uint16).astype(int)
    if values.dim() > 1 and values.numel() > 1000:
        codes = (codes + 8) >> 4 << 4
    return (codes >> 8).astype(np.uint8).tobytes(), (codes & 255).astype(np.uint8).tobytes()
