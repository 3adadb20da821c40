"""Gram matrices of images (``MPSNNGramMatrixCalculation``), which describe the style of a picture, and the gradient.

Both are products that convolutions are made of, of each image by itself: the sums are a gradient of weights that lead
from an image's channels to them, and their own gradient is a convolution with a matrix. A CPU's kernels share those of
convolutions; a GPU makes the products of a batch as groups.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.convolution import rules
from mpsfunc.convolution.spec import Spec as ConvSpec
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import KernelLaunch, StreamLike
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches, tangent_of
from mpsfunc.windows.placement import place


def gram_matrix(x: mx.array, *, alpha: float = 1.0, stream: StreamLike = None) -> mx.array:
    """Products of the channels of each image with each other, summed over its pixels.

    ``r[n,0,f,c] = alpha * sum over p of x[p,f] * x[p,c]``, where p runs over the pixels of image n. Sums are float32
    (float64 for float64 images) and rounded after the multiplication by alpha, so with an alpha of ``1 / (h * w * c)``
    results of float16 images stay in float16's range.

    Source: ``MPSNNGramMatrixCalculation``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        alpha: Factor of the sums. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, 1, c, c) of x's dtype, symmetric in their last two axes.

    Raises:
        TypeError: x is not a floating array, float64 on a GPU, or alpha is not a number.
        ValueError: x is not NHWC, alpha is infinite or NaN, or the result is too large.

    Example:
        >>> x = mx.array([[1.0, 2], [3, 4]]).reshape(1, 1, 2, 2)
        >>> gram_matrix(x, alpha=0.5).reshape(2, 2)
        array([[5, 7],
               [7, 10]], dtype=float32)
    """
    op, stream = "gram_matrix", launch.resolve(stream)
    return _gram(x, _checked(op, x, alpha, stream))


def gram_matrix_grad(dy: mx.array, x: mx.array, *, alpha: float = 1.0, stream: StreamLike = None) -> mx.array:
    """Gradient of `gram_matrix` with respect to its images.

    At pixel p of image n it is ``alpha * sum over c of (dy[n,0,k,c] + dy[n,0,c,k]) * x[p,c]``.

    Source: ``MPSNNGramMatrixCalculationGradient``, whose formula is not documented; this is the derivative.

    Args:
        dy: Gradient of the matrices (n, 1, c, c); it need not be symmetric.
        x: Images (n, h, w, c).
        alpha: As for `gram_matrix`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: As for `gram_matrix`, or dy differs in dtype.
        ValueError: As for `gram_matrix`, or dy does not belong to the images.

    Example:
        >>> x = mx.array([[1.0, 2], [3, 4]]).reshape(1, 1, 2, 2)
        >>> dy = mx.array([[1.0, 2], [3, 4]]).reshape(1, 1, 2, 2)
        >>> gram_matrix_grad(dy, x, alpha=0.5).reshape(2, 2)
        array([[6, 10.5],
               [13, 23.5]], dtype=float32)
    """
    op, stream = "gram_matrix_grad", launch.resolve(stream)
    spec = _checked(op, x, alpha, stream)
    checks.array(op, "dy", dy, stream=stream)
    n, _, _, c = x.shape
    checks.shape(op, "dy", dy, (n, 1, c, c), "dy does not belong to the images")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    with mx.stream(stream):
        return _by_both(dy, x, spec)


class _Spec(NamedTuple):
    """The factor, and where everything runs."""

    alpha: float
    stream: mx.Stream


def _checked(op: str, x: mx.array, alpha: float, stream: mx.Stream) -> _Spec:
    checks.image(op, "x", x, stream=stream)
    checks.image_shape(op, "output shape", (1, 1, x.shape[3], x.shape[3]))
    return _Spec(checks.number(op, "alpha", alpha), stream)


def _by_both(dy: mx.array, x: mx.array, spec: _Spec) -> mx.array:
    """What x has of a gradient, as the first of two images and as the second."""
    wide = dy.astype(launch.accumulator(dy.dtype))
    both = wide + wide.swapaxes(2, 3)
    # A symmetric matrix is its transpose: of a view of it vendors read the rows, as they lie.
    return _mixed(x, both.swapaxes(2, 3), spec)


# The two products are each other's derivatives ------------------------------------------------------------


@operation("gram_matrix")
def _gram(x: mx.array, spec: _Spec) -> mx.array:
    """The matrices of x."""
    return _products(x, x, spec).astype(x.dtype)


@_gram.vjp
def _gram_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: _Spec) -> Gradients:
    return (_by_both(cotangents[0], arrays[0], spec),)


@_gram.jvp
def _gram_jvp(arrays: Arrays, tangents: Arrays, spec: _Spec) -> mx.array:
    part = _products(tangents[0], arrays[0], spec)
    return (part + part.swapaxes(2, 3)).astype(arrays[0].dtype)


_gram.vmap(over_batches(_gram))


@operation("gram_matrix")
def _products(u: mx.array, v: mx.array, spec: _Spec) -> mx.array:
    """``alpha * sum over p of u[p,i] v[p,j]`` of each image, (n, 1, i, j), in the accumulator's dtype."""
    n, height, width, i = u.shape
    j, acc = v.shape[3], launch.accumulator(u.dtype)
    result = (n, 1, i, j), acc
    if launch.backend(spec.stream) == "cpu":
        sums = launch.launch("gram_matrix", {"first": u, "second": v}, None, (result,), _none, spec.stream)[0]
    elif not n:
        return mx.zeros(*result)
    elif launch.routed(spec.stream, "cuda", "metal"):
        rows, columns = (images.reshape(n, height * width, -1).astype(acc) for images in (u, v))
        sums = rows.swapaxes(1, 2) @ columns
    else:
        each = u[:, None].astype(acc), v[:, None].astype(acc)
        sums = rules.mapped_grad_weights(each, (True, True), n, _of_pixels(height, width, spec))
    return _scaled(sums.reshape(result[0]), spec)


@_products.vjp
def _products_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: _Spec) -> Gradients:
    (u, v), t = arrays, cotangents[0]
    return _mixed(v, t, spec), _mixed(u, t.swapaxes(2, 3), spec)


@_products.jvp
def _products_jvp(arrays: Arrays, tangents: Tangents, spec: _Spec) -> mx.array:
    (u, v), (tu, tv) = arrays, tangents
    return tangent_of(
        (tu, lambda t: _products(t, v, spec)),
        (tv, lambda t: _products(u, t, spec)),
    )


_products.vmap(over_batches(_products))


@operation("gram_matrix_grad")
def _mixed(x: mx.array, w: mx.array, spec: _Spec) -> mx.array:
    """``alpha * sum over c of w[0,o,c] x[p,c]`` of each image, (n, h, w, o), of x's dtype; w has the accumulator's."""
    n, height, width, channels = x.shape
    out = w.shape[2]
    result = (n, height, width, out), x.dtype
    scaled = _scaled(w, spec)
    if launch.backend(spec.stream) == "cpu":
        return launch.launch("gram_matrix_grad", {"x": x, "w": scaled}, None, (result,), _none, spec.stream)[0]
    if not n:
        return mx.zeros(*result)
    wide = x.astype(w.dtype)
    if launch.routed(spec.stream, "cuda", "metal"):
        made = wide.reshape(n, height * width, channels) @ scaled.reshape(n, out, channels).swapaxes(1, 2)
    else:
        arrays = wide[:, None], scaled.reshape(n, out, 1, 1, channels), mx.zeros((out,), w.dtype)
        made = rules.mapped_conv(arrays, (True, True, False), n, _of_pixels(height, width, spec))
    return made.reshape(result[0]).astype(x.dtype)


@_mixed.vjp
def _mixed_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: _Spec) -> Gradients:
    (x, w), t = arrays, cotangents[0]
    return _mixed(t, w.swapaxes(2, 3), spec), _products(t, x, spec)


@_mixed.jvp
def _mixed_jvp(arrays: Arrays, tangents: Tangents, spec: _Spec) -> mx.array:
    (x, w), (tx, tw) = arrays, tangents
    return tangent_of(
        (tx, lambda t: _mixed(t, w, spec)),
        (tw, lambda t: _mixed(x, t, spec)),
    )


_mixed.vmap(over_batches(_mixed))


def _scaled(array: mx.array, spec: _Spec) -> mx.array:
    """Times alpha, which costs a pass over the array if it is not 1."""
    return array if spec.alpha == 1 else spec.alpha * array


def _none() -> tuple[KernelLaunch, ...]:
    """No launches: only a CPU has kernels of these names."""
    return ()


def _of_pixels(height: int, width: int, spec: _Spec) -> ConvSpec:
    """Convolutions of images of a size, with windows of a pixel."""
    return ConvSpec(*place("gram_matrix", (height, width), 1), 1, False, NO_ACTIVATION, spec.stream)
