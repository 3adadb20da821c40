"""Dropout: `dropout`, `dropout_fwd`, `dropout_grad` and `dropout_mask`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import LONG, LONG_IMAGE, WHOLE
from support import close, exact, numbers
from support.benchmarks import LEVEL, PIXELWISE, Benchmark, Measured
from support.oracle import elementwise as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.core import launch
from mpsfunc.elementwise import dropout_rules

# Samples, and what they should give ----------------------------------------------------------------------

IMAGE, EIGHT = (2, 3, 4, 5), (2, 5, 4, 8)
X, EIGHT_CHANNELS, MASK = Array(IMAGE), Array(EIGHT), Array(IMAGE, "bools")
KEY = Fixed((5, 6), "uint32")
BY_KEY: dict[str, Any] = {"keep_probability": 0.6, "key": KEY}
STRIDE: dict[str, Any] = {"mask_stride": (0, 1, 0)}


def _dropped(
    x: np.ndarray,
    *,
    keep_probability: float | None = None,
    p: float | None = None,
    seed: int | None = None,
    key: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    mask_stride: tuple[int, ...] = (1, 1, 1),
) -> np.ndarray:
    keep = keep_probability or 1 - (p or 0.5)
    if mask is None:
        mask = oracle.mask(x.shape, keep, mx.random.key(seed) if key is None else key, mask_stride)
    return oracle.dropout(x, mask, keep)


def _grad(dy: np.ndarray, state: Call) -> np.ndarray:
    return _dropped(dy, **state.how)


def _state(shape: tuple[int, ...] = IMAGE, **how: Any) -> Call:
    """Of images that do not matter."""
    return call("dropout_fwd", Array(shape, moves=False), **how, take=1)


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Shape = tuple[int, ...]
Strides = tuple[int, int, int]
KEYS = mx.array([[3, 7], [2**32 - 1, 5], [0, 1]], mx.uint32)
ODD, EVEN, TINY = (2, 3, 5, 7), (2, 3, 4, 8), (1, 1, 2, 3)


def _masked(shape: Shape, keep: float, keys: mx.array, stride: Strides) -> np.ndarray:
    """The masks of sets of images, one behind the other."""
    rows = [oracle.mask(shape, keep, key, stride) for key in np.array(keys)]
    return np.concatenate(rows)


def _case(
    shape: Shape,
    dtype: mx.Dtype,
    stride: Strides = (1, 1, 1),
    *,
    sets: int = 1,
    again: bool = False,
    keep: float = 0.6,
    crowded: bool = False,
) -> Case:
    """Sets of images with a key each; ``again`` has every set take the same images."""

    def check() -> None:
        x = numbers(shape if again else (sets * shape[0], *shape[1:]), dtype)
        h, w, c = (length if step else 1 for length, step in zip(shape[1:], stride, strict=True))
        spec = dropout_rules.Random(keep, shape[0], (h, w, c), launch.resolve(None))
        made = dropout_rules.by_key(x, KEYS[:sets], spec)
        images = np.concatenate([exact(x)] * sets) if again else exact(x)
        right = images * _masked(shape, keep, KEYS[:sets], stride) / keep
        close(made, right, abs(right))
        assert np.array_equal(exact(made) != 0, right != 0)

    return Case(named("dropout", shape, dtype, stride=stride, sets=sets, again=again), ("dropout",), check, crowded)


def _by_mask(shape: Shape, dtype: mx.Dtype, mask: Shape, *, crowded: bool = False) -> Case:
    def check() -> None:
        x, m = numbers(shape, dtype), numbers(mask, F32, 1) > 0
        right = exact(x) * exact(m) / 0.3
        close(mf.dropout(x, keep_probability=0.3, mask=m), right, abs(right))

    return Case(named("dropout_by_mask", shape, dtype, mask=mask), ("dropout_by_mask",), check, crowded)


def _mask(shape: Shape, stride: Strides, *, sets: int = 1, keep: float = 0.6, crowded: bool = False) -> Case:
    def check() -> None:
        h, w, c = (length if step else 1 for length, step in zip(shape[1:], stride, strict=True))
        spec = dropout_rules.Random(keep, shape[0], (h, w, c), launch.resolve(None))
        made = dropout_rules.masks(KEYS[:sets], spec)
        assert np.array_equal(np.array(made), _masked(shape, keep, KEYS[:sets], stride))

    return Case(named("dropout_mask", shape, mx.uint8, stride=stride, sets=sets), ("dropout_mask",), check, crowded)


def _cases() -> Iterator[Case]:
    for stride in ((1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)):
        yield _case(ODD, F32, stride)
    for stride in ((1, 1, 1), (0, 0, 1), (1, 1, 0), (0, 1, 0)):
        yield _case(EVEN, F32, stride, sets=2)
    yield _case(EVEN, F16, sets=3)
    yield _case(EVEN, BF16, (0, 0, 1))
    yield _case(ODD, F16, (1, 1, 0), sets=2)
    yield _case(TINY, F32)
    yield _case(TINY, BF16, sets=3, again=True)
    yield _case(EVEN, F32, (1, 0, 1), sets=3, again=True)
    yield _case((3, 5, 8, 84), F32, (1, 1, 0), sets=1, crowded=True)
    yield _case((5, 1, 1, 9001), F32, (0, 0, 1), sets=2, crowded=True)
    yield _by_mask(ODD, F32, ODD)
    yield _by_mask(EVEN, F32, EVEN)
    yield _by_mask(EVEN, F32, (1, 1, 1, 8))
    yield _by_mask(EVEN, F16, (2, 3, 1, 1))
    yield _by_mask(EVEN, BF16, (1, 3, 4, 1))
    yield _by_mask(ODD, F16, (2, 1, 5, 7))
    yield _by_mask(TINY, F32, (1, 1, 1, 1))
    # More than the threads of a crowded grid have under way, in images that do not merge.
    yield _by_mask((3, 9, 8, 125), F32, (3, 1, 8, 1), crowded=True)


def _mask_cases() -> Iterator[Case]:
    yield _mask(ODD, (1, 1, 1), sets=3)
    yield _mask(EVEN, (1, 1, 1), sets=2)
    yield _mask(EVEN, (1, 1, 0))
    yield _mask((1, 1, 1, 40000), (1, 1, 1), crowded=True)
    yield _mask((1, 1, 1, 9001), (1, 1, 1), sets=3, crowded=True)


# What bodies load ---------------------------------------------------------------------------------------

_SEED = mx.array([1, 2], mx.uint32)


def _by_key() -> None:
    mf.dropout(numbers(LONG), key=_SEED)


def _made() -> None:
    mf.dropout_mask(LONG, key=_SEED)


def _given() -> None:
    x = numbers(LONG)
    mf.dropout(x, mask=x > 0)


# A key is loaded by each thread, of which each has four packs, or one of a mask of bytes.
LOADS = {
    "dropout": Loads(_by_key, {"x": WHOLE, "keys": (8, LONG_IMAGE / 16 / 4 * 8)}),
    "dropout_by_mask": Loads(_given, {"x": WHOLE, "mask": (LONG_IMAGE // 4, LONG_IMAGE / 4)}),
}
MASK_LOADS = {"dropout_mask": Loads(_made, {"keys": (8, LONG_IMAGE / 4 / 16 / 4 * 8)})}

# What is measured ---------------------------------------------------------------------------------------

_TABLES: dict[str, Any] = {"cpu": (Measured(targets=LEVEL),), "gpu": (Measured(targets=PIXELWISE),)}


def _measured(ending: str) -> dict[str, Benchmark]:
    masked = Benchmark("pointwise", 1, 1, ("mask",), 1, title=f"dropout{ending} mask", **_TABLES)
    return {
        f"dropout{ending}": Benchmark("pointwise", 1, 1, by_value=False, **_TABLES),
        f"dropout_masked{ending}": masked,
    }


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, AKEY = numbers((2, 6, 5, 4)), mx.array([1, 2], mx.uint32)
ABOVE = IMAGES > 0
STATE = mf.DropoutState(AKEY, mx.zeros(0, mx.uint8), "dropout", 0.5, (1, 1, 1), IMAGES.shape)
STATE_OF_MASK = STATE._replace(mask=ABOVE, op="dropout_by_mask")
WIDE = mx.broadcast_to(mx.zeros((1, 1, 1, 4)), (1, 2**15, 2**14, 4))
NAN = float("nan")


def _forged(**fields: Any) -> Any:
    return lambda: mf.dropout_grad(IMAGES, STATE._replace(**fields))


OPS = (
    OpInfo(
        name="dropout",
        samples={
            "": call("dropout", X, **BY_KEY),
            "with strides": call("dropout", X, **BY_KEY, **STRIDE),
            "by a mask": call("dropout", X, keep_probability=0.6, mask=MASK),
            "by a floating mask": call("dropout", X, keep_probability=0.6, mask=Array((1, 3, 4, 1))),
            "of whole images": call("dropout", X, keep_probability=0.5, seed=3, mask_stride=(0, 0, 0)),
            "of eight channels": Sample(call("dropout", EIGHT_CHANNELS, p=0.5, seed=9), in_matrix=False),
            "of eight channels by a mask": Sample(
                call("dropout", EIGHT_CHANNELS, p=0.5, mask=Array(EIGHT, "bools")), in_matrix=False
            ),
        },
        reference=_dropped,
        linear=(0,),
        wrong_values=(
            *(
                ("keep_probability is out of range", lambda p=p: mf.dropout(IMAGES, keep_probability=p))
                for p in (0, -0.5, 2, NAN)
            ),
            *(("p is out of range", lambda p=p: mf.dropout(IMAGES, p=p)) for p in (1, 1.0, -0.5, 2, NAN)),
            # Errors of dropout_fwd have this name too.
            *(
                ("keep_probability and p exclude each other", lambda f=f: f(IMAGES, keep_probability=0.25, p=0.75))
                for f in (mf.dropout, mf.dropout_fwd)
            ),
            ("seed is out of range", lambda: mf.dropout(IMAGES, seed=-1)),
            ("seed is out of range", lambda: mf.dropout(IMAGES, seed=2**64)),
            ("seed and key exclude each other", lambda: mf.dropout(IMAGES, seed=1, key=AKEY)),
            ("key is not a key", lambda: mf.dropout(IMAGES, key=mx.zeros(3, mx.uint32))),
            ("a mask needs no seed", lambda: mf.dropout(IMAGES, seed=1, mask=ABOVE)),
            ("a mask needs no key", lambda: mf.dropout(IMAGES, key=AKEY, mask=ABOVE)),
            ("a mask has no stride", lambda: mf.dropout(IMAGES, mask=ABOVE, mask_stride=(1, 1, 0))),
            ("mask does not fit", lambda: mf.dropout(IMAGES, mask=ABOVE[:, :2])),
            ("mask does not fit", lambda: mf.dropout(IMAGES, mask=ABOVE[0])),
            ("mask does not fit", lambda: mf.dropout(IMAGES[0], mask=ABOVE[0, :1])),
            ("mask_stride is not a stride", lambda: mf.dropout(IMAGES, mask_stride=(1, 1, 2))),
            ("mask_stride is not a stride", lambda: mf.dropout(IMAGES, mask_stride=(1, 1))),
            ("only images have strides", lambda: mf.dropout(IMAGES[0], mask_stride=(1, 1, 0))),
            ("an image is too large", lambda: mf.dropout(WIDE)),
        ),
        wrong_types=(
            *(("x is not an array", lambda x=x: mf.dropout(x)) for x in (None, 3, [1.0])),
            ("x has no floating dtype", lambda: mf.dropout(IMAGES.astype(mx.int32))),
            *(
                ("keep_probability is not a number", lambda p=p: mf.dropout(IMAGES, keep_probability=p))
                for p in ("0.5", True, IMAGES)
            ),
            *(("p is not a number", lambda p=p: mf.dropout(IMAGES, p=p)) for p in ("0.5", True, IMAGES)),
            *(
                ("only x goes without a name", lambda second=second, f=f: f(IMAGES, second))
                for second in (0.1, 0.5, 1, None, ABOVE)
                for f in (mf.dropout, mf.dropout_fwd)
            ),
            ("only x goes without a name", lambda: mf.dropout(IMAGES, 0.5, 7)),
            ("only x goes without a name", lambda: mf.dropout(IMAGES, 0.5, p=0.5)),
            ("seed is not an int", lambda: mf.dropout(IMAGES, seed=1.5)),
            ("key is not a key", lambda: mf.dropout(IMAGES, key=7)),
            ("key is not a key", lambda: mf.dropout(IMAGES, key=mx.zeros(2, mx.int32))),
            ("mask is not a mask", lambda: mf.dropout(IMAGES, mask=[1, 0])),
            ("mask is not a mask", lambda: mf.dropout(IMAGES, mask=IMAGES.astype(mx.complex64))),
            ("mask_stride is not a stride", lambda: mf.dropout(IMAGES, mask_stride=1)),
            ("mask_stride is not a stride", lambda: mf.dropout(IMAGES, mask_stride=(1, 1, True))),
        ),
        cases=_cases,
        loads=LOADS,
        benchmarks=_measured(""),
        nodes={
            "": Node(
                lambda x: graph.dropout(x, keep_probability=0.7, seed=3, mask_stride=(1, 1, 0), name="n"),
                lambda p, x: mf.dropout(x, keep_probability=0.7, key=mx.random.key(3), mask_stride=(1, 1, 0)),
            )
        },
    ),
    OpInfo(
        name="dropout_fwd",
        samples={
            "": call("dropout_fwd", X, keep_probability=0.6, mask=Array((1, 3, 1, 5), "bools")),
            "by a floating mask": Sample(call("dropout_fwd", X, keep_probability=0.6, mask=X), outputs=(0,)),
            "of eight channels": Sample(
                call("dropout_fwd", EIGHT_CHANNELS, keep_probability=0.75, seed=7), in_matrix=False
            ),
        },
        reference=_dropped,
        linear=(0,),
    ),
    OpInfo(
        name="dropout_grad",
        samples={
            "": call("dropout_grad", X, _state(**BY_KEY)),
            "by a mask": call("dropout_grad", X, _state(keep_probability=0.6, mask=MASK)),
            "by a floating mask": call("dropout_grad", X, _state(keep_probability=0.6, mask=Array((2, 1, 4, 5)))),
            "of eight channels": Sample(
                call("dropout_grad", EIGHT_CHANNELS, _state(EIGHT, keep_probability=0.75, seed=7)), in_matrix=False
            ),
        },
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to this state", lambda: mf.dropout_grad(IMAGES[:1], STATE)),
            ("state.keep_probability is out of range", _forged(keep_probability=2.0)),
            ("state.mask_stride is not a stride", _forged(mask_stride=(3, 1, 1))),
            ("state.key is not a key", _forged(key=mx.zeros((2, 2), mx.uint32))),
            (
                "state.mask does not fit",
                lambda: mf.dropout_grad(IMAGES, STATE_OF_MASK._replace(mask=mx.zeros(3, mx.uint8))),
            ),
        ),
        wrong_types=(
            ("dy is not an array", lambda: mf.dropout_grad(None, STATE)),
            ("dy has no floating dtype", lambda: mf.dropout_grad(ABOVE, STATE)),
            ("state.key is not a key", _forged(key=mx.zeros(2))),
        ),
        benchmarks=_measured("_grad"),
    ),
    OpInfo(
        name="dropout_mask",
        samples={
            "": call("dropout_mask", IMAGE, **BY_KEY),
            "with strides": call("dropout_mask", IMAGE, **BY_KEY, **STRIDE),
            "of eight channels": call("dropout_mask", EIGHT, keep_probability=0.5, seed=3),
        },
        compared="elementwise/test_dropout.py",  # a mask is of bools
        differentiable=False,
        wrong_values=(
            ("keep_probability is out of range", lambda: mf.dropout_mask((2,), keep_probability=0)),
            ("p is out of range", lambda: mf.dropout_mask((2,), p=1)),
            ("keep_probability and p exclude each other", lambda: mf.dropout_mask((2,), keep_probability=0.5, p=0.5)),
            ("only images have strides", lambda: mf.dropout_mask((2, 3), mask_stride=(0, 1, 1))),
            ("shape is out of range", lambda: mf.dropout_mask((2, -1))),
            ("an image is too large", lambda: mf.dropout_mask((1, 2**15, 2**15, 4))),
            ("a mask is too large", lambda: mf.dropout_mask((2**31 - 1, 2**30), seed=1)),
            ("a mask is too large", lambda: mf.dropout_mask((2**20, 2**20))),
        ),
        wrong_types=(
            ("only shape goes without a name", lambda: mf.dropout_mask((2, 3), 0.5)),
            ("shape is not a shape", lambda: mf.dropout_mask(7)),
            ("shape is not a shape", lambda: mf.dropout_mask((2, 1.5))),
        ),
        cases=_mask_cases,
        loads=MASK_LOADS,
    ),
)
