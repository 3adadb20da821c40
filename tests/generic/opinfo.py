"""What the tests, the self-test and the benchmarks know of a public function: one `OpInfo` each, in `ops/`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import numpy as np
from metal_host.case import Case
from support import exact, numbers
from support.benchmarks import Benchmark

import mpsfunc as mf
from mpsfunc.selftest.expressions import (
    Array,
    Call,
    DtypeOfRun,
    Fixed,
    arguments,
    arrays,
    evaluated,
    resolved,
    results,
)

Arrays = tuple[mx.array, ...]
_DRAW: dict[str, Callable[[mx.array], mx.array]] = {
    "numbers": lambda a: a,
    "positive": lambda a: abs(a) + 0.5,
    "shares": lambda a: (mx.tanh(a) + 1) / 2,  # to all digits of float64, which mx.sigmoid is not
    "bools": lambda a: a > -0.5,
    "bytes": lambda a: mx.clip(abs(a) * 80, 0, 255).astype(mx.uint8),
}


def call(function: str, *args: Any, take: int | None = None, **how: Any) -> Call:
    """A call, written as it is made."""
    return Call(function, args, how, take)


class Sample(NamedTuple):
    """A call that the function is tested with.

    Fields:
        call: The call.
        outputs: Which of the floating arrays that come back are meant, where not all of them. Those that are not are
            zeros, or depend on no argument.
        in_matrix: Whether its derivatives are compared with differences, in float64, which takes a small call.
    """

    call: Call
    outputs: tuple[int, ...] | None = None
    in_matrix: bool = True

    @property
    def arguments(self) -> tuple[Array, ...]:
        """The arrays that the call is a function of."""
        return tuple(arrays(self.call))

    @property
    def geometry(self) -> str:
        """Shapes of the arguments, for the id of a test."""
        return " ".join("x".join(map(str, a.shape)) for a in self.arguments) or "no arrays"

    def inputs(self, dtype: mx.Dtype, *, seed: int = 0, batch: int | None = None) -> Arrays:
        """Values for the arguments, with a new leading axis of length ``batch``."""
        made = []
        for i, a in enumerate(self.arguments):
            drawn = numbers(a.shape if batch is None else (batch, *a.shape), a.dtype(dtype), 100 * seed + i)
            made.append(_DRAW[a.of](drawn))
        return tuple(made)

    def run(self, inputs: Arrays, dtype: mx.Dtype, made: Iterator[Any] | None = None, **more: Any) -> Any:
        """What the call returns on these arguments; other arrays are always the same. See `expressions.evaluated`."""
        return evaluated(self.call, _drawn_from(inputs, dtype), dtype, made, **more)

    def named_arguments(self, dtype: mx.Dtype) -> dict[str, Any]:
        """What the call gives the function, by the names of its parameters."""
        whole = arguments(self.call, _drawn_from(self.inputs(dtype), dtype), dtype)
        return dict(inspect.signature(getattr(mf, self.call.function)).bind(*whole.args, **whole.how).arguments)

    def outs(self, inputs: Arrays, dtype: mx.Dtype) -> Arrays:
        """The floating arrays of that which are meant."""
        made = [a for a in results(self.run(inputs, dtype)) if mx.issubdtype(a.dtype, mx.floating)]
        return tuple(made) if self.outputs is None else tuple(made[i] for i in self.outputs)


def _drawn_from(inputs: Arrays, dtype: mx.Dtype) -> Callable[[Array], mx.array]:
    """Takes arguments from the inputs, one after the other."""
    given = iter(inputs)
    return lambda a: next(given) if a.argument else _constant(a, dtype)


def _constant(a: Array, dtype: mx.Dtype) -> mx.array:
    wide = mx.float32 if a.of in ("bools", "bytes") else a.dtype(dtype)
    return _DRAW[a.of](numbers(a.shape, wide, 99))


class Loads(NamedTuple):
    """What a kernel body may load.

    Fields:
        call: Launches the body, on the images of `metal_host.geometry`.
        bytes: Of each input: those that are needed, and at most how many are loaded over all threads.
    """

    call: Callable[[], None]
    bytes: Mapping[str, tuple[int, float]]


class Node(NamedTuple):
    """A filter of a graph, and what it is compared with.

    Fields:
        node: From image nodes to the filter, named "n" if it has parameters.
        plain: From its parameters and arrays to the image, by plain functions.
        shapes: Of its sources.
        positive: Whether its sources must be.
    """

    node: Callable[..., Any]
    plain: Callable[..., mx.array]
    shapes: tuple[tuple[int, ...], ...] = ((2, 6, 5, 4),)
    positive: bool = False


Wrong = tuple[str, Callable[[], Any]]  # what the error says behind the function's name, and the call


@dataclass(frozen=True, kw_only=True)
class OpInfo:
    """A public function.

    Fields:
        name: Under mpsfunc.
        samples: Calls by what is special about each, "" for the plain one. The matrix of transformations, states,
            empty batches, streams, export, GPUs and the self-test take them.
        reference: The definition in NumPy. It takes a sample's own arguments, in float64, with calls in them as `Call`
            of such arguments, and returns an array or a tuple, one for each output that the sample means. None where
            the function makes a state or what it does is compared in tests of its own, which `compared` names.
        compared: The test module that holds the comparison where there is no reference.
        slack: How many roundings in a row the reference allows.
        differentiable: Whether it has derivatives: not what takes shapes or ints, or returns zeros.
        linear: Positions, among a sample's arguments, of those in which it is linear; each is tested.
        image: The argument that is a batch of images, "x" or "dy"; "" where arrays of other ranks are taken.
        takes_numbers: Whether a Python number stands for an array.
        takes_integers: Whether arrays may hold integers.
        launches: Whether it runs kernels of its own; not what is made of MLX's operations.
        pulls_by_kernels: Whether its derivative does, where it itself does not.
        wrong_values: Calls that end in a ValueError.
        wrong_types: Calls that end in a TypeError.
        loads: Of each kernel body that is the function's.
        cases: Calls that reach its kernel bodies in every way that their texts can go.
        benchmarks: What is measured, by the name of the row.
        nodes: Filters of a graph, by what is special about each.
        no_node: Why there is none.
    """

    name: str
    samples: Mapping[str, Sample | Call] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    compared: str = ""
    slack: float = 1.0
    differentiable: bool = True
    linear: tuple[int, ...] = ()
    image: Literal["", "x", "dy"] = ""
    takes_numbers: bool = False
    takes_integers: bool = False
    launches: bool = True
    pulls_by_kernels: bool = False
    wrong_values: tuple[Wrong, ...] = ()
    wrong_types: tuple[Wrong, ...] = ()
    loads: Mapping[str, Loads] = field(default_factory=dict)
    cases: Callable[[], Iterable[Case]] = tuple
    benchmarks: Mapping[str, Benchmark] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    no_node: str = ""

    def named_samples(self) -> dict[str, Sample]:
        """By name, what is special, and geometry."""
        made = {}
        for label, each in self.samples.items():
            sample = each if isinstance(each, Sample) else Sample(each)
            made[" ".join(filter(None, (self.name, label, sample.geometry)))] = sample
        return made

    def plain_sample(self) -> Sample:
        """The first."""
        return next(iter(self.named_samples().values()))

    def expected(self, sample: Sample, inputs: Arrays) -> tuple[np.ndarray, ...]:
        """What the reference makes of these arguments."""
        assert self.reference is not None
        drawn = _drawn_from(inputs, mx.float64)

        def draw(a: Array) -> np.ndarray:
            return np.array(drawn(a)) if a.of in ("bools", "bytes") else exact(drawn(a))

        def fix(a: Fixed) -> np.ndarray:
            return np.array(a.values, a.dtype if a.dtype and "float" not in a.dtype else np.float64)

        whole = resolved(sample.call, draw, fix, np.float64, lambda each: each)
        made = self.reference(*whole.args, **whole.how)
        return tuple(made) if isinstance(made, tuple | list) else (made,)


__all__ = ["Array", "Arrays", "Call", "DtypeOfRun", "Fixed", "Loads", "Node", "OpInfo", "Sample", "Wrong", "call"]
