"""Rows of reductions over rows, columns, channels or space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.case import Case, Rng, Row, dtype, family, images, numbers, of, pick

_AXES = {"rows": 2, "columns": 1, "channels": 3, "space": (1, 2)}
_OVER = tuple(_AXES)


def _large(rng: Rng, kind: mx.Dtype) -> np.ndarray:
    """Small images, and now and then one that is long or wide enough to be cut."""
    if rng.random() < 0.8:
        return images(rng, kind)
    return numbers(
        rng, pick(rng, (1, 140, 3, 17), (2, 3, 150, 1), (1, 90, 60, 2), (2, 2, 3, 300), (1, 5, 50, 30)), kind
    )


def _sum(name: str) -> Callable[[Rng], Case]:
    def sample(rng: Rng) -> Case:
        kind, over = dtype(rng), str(pick(rng, *_OVER))
        x, axis, mean = _large(rng, kind), _AXES[over], name == "reduce_mean"

        def summed(x: np.ndarray) -> np.ndarray:
            made: np.ndarray = (np.mean if mean else np.sum)(x, axis=axis, keepdims=True)
            return made

        return Case(over, [x], kind, lambda x: getattr(of, name)(x, over), summed, lambda x: summed(np.abs(x)),
            x.size // max(1, len(x)), pulled=lambda dy, x: {0: getattr(of, f"{name}_grad")(dy, x.shape, over)},
            mapped=x.shape[0] > 0)  # fmt: skip

    return sample


def _weighted(rng: Rng) -> Case:
    kind, over = dtype(rng), str(pick(rng, *_OVER))
    x = _large(rng, kind)
    weights = numbers(rng, tuple(d if rng.integers(3) else 1 for d in x.shape), kind)
    if len(x) == 0:
        weights = weights[:0] if len(weights) != 1 else weights
    by_nonzero = bool(rng.integers(2))

    def shared(x: np.ndarray, w: np.ndarray) -> Any:
        nonzero = (np.broadcast_to(w, x.shape) != 0).sum(_AXES[over], keepdims=True)
        return np.maximum(nonzero, 1) if by_nonzero else 1

    def summed(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        made: np.ndarray = (x * w).sum(_AXES[over], keepdims=True)
        return made / shared(x, w)

    def size(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        made: np.ndarray = (np.abs(x) * np.abs(w)).sum(_AXES[over], keepdims=True)
        return made / shared(x, w)

    def pulled(dy: mx.array, x: mx.array, w: mx.array) -> dict[int, mx.array]:
        both = "primary", "secondary"
        return {
            at: of.reduce_weighted_sum_grad(dy, x, w, over, operand=operand, by_nonzero=by_nonzero)
            for at, operand in enumerate(both)
        }

    return Case(f"{over}, {weights.shape}, {by_nonzero}", [x, weights], kind,
        lambda x, w: of.reduce_weighted_sum(x, w, over, by_nonzero=by_nonzero), summed, size,
        max(1, x.size), moving=(0, 1), pulled=pulled, narrow=1.0, mapped=x.shape[0] > 0)  # fmt: skip


def _extreme(name: str) -> Callable[[Rng], Case]:
    def sample(rng: Rng) -> Case:
        kind, over = dtype(rng), str(pick(rng, *_OVER))
        x, axis, largest = _large(rng, kind), _AXES[over], name == "reduce_max"

        def extreme(x: np.ndarray) -> np.ndarray:
            made: np.ndarray = (np.max if largest else np.min)(x, axis=axis, keepdims=True)
            return made

        def more(x: mx.array) -> Iterator[str]:
            place = np.array(getattr(of, "reduce_argmax" if largest else "reduce_argmin")(x, over))
            seen = np.array(x.astype(mx.float64, stream=mx.cpu), copy=True)
            lines = seen.reshape(len(seen), -1, seen.shape[3])[:, :, None] if over == "space" else seen
            at = 1 if over == "space" else axis
            right = (np.argmax if largest else np.argmin)(lines, axis=at)
            if not np.array_equal(place.reshape(right.shape), right):
                yield f"{name}'s place is not the first"

        return Case(over, [x], kind, lambda x: getattr(of, name)(x, over), extreme,
            pulled=lambda dy, x: {0: getattr(of, f"{name}_grad")(dy, x, over)}, exact=True, more=more,
            mapped=x.shape[0] > 0)  # fmt: skip

    return sample


ROWS = {
    **{name: Row(family(name, "grad"), _sum(name)) for name in ("reduce_sum", "reduce_mean")},
    "reduce_weighted_sum": Row(family("reduce_weighted_sum", "grad"), _weighted),
    "reduce_max": Row([*family("reduce_max", "grad"), "reduce_argmax"], _extreme("reduce_max")),
    "reduce_min": Row([*family("reduce_min", "grad"), "reduce_argmin"], _extreme("reduce_min")),
}
