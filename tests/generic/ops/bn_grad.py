"""Gradient of batch normalization's images: `bn_grad`."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
from generic.opinfo import Array, Loads, OpInfo, Sample, call
from generic.ops.bn_normalize import BY_STATE, FASTER, ByState
from generic.ops.bn_stats import (
    AFFINE,
    BATCHES,
    F32,
    GROUPED,
    IMAGES,
    LARGE_IMAGES,
    NO_NEURON,
    NORM,
    PER_THREAD,
    SCALE,
    SLACK,
    SMALL,
    TANH,
    Batch,
    Grouped,
    X,
    all_four,
    by,
    cases_of,
    forged,
    state,
    wide,
)
from metal_host.case import Case, launched, like
from metal_host.geometry import VECTOR, WHOLE
from support import close, exact, numbers
from support.benchmarks import DTYPES, PIXELWISE, PYTORCH, Benchmark, Measured, Target
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc.channels import launches

# Samples ------------------------------------------------------------------------------------------------

_EIGHT, _SEVEN = map(Array, LARGE_IMAGES)
_FROZEN = state(sums=False, frozen=True)

# Kernel cases -------------------------------------------------------------------------------------------

_BY_A_STATE = ("bn_grad_coefficients", "bn_grad")


def _of_a_batch(batch: Batch) -> None:
    n = batch.norm()
    close(mf.bn_grad(n.dy, n.x, n.state, n.gamma, n.beta), n.expected.dx, abs(n.expected.dx) + 3, slack=SLACK)


def _of_groups(of: Grouped) -> None:
    a, b, d = (numbers(of.vectors, F32, seed) for seed in (5, 6, 7))
    dy, off = of.dy, of.off
    arrays = {"dy": dy, "x": of.x, "mean": of.mean, "a": a, "b": b, "d": d, **of.of_neuron}
    dx = launched(arrays, like(dy), launches.bn_grad(dy, of.stat_groups, of.act))[0]
    pulled = of.pulled(off * wide(of.scale) + wide(of.shift))
    right = (wide(a) * pulled + wide(b) * off + wide(d)).reshape(of.shape)
    close(dx, right, abs(right) + 9, slack=SLACK)


def _by_a_state(of: ByState) -> None:
    dy, held = of.dy, of.held
    arrays = {"dy": dy, "x": of.x, **held, **of.of_neuron, "gamma": of.gamma, "count": mx.array([300], mx.int64)}
    dx = launched(arrays, like(dy), launches.bn_grad_by(dy, of.act, 1e-3))[0]
    dgamma, dbeta = (exact(held[name]) / 300 for name in ("dgamma", "dbeta"))
    right = exact(of.gamma) * of.root * (of.pulled - dbeta - of.off * of.root * dgamma)
    close(dx, right, abs(right) + 9, slack=SLACK)


def _cases() -> Iterator[Case]:
    yield from cases_of(BATCHES, "bn_grad", _BY_A_STATE, _of_a_batch)
    yield from cases_of(GROUPED, "bn_grad", ("bn_grad",), _of_groups)
    yield from cases_of(BY_STATE, "bn_grad by a state", _BY_A_STATE, _by_a_state)


# What bodies load ---------------------------------------------------------------------------------------

_LOADS = {
    "bn_grad": Loads(
        all_four, {"dy": WHOLE, "x": WHOLE, **dict.fromkeys(("mean", "a", "b", "d"), PER_THREAD), **NO_NEURON}
    ),
    "bn_grad_coefficients": Loads(
        all_four,
        {
            **dict.fromkeys(("gamma", "var", "dgamma", "dbeta"), (VECTOR, VECTOR)),
            "count": (8, VECTOR // 4 * 8),
        },
    ),
}

# What is measured ---------------------------------------------------------------------------------------

_PIXELWISE = (Measured(targets=PIXELWISE, targeted=DTYPES),)
_TORCH = (*PYTORCH, "cuDNN NCHW", "cuDNN NHWC")
_BENCHMARKS = {
    "bn_grad": Benchmark("normalization", 2, 1, AFFINE, gpu=_PIXELWISE),
    "bn_backward": Benchmark(
        "normalization",
        3,
        2,
        AFFINE,
        title="bn_stats_grad + bn_grad",
        cpu=FASTER,
        gpu=(Measured(targets=(Target(_TORCH, 1),), targeted=DTYPES),),
    ),
    "bn_relu_grad": Benchmark("normalization", 2, 1, AFFINE, title="bn_grad relu", gpu=_PIXELWISE),
    "bn_relu_backward": Benchmark(
        "normalization", 3, 2, AFFINE, title="bn_stats_grad + bn_grad relu", cpu=FASTER, gpu=(Measured(),)
    ),
}

# Wrong calls, and the record ----------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="bn_grad",
        samples={
            "": call("bn_grad", X, X, state(summed="none"), SCALE),
            "of frozen statistics": call("bn_grad", X, X, _FROZEN, SCALE),
            "behind relu": call("bn_grad", X, X, state(), SCALE, SCALE, neuron="relu"),
            "of frozen statistics behind relu": call("bn_grad", X, X, _FROZEN, SCALE, SCALE, neuron="relu"),
            "behind gelu": call("bn_grad", SMALL, SMALL, state(), SCALE, SCALE, neuron="gelu"),
            "behind tanh": call("bn_grad", SMALL, SMALL, state(), SCALE, SCALE, neuron=TANH),
            "behind prelu": call("bn_grad", SMALL, SMALL, state(), SCALE, neuron=call("Neuron", "prelu", SCALE)),
            "of eight channels": Sample(call("bn_grad", _EIGHT, _EIGHT, state(8), Array((8,))), in_matrix=False),
            "behind relu of seven channels": Sample(
                call("bn_grad", _SEVEN, _SEVEN, state(7), Array((7,)), Array((7,)), neuron="relu"), in_matrix=False
            ),
        },
        reference=by(oracle.bn_grad),
        image="x",
        wrong_values=(
            ("dy does not belong to x", lambda: mf.bn_grad(IMAGES[:1], IMAGES, NORM)),
            (
                "softsign has no parameter b",
                lambda: mf.bn_grad(IMAGES, IMAGES, NORM, neuron=mf.Neuron("softsign", b=2.0)),
            ),
            ("the state has no sums of gradients", lambda: mf.bn_grad(IMAGES, IMAGES, mf.bn_stats(IMAGES))),
            (
                "the sums are of another activation",
                lambda: mf.bn_grad(IMAGES, IMAGES, forged(summed="gelu"), neuron="relu"),
            ),
        ),
        wrong_types=(
            ("dy and x differ in dtype", lambda: mf.bn_grad(IMAGES.astype(mx.float16), IMAGES, NORM)),
            ("gamma has no floating dtype", lambda: mf.bn_grad(IMAGES, IMAGES, NORM, mx.ones(4, mx.int32))),
            ("state.eps is not a number", lambda: mf.bn_grad(IMAGES, IMAGES, forged(eps="1e-5"))),
        ),
        cases=_cases,
        loads=_LOADS,
        benchmarks=_BENCHMARKS,
    ),
)
