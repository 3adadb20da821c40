"""mpsfunc."""

from .. import gathered
from . import activations, convolution, normalization, pointwise, pooling, reductions, sequences

functions = gathered(pooling, reductions, normalization, convolution, pointwise, activations, sequences)
