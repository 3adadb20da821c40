"""The kernels of maximum pooling and their rules.

With the winners fixed, pooling is linear: `grad` adds to the winners what `take` reads from them. Each is the other's
VJP, and derivatives of every order run through these two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _launch, window
from mpsfunc._launch import Stage
from mpsfunc._rules import differentiable
from mpsfunc.window import Axis


class Spec(NamedTuple):
    """The statics of these operations."""

    rows: Axis
    cols: Axis
    stream: mx.Stream


def pool(x: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """The maxima, and the number of the tap that won each."""
    y, winners = _pool(x, spec)
    return y, winners


def grad(dy: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    """An image with dy added to the winners."""
    dx: mx.array = _grad(dy, winners, spec)
    return dx


def take(x: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    """What the winners read in an image."""
    y: mx.array = _take(x, winners, spec)
    return y


def winners_dtype(rows: Axis, cols: Axis) -> mx.Dtype:
    """The fewest bytes that number every tap and leave one number for none."""
    taps = rows.size * cols.size
    return mx.uint8 if taps <= 0xFF else mx.uint16 if taps <= 0xFFFF else mx.uint32


# Kernels ------------------------------------------------------------------------------------------------


def _launched(
    op: str,
    inputs: tuple[str, ...],
    made: tuple[str, ...],
    arrays: list[mx.array],
    size: tuple[int, int],
    spec: Spec,
) -> list[mx.array]:
    x, (height, width) = arrays[0], size
    n, channels = x.shape[0], x.shape[3]
    winners = winners_dtype(spec.rows, spec.cols)
    results = tuple(((n, height, width, channels), winners if name == "winners" else x.dtype) for name in made)
    params = (*spec.rows, *spec.cols)

    def stages() -> tuple[Stage, ...]:
        per_thread = _launch.lanes(x.dtype, channels, x.size)
        body, together, bound = op, 1, window.most_readers(spec.rows, spec.cols)
        unroll: tuple[tuple[str, mx.Dtype | int], ...] = (("V", per_thread), ("W", winners))
        moved = spec.rows.edge == window.EDGE_MODES.index("clamp")  # then any number of windows reads the edge
        if op == "max_pool_grad" and bound <= 3 and not moved:
            body, together = "max_pool_grad_few", min(n, 4 if bound < 3 else 2)
            unroll = (*unroll, ("B", together), ("R", bound))
        grid, group = _launch.image_threads(width * (channels // per_thread), height, -(-n // together))
        return (Stage(body, inputs, made, results, grid, group, params, unroll),)

    return _launch.launch(op, arrays, params, results, stages, spec.stream)


def _run_pool(x: mx.array, spec: Spec) -> tuple[mx.array, ...]:
    size = spec.rows.n_out, spec.cols.n_out
    return tuple(_launched("max_pool", ("x",), ("y", "winners"), [x], size, spec))


def _run_grad(dy: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    size = spec.rows.n_in, spec.cols.n_in
    return _launched("max_pool_grad", ("dy", "winners"), ("dx",), [dy, winners], size, spec)[0]


def _run_take(x: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    size = spec.rows.n_out, spec.cols.n_out
    return _launched("max_pool_take", ("x", "winners"), ("y",), [x, winners], size, spec)[0]


# Rules --------------------------------------------------------------------------------------------------


def _pool_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    if not mx.issubdtype(arrays[0].dtype, mx.floating):
        return (None,)
    return (_grad(cotangents[0], outputs[1], spec),)


def _pool_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    y, winners = _pool(arrays[0], spec)
    if not mx.issubdtype(y.dtype, mx.floating):  # integers have no derivative
        return mx.zeros_like(y), mx.zeros_like(winners)
    return _take(tangents[0], winners, spec), mx.zeros_like(winners)


def _batched(array: mx.array, mapped: bool, size: int) -> mx.array:
    if not mapped:
        array = mx.broadcast_to(array, (size, *array.shape))
    return array.reshape(size * array.shape[1], *array.shape[2:])


def _folded(function: Any) -> Any:
    """Mapping over batches is one longer batch."""

    def rule(arrays: Any, mapped: Any, size: int, spec: Spec) -> Any:
        out = function()(*[_batched(a, m, size) for a, m in zip(arrays, mapped, strict=True)], spec)
        apart = [a.reshape(size, a.shape[0] // size, *a.shape[1:]) for a in (out if isinstance(out, tuple) else (out,))]
        return tuple(apart) if isinstance(out, tuple) else apart[0]

    return rule


def _linear(op: str, run: Any, own: Any, adjoint: Any) -> Any:
    return differentiable(
        op,
        run,
        vjp=lambda arrays, cotangents, outputs, spec: (adjoint()(cotangents[0], arrays[1], spec), None),
        jvp=lambda arrays, tangents, spec: (
            mx.zeros_like(run(*arrays, spec)) if tangents[0] is None else own()(tangents[0], arrays[1], spec)
        ),
        vmap=_folded(own),
    )


_take: Any = _linear("max_pool_take", _run_take, lambda: _take, lambda: _grad)
_grad: Any = _linear("max_pool_grad", _run_grad, lambda: _grad, lambda: _take)
_pool: Any = differentiable(
    "max_pool",
    _run_pool,
    vjp=_pool_vjp,
    jvp=_pool_jvp,
    vmap=_folded(lambda: _pool),
)
