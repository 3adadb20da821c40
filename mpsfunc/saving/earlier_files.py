"""What files of earlier versions of the format mean, where records have gained fields or keep something else since.

Version 1 is that of commit b3fc197.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.normalization.batch_state import UNKNOWN

Fields = dict[str, Any]

# Fields that a record gained: in which version, and what a file of an earlier one, which lacks them, means by the
# fields that it has. They stand at the end of their record, or of its arrays, and stay here for ever.
LATER: dict[str, dict[str, tuple[int, Callable[[Fields], Any]]]] = {
    "Axis": {"zero_pad_after": (2, lambda fields: fields["zero_pad"])},  # which was the number on both sides
    "BatchNormState": {"gamma": (4, lambda fields: _unknown(fields["mean"])), "summed": (2, lambda fields: UNKNOWN)},
    "Resized": {"antialias": (3, lambda fields: False), "factor": (3, lambda fields: 0.0)},
}


def completed(kind: str, fields: Fields, version: int) -> Fields:
    """The fields of a record as it is now. While a file is checked, arrays are None and stay that."""
    for name, (since, meant) in LATER.get(kind, {}).items():
        if version < since:
            fields[name] = meant(fields)
    if version < 2 and kind in ("ConvState", "ConvTransposeState") and isinstance(fields["y"], mx.array):
        fields["y"] = _activated(fields)
    return fields


def _unknown(like: Any) -> Any:
    """NaN for a vector that the file lacks; what is no array, as while a file is checked, stays as it is."""
    with mx.stream(mx.cpu):
        return mx.full(like.shape, math.nan, like.dtype) if isinstance(like, mx.array) else like


def _activated(fields: Fields) -> mx.array:
    """What a neuron was applied to, where version 1 kept what it returned: of sigmoid, and most of tanh and elu.

    As exact as the result tells. Where that was rounded to the end of the range, it is an infinity, where slopes are 0.
    """
    y: mx.array = fields["y"]
    name, a, b = (fields[field] for field in ("neuron", "a", "b"))
    if name not in ("sigmoid", "tanh", "elu") or y.dtype not in _FLOATING or not isinstance(a, float):
        return y
    with mx.stream(mx.cpu):
        wide = y.astype(launch.accumulator(y.dtype))
        if name == "sigmoid":
            z = mx.log(wide) - mx.log1p(-wide)
        elif name == "elu" and a > 0:
            z = mx.where(wide < 0, mx.log1p(mx.maximum(wide / a, -1)), wide)
        elif name == "tanh" and 1e-15 <= abs(a) <= 1e15 and isinstance(b, float):
            z = mx.arctanh(mx.clip(wide / a, -1, 1)) / b if b else mx.zeros_like(wide)
        else:
            return y
        z = z.astype(y.dtype)
        mx.eval(z)
    return z


_FLOATING = (mx.float32, mx.float16, mx.bfloat16, mx.float64)
