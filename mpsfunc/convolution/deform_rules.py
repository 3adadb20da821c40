"""Deformable convolution as operations: the samples of all taps as columns, then a product with the weights.

The product is a convolution of one pixel each. Columns are as many times larger than the images as a window has taps,
so they are made for some images at a time, and again for gradients. Images of 16 bits are widened first, so that
results are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.convolution import rules
from mpsfunc.convolution.deform_columns import DeformSpec, added, columns, slopes, spread
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import launch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, one_batch, operation
from mpsfunc.windows.axis import Axis

_WHOLE = 2**28  # bytes of columns up to which a batch's are made at once
_PART = 2**26  # bytes of those of some images, one at least, of which MLX runs up to about ten tasks ahead


# The product --------------------------------------------------------------------------------------------


def _wide(images: mx.array) -> mx.array:
    """Images of the accumulator's dtype."""
    return images.astype(launch.accumulator(images.dtype))


def _axis(length: int, taps: int = 1) -> Axis:
    """Windows next to each other along the columns of so many outputs."""
    return Axis(length * taps, length, taps, taps, 1, 0, 0, 0, 0, length, 0)


class _Product(NamedTuple):
    """The convolution of columns: of one pixel each, or where weights have groups of as many as a window has taps."""

    spec: Spec
    columns: tuple[int, ...]  # their shape behind the batch
    weights: tuple[int, ...]

    @classmethod
    def of(cls, w_shape: Sequence[int], spec: DeformSpec) -> _Product:
        """That of weights (o, kh, kw, c / groups)."""
        height, width, taps, depth = spec.params.rows.n_out, spec.params.cols.n_out, spec.taps, w_shape[3]
        if spec.groups == 1:
            across, shapes = _axis(width), ((height, width, taps * depth), (w_shape[0], 1, 1, taps * depth))
        else:
            across = _axis(width, taps)
            shapes = (height, width * taps, depth * spec.groups), (w_shape[0], 1, taps, depth)
        return cls(Spec(_axis(height), across, spec.groups, spec.biased, NO_ACTIVATION, spec.stream), *shapes)


def _product(of_taps: mx.array, w: mx.array, b: mx.array, spec: DeformSpec) -> mx.array:
    how = _Product.of(w.shape, spec)
    return rules.conv(
        of_taps.reshape(of_taps.shape[0], *how.columns), w.reshape(how.weights), b if spec.biased else None, how.spec
    )


def _product_grad(dy: mx.array, w: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `_product` by the columns."""
    how = _Product.of(w.shape, spec)
    p = spec.params
    made = rules.grad_input(_wide(dy), w.reshape(how.weights), None, rules.linear(how.spec))
    return made.reshape(dy.shape[0], p.rows.n_out, p.cols.n_out, spec.taps * w.shape[3] * spec.groups)


def _product_grad_weights(dy: mx.array, of_taps: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `_product` by the weights."""
    depth = of_taps.shape[3] // spec.taps // spec.groups
    shape = dy.shape[3], spec.params.rows.size, spec.params.cols.size, depth
    how = _Product.of(shape, spec)
    return rules.grad_weights(_wide(dy), of_taps.reshape(dy.shape[0], *how.columns), rules.linear(how.spec)).reshape(
        shape
    )


# The whole ----------------------------------------------------------------------------------------------


def _in_parts(arrays: Arrays, bytes_of_image: int, run: Callable[..., Arrays]) -> list[Arrays]:
    """What ``run`` makes of batches, a few images after the other, so that columns are made for these alone."""
    n, each = arrays[0].shape[0], max(1, _PART // bytes_of_image)
    if n * bytes_of_image <= _WHOLE or n <= each:
        return [run(*arrays)]
    made: list[Arrays] = []
    for first in range(0, n, each):
        some = [a[first : first + each] for a in arrays]
        if made:
            some[0] = launch.after(some[0], made[-1])
        made.append(run(*some))
    return made


def _bytes(channels: int, dtype: mx.Dtype, spec: DeformSpec) -> int:
    """Of an image's columns."""
    return spec.params.rows.n_out * spec.params.cols.n_out * spec.taps * channels * launch.accumulator(dtype).size


def _whole(parts: list[Arrays]) -> list[mx.array]:
    return [some[0] if len(some) == 1 else mx.concatenate(list(some)) for some in zip(*parts, strict=True)]


@operation("deform_conv")
def deform_conv(x: mx.array, places: mx.array, w: mx.array, b: mx.array, spec: DeformSpec) -> mx.array:
    """Images (n, oh, ow, o) of x's dtype, with a vector b, which unless ``spec.biased`` is zeros."""

    def run(x: mx.array, places: mx.array) -> Arrays:
        return (_deform_conv_decomposed(x, places, w, b, spec),)

    return _whole(_in_parts((x, places), _bytes(x.shape[3], x.dtype, spec), run))[0]


def forward(x: mx.array, places: mx.array, w: mx.array, b: mx.array | None, spec: DeformSpec) -> mx.array:
    """`deform_conv`, where there need be no bias."""
    return deform_conv(x, places, w, rules.filled(b, x, w.shape[0]), spec._replace(biased=b is not None))


@deform_conv.vjp
def _deform_conv_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: DeformSpec) -> Gradients:
    (x, places, w, _), dy = arrays, cotangents[0]
    if x.shape[0] * _bytes(x.shape[3], x.dtype, spec) <= _WHOLE:
        by_images = _grad_images_decomposed(dy, x, places, w, spec)
    else:  # both or neither, or the gradient of the columns would be made twice, or kept
        by_images = grad_images(dy, x, places, w, spec)
    return *by_images, grad_weights(dy, x, places, spec), grad_bias(dy, spec)


@deform_conv.decomposition
def _deform_conv_decomposed(x: mx.array, places: mx.array, w: mx.array, b: mx.array, spec: DeformSpec) -> mx.array:
    return _product(columns(_wide(x), places, spec), w, b, spec).astype(x.dtype)


@deform_conv.vmap
def _deform_conv_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: DeformSpec) -> mx.array:
    x, places, w, b = arrays
    if mapped[2] or mapped[3]:
        axes = tuple(0 if m else None for m in mapped)
        function: Any = _deform_conv_decomposed
        made: mx.array = mx.vmap(lambda *front: function(*front, spec), in_axes=axes)(*arrays)
        return made
    y = deform_conv(one_batch(x, mapped[0], size), one_batch(places, mapped[1], size), w, b, spec)
    return y.reshape(size, y.shape[0] // size, *y.shape[1:])


@operation("deform_conv_grad_input")
def grad_input(dy: mx.array, places: mx.array, w: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `deform_conv` by the images."""

    def run(dy: mx.array, places: mx.array) -> Arrays:
        return (_grad_input_decomposed(dy, places, w, spec),)

    return _whole(_in_parts((dy, places), _bytes(w.shape[3] * spec.groups, dy.dtype, spec), run))[0]


@grad_input.decomposition
def _grad_input_decomposed(dy: mx.array, places: mx.array, w: mx.array, spec: DeformSpec) -> mx.array:
    return spread(_product_grad(dy, w, spec), places, spec).astype(dy.dtype)


@operation("deform_conv_grad_places")
def grad_places(dy: mx.array, x: mx.array, places: mx.array, w: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `deform_conv` by the places."""

    def run(dy: mx.array, x: mx.array, places: mx.array) -> Arrays:
        return (_grad_places_decomposed(dy, x, places, w, spec),)

    return _whole(_in_parts((dy, x, places), _bytes(x.shape[3], x.dtype, spec), run))[0]


@grad_places.decomposition
def _grad_places_decomposed(dy: mx.array, x: mx.array, places: mx.array, w: mx.array, spec: DeformSpec) -> mx.array:
    return slopes(_product_grad(dy, w, spec), _wide(x), places, spec)


@operation("deform_conv_grad_images")
def grad_images(
    dy: mx.array, x: mx.array, places: mx.array, w: mx.array, spec: DeformSpec
) -> tuple[mx.array, mx.array]:
    """`grad_input` and `grad_places`, of which the gradient of the columns is made once."""

    def run(dy: mx.array, x: mx.array, places: mx.array) -> Arrays:
        return _grad_images_decomposed(dy, x, places, w, spec)

    dx, dplaces = _whole(_in_parts((dy, x, places), _bytes(x.shape[3], x.dtype, spec), run))
    return dx, dplaces


@grad_images.decomposition
def _grad_images_decomposed(
    dy: mx.array, x: mx.array, places: mx.array, w: mx.array, spec: DeformSpec
) -> tuple[mx.array, mx.array]:
    dcolumns = _product_grad(dy, w, spec)
    return spread(dcolumns, places, spec).astype(dy.dtype), slopes(dcolumns, _wide(x), places, spec)


@operation("deform_conv_grad_weights")
def grad_weights(dy: mx.array, x: mx.array, places: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `deform_conv` by the weights, in the accumulator's dtype."""

    def run(dy: mx.array, x: mx.array, places: mx.array) -> Arrays:
        return (_grad_weights_decomposed(dy, x, places, spec),)

    parts = _in_parts((dy, x, places), _bytes(x.shape[3], x.dtype, spec), run)
    return added([part for (part,) in parts])


@grad_weights.decomposition
def _grad_weights_decomposed(dy: mx.array, x: mx.array, places: mx.array, spec: DeformSpec) -> mx.array:
    return _product_grad_weights(dy, columns(_wide(x), places, spec), spec)


def grad_bias(dy: mx.array, spec: DeformSpec) -> mx.array:
    """The gradient of `deform_conv` by the bias, in the accumulator's dtype."""
    one = _axis(1)
    return rules.grad_bias(dy, Spec(one, one, 1, False, NO_ACTIVATION, spec.stream))
