"""Stock MLX: the operations of ``mlx.nn``, or what it has to make them of, and what ``mx.vjp`` makes of them."""

from .. import gathered
from . import activations, convolution, normalization, pointwise, pooling, reductions

functions = gathered(pooling, reductions, normalization, convolution, pointwise, activations)
