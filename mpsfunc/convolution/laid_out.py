"""Convolutions on a CPU with weights that were laid out ahead, as its kernels otherwise lay them out in every call.

Whoever has weights laid out keeps what comes of it, and knows when they change: nothing here looks at them again. What
was laid out is for one instruction set and read by the kernels of that one. It holds the weights once; derivatives take
the weights themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels import activation_rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NO_ACTIVATION, slope_from_output
from mpsfunc.convolution import margins, routes, rules
from mpsfunc.convolution.params import ConvLayoutParams
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation


class LaidOut:
    """Weights as kernels read them.

    Attributes:
        words: What `conv_laid_out` reads, evaluated.
        isa: The number of the instruction set that they are for.
        weights: Gives the weights themselves (o, kh, kw, c / groups).
    """

    def __init__(self, words: mx.array, isa: int, weights: Callable[[], mx.array]) -> None:
        self.words, self.isa, self.weights = words, isa, weights

    def conv(self, x: mx.array, w: mx.array, b: mx.array | None, spec: Spec) -> mx.array:
        """`rules.conv` with these weights in place of w."""
        filled = rules.filled(b, x, w.shape[0])
        return conv_laid_out(x, filled, LaidOutSpec(self, spec._replace(biased=b is not None), spec.stream))

    def adding(self, images: mx.array) -> Adding:
        """These weights, where images like the result are added to it ahead of the activation."""
        return Adding(self, images)


class Adding(LaidOut):
    """Weights as kernels read them, and images that are added to what they make."""

    def __init__(self, laid: LaidOut, images: mx.array) -> None:
        super().__init__(laid.words, laid.isa, laid.weights)
        self._images = images

    def conv(self, x: mx.array, w: mx.array, b: mx.array | None, spec: Spec) -> mx.array:
        """`rules.conv` with these weights in place of w, and the images added."""
        filled = rules.filled(b, x, w.shape[0])
        added = self._images.reshape(x.shape[0], spec.rows.n_out, spec.cols.n_out, w.shape[0])
        how = LaidOutSpec(self, spec._replace(biased=b is not None), spec.stream)
        return conv_laid_out_add(x, filled, added, how)


def isa() -> int | None:
    """The number of the instruction set in use; None where nothing can be laid out."""
    module = launch.optional_module()
    return None if module is None or not launch.on_cpu() else module.isa_number()


def lay_out(weights: Callable[[], mx.array], groups: int) -> LaidOut | None:
    """Weights laid out for the instruction set in use; None if kernels read such as they are.

    Args:
        weights: Gives them, (o, kh, kw, c / groups) of the images' dtype or float32, each time that it is called.
        groups: Of the convolution.
    """
    number, module = isa(), launch.optional_module()
    w = weights()
    words = 0 if number is None else module.conv_layout_words(number, w.dtype, w.shape, groups)
    if number is None or not words:
        return None
    params, outputs = ConvLayoutParams(number, groups), (((words,), mx.uint32),)
    stream = launch.resolve(None)
    (made,) = launch.launch("conv_layout", {"w": w}, params, outputs, _no_launches, stream)
    mx.eval(made)
    return LaidOut(made, number, weights)


def _no_launches() -> tuple[KernelLaunch, ...]:
    raise AssertionError("weights are laid out for a CPU alone")


class LaidOutSpec(NamedTuple):
    """A convolution, and its weights."""

    laid: LaidOut
    conv: Spec
    stream: mx.Stream


@operation("conv_laid_out")
def conv_laid_out(x: mx.array, b: mx.array, spec: LaidOutSpec) -> mx.array:
    """`rules.conv_with_bias` with weights that are laid out, as a constant of the spec."""
    return _run(x, b, None, spec)


def _run(x: mx.array, b: mx.array, added: mx.array | None, spec: LaidOutSpec) -> mx.array:
    laid, conv, stream = spec
    form, windows = routes.form(conv.rows, conv.cols, conv.groups, conv.exchanged)
    if form == routes.MARGIN:
        return _run(margins.extend(x, conv.rows, conv.cols), b, added, spec._replace(conv=routes.widened(conv)))
    if form == routes.COVERING:
        return _run(routes.flat(x), b, added, spec._replace(conv=routes.on_a_pixel(conv)))
    result = (x.shape[0], conv.rows.n_out, conv.cols.n_out, b.shape[0]), x.dtype
    arrays = {"x": x, "laid": laid.words, "bias": b.astype(launch.accumulator(x.dtype))}
    arrays |= {} if added is None else {"added": added}
    return launch.launch("conv_laid_out", arrays, routes.params(windows, conv), (result,), _no_launches, stream)[0]


@conv_laid_out.vjp
def _vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: LaidOutSpec) -> Gradients:
    plain, dz = rules.linear(spec.conv), _times_slope(cotangents[0], arrays, outputs[0], spec)
    return rules.grad_input(dz, spec.laid.weights(), None, plain), rules.grad_bias(dz, plain)


@conv_laid_out.jvp
def _jvp(arrays: Arrays, tangents: Tangents, spec: LaidOutSpec) -> mx.array:
    (x, b), (tx, tb) = arrays, tangents
    biased = spec.conv._replace(neuron=NO_ACTIVATION)
    tz = rules.tangent_of_conv((x, spec.laid.weights(), b), (tx, None, tb), biased)
    return _times_slope(tz, arrays, None, spec)


@conv_laid_out.vmap
def _vmap(arrays: Arrays, mapped: Mapped, size: int, spec: LaidOutSpec) -> mx.array:
    (x, b), (x_mapped, b_mapped) = arrays, mapped
    return rules.mapped_conv((x, spec.laid.weights(), b), (x_mapped, False, b_mapped), size, spec.conv)


@operation("conv_laid_out")
def conv_laid_out_add(x: mx.array, b: mx.array, added: mx.array, spec: LaidOutSpec) -> mx.array:
    """The same with images of the result's shape and x's dtype added ahead of the activation."""
    conv = spec.conv
    if any(axis.begin > 0 or axis.end < axis.n_out for axis in (conv.rows, conv.cols)):  # some results have no window
        return _apart(x, b, added, spec)
    return _run(x, b, added, spec)


@conv_laid_out_add.decomposition
def _apart(x: mx.array, b: mx.array, added: mx.array, spec: LaidOutSpec) -> mx.array:
    z = conv_laid_out(x, b, _without_neuron(spec)) + added
    on = ActivationSpec(spec.conv.neuron, spec.stream)
    apply = activation_rules.applied if slope_from_output(on.act) else activation_rules.neuron
    return apply(z, on)


def _times_slope(dy: mx.array, arrays: Arrays, y: mx.array | None, spec: LaidOutSpec) -> mx.array:
    """The slope of the neuron, times dy: from what it returned, or else computed from the beginning."""
    (x, b), on = arrays, ActivationSpec(spec.conv.neuron, spec.stream)
    if not on.act.kind:
        return dy
    if slope_from_output(on.act):
        return activation_rules.grad_from_output(dy, conv_laid_out(x, b, spec) if y is None else y, on)
    return activation_rules.grad(dy, conv_laid_out(x, b, _without_neuron(spec)), on)


def _without_neuron(spec: LaidOutSpec) -> LaidOutSpec:
    return spec._replace(conv=spec.conv._replace(neuron=NO_ACTIVATION))
