"""Normalization by the statistics of a state: `bn_normalize`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, OpInfo, Sample, call
from generic.ops.bn_stats import (
    AFFINE,
    BATCHES,
    BF16,
    F16,
    F32,
    GROUPED,
    IMAGES,
    LARGE_IMAGES,
    NORM,
    PER_THREAD,
    SCALE,
    SLACK,
    SMALL,
    TANH,
    Batch,
    Grouped,
    X,
    by,
    cases_of,
    forged,
    state,
    wide,
)
from metal_host.case import Case, launched, like, named
from metal_host.geometry import LONG, WHOLE
from support import close, exact, numbers
from support.benchmarks import DTYPES, PIXELWISE, PYTORCH, Benchmark, Measured, Target
from support.oracle import activation as oracle_activation
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc.channels import launches
from mpsfunc.channels.activation_spec import NAMES, NO_ACTIVATION, RELU, SOFTPLUS, Activation

# Samples ------------------------------------------------------------------------------------------------

_STATE = state(sums=False)
_EIGHT, _SEVEN = map(Array, LARGE_IMAGES)

# Kernel cases: by a state, straight from the launches ---------------------------------------------------


@dataclass(frozen=True)
class ByState:
    """Images, parameters in their dtype, a state whose count is not that of the images, and an activation."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    act: Activation = NO_ACTIVATION
    crowded: bool = False
    many_parts: bool = False  # of a sum

    def named(self, body: str) -> str:
        return named(body, self.shape, self.dtype, neuron=NAMES[self.act.kind])

    @property
    def x(self) -> mx.array:
        return numbers(self.shape, self.dtype, 1) + 3

    @property
    def dy(self) -> mx.array:
        return numbers(self.shape, self.dtype, 2)

    def vector(self, seed: int) -> mx.array:
        return numbers((self.shape[3],), F32, seed)

    def parameter(self, seed: int) -> mx.array:
        return (self.vector(seed) * (np.arange(self.shape[3]) != 1)).astype(self.dtype)

    @property
    def gamma(self) -> mx.array:
        return self.parameter(3)

    @property
    def beta(self) -> mx.array:
        return self.parameter(4)

    @property
    def held(self) -> dict[str, mx.array]:
        mean, dgamma, dbeta = map(self.vector, (5, 6, 7))
        return {"mean": mean, "var": abs(self.vector(8)) + 1, "dgamma": dgamma, "dbeta": dbeta}

    @property
    def of_neuron(self) -> dict[str, mx.array]:
        """Parameters that only an activation needs where gradients are taken."""
        return {"gamma": self.gamma, "beta": self.beta} if self.act.kind else {}

    @property
    def off(self) -> np.ndarray:
        """The images less the mean."""
        return exact(self.x) - exact(self.held["mean"])

    @property
    def root(self) -> np.ndarray:
        """One over the root of the variance."""
        return 1 / np.sqrt(exact(self.held["var"]) + 1e-3)

    @property
    def z(self) -> np.ndarray:
        """What is activated."""
        return self.off * self.root * exact(self.gamma) + exact(self.beta)

    @property
    def y(self) -> np.ndarray:
        return oracle_activation.neuron(self.z, NAMES[self.act.kind], a=self.act.a, b=self.act.b, c=self.act.c)

    @property
    def pulled(self) -> np.ndarray:
        """The gradient of z."""
        slope = oracle_activation.slope(self.z, NAMES[self.act.kind], a=self.act.a, b=self.act.b, c=self.act.c)
        return exact(self.dy) * slope


_RELU = Activation(RELU)
BY_STATE = (
    ByState((4, 3, 2, 5), F32, Activation(SOFTPLUS, 1.5, 0.75)),
    ByState((2, 2, 3, 4), F32),
    ByState((2, 9, 7, 24), F16, _RELU),
    ByState((2, 3, 3, 8), BF16, _RELU),
    ByState((2, 1, 3, 1), F32, _RELU),
    ByState((3, 17, 15, 100), F32, _RELU, crowded=True),
    ByState((1, 3, 49, 2048), BF16, crowded=True),
    ByState((1, 7, 43, 255), F32, many_parts=True),
)

# Kernel cases -------------------------------------------------------------------------------------------

_BODIES = ("bn_normalize",)


def _of_a_batch(batch: Batch) -> None:
    n = batch.norm()
    close(mf.bn_normalize(n.x, n.state, n.gamma, n.beta), n.expected.y, abs(n.expected.y) + 3, slack=SLACK)


def _of_groups(of: Grouped) -> None:
    x = of.x
    arrays = {"x": x, "mean": of.mean, "scale": of.scale, "shift": of.shift}
    y = launched(arrays, like(x), launches.bn_normalize(x, of.stat_groups, of.act))[0]
    right = of.activated(of.off * wide(of.scale) + wide(of.shift)).reshape(of.shape)
    close(y, right, abs(right) + 3, slack=SLACK)


def _of_sums(of: Grouped) -> None:
    x, added = of.x, numbers(of.shape, of.dtype, 6)
    arrays = {"x": x, "added": added, "mean": of.mean, "scale": of.scale, "shift": of.shift}
    y = launched(arrays, like(x), launches.bn_normalize(x, of.stat_groups, of.act, adds=True))[0]
    z = of.off * wide(of.scale) + wide(of.shift) + of.by_group(added)
    close(y, of.activated(z).reshape(of.shape), abs(z.reshape(of.shape)) + 9, slack=SLACK)


def _by_a_state(of: ByState) -> None:
    x, held = of.x, of.held
    arrays = {"x": x, "mean": held["mean"], "var": held["var"], "gamma": of.gamma, "beta": of.beta}
    y = launched(arrays, like(x), launches.bn_normalize_by(x, of.act, 1e-3))[0]
    close(y, of.y, abs(of.z) + 9, slack=SLACK)


def _cases() -> Iterator[Case]:
    yield from cases_of(BATCHES, "bn_normalize", _BODIES, _of_a_batch)
    yield from cases_of(GROUPED, "bn_normalize", _BODIES, _of_groups)
    yield from cases_of(GROUPED, "bn_normalize of a sum", _BODIES, _of_sums)
    yield from cases_of(BY_STATE, "bn_normalize by a state", _BODIES, _by_a_state)


# What the body loads ------------------------------------------------------------------------------------


def _by_own_statistics() -> None:
    mf.batch_norm(numbers(LONG), neuron="relu")


# What is measured ---------------------------------------------------------------------------------------

FASTER = (Measured(targets=(Target(PYTORCH, 1.3),)),)  # on the CPU
_PIXELWISE = (Measured(targets=PIXELWISE, targeted=DTYPES),)
_BENCHMARKS = {
    "bn_normalize": Benchmark("normalization", 1, 1, AFFINE, gpu=_PIXELWISE),
    "bn_forward": Benchmark(
        "normalization", 2, 1, AFFINE, title="bn_stats + bn_normalize", cpu=FASTER, gpu=(Measured(),)
    ),
    "bn_relu_normalize": Benchmark("normalization", 1, 1, AFFINE, title="bn_normalize relu", gpu=_PIXELWISE),
    "bn_relu_forward": Benchmark(
        "normalization", 2, 1, AFFINE, title="bn_stats + bn_normalize relu", cpu=FASTER, gpu=(Measured(),)
    ),
}

# Wrong calls, and the record ----------------------------------------------------------------------------

_ROWS = dict.fromkeys(("mean", "var", "dgamma", "dbeta"), mx.ones((1, 4)))
OPS = (
    OpInfo(
        name="bn_normalize",
        samples={
            "": call("bn_normalize", X, _STATE, SCALE, SCALE),
            "and relu": call("bn_normalize", X, _STATE, SCALE, SCALE, neuron="relu"),
            "and gelu": call("bn_normalize", SMALL, _STATE, SCALE, SCALE, neuron="gelu"),
            "and tanh": call("bn_normalize", SMALL, _STATE, SCALE, SCALE, neuron=TANH),
            "of a sum": call("bn_normalize", X, _STATE, SCALE, SCALE, add=X),
            "of a sum and relu": call("bn_normalize", X, _STATE, SCALE, SCALE, add=X, neuron="relu"),
            "of a sum and gelu": call("bn_normalize", SMALL, _STATE, SCALE, SCALE, add=SMALL, neuron="gelu"),
            "of eight channels": Sample(
                call("bn_normalize", _EIGHT, state(8, sums=False), Array((8,)), Array((8,))), in_matrix=False
            ),
            "and relu of seven channels": Sample(
                call("bn_normalize", _SEVEN, state(7, sums=False), Array((7,)), Array((7,)), neuron="relu"),
                in_matrix=False,
            ),
        },
        reference=by(oracle.bn_normalize),
        image="x",
        wrong_values=(
            ("x does not belong to this state", lambda: mf.bn_normalize(IMAGES[..., :3], NORM)),
            ("beta does not fit the channels", lambda: mf.bn_normalize(IMAGES, NORM, None, mx.ones((4, 1)))),
            ("the state does not fit together", lambda: mf.bn_normalize(IMAGES, forged(**_ROWS))),
            ("state.eps is out of range", lambda: mf.bn_normalize(IMAGES, forged(eps=-1.0))),
            ("add does not belong to x", lambda: mf.bn_normalize(IMAGES, NORM, add=IMAGES[:, :1])),
        ),
        wrong_types=(
            ("neuron is not an activation", lambda: mf.bn_normalize(IMAGES, NORM, neuron=1)),
            ("add is not an array", lambda: mf.bn_normalize(IMAGES, NORM, add=1.0)),
            ("add and x differ in dtype", lambda: mf.bn_normalize(IMAGES, NORM, add=IMAGES.astype(mx.float16))),
            (
                "state.mean has no floating dtype",
                lambda: mf.bn_normalize(IMAGES, forged(mean=mx.ones(4, mx.int32))),
            ),
        ),
        cases=_cases,
        loads={
            "bn_normalize": Loads(
                _by_own_statistics,
                {"x": WHOLE, "added": (WHOLE[0], 0), **dict.fromkeys(("mean", "scale", "shift", "var"), PER_THREAD)},
            )
        },
        benchmarks=_BENCHMARKS,
        no_node="part of what the node of batch_norm does",
    ),
)
