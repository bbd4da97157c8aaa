"""attnconv: the runnable companion to *On the Relationship between Self-Attention and Convolutional
Layers*.

One idea runs through everything: an attention head that always looks at the same shift is one tap
of a convolution."""

__version__ = "0.1.0"
