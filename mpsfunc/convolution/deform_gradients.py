"""The gradients of a deformable convolution with respect to its images, offsets, mask and parameters."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.convolution import deform_rules as rules
from mpsfunc.convolution import states
from mpsfunc.convolution.deform_states import DeformConvState, gradient, places_of
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike


def deform_conv_grad_input(
    dy: mx.array,
    offsets: mx.array,
    w: mx.array,
    state: DeformConvState,
    mask: mx.array | None = None,
    *,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `deform_conv` with respect to its images.

    ``dx`` of a pixel is the sum over the samples that read it, each times its weight. The order of the sum is fixed, so
    every run gives the same bits.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        offsets: The offsets, as for `deform_conv`.
        w: The weights.
        state: From `deform_conv_fwd` or `deform_conv_state`.
        mask: The mask. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: An array is not floating, offsets or mask have neither dy's dtype nor float32, or state is not a
            DeformConvState.
        ValueError: dy or w does not belong to the state, or offsets or mask not to dy.

    Example:
        >>> from mpsfunc import deform_conv_state
        >>> state = deform_conv_state((1, 1, 3, 1), (1, 1, 1, 1))
        >>> offsets = mx.array([0, 0.25, 0, 0.25, 0, 0.25]).reshape(1, 1, 3, 2)
        >>> dy = mx.array([4.0, 8, 12]).reshape(1, 1, 3, 1)
        >>> deform_conv_grad_input(dy, offsets, mx.ones((1, 1, 1, 1)), state).reshape(3)
        array([3, 7, 11], dtype=float32)
    """
    op, stream = "deform_conv_grad_input", launch.resolve(stream)
    spec = gradient(op, dy, state, mask is not None, stream)
    states.of_state(op, w, state, stream)
    return rules.grad_input(dy, places_of(op, offsets, mask, dy, "dy", spec), w, spec)


def deform_conv_grad_offsets(
    dy: mx.array,
    x: mx.array,
    offsets: mx.array,
    w: mx.array,
    state: DeformConvState,
    mask: mx.array | None = None,
    *,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `deform_conv` with respect to its offsets.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        x: The images, as for `deform_conv`.
        offsets: The offsets, as for `deform_conv`.
        w: The weights.
        state: From `deform_conv_fwd` or `deform_conv_state`.
        mask: The mask. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, out_h, out_w, offset_groups * kh * kw * 2) of the offsets' dtype.

    Raises:
        TypeError: An array is not floating, dy and x differ in dtype, offsets or mask have neither theirs nor float32,
            or state is not a DeformConvState.
        ValueError: dy, x or w does not belong to the state, or offsets or mask not to dy.

    Example:
        >>> from mpsfunc import deform_conv_state
        >>> x, w = mx.array([1.0, 3, 9]).reshape(1, 1, 3, 1), mx.ones((1, 1, 1, 1))
        >>> state = deform_conv_state(x.shape, w.shape)
        >>> offsets = mx.array([0, 0.25, 0, 0.25, 0, 0.25]).reshape(1, 1, 3, 2)
        >>> dy = mx.ones((1, 1, 3, 1))
        >>> deform_conv_grad_offsets(dy, x, offsets, w, state).reshape(3, 2)
        array([[-1.5, 2],
               [-4.5, 6],
               [-6.75, -9]], dtype=float32)
    """
    op, stream = "deform_conv_grad_offsets", launch.resolve(stream)
    return _grad_places(op, dy, x, offsets, w, state, mask, stream)[0]


def deform_conv_grad_mask(
    dy: mx.array,
    x: mx.array,
    offsets: mx.array,
    w: mx.array,
    state: DeformConvState,
    mask: mx.array,
    *,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `deform_conv` with respect to its mask.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        x: The images, as for `deform_conv`.
        offsets: The offsets, as for `deform_conv`.
        w: The weights.
        state: From `deform_conv_fwd` or `deform_conv_state`.
        mask: The mask, as for `deform_conv`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, out_h, out_w, offset_groups * kh * kw) of the mask's dtype.

    Raises:
        TypeError: An array is not floating, dy and x differ in dtype, offsets or mask have neither theirs nor float32,
            or state is not a DeformConvState.
        ValueError: dy, x or w does not belong to the state, or offsets or mask not to dy.

    Example:
        >>> from mpsfunc import deform_conv_state
        >>> x, w = mx.array([1.0, 3, 9]).reshape(1, 1, 3, 1), mx.full((1, 1, 1, 1), 2.0)
        >>> state = deform_conv_state(x.shape, w.shape)
        >>> offsets, mask = mx.zeros((1, 1, 3, 2)), mx.ones((1, 1, 3, 1))
        >>> dy = mx.ones((1, 1, 3, 1))
        >>> deform_conv_grad_mask(dy, x, offsets, w, state, mask).reshape(3)
        array([2, 6, 18], dtype=float32)
    """
    op, stream = "deform_conv_grad_mask", launch.resolve(stream)
    checks.array(op, "mask", mask, stream=stream)
    return _grad_places(op, dy, x, offsets, w, state, mask, stream)[1]


def deform_conv_grad_weights(
    dy: mx.array,
    x: mx.array,
    offsets: mx.array,
    state: DeformConvState,
    mask: mx.array | None = None,
    *,
    stream: StreamLike = None,
) -> DeformConvState:
    """Gradients of the weights and the bias of `deform_conv`, added to those that the state holds.

    ``dw[o,q,p,c] += sum over n, j, i of dy[n,j,i,o]`` times the sample of tap (q, p), and ``db[o] += sum of dy``: sums
    over the batch, so parts of a batch can be added one after the other.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        x: The images, as for `deform_conv`.
        offsets: The offsets, as for `deform_conv`.
        state: From `deform_conv_fwd`, `deform_conv_state` or an earlier call.
        mask: The mask. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state with the sums added to ``dw`` and ``db``.

    Raises:
        TypeError: An array is not floating, dy and x differ in dtype, offsets or mask have neither theirs nor float32,
            or state is not a DeformConvState.
        ValueError: dy or x does not belong to the state, or offsets or mask not to dy.

    Example:
        >>> from mpsfunc import deform_conv_state
        >>> x = mx.array([1.0, 3, 9]).reshape(1, 1, 3, 1)
        >>> state = deform_conv_state(x.shape, (1, 1, 1, 1))
        >>> offsets = mx.array([0, 0.25, 0, 0.25, 0, 0.25]).reshape(1, 1, 3, 2)
        >>> state = deform_conv_grad_weights(mx.ones((1, 1, 3, 1)), x, offsets, state)
        >>> state.dw.item(), state.db.item()
        (12.75, 3.0)
    """
    op, stream = "deform_conv_grad_weights", launch.resolve(stream)
    spec = gradient(op, dy, state, mask is not None, stream)
    states.source(op, x, dy, state, "n_in", stream)
    places = places_of(op, offsets, mask, dy, "dy", spec)
    return states.accumulated(state, rules.grad_weights(dy, x, places, spec), rules.grad_bias(dy, spec), stream)


def _grad_places(
    op: str,
    dy: mx.array,
    x: mx.array,
    offsets: mx.array,
    w: mx.array,
    state: DeformConvState,
    mask: mx.array | None,
    stream: mx.Stream,
) -> tuple[mx.array, mx.array]:
    """The gradients with respect to the offsets and the mask, of which without one the second is empty."""
    spec = gradient(op, dy, state, mask is not None, stream)
    states.of_state(op, w, state, stream)
    states.source(op, x, dy, state, "n_in", stream)
    places = places_of(op, offsets, mask, dy, "dy", spec)
    with mx.stream(stream):
        apart = rules.grad_places(dy, x, places, w, spec).reshape(
            *offsets.shape[:3], spec.params.groups * spec.taps, spec.numbers
        )
        by_offsets, by_mask = launch.cut(apart, (..., slice(0, 2))), launch.cut(apart, (..., slice(2, 3)))
        made = by_offsets.reshape(offsets.shape).astype(offsets.dtype)
        return made, by_mask if mask is None else by_mask.reshape(mask.shape).astype(mask.dtype)
