"""Boxes cut out of images and resized (``MPSNNCropAndResizeBilinear``), and the gradients with respect to both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.image import box_sample_rules as rules
from mpsfunc.image import boxes as given
from mpsfunc.image.params import BoxSampleParams
from mpsfunc.windows.placement import IntOrPair

CropMethodName = Literal["bilinear", "nearest"]
METHODS: tuple[CropMethodName, ...] = get_args(CropMethodName)


@printing.printed
class CropAndResizeState(NamedTuple):
    """The sizes and options of a `crop_and_resize`: what its gradients need besides images and boxes.

    Fields:
        op: "crop_and_resize".
        images: Number of images.
        height: Height of the images.
        width: Width of the images.
        channels: Channels of the images.
        rows: Rows of a crop.
        cols: Columns of a crop.
        method: "bilinear" or "nearest".
        extrapolation_value: Value of samples outside the image.
    """

    op: str
    images: int
    height: int
    width: int
    channels: int
    rows: int
    cols: int
    method: str
    extrapolation_value: float

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: gradients take the boxes and the images themselves."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> CropAndResizeState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def crop_and_resize(
    x: mx.array,
    boxes: mx.array,
    box_indices: mx.array,
    crop_size: IntOrPair,
    *,
    method: CropMethodName = "bilinear",
    extrapolation_value: float = 0.0,
    stream: StreamLike = None,
) -> mx.array:
    """Cuts boxes out of images and resizes each to one size.

    Box r, ``boxes[r] = (y1, x1, y2, x2)``, is cut out of image ``box_indices[r]``. Its coordinates are normalized: 0 is
    the centre of the first pixel and 1 the centre of the last. The samples along an axis are evenly spaced from one
    side of the box to the other: with L pixels in the image and D samples in the crop, sample i lies at the pixel
    ``y1 (L - 1) + i (y2 - y1) (L - 1) / (D - 1)``, or at the centre of the box if D is 1. It interpolates the two
    nearest pixels along each axis; with "nearest" it takes the nearest pixel, and of two that are equally near the one
    to the right or below. A box with y1 > y2 or x1 > x2 is flipped. Samples outside the image (below 0 or above L - 1),
    samples at NaN or infinity, and all samples of a box whose image does not exist are ``extrapolation_value``.

    Gradients of every order, with respect to images and boxes, are exact and have the same bits on every run. At whole
    pixels, where the interpolation has no derivative, they are the derivative from the right, and on the last pixel the
    one from the left. With "nearest" the gradient with respect to the boxes is 0. The jump of samples to
    ``extrapolation_value`` at the edge of the image does not contribute to the gradient.

    Source: ``MPSNNCropAndResizeBilinear``, whose regions are ``{x, y, w, h}``: ``y1 = y, y2 = y + h``. Apple documents
    neither how coordinates are scaled nor the value outside; here both are as in TensorFlow's function of this name,
    with one exception: the outermost samples lie exactly on the sides of the box, so rounding never moves the last
    samples of a box that is the whole image outside of it.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        boxes: Boxes (r, 4), each (y1, x1, y2, x2), of x's dtype or float32; r may be 0. Positions are computed in
            float32, or in float64 for float64 images.
        box_indices: For each box the index of its image (r,), of an integer dtype.
        crop_size: Size of the result, an int or (rows, columns).
        method: "bilinear" (default) or "nearest".
        extrapolation_value: Value of samples outside the image. Default 0.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Crops (r, rows, columns, c) of x's dtype.

    Raises:
        TypeError: x or boxes is not a floating array, box_indices is not one of integers, float64 on a GPU, the boxes
            have neither x's dtype nor float32, or crop_size or extrapolation_value is not a number.
        ValueError: x is not NHWC, boxes is not (r, 4) or box_indices not (r,), the method is unknown, crop_size is less
            than 1, extrapolation_value is not finite, or an axis or the result is too large.

    Example:
        >>> x = mx.arange(1.0, 10).reshape(1, 3, 3, 1)
        >>> boxes = mx.array([[0.25, 0, 1.25, 0.75]])
        >>> crop_and_resize(x, boxes, mx.array([0]), (3, 2)).reshape(3, 2)
        array([[2.5, 4],
               [5.5, 7],
               [0, 0]], dtype=float32)
    """
    return crop_and_resize_fwd(
        x, boxes, box_indices, crop_size, method=method, extrapolation_value=extrapolation_value, stream=stream
    )[0]


def crop_and_resize_fwd(
    x: mx.array,
    boxes: mx.array,
    box_indices: mx.array,
    crop_size: IntOrPair,
    *,
    method: CropMethodName = "bilinear",
    extrapolation_value: float = 0.0,
    stream: StreamLike = None,
) -> tuple[mx.array, CropAndResizeState]:
    """`crop_and_resize`, and the state that its gradients need. Arguments and errors are those of `crop_and_resize`.

    Returns:
        The crops and the state.

    Example:
        >>> y, state = crop_and_resize_fwd(
        ...     mx.ones((1, 4, 4, 2)), mx.zeros((3, 4)), mx.zeros(3, mx.int32), 5
        ... )
        >>> y.shape, state.rows
        ((3, 5, 5, 2), 5)
    """
    op, stream = "crop_and_resize", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = _state(op, x.shape, crop_size, method, extrapolation_value)
    rows = _rows(op, boxes, box_indices, "x", x.dtype, state, stream)
    return rules.sample(x, rows, _spec(state, stream)), state


def crop_and_resize_state(
    x_shape: Sequence[int],
    crop_size: IntOrPair,
    *,
    method: CropMethodName = "bilinear",
    extrapolation_value: float = 0.0,
) -> CropAndResizeState:
    """The state of `crop_and_resize_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        crop_size: As for `crop_and_resize`, like the rest.
        method: As for `crop_and_resize`.
        extrapolation_value: As for `crop_and_resize`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, or crop_size or extrapolation_value is not a number.
        ValueError: x_shape is not (n, h, w, c), the method is unknown, crop_size is less than 1, extrapolation_value is
            not finite, or an axis or a crop is too large.

    Example:
        >>> crop_and_resize_state((1, 4, 6, 3), 2).width
        6
    """
    op = "crop_and_resize_state"
    return _state(op, checks.shape_of_images(op, "x_shape", x_shape), crop_size, method, extrapolation_value)


def crop_and_resize_grad(
    dy: mx.array,
    boxes: mx.array,
    box_indices: mx.array,
    state: CropAndResizeState,
    *,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `crop_and_resize` with respect to its images.

    ``dx`` of a pixel is the sum of dy over the samples that read it, each times its weight. The order of the sum is
    fixed, so every run gives the same bits.

    Args:
        dy: Gradient of the crops (r, rows, columns, c), floating.
        boxes: The boxes, as for `crop_and_resize`.
        box_indices: For each box the index of its image.
        state: From `crop_and_resize_fwd` or `crop_and_resize_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy or boxes is not a floating array, box_indices is not one of integers, the boxes have neither dy's
            dtype nor float32, or state is not a CropAndResizeState.
        ValueError: dy does not belong to the state or the boxes, or box_indices not to the boxes.

    Example:
        >>> boxes, dy = (
        ...     mx.array([[0.25, 0, 1.25, 0.75]]),
        ...     mx.arange(1.0, 7).reshape(1, 3, 2, 1),
        ... )
        >>> state = crop_and_resize_state((1, 3, 3, 1), (3, 2))
        >>> crop_and_resize_grad(dy, boxes, mx.array([0]), state).reshape(3, 3)
        array([[0.5, 0.5, 0.5],
               [2, 1.5, 1.5],
               [1.5, 1, 1]], dtype=float32)
    """
    op, stream = "crop_and_resize_grad", launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    spec = _checked(op, state, stream)
    rows = _rows(op, boxes, box_indices, "dy", dy.dtype, state, stream)
    _check_crops(op, dy, boxes, state)
    return rules.spread(dy, rows, spec)


def crop_and_resize_grad_boxes(
    dy: mx.array,
    x: mx.array,
    boxes: mx.array,
    box_indices: mx.array,
    state: CropAndResizeState,
    *,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `crop_and_resize` with respect to its boxes; zeros if ``method`` is "nearest".

    Args:
        dy: Gradient of the crops (r, rows, columns, c), floating.
        x: The images, as for `crop_and_resize`.
        boxes: The boxes, as for `crop_and_resize`.
        box_indices: For each box the index of its image.
        state: From `crop_and_resize_fwd` or `crop_and_resize_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (r, 4) with respect to y1, x1, y2 and x2, of the boxes' dtype.

    Raises:
        TypeError: An array is not floating, box_indices is not one of integers, dy and x differ in dtype, the boxes
            have neither theirs nor float32, or state is not a CropAndResizeState.
        ValueError: x or dy does not belong to the state, dy not to the boxes, or box_indices not to the boxes.

    Example:
        >>> x, boxes = (
        ...     mx.arange(1.0, 10).reshape(1, 3, 3, 1),
        ...     mx.array([[0.25, 0, 0.75, 0.75]]),
        ... )
        >>> state = crop_and_resize_state(x.shape, 2)
        >>> dy = mx.array([1.0, 2, 3, 4]).reshape(1, 2, 2, 1)
        >>> crop_and_resize_grad_boxes(dy, x, boxes, mx.array([0]), state)
        array([[18, 8, 42, 12]], dtype=float32)
    """
    op, stream = "crop_and_resize_grad_boxes", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    checks.array(op, "dy", dy, stream=stream)
    spec = _checked(op, state, stream)
    expected = state.images, state.height, state.width, state.channels
    checks.shape(op, "x", x, expected, "x does not belong to this state")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    rows = _rows(op, boxes, box_indices, "x", x.dtype, state, stream)
    _check_crops(op, dy, boxes, state)
    with mx.stream(stream):
        made = rules.slopes(dy, x, rows, spec)
        ends = (
            launch.cut(made, (..., slice(first, first + 2))) * pixels
            for first, pixels in zip((1, 3), _lengths(state), strict=True)
        )
        return mx.stack(list(ends), axis=2).reshape(boxes.shape).astype(boxes.dtype)


def _state(
    op: str, x_shape: Sequence[int], crop_size: Any, method: Any, extrapolation_value: Any
) -> CropAndResizeState:
    images, height, width, channels = x_shape
    given.check_images(op, images, height, width)
    rows, cols = given.bins(op, "crop_size", crop_size, channels)
    chosen = checks.choice(op, "method", method, METHODS)
    outside = checks.number(op, "extrapolation_value", extrapolation_value)
    return CropAndResizeState("crop_and_resize", images, height, width, channels, rows, cols, chosen, outside)


def _rows(
    op: str, boxes: Any, indices: Any, other: str, dtype: mx.Dtype, state: CropAndResizeState, stream: mx.Stream
) -> mx.array:
    """Boxes as the rules take them: for each axis the first place and the last, in pixels."""
    given.check_boxes(op, "boxes", boxes, 4, other, dtype, stream, "(y1, x1, y2, x2)")
    given.check_indices(op, indices, boxes.shape[0], "boxes")
    with mx.stream(stream):
        wide = boxes.astype(launch.accumulator(dtype))
        ends = (launch.cut(wide, (..., slice(axis, 4, 2))) * pixels for axis, pixels in enumerate(_lengths(state)))
        return given.with_numbers(indices, ends, dtype)


def _lengths(state: CropAndResizeState) -> tuple[int, int]:
    """Pixels that 1 is, down and across."""
    return state.height - 1, state.width - 1


def _check_crops(op: str, dy: mx.array, boxes: mx.array, state: CropAndResizeState) -> None:
    expected = boxes.shape[0], state.rows, state.cols, state.channels
    checks.shape(op, "dy", dy, expected, "dy does not belong to this state")


def _checked(op: str, state: Any, stream: mx.Stream) -> rules.Spec:
    """What a state says, which may have been made by hand."""
    checks.state(op, state, CropAndResizeState, stream=stream)
    if type(state.op) is not str or state.op != "crop_and_resize":
        raise ValueError(
            f'{op}: a state of another operation; got state.op={describe(state.op)}, expected "crop_and_resize"'
        )
    given.check_state(op, state)
    checks.choice(op, "state.method", state.method, METHODS)
    checks.number(op, "state.extrapolation_value", state.extrapolation_value)
    return _spec(state, stream)


def _spec(state: CropAndResizeState, stream: mx.Stream) -> rules.Spec:
    rule = rules.CROP_NEAREST if state.method == "nearest" else rules.CROP_BILINEAR
    size = state.images, state.height, state.width, state.rows, state.cols
    return rules.Spec(BoxSampleParams(*size, rule, 1, 0, 0, float(state.extrapolation_value)), stream)
