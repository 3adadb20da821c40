"""mpsfunc."""

from .. import gathered
from . import activations, convolution, normalization, pointwise, pooling

functions = gathered(pooling, normalization, convolution, pointwise, activations)
