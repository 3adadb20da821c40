"""The samples of a deformable convolution, as operations of which the derivatives of any order are made.

A sample is ``m sum_ij wy_i wx_j x[r_i, s_j]``, with weights that depend on where it lies. `columns` computes those of
all taps side by side, ``(n, oh, ow, taps * c)``; `spread`, its transpose, adds up what they give to the pixels that
they read; `slopes` is the inner product of the cotangent and a derivative by y, x and the mask m. The derivatives of
each are the three of one order more. All arrays have the accumulator's dtype. Places have y and x of each tap, and the
mask where there is one: ``(n, oh, ow, groups * taps * 2)``, or three.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.convolution.params import DeformParams
from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches, tangent_of

_THREADS = 256  # of a GPU that look at as many samples together
_ACROSS = 16  # outputs side by side among them, as deform.h has it


class DeformSpec(NamedTuple):
    """Statics of deformable convolutions.

    Fields:
        params: Where windows sit, and groups of offsets.
        groups: Of the weights.
        biased: Whether a bias is added.
        stream: Where everything runs.
    """

    params: DeformParams
    groups: int
    biased: bool
    stream: mx.Stream

    @property
    def taps(self) -> int:
        """Of a window."""
        return self.params.rows.size * self.params.cols.size

    @property
    def numbers(self) -> int:
        """Of a place: y, x and the mask where there is one."""
        return 2 + self.params.masked


def _by(spec: DeformSpec, which: int) -> DeformSpec:
    """Of a derivative more, by y, x or the mask."""
    p = spec.params
    y, x, mask = (order + (which == i) for i, order in enumerate((p.order_y, p.order_x, p.order_mask)))
    return spec._replace(params=p._replace(order_y=y, order_x=x, order_mask=mask))


def _vanishes(spec: DeformSpec) -> bool:
    """Whether a derivative is zero everywhere."""
    return max(spec.params.order_y, spec.params.order_x, spec.params.order_mask) > 1


@operation("deform_columns")
def columns(x: mx.array, places: mx.array, spec: DeformSpec) -> mx.array:
    """The samples of x."""
    p, (n, _, _, channels), taps = spec.params, x.shape, spec.taps
    result = (n, p.rows.n_out, p.cols.n_out, taps * channels), x.dtype
    if _vanishes(spec):
        return mx.zeros(*result)

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(x.dtype, channels // p.groups, x.size)
        grid, group = grids.threads(p.cols.n_out * taps * (channels // vector_width), p.rows.n_out, n)
        template = (("V", vector_width),)
        return (KernelLaunch("deform_columns", ("x", "places"), ("columns",), (result,), grid, group, p, template),)

    return launch.launch("deform_columns", {"x": x, "places": places}, p, (result,), kernels, spec.stream)[0]


@columns.vjp
def _columns_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: DeformSpec) -> Gradients:
    (x, places), dcolumns = arrays, cotangents[0]
    return spread(dcolumns, places, spec), slopes(dcolumns, x, places, spec)


@columns.jvp
def _columns_jvp(arrays: Arrays, tangents: Tangents, spec: DeformSpec) -> mx.array:
    x, places = arrays
    return tangent_of(
        (tangents[0], lambda t: columns(t, places, spec)),
        (tangents[1], lambda t: _moved(x, places, t, spec)),
    )


columns.vmap(over_batches(columns))


@operation("deform_columns_grad")
def spread(dcolumns: mx.array, places: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `columns` by the images."""
    p, taps = spec.params, spec.taps
    n, height, width, channels = dcolumns.shape[0], p.rows.n_in, p.cols.n_in, dcolumns.shape[3] // taps
    result = (n, height, width, channels), dcolumns.dtype
    if _vanishes(spec):
        return mx.zeros(*result)

    def kernels() -> tuple[KernelLaunch, ...]:
        chunks = taps * -(-p.rows.n_out // (_THREADS // _ACROSS)) * -(-p.cols.n_out // _ACROSS)
        bounds = ((n * p.groups, chunks, 4), mx.int32)
        vector_width = grids.vector_width(dcolumns.dtype, channels // p.groups, dcolumns.size)
        tiled = grids.pixel_tiles(height, width, channels // p.groups // vector_width, _THREADS)
        common = (("G", _THREADS),)
        template = ("V", vector_width), *common, ("S", tiled.packs), ("DY", tiled.down), ("DX", tiled.across)
        group = (_THREADS, 1, 1)
        of_chunks = grids.whole_groups(chunks, n * p.groups, _THREADS)
        of_tiles = grids.whole_groups(tiled.tiles, n * p.groups * tiled.slices, _THREADS)
        names = ("dcolumns", "places", "bounds"), ("dx",)
        return (
            KernelLaunch("deform_columns_bounds", ("places",), ("bounds",), (bounds,), of_chunks, group, p, common),
            KernelLaunch("deform_columns_grad", *names, (result,), of_tiles, group, p, template),
        )

    arrays = {"dcolumns": dcolumns, "places": places}
    return launch.launch("deform_columns_grad", arrays, p, (result,), kernels, spec.stream)[0]


@spread.vjp
def _spread_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: DeformSpec) -> Gradients:
    (dcolumns, places), t = arrays, cotangents[0]
    return columns(t, places, spec), slopes(dcolumns, t, places, spec)


@spread.jvp
def _spread_jvp(arrays: Arrays, tangents: Tangents, spec: DeformSpec) -> mx.array:
    dcolumns, places = arrays
    return tangent_of(
        (tangents[0], lambda t: spread(t, places, spec)),
        (tangents[1], lambda t: _moved_back(dcolumns, places, t, spec)),
    )


spread.vmap(over_batches(spread))


@operation("deform_places_grad")
def slopes(dcolumns: mx.array, x: mx.array, places: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `columns` by the places, of their dtype."""
    p, result = spec.params, (places.shape, places.dtype)
    if all(_vanishes(_by(spec, which)) for which in range(spec.numbers)):
        return mx.zeros(*result)

    def kernels() -> tuple[KernelLaunch, ...]:
        in_group = x.shape[3] // p.groups
        vector_width = grids.vector_width(x.dtype, in_group, min(x.size, dcolumns.size))
        sharing = min(32, grids.power_of_two(in_group // vector_width))
        grid, group = grids.sharing_threads(places.size // spec.numbers, sharing)
        template = ("V", vector_width), ("R", sharing)
        names = ("dcolumns", "x", "places"), ("dplaces",)
        return (KernelLaunch("deform_places_grad", *names, (result,), grid, group, p, template),)

    arrays = {"dcolumns": dcolumns, "x": x, "places": places}
    return launch.launch("deform_places_grad", arrays, p, (result,), kernels, spec.stream)[0]


@slopes.vjp
def _slopes_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: DeformSpec) -> Gradients:
    (dcolumns, x, places), t = arrays, cotangents[0]
    moved = _moved(x, places, t, spec), _moved_back(dcolumns, places, t, spec)
    return *moved, _bent(dcolumns, x, places, t, spec)


@slopes.jvp
def _slopes_jvp(arrays: Arrays, tangents: Tangents, spec: DeformSpec) -> mx.array:
    dcolumns, x, places = arrays
    return tangent_of(
        (tangents[0], lambda t: slopes(t, x, places, spec)),
        (tangents[1], lambda t: slopes(dcolumns, t, places, spec)),
        (tangents[2], lambda t: _bent(dcolumns, x, places, t, spec)),
    )


slopes.vmap(over_batches(slopes))


def _part(t: mx.array, which: int, spec: DeformSpec) -> mx.array:
    """What a tangent of places says of y, x or the mask: (n, oh, ow, groups, taps, 1)."""
    apart = t.reshape(*t.shape[:3], spec.params.groups, spec.taps, spec.numbers)
    return launch.cut(apart, (..., slice(which, which + 1)))


def _times(part: mx.array, of_taps: mx.array, spec: DeformSpec) -> mx.array:
    """Columns times a number for each tap and group."""
    channels = of_taps.shape[3] // spec.taps // spec.params.groups
    apart = of_taps.reshape(*of_taps.shape[:3], spec.taps, spec.params.groups, channels)
    return (part.swapaxes(3, 4) * apart).reshape(of_taps.shape)


def added(terms: list[mx.array]) -> mx.array:
    """Their sum."""
    return functools.reduce(mx.add, terms)


def _moved(x: mx.array, places: mx.array, t: mx.array, spec: DeformSpec) -> mx.array:
    """The tangent of columns whose places move by t."""
    which = range(spec.numbers)
    return added([_times(_part(t, i, spec), columns(x, places, _by(spec, i)), spec) for i in which])


def _moved_back(dcolumns: mx.array, places: mx.array, t: mx.array, spec: DeformSpec) -> mx.array:
    """The transpose of that in x, which is also the tangent of `spread`."""
    which = range(spec.numbers)
    return added([spread(_times(_part(t, i, spec), dcolumns, spec), places, _by(spec, i)) for i in which])


def _bent(dcolumns: mx.array, x: mx.array, places: mx.array, t: mx.array, spec: DeformSpec) -> mx.array:
    """The tangent of `slopes` where places move by t, which is also its gradient by them."""
    shape = (*places.shape[:3], spec.params.groups, spec.taps, spec.numbers)
    bent = [slopes(dcolumns, x, places, _by(spec, i)).reshape(shape) for i in range(spec.numbers)]
    return added([_part(t, i, spec) * each for i, each in enumerate(bent)]).reshape(places.shape)
