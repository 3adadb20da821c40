"""Group normalization: `group_norm`, `group_norm_fwd` and `group_norm_grad`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, Node, OpInfo, Sample, call
from generic.ops.bn_stats import AFFINE, F32, IMAGES, SCALE, X, launched_with
from generic.ops.instance_norm import FORWARD, forward, grown, held
from metal_host.case import Case
from metal_host.geometry import LONG, VECTOR
from support import close, exact, numbers
from support.benchmarks import LEVEL, PYTORCH, Benchmark, Measured, Target

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.channels import vector_rules
from mpsfunc.core import launch

# Samples ------------------------------------------------------------------------------------------------

_EIGHT, _VECTOR = Array((3, 7, 6, 8)), Array((8,))

# Kernel cases: vectors (statistics groups, channels) ----------------------------------------------------


def _factors(shape: tuple[int, int]) -> None:
    gamma, dmean, dvar, dbeta, dot = vectors = [numbers(shape, F32, seed) for seed in range(1, 6)]
    var = abs(numbers(shape, F32, 7)) + 1
    made = vector_rules.composed_factors(gamma, var, dmean, dvar, dbeta, dot, 300.0, 1e-3, launch.resolve(None))
    g, of_mean, of_var, total, product = map(exact, vectors)
    root = 1 / np.sqrt(exact(var) + 1e-3)
    right = (
        (product * root, abs(product)),
        (g * root, abs(g)),
        ((2 * of_var - g * root * root * product * root) / 300, (abs(of_var) + abs(g * product)) / 100),
        ((of_mean - g * root * total) / 300, (abs(of_mean) + abs(g * total)) / 100),
    )
    for a, (wanted, size) in zip(made, right, strict=True):
        close(a, wanted, size, slack=8)


class _Groups:
    """Vectors whose channels come in groups: all channels, some, or one each."""

    def __init__(self, shape: tuple[int, int], groups: int) -> None:
        self.shape, self.groups = shape, groups

    def together(self, a: mx.array) -> np.ndarray:
        return exact(a).reshape(self.shape[0], self.groups, -1)

    def again(self, a: np.ndarray) -> np.ndarray:
        """A group's number for each of its channels."""
        return np.repeat(a, self.shape[1] // self.groups, -1).reshape(self.shape)

    def moments(self) -> None:
        mean, var = numbers(self.shape, F32, 4) + 100, abs(numbers(self.shape, F32, 1))
        made = vector_rules.group_moments(mean, var, float(self.groups), launch.resolve(None))
        of_mean, of_var = self.together(mean), self.together(var)
        wide = (of_var + (of_mean - of_mean.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
        size = self.again(abs(of_mean).mean(-1, keepdims=True))
        close(made[0], self.again(of_mean.mean(-1, keepdims=True)), size, slack=8)
        close(made[1], self.again(wide), self.again(wide), slack=8)

    def equal(self) -> None:
        """A mean that a sum of as many would not leave as it is."""
        mean = mx.full(self.shape, 0.3)
        here = launch.resolve(None)
        found, none = vector_rules.group_moments(mean, mx.zeros(self.shape), float(self.groups), here)
        assert np.array_equal(exact(found), exact(mean)) and not exact(none).any()

    def sums(self) -> None:
        given = numbers(self.shape, F32, 2), numbers(self.shape, F32, 3)
        made = vector_rules.group_sums(*given, float(self.groups), launch.resolve(None))
        for total, of in zip(made, given, strict=True):
            terms = self.together(of)
            size = self.again(abs(terms).sum(-1, keepdims=True))
            close(total, self.again(terms.sum(-1, keepdims=True)), size, slack=8)


def _in_groups(shape: tuple[int, int]) -> Iterator[tuple[str, _Groups]]:
    for groups in (1, 12, 60, 150, shape[1]):
        if shape[1] % groups == 0:
            yield f"{shape[0]}x{shape[1]} in {groups}", _Groups(shape, groups)


_SHAPES = (1, 5), (3, 300)
_MANY = (30, 300)  # more than a grid has threads for


def _cases_of_moments(shape: tuple[int, int]) -> Iterator[Case]:
    for told, of in _in_groups(shape):
        yield Case(f"group_moments {told}", ("group_moments",), of.moments)
        yield Case(f"group_moments {told}, equal", ("group_moments",), of.equal)


def _cases_of_sums(shape: tuple[int, int]) -> Iterator[Case]:
    for told, of in _in_groups(shape):
        yield Case(f"bn_group_sums {told}", ("bn_group_sums",), of.sums)


def _cases() -> Iterator[Case]:
    for shape in _SHAPES:
        yield from _cases_of_moments(shape)
    yield from (launched_with(case, "in turns", FILL=1) for case in _cases_of_moments(_MANY))


def _grad_cases() -> Iterator[Case]:
    for shape in _SHAPES:
        yield Case(f"bn_composed_factors {shape[0]}x{shape[1]}", ("bn_composed_factors",), partial(_factors, shape))
        yield from _cases_of_sums(shape)
    yield from (launched_with(case, "in turns", FILL=1) for case in _cases_of_sums(_MANY))


# What bodies load ---------------------------------------------------------------------------------------


def _both_ways() -> None:
    x = numbers(LONG)
    mf.group_norm_grad(x, x, mf.group_norm_fwd(x, 2)[1])


# Wrong calls, and the records ---------------------------------------------------------------------------

_LEVEL = (Measured({"groups": 8}, LEVEL),)
_AHEAD = (Measured({"groups": 8}, (Target(PYTORCH, 1.3),)),)
_, _MADE = mf.group_norm_fwd(IMAGES, 2)
_OF_THREE = _MADE._replace(mean=mx.zeros((2, 3)), var=mx.zeros((2, 3)))

OPS = (
    OpInfo(
        name="group_norm",
        samples={
            "": call("group_norm", X, 2, SCALE, SCALE, eps=1e-2),
            "and silu": call("group_norm", X, 2, SCALE, SCALE, eps=1e-2, neuron="silu"),
            "of eight channels": Sample(call("group_norm", _EIGHT, 2, _VECTOR, _VECTOR), in_matrix=False),
            "of eight channels and gelu_tanh": Sample(
                call("group_norm", _EIGHT, 2, _VECTOR, _VECTOR, neuron="gelu_tanh"), in_matrix=False
            ),
        },
        reference=lambda *args, **how: forward(*args, **how)[0],
        image="x",
        wrong_values=(
            ("groups is out of range", lambda: mf.group_norm(IMAGES, 0)),
            ("groups do not divide the channels", lambda: mf.group_norm(IMAGES, 3)),
        ),
        wrong_types=(
            ("groups is not an int", lambda: mf.group_norm(IMAGES, 2.0)),
            ("groups is not an int", lambda: mf.group_norm(IMAGES, True)),
            ("groups is not an int", lambda: mf.group_norm(IMAGES, None)),
            ("groups is not an int", lambda: mf.group_norm_fwd(IMAGES, None)),
        ),
        cases=_cases,
        loads={
            # Means are read twice, and the first of a group by every thread, of which there are 256.
            "group_moments": Loads(_both_ways, {"mean": (VECTOR, 18 * VECTOR), "var": (VECTOR, VECTOR)})
        },
        benchmarks={
            "group_norm": Benchmark("normalization", 2, 1, AFFINE, cpu=_LEVEL),
            "group_norm_silu": Benchmark("normalization", 2, 1, AFFINE, title="group_norm silu", cpu=_AHEAD),
        },
        nodes={
            "": Node(
                lambda x: graph.group_norm(x, 2, beta=False, name="n"), lambda p, x: mf.group_norm(x, 2, p["gamma"])
            ),
            "and silu": Node(
                lambda x: graph.group_norm(x, 2, neuron="silu", name="n"),
                lambda p, x: mf.group_norm(x, 2, p["gamma"], p["beta"], neuron="silu"),
            ),
        },
    ),
    OpInfo(
        name="group_norm_fwd",
        samples={
            "": Sample(call("group_norm_fwd", X, 2, SCALE, SCALE, eps=1e-2), FORWARD),
            "of eight channels": Sample(call("group_norm_fwd", _EIGHT, 2, _VECTOR, _VECTOR), FORWARD, in_matrix=False),
        },
        reference=forward,
        image="x",
    ),
    OpInfo(
        name="group_norm_grad",
        samples={
            "": call("group_norm_grad", X, X, held("group_norm", 2, 2, 4), SCALE),
            "behind silu": Sample(
                call("group_norm_grad", X, X, held("group_norm", 2, 2, 4), SCALE, SCALE, neuron="silu"), in_matrix=False
            ),
            "of eight channels": Sample(
                call("group_norm_grad", _EIGHT, _EIGHT, held("group_norm", 3, 2, 8), _VECTOR), in_matrix=False
            ),
        },
        reference=grown,
        image="x",
        wrong_values=(
            ("state.eps is out of range", lambda: mf.group_norm_grad(IMAGES, IMAGES, _MADE._replace(eps=float("inf")))),
            ("x does not belong to this state", lambda: mf.group_norm_grad(IMAGES, IMAGES, _OF_THREE)),
            (
                "x does not belong to this state",
                lambda: mf.group_norm_grad(IMAGES[..., :2], IMAGES[..., :2], _MADE),
            ),
        ),
        cases=_grad_cases,
        loads={
            "bn_composed_factors": Loads(
                _both_ways, dict.fromkeys(("gamma", "var", "dmean", "dvar", "dbeta", "dot"), (VECTOR, VECTOR))
            ),
            "bn_group_sums": Loads(_both_ways, dict.fromkeys("bd", (VECTOR, VECTOR))),
        },
        benchmarks={
            "group_norm_grad": Benchmark("normalization", 3, 2, AFFINE, cpu=_LEVEL),
            "group_norm_silu_grad": Benchmark("normalization", 3, 2, AFFINE, title="group_norm_grad silu", cpu=_AHEAD),
        },
    ),
)
