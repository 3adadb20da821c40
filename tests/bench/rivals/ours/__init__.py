"""mpsfunc."""

from .. import gathered
from . import activations, convolution, normalization, pointwise, pooling, sequences

functions = gathered(pooling, normalization, convolution, pointwise, activations, sequences)
