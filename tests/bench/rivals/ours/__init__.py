"""mpsfunc."""

from .. import gathered
from . import activations, convolution, detection, normalization, pointwise, pooling, reductions, sequences

functions = gathered(pooling, reductions, normalization, convolution, pointwise, activations, sequences, detection)
