"""What there is to say of a convolution besides its arrays."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels.activation_spec import Activation
from mpsfunc.windows.axis import Axis


class Spec(NamedTuple):
    """Where the windows sit, how channels group, whether a bias is added, which neuron follows, and where to run."""

    rows: Axis
    cols: Axis
    groups: int
    biased: bool
    neuron: Activation
    stream: mx.Stream
