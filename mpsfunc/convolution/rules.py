"""Convolution and its gradients as operations: each is the derivative of another, and mapping is one wider call."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from mpsfunc.channels import accumulation, activation_rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NO_ACTIVATION, slope_from_output
from mpsfunc.channels.sums import channel_sums
from mpsfunc.convolution import launches, library, margins, routes
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation, tangent_of

# Images, weights and a bias, or None, to images.
_Function = Callable[[mx.array, mx.array, mx.array | None, Spec], mx.array]


def linear(spec: Spec) -> Spec:
    """The same convolution without its neuron."""
    return spec._replace(biased=False, neuron=NO_ACTIVATION, rounded=False)


def conv(x: mx.array, w: mx.array, b: mx.array | None, spec: Spec) -> mx.array:
    """Images (n, out_h, out_w, o) of x's dtype, with bias and neuron."""
    biased = b is not None
    spec = spec if spec.biased == biased else spec._replace(biased=biased)
    return conv_with_bias(x, w, filled(b, x, spec.outputs(w)), spec)


@operation("conv")
def conv_with_bias(x: mx.array, w: mx.array, b: mx.array, spec: Spec) -> mx.array:
    """`conv` with a vector b, which unless ``spec.biased`` is zeros."""
    form, windows = routes.form(spec.rows, spec.cols, spec.groups, spec.exchanged)
    if form == routes.MARGIN:
        return conv_with_bias(margins.extend(x, spec.rows, spec.cols), w, b, routes.widened(spec))
    if form == routes.COVERING:
        return conv_with_bias(routes.flat(x), routes.flat(w), b, routes.on_a_pixel(spec))
    # MLX's forward convolution is cuDNN on NVIDIA, and on Apple GPUs Winograd or a matrix-unit kernel.
    if launch.routed(spec.stream, "cuda", "metal") and library.ordinary(spec) and x.size:
        return library.finished(library.conv(x, w.astype(x.dtype), spec), b, spec)
    n, out = x.shape[0], spec.outputs(w)
    result = ((n, spec.rows.n_out, spec.cols.n_out, out), x.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.conv(spec, x.shape, out, x.dtype)

    arrays = {"x": x, "w": routes.weights(w, x, spec), "bias": b.astype(launch.accumulator(x.dtype))}
    return launch.launch("conv", arrays, routes.params(windows, spec), (result,), kernels, spec.stream)[0]


@conv_with_bias.vjp
def _conv_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, w, _), plain = arrays, linear(spec)
    dz = _before_neuron(conv_with_bias, arrays, cotangents[0], outputs[0], spec)
    return grad_input(dz, w, None, plain), _grad_of(w, dz, x, plain), grad_bias(dz, plain)


@conv_with_bias.jvp
def tangent_of_conv(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    """The tangent of `conv_with_bias`."""
    return _tangent_of_images(conv, arrays, tangents, (spec.rows.n_out, spec.cols.n_out), spec)


@conv_with_bias.vmap
def mapped_conv(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    """`conv_with_bias`, mapped."""
    return _mapped_images(conv, _with_outputs, arrays, mapped, size, spec)


def grad_input(dy: mx.array, w: mx.array, b: mx.array | None, spec: Spec) -> mx.array:
    """The adjoint: images (n, h, w, c) of dy's dtype. For transposed convolutions it has a bias and a neuron too."""
    channels = spec.inputs(w) * spec.groups
    return grad_input_with_bias(dy, w, filled(b, dy, channels), spec._replace(biased=b is not None))


@operation("conv_grad_input")
def grad_input_with_bias(dy: mx.array, w: mx.array, b: mx.array, spec: Spec) -> mx.array:
    """`grad_input` with a vector b, which unless ``spec.biased`` is zeros."""
    form, windows = routes.form(spec.rows, spec.cols, spec.groups, spec.exchanged)
    acc = launch.accumulator(dy.dtype)
    if form == routes.MARGIN:
        assert not spec.biased and not spec.neuron.kind, "what the margin took back is added before them"
        wide = dy.astype(acc)  # so that what is folded was not rounded
        dx = grad_input_with_bias(wide, w, b, routes.widened(spec))
        return margins.fold(dx, spec.rows, spec.cols).astype(dy.dtype)
    n, channels = dy.shape[0], spec.inputs(w) * spec.groups
    shape = n, spec.rows.n_in, spec.cols.n_in, channels
    if form == routes.COVERING:
        biases = mx.tile(b, spec.rows.n_in * spec.cols.n_in)
        return grad_input_with_bias(dy, routes.flat(w), biases, routes.on_a_pixel(spec)).reshape(shape)
    # cuDNN's data gradient; on Apple GPUs MLX is fast only where no stride spreads dy (its strided path is general).
    backends = ("cuda", "metal") if spec.rows.stride == spec.cols.stride == 1 else ("cuda",)
    if launch.routed(spec.stream, *backends) and library.ordinary(spec) and dy.size:
        return library.finished(library.grad_input(dy, w.astype(dy.dtype), spec), b, spec)
    result = shape, dy.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.grad_input(spec, dy.shape, w.shape[3], dy.dtype)

    arrays = {"dy": dy, "w": routes.weights(w, dy, spec), "bias": b.astype(acc)}
    return launch.launch("conv_grad_input", arrays, routes.params(windows, spec), (result,), kernels, spec.stream)[0]


@grad_input_with_bias.vjp
def _grad_input_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, w, _), plain = arrays, linear(spec)
    dz = _before_neuron(grad_input_with_bias, arrays, cotangents[0], outputs[0], spec)
    return conv(dz, w, None, plain), _grad_of(w, dy, dz, plain), grad_bias(dz, plain)


@grad_input_with_bias.jvp
def _grad_input_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    return _tangent_of_images(grad_input, arrays, tangents, (spec.rows.n_in, spec.cols.n_in), spec)


@grad_input_with_bias.vmap
def _grad_input_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    return _mapped_images(grad_input, _with_inputs, arrays, mapped, size, spec)


@operation("conv_grad_weights")
def grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """Weights (o, kh, kw, c / groups) in the accumulator's dtype, or the images' if ``rounded`` or cuDNN makes them.

    Where ``spec.exchanged`` they are (c, kh, kw, o), on a CPU.
    """
    return _parameter_gradients(dy, x, spec, 1)[0]


@grad_weights.vjp
def _grad_weights_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, x), v = arrays, cotangents[0]
    return conv(x, v, None, spec), grad_input(dy, v, None, spec)


@grad_weights.jvp
def _grad_weights_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    (dy, x), (tdy, tx) = arrays, tangents
    each = spec if tdy is None or tx is None else linear(spec)  # so that a sum is rounded once
    tangent = tangent_of((tdy, lambda t: grad_weights(t, x, each)), (tx, lambda t: grad_weights(dy, t, each)))
    return tangent.astype(x.dtype) if spec.rounded else tangent


@grad_weights.vmap
def mapped_grad_weights(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    """`grad_weights`, mapped."""
    (dy, x), (dy_mapped, x_mapped) = arrays, mapped
    if spec.exchanged:
        return mapped_grad_weights(arrays, mapped, size, spec._replace(exchanged=False)).swapaxes(1, 4)
    if dy_mapped and x_mapped:
        each = spec._replace(groups=size * spec.groups)
        return _from_images(grad_weights(_with_channels(dy, 1), _with_channels(x, 1), each), size)
    if dy_mapped:
        return _from_outputs(grad_weights(_with_channels(dy, spec.groups), x, spec), spec.groups, size)
    return _from_inputs(grad_weights(dy, _with_channels(x, spec.groups), spec), size)


@operation("conv_grad_bias")
def grad_bias(dy: mx.array, spec: Spec) -> mx.array:
    """A vector (o,) in the accumulator's dtype."""
    return channel_sums(dy, spec.stream)


@grad_bias.vjp
def _grad_bias_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy,), v = arrays, cotangents[0]
    return (mx.broadcast_to(v.astype(dy.dtype), dy.shape),)


@grad_bias.jvp
def _grad_bias_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return grad_bias(tangents[0], spec)


@grad_bias.vmap
def _grad_bias_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    (dy,) = arrays
    return grad_bias(_with_channels(dy, 1), spec).reshape(size, dy.shape[4])


def grad_parameters(dy: mx.array, x: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """`grad_weights` and `grad_bias`; in one where a CPU reads dy once for both, else each by itself."""
    if launch.backend(spec.stream) != "cpu":
        return grad_weights(dy, x, spec), grad_bias(dy, spec)
    return grad_weights_and_bias(dy, x, spec)


@operation("conv_grad_parameters")
def grad_weights_and_bias(dy: mx.array, x: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """`grad_weights` and `grad_bias` on a CPU, which reads dy once for both."""
    dw, db = _parameter_gradients(dy, x, spec, 2)
    return dw, db


@grad_weights_and_bias.vjp
def _grad_weights_and_bias_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, x), (v, u) = arrays, cotangents
    return conv(x, v, u, spec), grad_input(dy, v, None, spec)


@grad_weights_and_bias.jvp
def _grad_weights_and_bias_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> tuple[mx.array, mx.array]:
    (dy, _), (tdy, _) = arrays, tangents
    db = mx.zeros((dy.shape[3],), launch.accumulator(dy.dtype)) if tdy is None else grad_bias(tdy, spec)
    return _grad_weights_jvp(arrays, tangents, spec), db


@grad_weights_and_bias.vmap
def _grad_weights_and_bias_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> tuple[mx.array, mx.array]:
    dy = arrays[0]
    if mapped[0]:
        db = _grad_bias_vmap((dy,), (True,), size, spec)
    else:
        db = mx.broadcast_to(grad_bias(dy, spec), (size, dy.shape[3]))
    return mapped_grad_weights(arrays, mapped, size, spec), db


def _grad_of(w: mx.array, dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """`grad_weights` for w, whose dtype it gets. Where MLX rounds it, on one thread, it takes as long as the sums."""
    own = w.dtype == x.dtype and launch.backend(spec.stream) == "cpu"
    return grad_weights(dy, x, spec._replace(rounded=own))


def filled(b: mx.array | None, images: mx.array, length: int) -> mx.array:
    """A bias for images, zeros where there is none."""
    return accumulation.constant(0.0, length, launch.accumulator(images.dtype)) if b is None else b


def _parameter_gradients(dy: mx.array, x: mx.array, spec: Spec, count: int) -> list[mx.array]:
    """The gradient of the weights, and where ``count`` is 2 that of the bias, which only a CPU makes here."""
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    form, windows = routes.form(rows, cols, groups, spec.exchanged)
    if form == routes.MARGIN:
        return _parameter_gradients(dy, margins.extend(x, rows, cols), routes.widened(spec), count)
    out, width = dy.shape[3], x.shape[3] // groups
    shape = (width, rows.size, cols.size, out) if spec.exchanged else (out, rows.size, cols.size, width)
    if form == routes.COVERING:
        dw, *db = _parameter_gradients(dy, routes.flat(x), routes.on_a_pixel(spec), count)
        return [dw.reshape(shape), *db]
    # cuDNN's weight gradient, which MLX reaches by a convolution over swapped axes but has no grouped form of.
    ordinary = groups == 1 and launch.routed(spec.stream, "cuda") and library.ordinary(spec) and x.size
    if ordinary and not routes.slow_in_cudnn(spec, out, x):
        return [library.grad_weights(dy, x, spec)]
    acc = launch.accumulator(x.dtype)
    results = (shape, x.dtype if spec.rounded else acc), ((out,), acc)

    def kernels() -> tuple[KernelLaunch, ...]:
        matrices = launch.backend(spec.stream) == "metal"
        return launches.grad_weights(spec, dy.shape, x.shape, x.dtype, matrices=matrices)

    arrays, params = {"dy": dy, "x": x}, routes.grad_weights_params(windows, spec)
    return launch.launch("conv_grad_weights", arrays, params, results[:count], kernels, spec.stream)


# Derivatives --------------------------------------------------------------------------------------------


def _before_neuron(
    function: Callable[[mx.array, mx.array, mx.array, Spec], mx.array],
    arrays: Arrays,
    dy: mx.array,
    y: mx.array,
    spec: Spec,
) -> mx.array:
    """The gradient of what the neuron was applied to, from what it returned.

    Where that does not tell the slope, what it was applied to is computed again: only for inference a kernel applies
    such a neuron.
    """
    on = ActivationSpec(spec.neuron, spec.stream)
    if slope_from_output(spec.neuron):
        return activation_rules.grad_from_output(dy, y, on)
    x, w, b = arrays
    return activation_rules.grad(dy, function(x, w, b, spec._replace(neuron=NO_ACTIVATION)), on)


def _tangent_of_images(
    function: _Function, arrays: Arrays, tangents: Tangents, out_size: tuple[int, int], spec: Spec
) -> mx.array:
    """The tangent of `conv` or `grad_input`, the ``function``, with images of ``out_size``."""
    (x, w, b), (tx, tw, tb), plain = arrays, tangents, linear(spec)
    # A tangent of the bias rides on another term where there is one.
    terms = [] if tx is None else [function(tx, w, tb, plain)]
    if tw is not None:
        terms.append(function(x, tw, None if terms else tb, plain))
    if not terms and tb is not None:
        terms.append(mx.broadcast_to(tb.astype(x.dtype), (x.shape[0], *out_size, b.shape[0])))
    tz = sum(terms[1:], terms[0])
    if not spec.neuron.kind:
        return tz
    on = ActivationSpec(spec.neuron, spec.stream)
    if slope_from_output(spec.neuron):
        return activation_rules.grad_from_output(tz, function(x, w, b, spec), on)
    return activation_rules.grad(tz, function(x, w, b, spec._replace(neuron=NO_ACTIVATION)), on)


# Mapping ------------------------------------------------------------------------------------------------

# A mapped axis joins the batch where weights are shared, the channels of the side that alone is mapped, and the
# groups where both are; nothing is repeated. Channels lie group by group, so an axis joins them inside each group.


def _mapped_images(
    function: _Function,
    spread: Callable[[mx.array, int], mx.array],
    arrays: Arrays,
    mapped: Mapped,
    size: int,
    spec: Spec,
) -> mx.array:
    """`conv` or `grad_input`, the ``function``, mapped; ``spread`` puts mapped weights beside each other."""
    (x, w, b), (x_mapped, w_mapped, b_mapped) = arrays, mapped
    if w_mapped and spec.exchanged:
        w, spec = w.swapaxes(1, 4), spec._replace(exchanged=False)
    if b_mapped and not w_mapped:  # one convolution, and a bias of its own for each
        acc = launch.accumulator(x.dtype)  # so that sums are rounded once, behind the bias
        z = function((_with_images(x, size) if x_mapped else x).astype(acc), w, None, linear(spec))
        z = _from_images(z, size) if x_mapped else z
        z = z + b[:, None, None, None].astype(acc)
        return activation_rules.applied(z, ActivationSpec(spec.neuron, spec.stream)).astype(x.dtype)
    if not spec.biased:
        biases = None
    elif w_mapped and not b_mapped:
        biases = mx.broadcast_to(b, (size, *b.shape))
    else:
        biases = b
    if not w_mapped:
        return _from_images(function(_with_images(x, size), w, biases, spec), size)
    if x_mapped:
        each = spec._replace(groups=size * spec.groups)
        long = None if biases is None else biases.reshape(-1)
        return _from_channels(function(_with_channels(x, 1), _with_images(w, size), long, each), 1, size)
    long = None if biases is None else biases.reshape(size, spec.groups, -1).swapaxes(0, 1).reshape(-1)
    return _from_channels(function(x, spread(w, spec.groups), long, spec), spec.groups, size)


def _with_images(x: mx.array, size: int) -> mx.array:
    """(size, n, ...) to (size * n, ...); for weights, (size, o, ...) to (size * o, ...)."""
    return x.reshape(size * x.shape[1], *x.shape[2:])


def _from_images(y: mx.array, size: int) -> mx.array:
    return y.reshape(size, y.shape[0] // size, *y.shape[1:])


def _with_channels(x: mx.array, outer: int) -> mx.array:
    """(size, n, h, w, outer * c) to (n, h, w, outer * size * c)."""
    size, n, h, w, c = x.shape
    return x.reshape(size, n, h, w, outer, c // outer).transpose(1, 2, 3, 4, 0, 5).reshape(n, h, w, size * c)


def _from_channels(y: mx.array, outer: int, size: int) -> mx.array:
    """(n, h, w, outer * size * c) to (size, n, h, w, outer * c)."""
    n, h, w, c = y.shape
    split = y.reshape(n, h, w, outer, size, c // (outer * size)).transpose(4, 0, 1, 2, 3, 5)
    return split.reshape(size, n, h, w, c // size)


def _with_outputs(w: mx.array, groups: int) -> mx.array:
    """(size, groups * o, kh, kw, i) to (groups * size * o, kh, kw, i)."""
    size, out, kh, kw, width = w.shape
    return w.reshape(size, groups, out // groups, kh, kw, width).swapaxes(0, 1).reshape(size * out, kh, kw, width)


def _from_outputs(w: mx.array, groups: int, size: int) -> mx.array:
    out, kh, kw, width = w.shape
    split = w.reshape(groups, size, out // (groups * size), kh, kw, width).swapaxes(0, 1)
    return split.reshape(size, out // size, kh, kw, width)


def _with_inputs(w: mx.array, groups: int) -> mx.array:
    """(size, o, kh, kw, i) to (o, kh, kw, size * i), however many groups there are."""
    size, out, kh, kw, width = w.shape
    return w.transpose(1, 2, 3, 0, 4).reshape(out, kh, kw, size * width)


def _from_inputs(w: mx.array, size: int) -> mx.array:
    out, kh, kw, width = w.shape
    return w.reshape(out, kh, kw, size, width // size).transpose(3, 0, 1, 2, 4)
