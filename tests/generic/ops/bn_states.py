"""States of batch normalization made of others: `bn_frozen`, `bn_merge`, `bn_reset` and `bn_running`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, Loads, OpInfo, Sample, call
from generic.ops.bn_stats import BF16, F16, F32, IMAGES, NORM, WITH_SUMS, by, forged, state
from metal_host.case import Case
from metal_host.geometry import LONG, VECTOR
from support import close, exact, numbers
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc.channels import vector_rules
from mpsfunc.core import launch
from mpsfunc.normalization import nccl_messages

# Samples ------------------------------------------------------------------------------------------------

MOMENTS = (0, 1)  # without sums, which are zeros


def _frozen(channels: int = 4) -> Call:
    vector = Array((channels,), wide=True)
    return call("bn_frozen", vector, vector._replace(of="positive"))


def _scaled(channels: int = 4, count: int = 12) -> Call:
    """A state whose sums are of a scale that is the same in all; of different ones none is known after merging."""
    made = state(channels, count=count)
    return made._replace(args=(*made.args[:5], Fixed([0.5] * channels), *made.args[6:]))


# Kernel cases -------------------------------------------------------------------------------------------

_RUNNING = (
    *((0, 1.0, F32), (1, 1.0, F32), (300, 1.0, F32), (300, 0.0, F32), (2**40, 1.0, F32)),
    *((300, 1.0, F16), (300, 1.0, BF16)),
)


def _moved(shape: tuple[int, int], count: int, unbiased: float, dtype: mx.Dtype) -> None:
    mean, var = numbers(shape, F32, 6), abs(numbers(shape, F32, 7)) + 1
    held, given = ((mean + 2).astype(dtype), (var + 3).astype(dtype)), (mean, var, mx.array(count, mx.int64))
    moved = vector_rules.running(*held, *given, 0.25, unbiased, launch.resolve(None))
    share, wide = 0.25 * (count > 0), max(count, 2) / (max(count, 2) - 1) if unbiased else 1.0
    if count == 1:  # which has no variance
        assert np.isnan(exact(moved[1])).all()
        moved = moved[:1]
    for a, before, found in zip(moved, held, (exact(mean), exact(var) * wide), strict=False):
        close(a, exact(before) + share * (found - exact(before)), abs(exact(before)) + abs(found), slack=8)


def _merged(shape: tuple[int, int], counts: tuple[int, ...]) -> None:
    """Rows of as many processes as there are counts, far from 0 and close to each other."""
    means, variances = numbers((len(counts), *shape), F32, 6) + 100, abs(numbers((len(counts), *shape), F32, 7))
    halves = [[mx.full(shape, half, dtype=F32) for half in divmod(count, 2**16)] for count in counts]
    rows = mx.stack([row for m, v, half in zip(means, variances, halves, strict=True) for row in (m, v, *half)])
    found = nccl_messages.merged_rows(rows, means[0], launch.resolve(None))
    share = (np.array(counts, float) / max(sum(counts), 1))[:, None, None]
    mean = (share * exact(means)).sum(0)
    close(found[0], mean, 100, slack=8)
    close(found[1], (share * (exact(variances) + (exact(means) - mean) ** 2)).sum(0), 100, slack=8)
    np.testing.assert_array_equal(np.array(found[2]), np.full(shape, sum(counts)))


def _cases() -> Iterator[Case]:
    for shape, counts in (((1, 5), (7, 2)), ((3, 300), (2**33 + 5, 2**17, 1)), ((1, 1), (4,))):
        name = f"bn_messages_merge {shape[0]}x{shape[1]} of {counts}"
        yield Case(name, ("bn_messages_merge",), partial(_merged, shape, counts))
    for shape in ((1, 5), (3, 300)):
        for count, unbiased, dtype in _RUNNING:
            name = f"bn_running {shape[0]}x{shape[1]} of {count}, {unbiased}, {dtype}"
            yield Case(name, ("bn_running",), partial(_moved, shape, count, unbiased, dtype))


# What the body loads ------------------------------------------------------------------------------------


def _run_on() -> None:
    row = numbers(LONG[-1:])
    mf.bn_running(mf.bn_frozen(row, row), mf.bn_stats(numbers(LONG)))


def _run_of_two() -> None:
    row = numbers(LONG[-1:])
    nccl_messages.merged_rows(mx.stack([row] * 8), row, launch.resolve(None))


# Wrong calls, and the records ---------------------------------------------------------------------------

_CHANGED = "the state does not fit together"
_NO_NODE = "MPS has no node for it"


def _of_three() -> mf.BatchNormState:
    return mf.bn_stats(IMAGES[..., :3])


def _reset(**fields: object) -> Callable[[], object]:
    return lambda: mf.bn_reset(forged(**fields))


OPS = (
    OpInfo(
        name="bn_frozen",
        samples={"": Sample(_frozen(), MOMENTS)},
        reference=by(oracle.bn_frozen, "mean", "var"),
        launches=False,
        wrong_values=(
            ("eps is out of range", lambda: mf.bn_frozen(mx.ones(4), mx.ones(4), eps=float("inf"))),
            ("mean is not a vector", lambda: mf.bn_frozen(mx.ones((1, 4)), mx.ones(4))),
            ("mean and var differ in length", lambda: mf.bn_frozen(mx.ones(4), mx.ones(3))),
        ),
        wrong_types=(("var is not an array", lambda: mf.bn_frozen(mx.ones(4), 1.0)),),
        no_node=_NO_NODE,
    ),
    OpInfo(
        name="bn_merge",
        samples={
            "": Sample(call("bn_merge", _scaled(), _scaled(count=5)), WITH_SUMS),
            "of eight channels": Sample(call("bn_merge", _scaled(8), _scaled(8, count=40)), WITH_SUMS, in_matrix=False),
        },
        reference=by(oracle.bn_merge, "mean", "var", "dgamma", "dbeta"),
        launches=False,
        wrong_values=(
            ("statistics are frozen", lambda: mf.bn_merge(mf.bn_stats(IMAGES), NORM)),
            ("channels differ", lambda: mf.bn_merge(mf.bn_stats(IMAGES), _of_three())),
            ("eps differs", lambda: mf.bn_merge(mf.bn_stats(IMAGES), mf.bn_stats(IMAGES, eps=0.1))),
            (_CHANGED, lambda: mf.bn_merge(forged(), forged(dgamma=mx.ones(2)))),
            (_CHANGED, lambda: mf.bn_merge(forged(count=mx.array([1, 2], mx.int64)), forged())),
        ),
        no_node=_NO_NODE,
    ),
    OpInfo(
        name="bn_reset",
        samples={
            "": Sample(call("bn_reset", state(summed="none")), WITH_SUMS),
            "of frozen statistics": Sample(call("bn_reset", state(frozen=True)), WITH_SUMS),
        },
        reference=by(oracle.bn_reset, "mean", "var", "dgamma", "dbeta"),
        differentiable=False,
        launches=False,
        wrong_values=((_CHANGED, _reset(var=mx.ones(3))),),
        wrong_types=(
            ("state.mean has no floating dtype", _reset(mean=mx.ones(4, mx.int32))),
            ("state.eps is not a number", _reset(eps=None)),
        ),
        no_node=_NO_NODE,
    ),
    OpInfo(
        name="bn_running",
        samples={
            "": Sample(call("bn_running", _frozen(), state(sums=False), 0.3), MOMENTS),
            "by the batch's own variance": Sample(
                call("bn_running", _frozen(), state(sums=False), 0.3, unbiased=False), MOMENTS, in_matrix=False
            ),
            "of eight channels": Sample(call("bn_running", _frozen(8), state(8, sums=False)), MOMENTS, in_matrix=False),
        },
        reference=by(oracle.bn_running, "mean", "var"),
        wrong_values=(
            (
                "running is not a state from bn_frozen",
                lambda: mf.bn_running(mf.bn_stats(IMAGES), mf.bn_stats(IMAGES)),
            ),
            ("state is not a state from bn_stats", lambda: mf.bn_running(NORM, NORM)),
            ("channels differ", lambda: mf.bn_running(NORM, _of_three())),
            ("momentum is out of range", lambda: mf.bn_running(NORM, mf.bn_stats(IMAGES), 1.5)),
            ("momentum is out of range", lambda: mf.bn_running(NORM, mf.bn_stats(IMAGES), float("nan"))),
            (_CHANGED, lambda: mf.bn_running(NORM, forged(var=mx.ones((4, 4))))),
        ),
        wrong_types=(
            ("momentum is not a number", lambda: mf.bn_running(NORM, mf.bn_stats(IMAGES), "0.1")),
            ("unbiased is not a bool", lambda: mf.bn_running(NORM, mf.bn_stats(IMAGES), unbiased="a")),
        ),
        cases=_cases,
        loads={
            "bn_running": Loads(
                _run_on,
                {
                    **dict.fromkeys(("running_mean", "running_var", "mean", "var"), (VECTOR, VECTOR)),
                    "count": (8, 256 * 8),
                },
            ),
            "bn_messages_merge": Loads(_run_of_two, {"rows": (8 * VECTOR, 8 * VECTOR)}),
        },
        no_node=_NO_NODE,
    ),
)
