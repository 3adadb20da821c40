"""Samples as functions of arrays only, and of states, and what the tests that transform them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from generic.opinfo import Arrays, Sample
from generic.ops import OPS

from mpsfunc.selftest.expressions import SETTINGS, Call, arrays, results
from support import exact, numbers

SIZE = 3  # of a mapped axis


class Entry(NamedTuple):
    """A sample as a function from arrays to a tuple of arrays."""

    sample: Sample

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(a.shape for a in self.sample.arguments)

    def call(self, *arrays: mx.array) -> Arrays:
        given = zip(self.sample.arguments, arrays, strict=True)
        dtype = next((a.dtype for spec, a in given if not spec.wide), arrays[0].dtype)
        return self.sample.outs(arrays, dtype)

    def inputs(self, dtype: mx.Dtype = mx.float64, *, seed: int = 0, batch: int | None = None) -> Arrays:
        """Values for the arguments, with a new leading axis of length ``batch``."""
        return self.sample.inputs(dtype, seed=seed, batch=batch)

    def loss(self, *arrays: mx.array) -> mx.array:
        """A scalar of all outputs whose derivatives of every order exist and differ."""
        total = mx.array(0.0, arrays[0].dtype)
        for i, y in enumerate(self.call(*arrays)):
            weights = numbers(tuple(y.shape), y.dtype, 7 + i)
            total = total + (weights * (y + 0.3 * y * y + 0.1 * y * y * y)).sum()
        return total

    def square(self, *arrays: mx.array) -> mx.array:
        """A plainer scalar, for traces that MLX compiles."""
        return sum(((y * y).sum() for y in self.call(*arrays)), mx.array(0.0, arrays[0].dtype))


class Stateful(NamedTuple):
    """A sample that takes or returns states, as a function of those that it takes and of arrays."""

    sample: Sample
    dtype: mx.Dtype = mx.float64

    def given(self, seed: int) -> tuple[tuple[Any, ...], Arrays]:
        """The states, and the other arguments."""
        inputs = iter(self.sample.inputs(self.dtype, seed=seed))
        states, others = [], []
        for each in (*self.sample.call.args, *self.sample.call.how.values()):
            own = [next(inputs) for _ in arrays(each)]
            if _makes_state(each):
                states.append(Sample(each).run(tuple(own), self.dtype))
            else:
                others += own
        return tuple(states), tuple(others)

    def call(self, states: tuple[Any, ...], *others: mx.array, **more: Any) -> Any:
        """What the sample returns with these states."""
        return self.sample.run(others, self.dtype, iter(states), **more)


def same(actual: Sequence[mx.array], expected: Sequence[mx.array], tolerance: float = 1e-10) -> None:
    """Asserts equal shapes and dtypes, and values to a share of the largest."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        size = max(1.0, float(np.abs(exact(e)).max(initial=0)))
        np.testing.assert_allclose(exact(a), exact(e), rtol=0, atol=tolerance * size)


def grads(loss: Callable[..., mx.array], count: int) -> Callable[..., Arrays]:
    """The gradients of a loss by all of its arguments, always as a tuple."""
    pull = mx.grad(loss, argnums=tuple(range(count)))
    return lambda *arrays: (pull(*arrays),) if count == 1 else pull(*arrays)


def looped(function: Callable[..., Arrays], arrays: Arrays, mapped: Sequence[bool]) -> Arrays:
    """What mx.vmap should give, one run after the other."""
    runs = [function(*[a[i] if m else a for a, m in zip(arrays, mapped, strict=True)]) for i in range(SIZE)]
    return tuple(mx.stack(outs) for outs in zip(*runs, strict=True))


_OP_AND_SAMPLE = [(op, name, sample) for op in OPS.values() for name, sample in op.named_samples().items()]
SAMPLES = {name: sample for _, name, sample in _OP_AND_SAMPLE}
OP_OF = {name: op for op, name, _ in _OP_AND_SAMPLE}
MATRIX = {
    f"{name} float64": Entry(sample) for op, name, sample in _OP_AND_SAMPLE if op.differentiable and sample.in_matrix
}


def _makes_state(argument: Any) -> bool:
    return isinstance(argument, Call) and argument.function not in SETTINGS


def _has_state(value: Any) -> bool:
    return hasattr(value, "arrays") or (isinstance(value, tuple) and any(map(_has_state, value)))


def stateful() -> dict[str, Stateful]:
    """Samples that take or return a state, and in them an array."""
    found = {}
    with mx.stream(mx.cpu):
        for name, sample in SAMPLES.items():
            given = any(map(_makes_state, (*sample.call.args, *sample.call.how.values())))
            made = sample.run(sample.inputs(mx.float64), mx.float64) if sample.in_matrix else ()
            if results(made) and (given or _has_state(made)):
                found[f"{name} float64"] = Stateful(sample)
    return found
