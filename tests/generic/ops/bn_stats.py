"""Batch statistics, `bn_stats`; and what the other files of batch normalization have in common with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, Loads, OpInfo, Sample, call
from metal_host.case import Case, launched, named
from metal_host.geometry import LONG, LONG_IMAGE, VECTOR
from support import close, exact, numbers
from support.benchmarks import DTYPES, LARGE, SHARE, Benchmark, Measured
from support.oracle import activation as oracle_activation
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc.channels import launches
from mpsfunc.channels.activation_spec import (
    EXPONENTIAL,
    GELU,
    NAMES,
    NO_ACTIVATION,
    POWER,
    RELU,
    RELUN,
    SOFTPLUS,
    Activation,
)
from mpsfunc.core import grids

# Samples, and what they should give ----------------------------------------------------------------------

SHAPE = (2, 5, 4, 4)
X, SCALE = Array(SHAPE), Array((4,))
SMALL = Array((2, 2, 3, 4))  # for activations that one sample more is for
LARGE_IMAGES = (3, 6, 5, 8), (3, 6, 5, 7)  # of vectors, and of numbers one by one
WITH_SUMS = (0, 1, 2, 3)  # mean, variance and both sums; the scale is in normalization/test_batch_state.py
TANH = call("Neuron", "tanh", -1.3, 0.7)


def state(
    channels: int = 4, *, sums: bool = True, count: int = 12, frozen: bool = False, summed: str = "unknown"
) -> Call:
    """A state of arrays that are arguments; without sums, of zeros for the gradients and the scale."""
    vector = Array((channels,), wide=True)
    held = vector if sums else Fixed([0.0] * channels)
    arrays = vector, vector._replace(of="positive"), Fixed(count, "int64"), held, held, held
    return call("BatchNormState", *arrays, "batch_norm", 1e-2, frozen, summed)


def _held(
    mean: Any, var: Any, count: Any, dgamma: Any, dbeta: Any, _: Any, op: str, eps: float, frozen: bool, summed: str
) -> Any:
    return oracle.Statistics(mean, var, count, dgamma, dbeta, eps, frozen)


def defined(value: Any) -> Any:
    """An argument as definitions take it: what a state holds for a call that makes one, a tuple for an activation."""
    if not isinstance(value, Call):
        return value
    makers = {"BatchNormState": _held, "Neuron": lambda *args: args}
    args, how = map(defined, value.args), {name: defined(each) for name, each in value.how.items()}
    return makers.get(value.function, getattr(oracle, value.function, None))(*args, **how)


def by(definition: Callable[..., Any], *fields: str) -> Callable[..., Any]:
    """A reference that is the definition, or some fields of what it returns."""

    def reference(*args: Any, **how: Any) -> Any:
        made = definition(*map(defined, args), **{name: defined(each) for name, each in how.items()})
        return tuple(getattr(made, name) for name in fields) if fields else made

    return reference


def _stats(x: np.ndarray, state: Call | None = None, eps: float = 1e-5) -> tuple[np.ndarray, ...]:
    made = oracle.bn_stats(x, defined(state), eps)
    return (made.mean, made.var) if state is None else (made.mean, made.var, made.dgamma, made.dbeta)


# Kernel cases: of one batch -----------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
SLACK = 8


class Norm(NamedTuple):
    """One batch and what its normalization and gradients are."""

    x: mx.array
    dy: mx.array
    gamma: mx.array
    beta: mx.array
    state: mf.BatchNormState
    expected: oracle.Norm


class Batch(NamedTuple):
    """Images of a batch, for calls of public functions."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    crowded: bool = False

    @property
    def many_parts(self) -> bool:
        return False

    def named(self, body: str) -> str:
        return named(body, self.shape, self.dtype)

    def norm(self) -> Norm:
        channels = self.shape[3]
        x, dy = numbers(self.shape, self.dtype, 1) + 3, numbers(self.shape, self.dtype, 2)
        gamma, beta = numbers((channels,), F32, 3), numbers((channels,), F32, 4)
        expected = oracle.batch_norm(*(exact(a) for a in (x, dy, gamma, beta)), 1e-3)
        vectors = [mx.array(v).astype(F32) for v in (expected.mean, expected.var, expected.dgamma, expected.dbeta)]
        count = mx.array(x.size // channels, mx.int64)
        arrays = vectors[0], vectors[1], count, *vectors[2:], gamma
        state = mf.BatchNormState(*arrays, "batch_norm", 1e-3, False, "unknown")
        return Norm(x, dy, gamma, beta, state, expected)


BATCHES = (
    Batch((2, 5, 7, 5), F32),
    Batch((1, 2, 3, 1), F32),
    Batch((3, 3, 5, 24), F16),
    Batch((2, 3, 3, 8), BF16),
    Batch((1, 1, 3, 2), F16),
    Batch((1, 1, 1, 12), F32),  # nothing behind the first pixel
    Batch((1, 7, 43, 255), F32),  # more partial sums than a threadgroup takes at a time
    Batch((1, 27, 37, 100), F32, crowded=True),  # more pixels a thread than it takes at a time
)

# Kernel cases: of statistics groups, straight from the launches -----------------------------------------


@dataclass(frozen=True)
class Grouped:
    """Images in statistics groups, each of which has vectors of its own, and an activation."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    stat_groups: int
    act: Activation = NO_ACTIVATION
    crowded: bool = False
    many_parts: bool = False  # of a sum

    def named(self, body: str) -> str:
        told = {} if body == "bn_stats" else {"neuron": NAMES[self.act.kind]}
        return named(body, self.shape, self.dtype, stat_groups=self.stat_groups, **told)

    @property
    def vectors(self) -> tuple[int, int]:
        return self.stat_groups, self.shape[3]

    @property
    def x(self) -> mx.array:
        return numbers(self.shape, self.dtype, 1) + 3

    @property
    def dy(self) -> mx.array:
        return numbers(self.shape, self.dtype, 2)

    def parameter(self, seed: int) -> mx.array:
        """Scale or shift. One entry of both is 0: there the activation stands right at 0."""
        return numbers(self.vectors, F32, seed) * (np.arange(self.shape[3]) != 1)

    @property
    def scale(self) -> mx.array:
        return self.parameter(3)

    @property
    def shift(self) -> mx.array:
        return self.parameter(4)

    @property
    def mean(self) -> mx.array:
        return mx.array(exact(self.x).reshape(self.stat_groups, -1, self.shape[3]).mean(1)).astype(F32)

    @property
    def of_neuron(self) -> dict[str, mx.array]:
        """What the launches of gradients are given for an activation."""
        return {"scale": self.scale, "shift": self.shift} if self.act.kind else {}

    def by_group(self, images: mx.array) -> np.ndarray:
        return exact(images).reshape(self.stat_groups, self.shape[0] // self.stat_groups, *self.shape[1:])

    @property
    def off(self) -> np.ndarray:
        """The images less the means."""
        return self.by_group(self.x) - wide(self.mean)

    def activated(self, z: np.ndarray) -> np.ndarray:
        return oracle_activation.neuron(z, NAMES[self.act.kind], a=self.act.a, b=self.act.b, c=self.act.c)

    def pulled(self, z: np.ndarray) -> np.ndarray:
        """The gradient of what is activated, which is z."""
        slope = oracle_activation.slope(z, NAMES[self.act.kind], a=self.act.a, b=self.act.b, c=self.act.c)
        return self.by_group(self.dy) * slope


def wide(vectors: mx.array) -> np.ndarray:
    """Vectors of statistics groups beside images by group."""
    return exact(vectors)[:, None, None, None]


_RELU = Activation(RELU)
GROUPED = (
    Grouped((4, 5, 3, 5), F32, 2, _RELU),
    Grouped((4, 5, 3, 5), F32, 4),
    Grouped((4, 3, 2, 5), F32, 1, Activation(SOFTPLUS, 1.5, 0.75)),
    Grouped((2, 3, 3, 8), F32, 2, Activation(RELUN, 0.25, 0.5)),
    Grouped((2, 2, 3, 4), F32, 2, Activation(GELU)),
    Grouped((2, 2, 3, 4), F32, 1, Activation(POWER, 0.25, 8.0, 2.0)),
    Grouped((2, 2, 3, 4), F32, 1, Activation(EXPONENTIAL, 1024.0, 16.0, 1.0001)),  # a base that a float does not tell
    Grouped((2, 9, 7, 24), F16, 2, _RELU),
    Grouped((2, 3, 3, 8), BF16, 1, _RELU),
    Grouped((2, 1, 3, 1), F32, 2, _RELU),
    Grouped((3, 17, 15, 100), F32, 3, _RELU, crowded=True),
    Grouped((3, 37, 45, 4), F32, 3, crowded=True),
    Grouped((1, 3, 49, 2048), BF16, 1, crowded=True),  # 147 pixels a thread
    Grouped((1, 7, 43, 255), F32, 1, many_parts=True),
)


def launched_with(case: Case, told: str, **known: int) -> Case:
    """The case with other numbers of `core.grids`."""

    def check() -> None:
        with mock.patch.multiple(grids, **known):
            case.check()

    return case._replace(name=f"{case.name} {told}", check=check)


def cases_of(
    geometries: Iterable[Any], name: str, bodies: tuple[str, ...], check: Callable[[Any], None]
) -> Iterator[Case]:
    """One for each; and one for more parts of a sum than the threads that fold them take at a time."""
    for each in geometries:
        case = Case(each.named(name), bodies, partial(check, each), each.crowded)
        yield case
        if each.many_parts:
            yield launched_with(case, "merged by few", _MERGING=2)


# Kernel cases: statistics -------------------------------------------------------------------------------

_BODIES = ("bn_stats", "bn_stats_merge")


def _moments_of(x: mx.array, groups: int) -> list[mx.array]:
    return launched({"x": x}, (((groups, x.shape[3]), F32),) * 2, launches.bn_stats(x, groups))


def _of_a_batch(batch: Batch) -> None:
    n = batch.norm()
    made = mf.bn_stats(n.x, eps=1e-3)
    close(made.mean, n.expected.mean, abs(n.expected.mean), slack=SLACK)
    close(made.var, n.expected.var, n.expected.var, slack=SLACK)


def _of_groups(of: Grouped) -> None:
    made, seen, axes = _moments_of(of.x, of.stat_groups), of.by_group(of.x), (1, 2, 3)
    close(made[0], seen.mean(axes), abs(seen).mean(axes), slack=SLACK)
    close(made[1], seen.var(axes), seen.var(axes), slack=SLACK)


def _of_few_pixels() -> None:
    """So few that a thread each would leave none whose own is near the mean of all; to rounding, without slack."""
    for seed in range(4):
        x = numbers((3, 5, 4, 16), F32, seed)
        mean, var = _moments_of(x, 1)
        right = exact(x).reshape(1, -1, 16)
        close(mean, right.mean(1), abs(right).mean(1))
        close(var, right.var(1), (right**2).mean(1))


def _behind_an_outlier() -> None:
    """A thread's first pixel is far from the others, of which there are many: its error must not grow with them."""
    x = exact(numbers((1, 30, 40, 1024)))
    x[0, -1, -1] += 30  # threads go from the last pixel to the first
    mean, var = _moments_of(mx.array(x, F32), 1)
    close(mean, x.mean((1, 2)), abs(x).mean((1, 2)), slack=8)
    close(var, x.var((1, 2)), x.var((1, 2)), slack=16)


def _cases() -> Iterator[Case]:
    yield from cases_of(BATCHES, "bn_stats", _BODIES, _of_a_batch)
    yield from cases_of([of for of in GROUPED if not of.act.kind], "bn_stats", _BODIES, _of_groups)
    yield Case("bn_stats of few pixels", _BODIES, _of_few_pixels)
    yield Case("bn_stats behind an outlier", _BODIES, _behind_an_outlier, crowded=True)


# What bodies load ---------------------------------------------------------------------------------------


def all_four() -> None:
    """Statistics, normalization and both gradients."""
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    with mock.patch.object(grids, "FILL", 1):
        state = mf.bn_stats_grad(dy, x, mf.bn_stats(x))
    mf.bn_normalize(x, state)
    mf.bn_grad(dy, x, state)


PER_THREAD = (VECTOR, LONG_IMAGE / 4)  # vectors are loaded once for the four pixels of a thread
NO_NEURON = dict.fromkeys(("scale", "shift"), (VECTOR, 0))
_LOADS = {
    "bn_stats": Loads(all_four, {"x": (LONG_IMAGE, 66 / 64 * LONG_IMAGE)}),  # pivot and shift of a thread
    "bn_stats_merge": Loads(
        all_four, {"x": (LONG_IMAGE, VECTOR), "mean": (VECTOR, 2 * VECTOR), "m2": (VECTOR, VECTOR)}
    ),
}

# What is measured ---------------------------------------------------------------------------------------

AFFINE = ("gamma", "beta")
_MEASURED = Benchmark(
    "normalization",
    1,
    0,
    AFFINE,
    gpu=(Measured(targets=SHARE, targeted=DTYPES), Measured(targets=LARGE, targeted=DTYPES, times=4)),
)

# Wrong calls, and the record ----------------------------------------------------------------------------

IMAGES = numbers((2, 6, 5, 4))
NORM = mf.bn_frozen(mx.zeros(4), mx.ones(4))


def forged(**fields: Any) -> mf.BatchNormState:
    """Statistics of the images with other fields."""
    return mf.bn_stats(IMAGES)._replace(**fields)


OPS = (
    OpInfo(
        name="bn_stats",
        samples={
            "": Sample(call("bn_stats", X), outputs=(0, 1)),
            "onto a state": Sample(call("bn_stats", X, state()), WITH_SUMS),
            "of eight channels": Sample(call("bn_stats", Array(LARGE_IMAGES[0])), outputs=(0, 1), in_matrix=False),
            "of seven channels": Sample(call("bn_stats", Array(LARGE_IMAGES[1])), outputs=(0, 1), in_matrix=False),
        },
        reference=_stats,
        image="x",
        wrong_values=(
            ("eps is out of range", lambda: mf.bn_stats(IMAGES, eps=float("nan"))),
            ("eps differs from the state's", lambda: mf.bn_stats(IMAGES, mf.bn_stats(IMAGES), eps=1e-3)),
            ("statistics are frozen", lambda: mf.bn_stats(IMAGES, NORM)),
            ("x does not belong to this state", lambda: mf.bn_stats(IMAGES[..., :3], mf.bn_stats(IMAGES))),
            ("no elements to take statistics of", lambda: mf.bn_stats(IMAGES[:0])),
            ("state.eps is out of range", lambda: mf.bn_stats(IMAGES, forged(eps=float("nan")))),
        ),
        wrong_types=(("eps is not a number", lambda: mf.bn_stats(IMAGES, eps="1e-5")),),
        cases=_cases,
        loads=_LOADS,
        benchmarks={"bn_stats": _MEASURED},
        no_node="part of what the node of batch_norm does",
    ),
)
