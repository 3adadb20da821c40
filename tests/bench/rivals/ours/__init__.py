"""mpsfunc."""

from .. import gathered
from . import convolution, normalization, pointwise, pooling

functions = gathered(pooling, normalization, convolution, pointwise)
