"""Every public differentiable function as one of arrays only, for tests that treat them all alike."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from support import numbers
from support.matrix.activation import ACTIVATIONS
from support.matrix.convolution import CONVOLUTIONS
from support.matrix.elementwise import ELEMENTWISE
from support.matrix.entry import Arrays as Arrays
from support.matrix.entry import Entry as Entry
from support.matrix.entry import entry as _entry
from support.matrix.image import IMAGES
from support.matrix.losses import LOSSES
from support.matrix.normalization import NORMALIZATIONS

# What differentiates nothing: it takes shapes or ints, is a type, or returns zeros.
NOT_DIFFERENTIABLE = {
    "AvgPoolState", "BatchNormState", "ConvState", "ConvTransposeState", "CrossChannelNormState", "GroupNormState",
    "InstanceNormState", "L2PoolState", "LocalContrastNormState", "MaxPoolState", "Neuron", "PaddingPolicy",
    "SpatialNormState", "avg_pool_state", "bn_reset", "conv_state", "get_num_threads", "max_pool_indices",
    "set_num_threads",
    "DropoutState", "dropout_mask",
    "PadState", "ResampleState", "pad_state", "resize_bilinear_state", "resize_nearest_state",
    "upsample_bilinear_state", "upsample_nearest_state",
    "LossState", "load", "save",
    "checkpoint",
}  # fmt: skip


IMAGE = (2, 5, 4, 4)
POOL: dict[str, Any] = {"stride": 2, "padding": 1, "edge_mode": "clamp"}
ZEROS: Any = ((1, 0), (0, 1))
POOLED = mf.avg_pool_state(IMAGE, 3, **POOL, zero_pad=ZEROS)
_ROWS, _COLS = mf.avg_pool_state(IMAGE, 3, **POOL)[2:]  # a maximum's windows sit where an average's do
MAX_POOLED = mf.MaxPoolState(mx.where(numbers((2, 3, 2, 4)) > 0, 4, 5).astype(mx.uint8), "max_pool", _ROWS, _COLS)
L2_NORMS = (2, 3, 2, 4)


def _l2_state(norms: mx.array) -> mf.L2PoolState:
    wide = norms.astype(mx.float64 if norms.dtype == mx.float64 else mx.float32)
    return mf.L2PoolState(wide, "l2_pool", _ROWS, _COLS)


MATRIX: dict[str, Entry] = {
    "avg_pool": _entry(lambda x: mf.avg_pool(x, 3, **POOL, zero_pad=ZEROS), IMAGE),
    "avg_pool_fwd": _entry(lambda x: mf.avg_pool_fwd(x, (2, 3), dilation=(2, 1))[0], IMAGE),
    "avg_pool_grad": _entry(lambda dy: mf.avg_pool_grad(dy, POOLED), (2, 3, 2, 4)),
    "avg_pool_grad of a source window": _entry(
        lambda dy: mf.avg_pool_grad(dy, POOLED, source_window=((1, 0), (2, 1))), (2, 3, 2, 4)
    ),
    "max_pool": _entry(lambda x: mf.max_pool(x, 3, **POOL), IMAGE),
    "max_pool_fwd": _entry(lambda x: mf.max_pool_fwd(x, (2, 3), dilation=(2, 1))[0], IMAGE),
    "max_pool_grad": _entry(lambda dy: mf.max_pool_grad(dy, MAX_POOLED), (2, 3, 2, 4)),
    "max_pool_grad of a source window": _entry(
        lambda dy: mf.max_pool_grad(dy, MAX_POOLED, source_window=((1, 0), (2, 1))), (2, 3, 2, 4)
    ),
    "max_pool_grad_from_source": _entry(
        lambda dy: mf.max_pool_grad_from_source(dy, numbers(IMAGE, dy.dtype), 3, **POOL), (2, 3, 2, 4)
    ),
    "max_unpool": _entry(lambda y: mf.max_unpool(y, MAX_POOLED), (2, 3, 2, 4)),
    "avg_pool globally": _entry(lambda x: mf.avg_pool(x, "global"), IMAGE),
    "avg_pool adaptively": _entry(lambda x: mf.avg_pool(x, "adaptive", out_size=(2, 3)), IMAGE),
    "max_pool adaptively": _entry(lambda x: mf.max_pool(x, "adaptive", out_size=(2, 3)), IMAGE),
    "l2_pool": _entry(lambda x: mf.l2_pool(x, 3, **POOL), IMAGE),
    "l2_pool_fwd": _entry(lambda x: mf.l2_pool_fwd(x, (2, 3), dilation=(2, 1))[0], IMAGE),
    "l2_pool adaptively": _entry(lambda x: mf.l2_pool(x, "adaptive", out_size=(2, 3)), IMAGE),
    "l2_pool_grad": _entry(
        lambda dy, x, norms: mf.l2_pool_grad(dy, x, _l2_state(norms)), L2_NORMS, IMAGE, L2_NORMS, positive=(2,)
    ),
    "l2_pool_grad of a source window": _entry(
        lambda dy, x, norms: mf.l2_pool_grad(dy, x, _l2_state(norms), source_window=((1, 0), (2, 1))),
        *(L2_NORMS, IMAGE, L2_NORMS),
        positive=(2,),
    ),
    **CONVOLUTIONS,
    **NORMALIZATIONS,
    **LOSSES,
    **ACTIVATIONS,
    **ELEMENTWISE,
    **IMAGES,
}
