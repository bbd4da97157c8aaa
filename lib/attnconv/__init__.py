"""attnconv: the runnable companion to *On the Relationship between Self-Attention and Convolutional
Layers*.

One idea runs through everything: an attention head that always looks at the same shift is one tap
of a convolution.

attention/layers.py     the paper's three attention layers (sections 2 and 3)
equivalence/theorem.py  Theorem 1: heads as the taps of a kernel
equivalence/            `convert` a CNN to attention, read a kernel out of heads, `swap` layers
models.py               the networks of section 4
training/loop.py        an epoch (`train_epoch`), a whole run (`train`)
training/runs.py        a run's folder and its files
heads.py                what heads look at, in numbers
others.py               the same of vision transformers from elsewhere"""

__version__ = "0.1.0"
