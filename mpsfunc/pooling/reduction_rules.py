"""Reductions as operations on arrays (outer, length, inner), of whose middle axis one entry is left.

Kernels of the CPU; a GPU takes MLX's reductions. A sum and `spread` are each other's derivatives. Weighted sums are
linear in elements, weights and what comes of them: `dots`, `weighed` and `shared_weights` are each other's. With its
place known an extreme is linear, too: `placed` and `picked` are each other's.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, one_batch, operation, over_batches, tangent_of
from mpsfunc.pooling.params import ReduceExtremeParams, ReduceSumParams

_VALUES, _PLACES, _BOTH = range(3)  # of ReduceExtremeParams


class SumSpec(NamedTuple):
    """Sums or means of so many, and where."""

    length: int
    mean: bool
    stream: mx.Stream


class ExpandSpec(NamedTuple):
    """Weights of a shape, how far they are repeated, and those as (outer, length, inner); and where."""

    given: tuple[int, ...]
    whole: tuple[int, ...]
    lines: tuple[int, int, int]
    stream: mx.Stream


class Spec(NamedTuple):
    """Where weighted sums are made, and how their weights are repeated before, if they are."""

    stream: mx.Stream
    repeated: ExpandSpec | None = None

    def along(self, w: mx.array) -> mx.array:
        """The weights as (outer or 1, length, inner)."""
        return w if self.repeated is None else expanded(w, self.repeated)


class ExtremeSpec(NamedTuple):
    """The largest of so many, or the least, and where."""

    length: int
    largest: bool
    stream: mx.Stream


def _no_kernels() -> tuple[KernelLaunch, ...]:
    raise AssertionError("a GPU makes this of MLX's operations")


def _on_cpu(spec: SumSpec | Spec | ExtremeSpec) -> bool:
    return launch.backend(spec.stream) == "cpu"


def _wide(x: mx.array) -> mx.array:
    return x.astype(launch.accumulator(x.dtype))


# Sums and means -----------------------------------------------------------------------------------------------


@operation("reduce_sum")
def sums(x: mx.array, spec: SumSpec) -> mx.array:
    """(outer, inner) of x's dtype."""
    if _on_cpu(spec):
        result = (x.shape[0], x.shape[2]), x.dtype
        params = ReduceSumParams(int(spec.mean))
        return launch.launch("reduce_sum", {"x": x}, params, (result,), _no_kernels, spec.stream)[0]
    return (mx.mean if spec.mean else mx.sum)(_wide(x), axis=1).astype(x.dtype)


@operation("spread")
def spread(dy: mx.array, spec: SumSpec) -> mx.array:
    """Each of dy for all that it is the sum of, or its share; not a copy for each."""
    share = (_wide(dy) / spec.length).astype(dy.dtype) if spec.mean else dy
    return mx.broadcast_to(share[:, None], (dy.shape[0], spec.length, dy.shape[1]))


@sums.vjp
def _sums_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: SumSpec) -> Gradients:
    return (spread(cotangents[0], spec),)


@sums.jvp
def _sums_jvp(arrays: Arrays, tangents: Arrays, spec: SumSpec) -> mx.array:
    return sums(tangents[0], spec)


@spread.vjp
def _spread_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: SumSpec) -> Gradients:
    return (sums(cotangents[0], spec),)


@spread.jvp
def _spread_jvp(arrays: Arrays, tangents: Arrays, spec: SumSpec) -> mx.array:
    return spread(tangents[0], spec)


sums.vmap(over_batches(sums))
spread.vmap(over_batches(spread))


# Weighted sums, by weights for each of the outer ones or, with an outer axis of 1, for all ----------------------


@operation("reduce_sum")
def dots(x: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """Sums of x * w, (outer, inner), in the accumulator's dtype."""
    w = spec.along(w)
    if _on_cpu(spec):
        result = (x.shape[0], x.shape[2]), launch.accumulator(x.dtype)
        params = ReduceSumParams(0)
        return launch.launch("reduce_sum", {"x": x, "w": w}, params, (result,), _no_kernels, spec.stream)[0]
    return mx.sum(_wide(x) * _wide(w), axis=1)


@operation("reduce_weigh")
def weighed(t: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """T (outer, inner), of the accumulator's dtype, times w (outer or 1, length, inner): of w's dtype."""
    w = spec.along(w)
    if _on_cpu(spec):
        result = (t.shape[0], *w.shape[1:]), w.dtype
        return launch.launch("reduce_weigh", {"t": t, "w": w}, None, (result,), _no_kernels, spec.stream)[0]
    return (t[:, None] * _wide(w)).astype(w.dtype)


@operation("shared_weights")
def shared_weights(x: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The gradient (1, length, inner) of weights that all outer ones share, in the accumulator's dtype."""
    outer, length, inner = x.shape
    if outer == 0:
        return mx.zeros((1, length, inner), t.dtype)
    each = (_wide(x) * t[:, None]).reshape(1, outer, length * inner)
    return sums(each, SumSpec(outer, False, spec.stream)).reshape(1, length, inner)


def by_weights(x: mx.array, t: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """The gradient of w, in which a weighted sum is linear as in x; what repeated weights add up is rounded once."""
    repeated = spec.repeated
    outer = w.shape[0] if repeated is None else repeated.lines[0]
    if outer == x.shape[0]:
        made = weighed(t, x if repeated is None else _wide(x), Spec(spec.stream))
    else:
        made = shared_weights(x, t, Spec(spec.stream))
    return made if repeated is None else contracted(made, repeated).astype(w.dtype)


@operation("expanded")
def expanded(w: mx.array, spec: ExpandSpec) -> mx.array:
    """Weights along the axis that is reduced."""
    return mx.broadcast_to(w, spec.whole).reshape(spec.lines)


@operation("contracted")
def contracted(dw: mx.array, spec: ExpandSpec) -> mx.array:
    """A gradient of those as one of the weights: sums over what was repeated."""
    return _contracted(dw, spec, 0)


def _contracted(dw: mx.array, spec: ExpandSpec, ahead: int) -> mx.array:
    dw = dw.reshape(*dw.shape[:ahead], *spec.whole)
    axes = [i + ahead for i in range(4) if spec.given[i] != spec.whole[i]]
    return mx.sum(_wide(dw), axis=axes, keepdims=True).astype(dw.dtype) if axes else dw


@expanded.vjp
def _expanded_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: ExpandSpec) -> Gradients:
    return (contracted(cotangents[0], spec),)


@expanded.jvp
def _expanded_jvp(arrays: Arrays, tangents: Arrays, spec: ExpandSpec) -> mx.array:
    return expanded(tangents[0], spec)


@expanded.vmap
def _expanded_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: ExpandSpec) -> mx.array:
    return mx.broadcast_to(arrays[0], (size, *spec.whole)).reshape(size, *spec.lines)


@contracted.vjp
def _contracted_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: ExpandSpec) -> Gradients:
    return (expanded(cotangents[0], spec),)


@contracted.jvp
def _contracted_jvp(arrays: Arrays, tangents: Arrays, spec: ExpandSpec) -> mx.array:
    return contracted(tangents[0], spec)


@contracted.vmap
def _contracted_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: ExpandSpec) -> mx.array:
    return _contracted(arrays[0], spec, 1)


@dots.vjp
def _dots_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, w), t = arrays, cotangents[0]
    return weighed(t, w, spec), by_weights(x, t, w, spec)


@dots.jvp
def _dots_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    (x, w), (tx, tw) = arrays, tangents
    return tangent_of((tx, lambda t: dots(t, w, spec)), (tw, lambda t: dots(x, t, spec)))


@weighed.vjp
def _weighed_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (t, w), x = arrays, cotangents[0]
    return dots(x, w, spec), by_weights(x, t, w, spec)


@weighed.jvp
def _weighed_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    (t, w), (tt, tw) = arrays, tangents
    return tangent_of((tt, lambda d: weighed(d, w, spec)), (tw, lambda d: weighed(t, d, spec)))


@shared_weights.vjp
def _shared_weights_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, t), w = arrays, cotangents[0]
    return weighed(t, w, spec), dots(_wide(x), w, spec)


@shared_weights.jvp
def _shared_weights_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    (x, t), (tx, tt) = arrays, tangents
    return tangent_of((tx, lambda d: shared_weights(d, t, spec)), (tt, lambda d: shared_weights(x, d, spec)))


@shared_weights.vmap
def _shared_weights_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    x, t = (_wide(a if m else a[None]) for a, m in zip(arrays, mapped, strict=True))
    return mx.broadcast_to(mx.sum(x * t[:, :, None], axis=1, keepdims=True), (size, 1, *x.shape[2:]))


def _with_weights(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> tuple[mx.array, mx.array]:
    """An array and weights as one longer batch; weights that all share stay so."""
    first, w = arrays
    if spec.repeated is not None:
        w = _expanded_vmap((w,), (True,), size, spec.repeated) if mapped[1] else expanded(w, spec.repeated)
    outer = first.shape[1] if mapped[0] else first.shape[0]
    if mapped[1] and w.shape[1] != outer:
        w = mx.broadcast_to(w, (size, outer, *w.shape[2:]))
    elif not mapped[1] and w.shape[0] == 1:
        return one_batch(first, mapped[0], size), w
    return one_batch(first, mapped[0], size), one_batch(w, mapped[1], size)


@dots.vmap
def _dots_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    x, w = _with_weights(arrays, mapped, size, spec)
    return dots(x, w, Spec(spec.stream)).reshape(size, -1, x.shape[2])


@weighed.vmap
def _weighed_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    t, w = _with_weights(arrays, mapped, size, spec)
    return weighed(t, w, Spec(spec.stream)).reshape(size, -1, *w.shape[1:])


# Extremes -----------------------------------------------------------------------------------------------------


@operation("reduce_extreme")
def extremes(x: mx.array, spec: ExtremeSpec) -> tuple[mx.array, mx.array]:
    """The extremes, and the place of each: the first of equal ones, and of a NaN, which is before all numbers."""
    if _on_cpu(spec):
        values, found = _found(x, _BOTH, spec)
        return values, found
    return _most(x, spec), _place_of_most(x, spec)


@extremes.vjp
def _extremes_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: ExtremeSpec) -> Gradients:
    return (placed(cotangents[0], outputs[1], spec),)


@extremes.jvp
def _extremes_jvp(arrays: Arrays, tangents: Arrays, spec: ExtremeSpec) -> tuple[mx.array, mx.array]:
    found = places(arrays[0], spec)
    return picked(tangents[0], found, spec), mx.zeros_like(found)


extremes.vmap(over_batches(extremes))


@operation("reduce_extreme")
def places(x: mx.array, spec: ExtremeSpec) -> mx.array:
    """The places alone, uint32."""
    return _found(x, _PLACES, spec)[0] if _on_cpu(spec) else _place_of_most(x, spec)


@places.vjp
def _places_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: ExtremeSpec) -> Gradients:
    return (None,)


@places.jvp
def _places_jvp(arrays: Arrays, tangents: Arrays, spec: ExtremeSpec) -> mx.array:
    return mx.zeros((arrays[0].shape[0], arrays[0].shape[2]), mx.uint32)


places.vmap(over_batches(places))


def values(x: mx.array, spec: ExtremeSpec) -> mx.array:
    """The extremes; their places, too, are only made where a derivative may ask for them."""
    if launch.tracing() or not _on_cpu(spec):
        return extremes(x, spec)[0]
    return _found(x, _VALUES, spec)[0]


def of_integers(x: mx.array, spec: ExtremeSpec, *, place: bool) -> mx.array:
    """The extremes of integers, or their places, by MLX."""
    return _arg_most(x, largest=spec.largest) if place else (mx.max if spec.largest else mx.min)(x, axis=1)


def _found(x: mx.array, results: int, spec: ExtremeSpec) -> list[mx.array]:
    shape = x.shape[0], x.shape[2]
    outputs = {_VALUES: ((shape, x.dtype),), _PLACES: ((shape, mx.uint32),)}
    wanted = outputs.get(results, outputs[_VALUES] + outputs[_PLACES])
    params = ReduceExtremeParams(int(spec.largest), results)
    return launch.launch("reduce_extreme", {"x": x}, params, wanted, _no_kernels, spec.stream)


def _most(x: mx.array, spec: ExtremeSpec) -> mx.array:
    return (mx.max if spec.largest else mx.min)(x, axis=1)  # of a NaN and numbers NaN


def _arg_most(x: mx.array, *, largest: bool) -> mx.array:
    if not x.size:  # which MLX refuses
        return mx.zeros((x.shape[0], x.shape[2]), mx.uint32)
    return (mx.argmax if largest else mx.argmin)(x, axis=1)


def _place_of_most(x: mx.array, spec: ExtremeSpec) -> mx.array:
    """MLX's, which passes over NaNs."""
    absent = mx.isnan(x)
    most = _arg_most(x, largest=spec.largest)
    return mx.where(mx.any(absent, axis=1), _arg_most(absent, largest=True), most)


@operation("reduce_place")
def placed(dy: mx.array, which: mx.array, spec: ExtremeSpec) -> mx.array:
    """Dy in these places, among zeros."""
    if _on_cpu(spec):
        result = (dy.shape[0], spec.length, dy.shape[1]), dy.dtype
        arrays = {"dy": dy, "which": which}
        return launch.launch("reduce_place", arrays, None, (result,), _no_kernels, spec.stream)[0]
    number = mx.arange(spec.length).astype(mx.uint32)[:, None]
    return mx.where(number == which[:, None], dy[:, None], mx.zeros((), dy.dtype))


@operation("picked")
def picked(x: mx.array, which: mx.array, spec: ExtremeSpec) -> mx.array:
    """What is in these places."""
    return mx.take_along_axis(x, which[:, None], axis=1)[:, 0]


@placed.vjp
def _placed_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: ExtremeSpec) -> Gradients:
    return picked(cotangents[0], arrays[1], spec), None


@placed.jvp
def _placed_jvp(arrays: Arrays, tangents: Tangents, spec: ExtremeSpec) -> mx.array:
    dy, which = arrays
    return mx.zeros_like(placed(dy, which, spec)) if tangents[0] is None else placed(tangents[0], which, spec)


@picked.vjp
def _picked_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: ExtremeSpec) -> Gradients:
    return placed(cotangents[0], arrays[1], spec), None


@picked.jvp
def _picked_jvp(arrays: Arrays, tangents: Tangents, spec: ExtremeSpec) -> mx.array:
    x, which = arrays
    return mx.zeros_like(picked(x, which, spec)) if tangents[0] is None else picked(tangents[0], which, spec)


placed.vmap(over_batches(placed))
picked.vmap(over_batches(picked))
