"""Labels as kernels take them, and which of them count for how much."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, environment
from mpsfunc.core.numpy_later import np
from mpsfunc.core.operation import operation
from mpsfunc.core.printing import describe

_NO_CLASS = 2**32 - 1


def as_classes(target: mx.array, classes: int) -> mx.array:
    """Labels as uint32, in which those of no class are beyond the last."""
    target = mx.stop_gradient(target)  # mx.checkpoint would ask for the gradient of a view of them
    if target.dtype in (mx.int64, mx.uint64):
        target = mx.where((target >= 0) & (target < classes), target, -1).astype(mx.int32)
    if target.dtype in (mx.int8, mx.int16):
        target = target.astype(mx.int32)
    return target.view(mx.uint32) if target.dtype == mx.int32 else target.astype(mx.uint32)


def counted(target: mx.array, ignore_index: int | None) -> mx.array | None:
    """Which labels count; None if all do, since there is nothing to leave out or their dtype has no such number."""
    if ignore_index is None:
        return None
    bits = 8 * target.dtype.size
    signed = mx.issubdtype(target.dtype, mx.signedinteger)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not least <= ignore_index <= most:
        return None
    if ignore_index >= 2**63:  # which MLX takes from nobody
        return target.view(mx.int64) != mx.array(ignore_index - 2**64, mx.int64)
    return target != mx.array(ignore_index, target.dtype)


def without(labels: mx.array, counted: mx.array | None) -> mx.array:
    """Labels (of uint32) of which those that do not count are of no class."""
    return labels if counted is None else mx.where(counted, labels, mx.array(_NO_CLASS, mx.uint32))


class Where(NamedTuple):
    """Where everything runs."""

    stream: mx.Stream


@operation("loss")
def weights_of(labels: mx.array, class_weights: mx.array, spec: Where) -> mx.array:
    """The weight of each label's class, and 0 of no class."""
    classes = class_weights.size
    ended = mx.concatenate([class_weights, mx.zeros((1,), class_weights.dtype)])
    return ended[mx.minimum(labels, mx.array(classes, mx.uint32))]


@weights_of.decomposition
def _weights_by_sums(labels: mx.array, class_weights: mx.array, spec: Where) -> mx.array:
    """What is gathered would be scattered, which MLX cannot push forward, nor a GPU add in one order."""
    hot = labels[..., None] == mx.arange(class_weights.size).astype(mx.uint32)
    return mx.where(hot, class_weights, mx.zeros_like(class_weights)).sum(-1)


def check_index(op: str, ignore_index: Any, type: str, labelled: bool) -> int | None:
    """An int, for labels only."""
    if ignore_index is None:
        return None
    index = checks.whole(op, "ignore_index", ignore_index, -(2**63), 2**64 - 1)
    if not labelled:
        raise ValueError(
            f"{op}: ignore_index has no meaning here; got ignore_index={index} for {type} of a target of floats, "
            "expected None or labels of integers"
        )
    return index


def check_weights(op: str, name: str, given: Any, channels: int, stream: mx.Stream, type: str, meant: str) -> None:
    """A number a class, for the types that ``meant`` names; a pos_weight may be one number for all."""
    if given is None:
        return
    if type not in meant.split(" or "):
        raise ValueError(f"{op}: {name} has no meaning here; got {name} for {type}, expected {name}=None or {meant}")
    checks.array(op, name, given, stream=stream)
    if name != "pos_weight" or given.shape not in ((), (1,)):
        checks.shape(op, name, given, (channels,), f"{name} does not fit y")


def check_classes(
    op: str, target: mx.array, labels: mx.array, counted: mx.array | None, classes: int, otherwise: str = ""
) -> None:
    """That all labels that count are classes, if ``MPSFUNC_CHECK_LABELS`` is 1; that evaluates them.

    ``otherwise`` ends the error: what else a label may be.

    Raises:
        ValueError: One is not a class, or their values are not known yet.
    """
    if not environment.switch("MPSFUNC_CHECK_LABELS", False):
        return
    wrong = labels >= classes if counted is None else (labels >= classes) & counted
    try:
        some = bool(wrong.any().item())
    except (ValueError, RuntimeError):
        raise ValueError(
            f"{op}: labels that a transformation traces cannot be checked; got MPSFUNC_CHECK_LABELS='1', expected "
            "'0', or labels that neither mx.compile nor mx.vmap is a function of"
        ) from None
    if some:
        places = np.flatnonzero(np.array(wrong))
        at, count = int(places[0]), len(places)
        label = target.reshape(-1)[at].item()
        raise ValueError(
            f"{op}: a label is not a class; got {describe(label)} as label {at} of target, the first of {count}, "
            f"expected 0 to {classes - 1}{otherwise}"
        )


def terms(y: mx.array, target: mx.array, pos_weight: mx.array, kept: float, share: float) -> tuple[mx.array, mx.array]:
    """What the two terms of sigmoid cross-entropy are multiplied with.

    With q the pos_weight, p the probability and t the smoothed target, the loss is ``-q t log p - (1 - t) log(1 - p)``.
    """
    t = target.astype(y.dtype)
    if kept != 1 or share != 0:
        t = t * kept + share
    return pos_weight.astype(y.dtype) * t, 1 - t
