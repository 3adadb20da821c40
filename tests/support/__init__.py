"""What the tests share: the tolerances, the comparison, numbers, views and geometries."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

DTYPES = (mx.float32, mx.float16, mx.bfloat16, mx.float64)

# A few units in the last place: what rounding once, or adding up once in the accumulator, may cost.
TOLERANCE = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3, mx.float64: 1e-12}
SMALLEST = 2.0**-24  # float16 rounds to multiples of it, however small a value is


def accumulator(dtype: mx.Dtype) -> mx.Dtype:
    """What sums are kept in."""
    return mx.float64 if dtype == mx.float64 else mx.float32


def exact(a: mx.array) -> np.ndarray:
    """The values of an array, in float64."""
    return np.asarray(a if a.dtype == mx.float64 else a.astype(mx.float32), dtype=np.float64)


def close(actual: mx.array, expected: Any, scale: Any = 1.0, *, slack: float = 1.0) -> None:
    """Asserts equal shapes, and values equal to rounding once to ``actual.dtype`` after summing in the accumulator.

    Args:
        actual: What the package returned.
        expected: The definition's values in float64.
        scale: Size of the terms that were summed, such as the same definition over absolute values.
        slack: For several roundings in a row: how many.
    """
    expected = np.asarray(expected, dtype=np.float64)
    assert tuple(actual.shape) == expected.shape
    values = exact(actual)
    limit = TOLERANCE[actual.dtype] * np.abs(expected) + TOLERANCE[accumulator(actual.dtype)] * np.asarray(scale)
    limit = limit + (SMALLEST if actual.dtype == mx.float16 else 0)
    wrong = ~(np.abs(values - expected) <= slack * limit)  # NaN is wrong too
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} values differ, first at {at}: {values[at]!r}, expected {expected[at]!r}"
        )


def numbers(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    """Normal values that depend on the shape and the seed only."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return mx.array(values, mx.float64 if dtype == mx.float64 else mx.float32).astype(dtype)


def primitives(*outputs: mx.array) -> set[str]:
    """Names of the primitives that evaluating the outputs would run."""
    return set(nodes(*outputs))


def nodes(*outputs: mx.array) -> Counter[str]:
    """How often evaluating the outputs would run each primitive."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    return Counter(re.findall(r'label ?= ?"(\w+)"', dot.getvalue()))


def same_bits(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays are the same to the last bit; NaN is like NaN."""
    return a.dtype == b.dtype and bool(mx.array_equal(a, b, equal_nan=True).item())


def same_bits_for_threads(
    threads: Callable[[int], None], compute: Callable[[], Iterable[mx.array]], counts: tuple[int, ...] = (1, 2, 3, 2)
) -> None:
    """Asserts that a computation has the same bits with any number of threads, and every time.

    Args:
        threads: The fixture, which sets the number.
        compute: Makes the arrays anew in each call.
        counts: The numbers of threads.
    """
    expected: list[mx.array] = []
    for count in counts:
        threads(count)
        made = list(compute())
        mx.eval(made)  # before the number changes
        expected = expected or made
        assert made and len(made) == len(expected)
        other = [at for at, pair in enumerate(zip(made, expected, strict=True)) if not same_bits(*pair)]
        assert not other, f"arrays {other} have other bits with {count} threads than with {counts[0]}"


# Views with the values of an array and another layout ---------------------------------------------------


def _offset(a: mx.array) -> mx.array:
    base = mx.concatenate([mx.zeros((1,), a.dtype), a.reshape(-1)])
    mx.eval(base)
    return base[1:].reshape(a.shape)


def _strided(a: mx.array) -> mx.array:
    base = mx.stack([a, mx.full(a.shape, float("nan"), a.dtype)], axis=-1)
    mx.eval(base)
    return base[..., 0]


def _transposed(a: mx.array) -> mx.array:
    base = mx.contiguous(mx.transpose(a))
    mx.eval(base)
    return mx.transpose(base)


def _reversed(a: mx.array) -> mx.array:
    base = mx.contiguous(a[::-1])
    mx.eval(base)
    return base[::-1]


VIEWS: dict[str, Callable[[mx.array], mx.array]] = {
    "contiguous": lambda a: a,
    "offset": _offset,
    "strided": _strided,
    "transposed": _transposed,
    "reversed": _reversed,
}


# Windows ------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """Windows on an image of some height and width."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    placement: dict[str, Any]


def _windows(image: tuple[int, int], kernel: tuple[int, int], **placement: Any) -> Windows:
    return Windows(image, kernel, {"stride": 1, **placement})


def geometries(policy: Callable[..., Any]) -> dict[str, Windows]:
    """One of every kind of placement; ``policy`` is ``mpsfunc.PaddingPolicy``."""
    return {
        "3x3 s2 p1": _windows((7, 8), (3, 3), stride=2, padding=1),
        "2x2 s2": _windows((6, 4), (2, 2), stride=2),
        "1x1": _windows((3, 5), (1, 1)),
        "one row": _windows((1, 11), (1, 4), stride=(1, 3), padding=(0, 2)),
        "uneven": _windows((5, 7), (2, 3), stride=(2, 1), padding=((0, 1), (2, 0))),
        "stride leaves gaps": _windows((9, 8), (2, 1), stride=(3, 4)),
        "same": _windows((5, 6), (4, 3), stride=(2, 1), padding="same"),
        "full": _windows((3, 4), (3, 2), padding="full"),
        "kernel over image": _windows((2, 3), (5, 4), padding=3),
        "dilated": _windows((9, 8), (3, 3), padding=(2, 3), dilation=(2, 3)),
        "dilated even": _windows((7, 9), (2, 4), stride=2, padding=3, dilation=(3, 2)),
        "default policy": _windows((6, 7), (3, 2), stride=2, padding=policy()),
        "valid policy": _windows((8, 7), (3, 2), stride=3, padding=policy(size="valid", remainder="bottom_right")),
        "full policy": _windows((6, 5), (3, 3), stride=2, padding=policy(size="full", align="top_left")),
        "negative offset": _windows((4, 5), (2, 3), stride=2, offset=(-2, -1), out_size=(3, 4)),
        "starts inside": _windows((7, 6), (2, 2), stride=2, offset=(3, 2), out_size=(2, 2)),
        "hangs over": _windows((4, 4), (3, 3), stride=3, offset=0, out_size=(4, 3)),
        "wholly outside": _windows((3, 4), (2, 2), stride=5, offset=(9, -7), out_size=(2, 4)),
    }


# (batch, channels): whole and broken vectors of every width, and an empty batch.
BATCHES = ((2, 1), (1, 3), (2, 4), (1, 7), (3, 8), (2, 16), (1, 65), (0, 4))


def program(folder: Path, text: str, *arguments: str) -> str:
    """What a program of its own prints. It must come to its end, and has no errors to print."""
    (folder / "program.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", str(folder / "program.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
