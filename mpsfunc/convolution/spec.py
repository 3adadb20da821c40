"""What there is to say of a convolution besides its arrays."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels.activation_spec import Activation
from mpsfunc.windows.axis import Axis


class Spec(NamedTuple):
    """Where the windows sit, how channels group, whether a bias is added, which neuron follows, and where to run.

    ``exchanged``: the weights are (channels, kh, kw, outputs), as a transposed convolution has those of the convolution
    that leads back. Only a CPU runs this, and without groups. ``rounded``: the gradient of the weights has the images'
    dtype, not the accumulator's.
    """

    rows: Axis
    cols: Axis
    groups: int
    biased: bool
    neuron: Activation
    stream: mx.Stream
    exchanged: bool = False
    rounded: bool = False

    def outputs(self, w: mx.array) -> int:
        """Output channels that weights are for."""
        return w.shape[3 if self.exchanged else 0]

    def inputs(self, w: mx.array) -> int:
        """Channels of a group that weights are for."""
        return w.shape[0 if self.exchanged else 3]
