"""Convolution and its gradients with their rules: each is the derivative of another, and mapping is one wider call."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.channels import accumulation, activation_rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.convolution import routes
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable


def conv(x: mx.array, w: mx.array, b: mx.array | None, spec: Spec) -> mx.array:
    """Images (n, out_h, out_w, o) of x's dtype, with bias and neuron."""
    y: mx.array = _conv(x, w, _bias(b, x, w.shape[0]), spec._replace(biased=b is not None))
    return y


def grad_input(dy: mx.array, w: mx.array, b: mx.array | None, spec: Spec) -> mx.array:
    """The adjoint: images (n, h, w, c) of dy's dtype. For transposed convolutions it has a bias and a neuron too."""
    channels = w.shape[3] * spec.groups
    dx: mx.array = _grad_input(dy, w, _bias(b, dy, channels), spec._replace(biased=b is not None))
    return dx


def grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """Weights (o, kh, kw, c / groups) in the accumulator's dtype, or the images' where cuDNN makes them."""
    dw: mx.array = _grad_weights(dy, x, spec)
    return dw


def grad_bias(dy: mx.array, spec: Spec) -> mx.array:
    """A vector (o,) in the accumulator's dtype."""
    db: mx.array = _grad_bias(dy, spec)
    return db


def grad_parameters(dy: mx.array, x: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """`grad_weights` and `grad_bias`; in one where a CPU reads dy once for both, else each by itself."""
    if launch.backend(spec.stream) != "cpu":
        return grad_weights(dy, x, spec), grad_bias(dy, spec)
    dw, db = _grad_parameters(dy, x, spec)
    return dw, db


def linear(spec: Spec) -> Spec:
    """The same convolution without its neuron."""
    return spec._replace(biased=False, neuron=NO_ACTIVATION)


def _bias(b: mx.array | None, images: mx.array, length: int) -> mx.array:
    return accumulation.constant(0.0, length, launch.accumulator(images.dtype)) if b is None else b


# Derivatives --------------------------------------------------------------------------------------------


def _image_vjp(adjoint: Any, swap: bool) -> Any:
    """The rule of an operation that takes images, weights and a bias, of which ``adjoint`` is the adjoint."""

    def rule(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
        (x, w, _), (dy,), (y,) = arrays, cotangents, outputs
        dz, plain = activation_rules.grad_from_output(dy, y, ActivationSpec(spec.neuron, spec.stream)), linear(spec)
        dw = grad_weights(x, dz, plain) if swap else grad_weights(dz, x, plain)
        return adjoint(dz, w, None, plain), dw, grad_bias(dz, plain)

    return rule


def _image_jvp(function: Any, length: str) -> Any:
    """The rule of the same operation, ``function``; ``length`` is the field of an Axis with its output's length."""

    def rule(arrays: Any, tangents: Any, spec: Spec) -> Any:
        (x, w, b), (tx, tw, tb) = arrays, tangents
        plain = linear(spec)
        # A tangent of the bias rides on another term where there is one.
        terms = [] if tx is None else [function(tx, w, tb, plain)]
        if tw is not None:
            terms.append(function(x, tw, None if terms else tb, plain))
        if not terms:
            size = [getattr(axis, length) for axis in (spec.rows, spec.cols)]
            terms.append(mx.broadcast_to(tb.astype(x.dtype), (x.shape[0], *size, b.shape[0])))
        tz = sum(terms[1:], terms[0])
        return (
            activation_rules.grad_from_output(tz, function(x, w, b, spec), ActivationSpec(spec.neuron, spec.stream))
            if spec.neuron.kind
            else tz
        )

    return rule


def _grad_weights_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (dy, x), (v,) = arrays, cotangents
    return conv(x, v, None, spec), grad_input(dy, v, None, spec)


def _grad_weights_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    (dy, x), (tdy, tx) = arrays, tangents
    if tx is None:
        return grad_weights(tdy, x, spec)
    return grad_weights(dy, tx, spec) if tdy is None else grad_weights(tdy, x, spec) + grad_weights(dy, tx, spec)


def _grad_bias_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (dy,), (v,) = arrays, cotangents
    return (mx.broadcast_to(v.astype(dy.dtype), dy.shape),)


def _grad_parameters_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (dy, x), (v, u) = arrays, cotangents
    return conv(x, v, u, spec), grad_input(dy, v, None, spec)


def _grad_parameters_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    (dy, _), (tdy, _) = arrays, tangents
    db = mx.zeros((dy.shape[3],), launch.accumulator(dy.dtype)) if tdy is None else grad_bias(tdy, spec)
    return _grad_weights_jvp(arrays, tangents, spec), db


# Mapping ------------------------------------------------------------------------------------------------

# A mapped axis joins the batch where weights are shared, the channels of the side that alone is mapped, and the
# groups where both are; nothing is repeated. Channels lie group by group, so an axis joins them inside each group.


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


def _image_vmap(function: Any, spread: Any) -> Any:
    """The rule of an operation on images, weights and a bias; ``spread`` puts mapped weights beside each other."""

    def rule(arrays: Any, mapped: Any, size: int, spec: Spec) -> Any:
        (x, w, b), (x_mapped, w_mapped, b_mapped) = arrays, mapped
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

    return rule


def _grad_weights_vmap(arrays: Any, mapped: Any, size: int, spec: Spec) -> mx.array:
    (dy, x), (dy_mapped, x_mapped) = arrays, mapped
    if dy_mapped and x_mapped:
        each = spec._replace(groups=size * spec.groups)
        dw = grad_weights(_with_channels(dy, 1), _with_channels(x, 1), each)
        return dw.reshape(size, dw.shape[0] // size, *dw.shape[1:])
    if dy_mapped:
        return _from_outputs(grad_weights(_with_channels(dy, spec.groups), x, spec), spec.groups, size)
    return _from_inputs(grad_weights(dy, _with_channels(x, spec.groups), spec), size)


def _grad_bias_vmap(arrays: Any, mapped: Any, size: int, spec: Spec) -> mx.array:
    (dy,) = arrays
    return grad_bias(_with_channels(dy, 1), spec).reshape(size, dy.shape[4])


def _grad_parameters_vmap(arrays: Any, mapped: Any, size: int, spec: Spec) -> Any:
    dy = arrays[0]
    if mapped[0]:
        db = _grad_bias_vmap((dy,), (True,), size, spec)
    else:
        db = mx.broadcast_to(grad_bias(dy, spec), (size, dy.shape[3]))
    return _grad_weights_vmap(arrays, mapped, size, spec), db


_conv = differentiable(
    "conv",
    routes.conv,
    vjp=_image_vjp(grad_input, swap=False),
    jvp=_image_jvp(conv, "n_out"),
    vmap=_image_vmap(conv, _with_outputs),
)
_grad_input = differentiable(
    "conv_grad_input",
    routes.grad_input,
    vjp=_image_vjp(conv, swap=True),
    jvp=_image_jvp(grad_input, "n_in"),
    vmap=_image_vmap(grad_input, _with_inputs),
)
_grad_weights = differentiable(
    "conv_grad_weights",
    routes.grad_weights,
    vjp=_grad_weights_vjp,
    jvp=_grad_weights_jvp,
    vmap=_grad_weights_vmap,
)
_grad_bias = differentiable(
    "conv_grad_bias",
    routes.grad_bias,
    vjp=_grad_bias_vjp,
    jvp=lambda arrays, tangents, spec: grad_bias(tangents[0], spec),
    vmap=_grad_bias_vmap,
)
_grad_parameters = differentiable(
    "conv_grad_parameters",
    routes.grad_parameters,
    vjp=_grad_parameters_vjp,
    jvp=_grad_parameters_jvp,
    vmap=_grad_parameters_vmap,
)
