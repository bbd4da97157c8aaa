"""A model with a reader's changes, by PyTorch: what the page's arithmetic is held against."""

import contextlib
import copy

import torch

from attnconv.equivalence import attention_to_conv
from companion.explorer.subject import sigmas_of


@contextlib.contextmanager
def edited(model, edits):
    """The model with edits as a page keeps them: of a head, any of ``off``, ``centre`` (row,
    column) and ``sigma``; of a layer, the side of its ``kernel``. Layers are counted from 0."""
    before = copy.deepcopy(model.state_dict())
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for edit in edits:
            layer = model.attention_layers[edit["layer"]]
            if edit.get("kernel"):
                hook = layer.register_forward_hook(convolution(edit["kernel"], model.config.grid))
                hooks.callback(hook.remove)
            else:
                change(layer, **edit)
        with torch.enable_grad():
            yield
    model.load_state_dict(before)


def convolution(size, grid):
    def convolved(layer, inputs, output):
        conv, _ = attention_to_conv(layer, size, size=grid)
        return conv(inputs[0].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    return convolved


def change(attention, layer, head, off=False, centre=None, sigma=None):
    if off:
        attention.value.weight[:, head * attention.channels : (head + 1) * attention.channels] = 0
    if centre is not None:
        attention.centres[head] = torch.tensor(centre)
    if sigma is not None:
        spread, scale = attention.spreads[head], sigmas_of(attention)[head]
        round_one = 1 / sigma if spread.dim() == 0 else torch.eye(2) / sigma
        scaled = spread * scale / sigma if scale and spread.dim() else round_one
        attention.spreads[head] = scaled
