"""Convolution's kernels and their rules, and MLX's own convolutions where those are the faster ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _conv_stages, _launch
from mpsfunc._launch import Stage
from mpsfunc._rules import differentiable
from mpsfunc.window import Axis


class Spec(NamedTuple):
    """Where the windows sit, how channels group, whether the bias may differ from zero, and where to run."""

    rows: Axis
    cols: Axis
    groups: int
    biased: bool
    stream: mx.Stream


def conv(x: mx.array, w: mx.array, b: mx.array, spec: Spec) -> mx.array:
    """Images (n, out_h, out_w, o) of x's dtype."""
    y: mx.array = _conv(x, w, b, spec)
    return y


def grad_input(dy: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """Images (n, h, w, c) of dy's dtype."""
    dx: mx.array = _grad_input(dy, w, spec)
    return dx


def grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """Weights (o, kh, kw, c / groups) in the accumulator's dtype, or the images' where cuDNN makes them."""
    dw: mx.array = _grad_weights(dy, x, spec)
    return dw


def grad_bias(dy: mx.array, spec: Spec) -> mx.array:
    """A vector (o,) in the accumulator's dtype."""
    db: mx.array = _grad_bias(dy, spec)
    return db


# Kernels ------------------------------------------------------------------------------------------------

# The tiled bodies give a threadgroup of 256 a tile of 64 by 64.
_TILE, _GROUP = 64, (256, 1, 1)


def _tiles(n: int) -> int:
    return -(-n // _TILE)


def _run_conv(x: mx.array, w: mx.array, b: mx.array, spec: Spec) -> mx.array:
    # MLX's forward convolution is cuDNN on NVIDIA, and on Apple GPUs Winograd or a matrix-unit kernel.
    if _ordinary(spec) and _launch.routed(spec.stream, "cuda", "metal") and x.size:
        y = _library_conv(x, w.astype(x.dtype), spec)
        return y + b.astype(x.dtype) if spec.biased else y
    n, out = x.shape[0], w.shape[0]
    acc = _launch.accumulator(x.dtype)
    result = ((n, spec.rows.n_out, spec.cols.n_out, out), x.dtype)
    params = (*spec.rows, *spec.cols, spec.groups)

    def stages() -> tuple[Stage, ...]:
        pixels = n * spec.rows.n_out * spec.cols.n_out
        grid = _launch.tiles(_tiles(pixels), _tiles(out // spec.groups), spec.groups)
        return (Stage("conv", ("x", "w", "bias"), ("y",), (result,), grid, _GROUP, params),)

    return _launch.launch("conv", [x, w.astype(acc), b.astype(acc)], params, (result,), stages, spec.stream)[0]


def _run_grad_input(dy: mx.array, w: mx.array, spec: Spec) -> mx.array:
    # cuDNN's data gradient; on Apple GPUs MLX is fast only where no stride spreads dy (its strided path is general).
    unspread = spec.rows.stride == spec.cols.stride == 1
    if _ordinary(spec) and _launch.routed(spec.stream, "cuda", *(("metal",) if unspread else ())) and dy.size:
        return _library_grad_input(dy, w.astype(dy.dtype), spec)
    n, channels = dy.shape[0], w.shape[3] * spec.groups
    result = ((n, spec.rows.n_in, spec.cols.n_in, channels), dy.dtype)
    params = (*spec.rows, *spec.cols, spec.groups)
    depthwise = _conv_stages.depthwise(spec.groups, w.shape[3])

    def stages() -> tuple[Stage, ...]:
        if depthwise:
            return _conv_stages.depthwise_grad_input_stages(spec, dy.shape, dy.dtype)
        pixels = n * spec.rows.n_in * spec.cols.n_in
        grid = _launch.tiles(_tiles(pixels), _tiles(w.shape[3]), spec.groups)
        return (Stage("conv_grad_input", ("dy", "w"), ("dx",), (result,), grid, _GROUP, (*params, channels)),)

    weights = w.astype(_launch.accumulator(dy.dtype))
    bias = [_no_bias(dy, channels)] if depthwise else []
    made = _launch.launch("conv_grad_input", [dy, weights], params, (result,), stages, spec.stream, finally_with=bias)
    return made[0]


def _run_grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    # cuDNN's weight gradient, which MLX reaches by a convolution over swapped axes but has no grouped form of.
    if groups == 1 and _ordinary(spec) and _launch.routed(spec.stream, "cuda") and x.size:
        return _library_grad_weights(dy, x, spec)
    out, width = dy.shape[3], x.shape[3] // groups
    result = ((out, rows.size, cols.size, width), _launch.accumulator(x.dtype))
    params = (*rows, *cols, groups)

    def stages() -> tuple[Stage, ...]:
        return _conv_stages.grad_weights_stages(spec, dy.shape, x.shape)

    return _launch.launch("conv_grad_weights", [dy, x], params, (result,), stages, spec.stream)[0]


def _run_grad_bias(dy: mx.array, spec: Spec) -> mx.array:
    n, height, width, out = dy.shape
    result = ((out,), _launch.accumulator(dy.dtype))

    def stages() -> tuple[Stage, ...]:
        per_thread = _launch.lanes(dy.dtype, out, dy.size)
        grid, group = _launch.column_threads(out // per_thread, n * height * width)
        partial = ((grid[1] // group[1], out), mx.float32)
        unroll = (("V", per_thread),)
        first = Stage("conv_grad_bias", ("dy",), ("partial",), (partial,), grid, group, group[:2], unroll)
        return first, _launch.sum_partials(out)

    return _launch.launch("conv_grad_bias", [dy], (), (result,), stages, spec.stream)[0]


# Routes -------------------------------------------------------------------------------------------------


def _overhang(axis: Axis) -> int:
    """Pixels that the last window hangs over the end of the image; negative when it ends inside."""
    return (axis.n_out - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1 - axis.pad - axis.n_in


def _ordinary(spec: Spec) -> bool:
    """Whether all windows start at or before their first pixel and touch the image, as the libraries expect."""
    return all(
        0 <= a.pad <= (a.size - 1) * a.dilation and -a.n_in < _overhang(a) <= (a.size - 1) * a.dilation
        for a in (spec.rows, spec.cols)
    )


def _read(x: mx.array, spec: Spec) -> tuple[mx.array, tuple[list[int], list[int]]]:
    """The pixels up to the last that a window reads, and the padding around them."""
    over = [_overhang(a) for a in (spec.rows, spec.cols)]
    h, w = (a.n_in + min(0, o) for a, o in zip((spec.rows, spec.cols), over, strict=True))
    return x[:, :h, :w], ([spec.rows.pad, spec.cols.pad], [max(0, o) for o in over])


def _library_conv(x: mx.array, w: mx.array, spec: Spec) -> mx.array:
    rows, cols = spec.rows, spec.cols
    x, padding = _read(x, spec)
    return mx.conv_general(
        x,
        w,
        stride=(rows.stride, cols.stride),
        padding=padding,
        kernel_dilation=(rows.dilation, cols.dilation),
        groups=spec.groups,
    )


def _library_grad_input(dy: mx.array, w: mx.array, spec: Spec) -> mx.array:
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    out, kh, kw, width = w.shape
    # Input and output channels change places within each group.
    swapped = w.reshape(groups, out // groups, kh, kw, width).transpose(0, 4, 2, 3, 1)
    swapped = swapped.reshape(groups * width, kh, kw, out // groups)
    lows = [(a.size - 1) * a.dilation - a.pad for a in (rows, cols)]
    highs = [a.n_in - 1 - (a.n_out - 1) * a.stride + a.pad for a in (rows, cols)]
    options: dict[str, Any] = {"padding": (lows, highs), "kernel_dilation": (rows.dilation, cols.dilation)}
    if rows.stride == cols.stride == 1 and _launch.backend(spec.stream) == "metal":
        return mx.conv_general(dy, swapped[:, ::-1, ::-1], groups=groups, **options)  # unflipped, so Winograd may run
    spread = (rows.stride, cols.stride)
    return mx.conv_general(dy, swapped, input_dilation=spread, flip=True, groups=groups, **options)


def _library_grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    rows, cols = spec.rows, spec.cols
    if x.dtype == mx.float16:  # a sum over a batch may leave the range that the library would round it to
        dy, x = dy.astype(mx.float32), x.astype(mx.float32)
    x, padding = _read(x, spec)
    dw = mx.conv_general(
        x.swapaxes(0, 3),
        dy.swapaxes(0, 3),
        stride=(rows.dilation, cols.dilation),
        padding=padding,
        kernel_dilation=(rows.stride, cols.stride),
    )
    return dw.swapaxes(0, 3)


# Rules --------------------------------------------------------------------------------------------------


def _no_bias(x: mx.array, out: int) -> mx.array:
    return mx.zeros((out,), _launch.accumulator(x.dtype))


def _linear(x: mx.array, w: mx.array, spec: Spec) -> mx.array:
    return conv(x, w, _no_bias(x, w.shape[0]), spec._replace(biased=False))


def _conv_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (x, w, _), (dy,) = arrays, cotangents
    return grad_input(dy, w, spec), grad_weights(dy, x, spec), grad_bias(dy, spec)


def _conv_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    (x, w, _), (tx, tw, tb) = arrays, tangents
    terms = [] if tx is None else [_linear(tx, w, spec)]
    if tw is not None:
        terms.append(_linear(x, tw, spec))
    if tb is not None:
        shape = (x.shape[0], spec.rows.n_out, spec.cols.n_out, w.shape[0])
        terms.append(mx.broadcast_to(tb.astype(x.dtype), shape))
    return sum(terms[1:], terms[0])


def _grad_input_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (dy, w), (u,) = arrays, cotangents
    return _linear(u, w, spec), grad_weights(dy, u, spec)


def _grad_weights_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (dy, x), (v,) = arrays, cotangents
    return _linear(x, v, spec), grad_input(dy, v, spec)


def _grad_bias_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (dy,), (v,) = arrays, cotangents
    return (mx.broadcast_to(v.astype(dy.dtype), dy.shape),)


def _bilinear_jvp(function: Any) -> Any:
    def rule(arrays: Any, tangents: Any, spec: Spec) -> Any:
        (a, b), (ta, tb) = arrays, tangents
        if tb is None:
            return function(ta, b, spec)
        return function(a, tb, spec) if ta is None else function(ta, b, spec) + function(a, tb, spec)

    return rule


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


def _with_inputs(w: mx.array) -> mx.array:
    """(size, o, kh, kw, i) to (o, kh, kw, size * i)."""
    size, out, kh, kw, width = w.shape
    return w.transpose(1, 2, 3, 0, 4).reshape(out, kh, kw, size * width)


def _from_inputs(w: mx.array, size: int) -> mx.array:
    out, kh, kw, width = w.shape
    return w.reshape(out, kh, kw, size, width // size).transpose(3, 0, 1, 2, 4)


def _conv_vmap(arrays: Any, mapped: Any, size: int, spec: Spec) -> Any:
    (x, w, b), (x_mapped, w_mapped, b_mapped) = arrays, mapped
    if b_mapped and not w_mapped:  # one convolution, and a bias of its own for each
        y = _linear(_with_images(x, size), w, spec) if x_mapped else _linear(x, w, spec)
        y = _from_images(y, size) if x_mapped else y
        return y + b[:, None, None, None].astype(y.dtype)
    if not w_mapped:
        return _from_images(conv(_with_images(x, size), w, b, spec), size)
    biases = b if b_mapped else mx.broadcast_to(b, (size, *b.shape))
    b_length = biases.shape[1]
    if x_mapped:
        each = spec._replace(groups=size * spec.groups)
        y = conv(_with_channels(x, 1), _with_images(w, size), biases.reshape(size * b_length), each)
        return _from_channels(y, 1, size)
    long = biases.reshape(size, spec.groups, b_length // spec.groups).swapaxes(0, 1).reshape(size * b_length)
    return _from_channels(conv(x, _with_outputs(w, spec.groups), long, spec), spec.groups, size)


def _grad_input_vmap(arrays: Any, mapped: Any, size: int, spec: Spec) -> mx.array:
    (dy, w), (dy_mapped, w_mapped) = arrays, mapped
    if not w_mapped:
        return _from_images(grad_input(_with_images(dy, size), w, spec), size)
    if dy_mapped:
        each = spec._replace(groups=size * spec.groups)
        return _from_channels(grad_input(_with_channels(dy, 1), _with_images(w, size), each), 1, size)
    return _from_channels(grad_input(dy, _with_inputs(w), spec), spec.groups, size)


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


_conv = differentiable("conv", _run_conv, vjp=_conv_vjp, jvp=_conv_jvp, vmap=_conv_vmap)
_grad_input = differentiable(
    "conv_grad_input",
    _run_grad_input,
    vjp=_grad_input_vjp,
    jvp=_bilinear_jvp(grad_input),
    vmap=_grad_input_vmap,
)
_grad_weights = differentiable(
    "conv_grad_weights",
    _run_grad_weights,
    vjp=_grad_weights_vjp,
    jvp=_bilinear_jvp(grad_weights),
    vmap=_grad_weights_vmap,
)
_grad_bias = differentiable(
    "conv_grad_bias",
    _run_grad_bias,
    vjp=_grad_bias_vjp,
    jvp=lambda arrays, tangents, spec: grad_bias(tangents[0], spec),
    vmap=_grad_bias_vmap,
)
