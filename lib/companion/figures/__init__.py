# ruff: noqa: F401 (what is imported here is what the package offers)
"""Every figure of the paper, and some of our own: arrays or frames in, a matplotlib `Figure` out.

Nothing is trained, loaded or measured here. Conventions of all figures: shifts and pixels count
rows, then columns, and rows point down as in an image; layers and heads are numbered from 1; a
model keeps its colour in every figure (`model_colours`), and a head in every figure of its layer
(`head_colours`). An array may be NaN where there is nothing: layers with fewer heads, encodings
without a covariance, pixels outside the image. The style is `attnconv.mplstyle`, and the same
arrays give the same bytes (`save`)."""

from companion.figures.centres import gaussian_heads
from companion.figures.curves import error_before_and_after
from companion.figures.maps import attention_grid, attention_on_image, signed_images
from companion.figures.style import head_colours, save, save_animation
