"""What a row of a table makes: a call of this library, and what it must give, by NumPy in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

import mpsfunc as mf

Rng = np.random.Generator
EPS = {mx.float64: 2.0**-53, mx.float32: 2.0**-24, mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}  # half a unit of 1
TINY = {mx.float64: 2.0**-1022, mx.float32: 2.0**-126, mx.bfloat16: 2.0**-126, mx.float16: 2.0**-24}
LARGEST = {mx.float64: 1.7e308, mx.float32: 3.4e38, mx.bfloat16: 3.38e38, mx.float16: 65504.0}


class _Calling:
    """The functions of the package, counted by name when they are called."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            self.calls[name] += 1
            return getattr(mf, name)(*args, **how)

        return call


of = _Calling()


class Case(NamedTuple):
    """One call.

    Fields:
        told: Its arguments.
        arrays: What it takes, exact in their dtype.
        dtype: Of the images.
        call: From those arrays to the result.
        result: What it must be.
        size: Sums of absolute terms; by default what a relative change of the arguments changes.
        terms: How many are added up for an element.
        moving: The arguments that are differentiated.
        dtypes: Of the arrays.
        first: The same call by `f_fwd`.
        pulled: By the explicit gradients, from dy and the arrays to a gradient for some arguments.
        exact: Nothing is computed, only moved.
        mapped: Whether the call can be mapped over all its arrays.
        more: Other relations; a text for each that does not hold.
        narrow: How much of a gradient's size goes through a number of the images' dtype on the way, as docs say.
    """

    told: str
    arrays: list[np.ndarray]
    dtype: mx.Dtype
    call: Callable[..., mx.array]
    result: Callable[..., np.ndarray]
    size: Callable[..., np.ndarray] | None = None
    terms: int = 1
    moving: tuple[int, ...] = (0,)
    dtypes: tuple[mx.Dtype, ...] = ()
    first: Callable[..., mx.array] | None = None
    pulled: Callable[..., dict[int, mx.array]] | None = None
    exact: bool = False
    mapped: bool = True
    more: Callable[..., Iterator[str]] | None = None
    narrow: float = 0.0

    def given(self) -> list[mx.Dtype]:
        """The dtype of each array."""
        return list(self.dtypes or [self.dtype] * len(self.arrays))


class Row(NamedTuple):
    """The functions that a sampler's cases call, all of them before long."""

    names: Sequence[str]
    sample: Callable[[Rng], Case]


def family(name: str, *endings: str) -> list[str]:
    """f, f_fwd, f_grad and the like."""
    return [name, *(f"{name}_{ending}" for ending in endings)]


def pick(rng: Rng, *of: Any) -> Any:
    """One of them."""
    return of[rng.integers(len(of))]


def dtype(rng: Rng) -> mx.Dtype:
    """A random dtype, float32 more often."""
    return pick(rng, mx.float32, mx.float32, mx.float16, mx.bfloat16, mx.float64)


def rounded(a: np.ndarray, kind: mx.Dtype) -> np.ndarray:
    """What an array of that dtype holds of these numbers."""
    with np.errstate(all="ignore"):
        if kind == mx.float16:
            return a.astype(np.float16).astype(np.float64)
        if kind == mx.bfloat16:
            bits = a.astype(np.float32).view(np.uint32)
            return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)
        return a.astype(np.float32 if kind == mx.float32 else np.float64).astype(np.float64)


def numbers(rng: Rng, shape: Sequence[int], kind: mx.Dtype, *, wide: bool = False) -> np.ndarray:
    """Numbers of many kinds, with ties and zeros at times; wide ones come near the ends of the dtype."""
    made = rng.standard_normal(shape)
    which = rng.integers(12)
    if which == 0:
        made = rng.integers(-2, 3, shape).astype(np.float64)
    elif which == 1:
        made = made * 0.01
    elif which == 2:
        made = made * 20
    elif which == 3:
        made = np.where(rng.random(shape) < 0.5, 0.0, made)
    elif which == 4 and wide:
        made = made * LARGEST[kind if kind != mx.float64 else mx.float32] * 0.1
    elif which == 5 and wide:
        made = made * 1e-6
    return rounded(made, kind)


def images(rng: Rng, kind: mx.Dtype, *, wide: bool = False, most: int = 7, empty: bool = True) -> np.ndarray:
    """Random images; now and then a batch of none."""
    n = int(rng.integers(1, 4)) if not empty or rng.random() > 0.04 else 0
    return numbers(rng, (n, *rng.integers(1, most + 1, 2), rng.integers(1, 8)), kind, wide=wide)


def array(a: np.ndarray, kind: mx.Dtype) -> mx.array:
    """The numbers as an array of a dtype."""
    a = np.array(a, order="C")  # with strides that MLX takes
    made = mx.array(a, mx.float64 if kind == mx.float64 else mx.float32) if a.dtype.kind == "f" else mx.array(a)
    return made.astype(kind)


def laid(rng: Rng, a: mx.array) -> mx.array:
    """The same values in another layout."""
    which = rng.integers(7)
    if a.ndim == 0 or a.size == 0 or which < 2:
        return a
    if which == 2:
        axes = [int(i) for i in rng.permutation(a.ndim)]
        return mx.contiguous(a.transpose(axes)).transpose([axes.index(i) for i in range(a.ndim)])
    if which == 3:
        return mx.repeat(a, 2, axis=-1)[..., ::2]
    if which == 4:
        return mx.contiguous(a[..., ::-1])[..., ::-1]
    if which == 5 and a.ndim > 1:
        return mx.concatenate([a, a], axis=1)[:, : a.shape[1]]
    return mx.concatenate([a.reshape(-1)[:1], a.reshape(-1)])[1:].reshape(a.shape)


def numpy(a: mx.array) -> np.ndarray:
    """The numbers of an array, in float64."""
    return np.array(a if a.dtype == mx.float64 else a.astype(mx.float32)).astype(np.float64)


def roots(kind: mx.Dtype) -> float:
    """The error of one operation on the way: sums are at least float32."""
    return EPS[mx.float64] if kind == mx.float64 else EPS[mx.float32]
