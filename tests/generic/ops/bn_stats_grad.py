"""Gradients of batch normalization's scale and shift: `bn_stats_grad`."""

from __future__ import annotations

from collections.abc import Iterator

from generic.opinfo import Array, Loads, OpInfo, Sample, call
from generic.ops.bn_normalize import BY_STATE, ByState
from generic.ops.bn_stats import (
    AFFINE,
    BATCHES,
    F32,
    GROUPED,
    IMAGES,
    LARGE_IMAGES,
    NO_NEURON,
    NORM,
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
from metal_host.case import Case, launched
from metal_host.geometry import LONG_IMAGE, VECTOR, WHOLE
from support import close, exact, numbers
from support.benchmarks import DTYPES, LARGE, PYTORCH, SHARE, Benchmark, Measured, Target
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc.channels import launches

# Samples ------------------------------------------------------------------------------------------------

_EIGHT, _SEVEN = map(Array, LARGE_IMAGES)
SUMS = (2, 3)  # among mean, variance and both sums


# Kernel cases -------------------------------------------------------------------------------------------

_GROWN = ("bn_stats_grad", "bn_stats_grad_merge")


def _of_a_batch(batch: Batch) -> None:
    n = batch.norm()
    held = numbers((batch.shape[3],), F32, 5), numbers((batch.shape[3],), F32, 6)
    made = mf.bn_stats_grad(n.dy, n.x, n.state._replace(dgamma=held[0], dbeta=held[1]), n.gamma, n.beta)
    size = abs(exact(n.dy)).sum((0, 1, 2)) + 1
    close(made.dgamma, n.expected.dgamma + exact(held[0]), size, slack=SLACK)
    close(made.dbeta, n.expected.dbeta + exact(held[1]), size, slack=SLACK)


def _of_groups(of: Grouped) -> None:
    dy, off = of.dy, of.off
    arrays = {"dy": dy, "x": of.x, "mean": of.mean, **of.of_neuron}
    total, dot = launched(arrays, ((of.vectors, F32),) * 2, launches.bn_stats_grad(dy, of.stat_groups, of.act))
    pulled, size = of.pulled(off * wide(of.scale) + wide(of.shift)), abs(of.by_group(dy)).sum((1, 2, 3)) + 1
    close(total, pulled.sum((1, 2, 3)), size, slack=SLACK)
    close(dot, (pulled * off).sum((1, 2, 3)), 3 * size, slack=SLACK)


def _by_a_state(of: ByState) -> None:
    dy, held, pulled = of.dy, of.held, of.pulled
    arrays = {"dy": dy, "x": of.x, **held, **of.of_neuron}
    made = launched(arrays, (((of.shape[3],), F32),) * 2, launches.bn_stats_grad_by(dy, of.act, 1e-3))
    size = abs(exact(dy)).sum((0, 1, 2)) + 1
    close(made[0], exact(held["dgamma"]) + (pulled * of.off).sum((0, 1, 2)) * of.root, 3 * size, slack=SLACK)
    close(made[1], exact(held["dbeta"]) + pulled.sum((0, 1, 2)), size, slack=SLACK)


def _cases() -> Iterator[Case]:
    yield from cases_of(BATCHES, "bn_stats_grad", _GROWN, _of_a_batch)
    yield from cases_of(GROUPED, "bn_stats_grad", ("bn_stats_grad", "sum_partials"), _of_groups)
    yield from cases_of(BY_STATE, "bn_grown", _GROWN, _by_a_state)


# What bodies load ---------------------------------------------------------------------------------------

_LOADS = {
    "bn_stats_grad": Loads(
        all_four,
        {
            "dy": WHOLE,
            "x": WHOLE,
            "mean": (VECTOR, LONG_IMAGE / 64),
            **NO_NEURON,
            "var": (VECTOR, 0),  # nor anything to divide by its root
        },
    ),
    "bn_stats_grad_merge": Loads(
        all_four,
        {"partial": (2 * VECTOR, 2 * VECTOR), **dict.fromkeys(("var", "dgamma", "dbeta"), (VECTOR, VECTOR))},
    ),
}

# What is measured ---------------------------------------------------------------------------------------

_MEASURED = Benchmark(
    "normalization",
    1,
    1,
    AFFINE,
    gpu=(
        Measured(targets=(*SHARE, Target(PYTORCH, 1)), targeted=DTYPES),
        Measured(targets=LARGE, targeted=DTYPES, times=4),
    ),
)

# Wrong calls, and the record ----------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="bn_stats_grad",
        samples={
            "": Sample(call("bn_stats_grad", X, X, state(summed="none")), SUMS),
            "behind relu": Sample(call("bn_stats_grad", X, X, state(), SCALE, SCALE, neuron="relu"), SUMS),
            "behind gelu": Sample(call("bn_stats_grad", SMALL, SMALL, state(), SCALE, SCALE, neuron="gelu"), SUMS),
            "behind tanh": Sample(call("bn_stats_grad", SMALL, SMALL, state(), SCALE, SCALE, neuron=TANH), SUMS),
            "of eight channels": Sample(call("bn_stats_grad", _EIGHT, _EIGHT, state(8)), SUMS, in_matrix=False),
            "behind relu of seven channels": Sample(
                call("bn_stats_grad", _SEVEN, _SEVEN, state(7), Array((7,)), Array((7,)), neuron="relu"),
                SUMS,
                in_matrix=False,
            ),
        },
        reference=by(oracle.bn_stats_grad, "dgamma", "dbeta"),
        image="x",
        wrong_values=(
            ("dy does not belong to x", lambda: mf.bn_stats_grad(IMAGES[:1], IMAGES, NORM)),
            ("x does not belong to this state", lambda: mf.bn_stats_grad(IMAGES[..., :3], IMAGES[..., :3], NORM)),
            (
                "the state's sums are of another activation",
                lambda: mf.bn_stats_grad(IMAGES, IMAGES, forged(summed="gelu"), neuron="relu"),
            ),
        ),
        wrong_types=(("gamma is not an array", lambda: mf.bn_stats_grad(IMAGES, IMAGES, NORM, 2.0)),),
        cases=_cases,
        loads=_LOADS,
        benchmarks={"bn_stats_grad": _MEASURED},
    ),
)
