"""Samples in boxes: three operations, of which the derivatives of any order are made.

A bin of a box is ``sum_ij wy_i wx_j x[r_i, s_j]``, with weights that depend on the box's rows and columns alone: crops
have one sample in a bin, regions of interest the mean of several. A row of the array of boxes is the number of an
image, then two numbers that say where the box lies along y, and two along x: positions are linear in them. `sample`
computes the bins; `spread`, its transpose, adds up what bins give to the pixels that they read; `slopes` is the inner
product of the cotangent and a derivative more, by each of the four. Positions mix two pixels linearly, so that along an
axis second derivatives are zero, and those of each operation are the three once more.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation, tangent_of
from mpsfunc.image.params import BoxSampleParams

CROP_BILINEAR, CROP_NEAREST, ROI_ALIGN = 0, 1, 2
_THREADS = 256  # of a GPU that look at as many boxes together
_FILLED = 4 * 256 * grids.FILL  # threads that leave no part of a GPU idle for long
_UNROLLED = 2  # samples of a bin along an axis that have a loop of their own


class Spec(NamedTuple):
    """Statics of samples in boxes.

    Fields:
        params: Of which images, how many, and how.
        stream: Where everything runs.
    """

    params: BoxSampleParams
    stream: mx.Stream


# By what a box says of an axis first, and second.
_ORDERS = ((1, 0), (2, 0), (0, 1), (0, 2))


def _by(spec: Spec, order: tuple[int, int]) -> Spec | None:
    """Of a derivative more, None where that is zero."""
    p, (y, x) = spec.params, order
    if p.rule == CROP_NEAREST or (y and p.order_y) or (x and p.order_x):
        return None
    return spec._replace(params=p._replace(order_y=p.order_y or y, order_x=p.order_x or x, outside=0.0))


def _linear(spec: Spec) -> Spec:
    """Without what is outside, which no tangent has."""
    return spec._replace(params=spec.params._replace(outside=0.0))


@operation("box_sample")
def sample(x: mx.array, boxes: mx.array, spec: Spec) -> mx.array:
    """The bins of boxes (r, 5), which have the accumulator's dtype."""
    p = spec.params
    result = (boxes.shape[0], p.rows, p.cols, x.shape[3]), x.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(x.dtype, x.shape[3], x.size)
        across, count = p.cols * (x.shape[3] // vector_width), boxes.shape[0]
        # Threads go down the rows, for which a column's weights are the same, if the GPU stays full.
        grid, group = grids.threads(across, min(p.rows, -(-_FILLED // (across * count))), count)
        template = ("V", vector_width), ("K", p.samples if p.samples <= _UNROLLED else 0)
        return (KernelLaunch("box_sample", ("x", "boxes"), ("y",), (result,), grid, group, p, template),)

    if x.size == 0:  # boxes of no image
        return mx.full(result[0], p.outside, x.dtype)
    return launch.launch("box_sample", {"x": x, "boxes": boxes}, p, (result,), kernels, spec.stream)[0]


@sample.vjp
def _sample_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, boxes), dy = arrays, cotangents[0]
    return spread(dy, boxes, _linear(spec)), slopes(dy, x, boxes, _linear(spec))


@sample.jvp
def _sample_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    x, boxes = arrays
    return tangent_of(
        (tangents[0], lambda t: sample(t, boxes, _linear(spec))),
        (tangents[1], lambda t: _moved(x, boxes, t, spec)),
    ).astype(x.dtype)


@sample.vmap
def _sample_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    x, boxes = arrays
    if mapped[0]:
        spec, x, boxes = _of_each(spec, size), _one_batch(x), _numbered(boxes, mapped[1], size, spec)
    else:
        boxes = _one_batch(boxes)
    return _apart(sample(x, boxes, spec), size)


@operation("box_sample_grad")
def spread(dy: mx.array, boxes: mx.array, spec: Spec) -> mx.array:
    """The gradient of `sample` by the images."""
    p, channels = spec.params, dy.shape[3]
    result = (p.images, p.height, p.width, channels), dy.dtype
    if 0 in (p.images, boxes.shape[0]):
        return mx.zeros(*result)

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(dy.dtype, channels, dy.size)
        packs, down, across, tiles, slices = grids.pixel_tiles(p.height, p.width, channels // vector_width, _THREADS)
        template = (
            ("V", vector_width),
            ("G", _THREADS),
            ("S", packs),
            ("DY", down),
            ("DX", across),
            ("E", max(down, across)),
        )
        grid = grids.whole_groups(tiles, p.images * slices, _THREADS)
        names, group = ("dy", "boxes", "order", "begins"), (_THREADS, 1, 1)
        lists = ((boxes.shape[0],), mx.int32), ((p.images + 1,), mx.int32)
        lists_grid = grids.whole_groups(1, p.images + 1, _THREADS)
        return (
            KernelLaunch("box_order", ("boxes",), names[2:], lists, lists_grid, group, p, (("G", _THREADS),)),
            KernelLaunch("box_sample_grad", names, ("dx",), (result,), grid, group, p, template),
        )

    return launch.launch("box_sample_grad", {"dy": dy, "boxes": boxes}, p, (result,), kernels, spec.stream)[0]


@spread.vjp
def _spread_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, boxes), t = arrays, cotangents[0]
    return sample(t, boxes, spec), slopes(dy, t, boxes, spec)


@spread.jvp
def _spread_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    dy, boxes = arrays
    return tangent_of(
        (tangents[0], lambda t: spread(t, boxes, spec)),
        (tangents[1], lambda t: _moved_back(dy, boxes, t, spec)),
    )


@spread.vmap
def _spread_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    dy, boxes = arrays
    dy = _one_batch(dy if mapped[0] else mx.broadcast_to(dy, (size, *dy.shape)))
    return _apart(spread(dy, _numbered(boxes, mapped[1], size, spec), _of_each(spec, size)), size)


@operation("box_sample_grad_boxes")
def slopes(dy: mx.array, x: mx.array, boxes: mx.array, spec: Spec) -> mx.array:
    """The gradient of `sample` by the boxes, of their dtype: 0 by the image's number, and by the four behind it."""
    p, count = spec.params, boxes.shape[0]
    if 0 in (x.size, count) or all(_by(spec, order) is None for order in _ORDERS):
        return mx.zeros(boxes.shape, boxes.dtype)
    result = (count, 5), boxes.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(dy.dtype, x.shape[3], min(x.size, dy.size))
        threads = min(_THREADS, max(32, grids.power_of_two(p.cols * (x.shape[3] // vector_width))))
        grid, group = (min(count * p.rows, 8 * grids.FILL) * threads, 1, 1), (threads, 1, 1)
        names, template = ("dy", "x", "boxes"), (("V", vector_width), ("G", threads))
        partial = ((p.rows, count * 5), mx.float32)
        total = launch.sum_partials(count * 5, p.rows)
        return (
            KernelLaunch("box_sample_grad_boxes", names, ("partial",), (partial,), grid, group, p, template),
            total._replace(results=(result,)),
        )

    arrays = {"dy": dy, "x": x, "boxes": boxes}
    return launch.launch("box_sample_grad_boxes", arrays, p, (result,), kernels, spec.stream)[0]


@slopes.vjp
def _slopes_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, x, boxes), t = arrays, cotangents[0]
    return _moved(x, boxes, t, spec), _moved_back(dy, boxes, t, spec), _bent(dy, x, boxes, t, spec)


@slopes.jvp
def _slopes_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    dy, x, boxes = arrays
    return tangent_of(
        (tangents[0], lambda t: slopes(t, x, boxes, spec)),
        (tangents[1], lambda t: slopes(dy, t, boxes, spec)),
        (tangents[2], lambda t: _bent(dy, x, boxes, t, spec)),
    )


@slopes.vmap
def _slopes_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    dy, x, boxes = arrays
    dy = _one_batch(dy if mapped[0] else mx.broadcast_to(dy, (size, *dy.shape)))
    if mapped[1]:
        spec, x, boxes = _of_each(spec, size), _one_batch(x), _numbered(boxes, mapped[2], size, spec)
    else:
        boxes = _one_batch(boxes if mapped[2] else mx.broadcast_to(boxes, (size, *boxes.shape)))
    return _apart(slopes(dy, x, boxes, spec), size)


def _parts(t: mx.array) -> tuple[mx.array, ...]:
    """What tangents of boxes say of each of the four numbers, one a box."""
    return tuple(launch.cut(t, (..., slice(i, i + 1))) for i in range(1, 5))


def _terms(t: mx.array, spec: Spec) -> list[tuple[mx.array, Spec]]:
    """The derivatives that are not zero, each with its part of a tangent."""
    made = zip(_parts(t), (_by(spec, order) for order in _ORDERS), strict=True)
    return [(part, of) for part, of in made if of is not None]


def _moved(x: mx.array, boxes: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The tangent of bins whose boxes move by t."""
    made = mx.zeros((boxes.shape[0], spec.params.rows, spec.params.cols, x.shape[3]), x.dtype)
    for part, of in _terms(t, spec):
        made = made + part[:, None, None] * sample(x, boxes, of)
    return made.astype(x.dtype)


def _moved_back(dy: mx.array, boxes: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The transpose of that in x, which is also the tangent of `spread`."""
    p = spec.params
    made = mx.zeros((p.images, p.height, p.width, dy.shape[3]), dy.dtype)
    for part, of in _terms(t, spec):
        made = made + spread((part[:, None, None] * dy).astype(dy.dtype), boxes, of)
    return made


def _bent(dy: mx.array, x: mx.array, boxes: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The tangent of `slopes` where boxes move by t, which is also its gradient by them."""
    made = mx.zeros(boxes.shape, boxes.dtype)
    for part, of in _terms(t, spec):
        made = made + part * slopes(dy, x, boxes, of)
    return made


# Maps: images of all that are mapped are one batch, in which boxes have other numbers --------------------


def _of_each(spec: Spec, size: int) -> Spec:
    return spec._replace(params=spec.params._replace(images=spec.params.images * size))


def _one_batch(array: mx.array) -> mx.array:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _apart(array: mx.array, size: int) -> mx.array:
    return array.reshape(size, array.shape[0] // size, *array.shape[1:])


def _numbered(boxes: mx.array, mapped: bool, size: int, spec: Spec) -> mx.array:
    """Boxes of each of so many batches, of the images that these have in one batch; of none where they are of none."""
    images = spec.params.images
    if not mapped:
        boxes = mx.broadcast_to(boxes, (size, *boxes.shape))
    number = boxes[..., :1]
    known = mx.logical_and(number >= 0, number < images)
    number = mx.where(known, number + (mx.arange(size) * images).astype(boxes.dtype)[:, None, None], -1)
    return _one_batch(mx.concatenate([number, boxes[..., 1:]], axis=-1))
