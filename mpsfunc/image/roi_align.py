"""Means over the bins of regions of interest, as torchvision's ``roi_align``, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.image import box_sample_rules as rules
from mpsfunc.image import boxes as given
from mpsfunc.image.params import BoxSampleParams
from mpsfunc.windows.placement import IntOrPair

_MOST_SAMPLES = 2**16  # of a bin along an axis


@printing.printed
class RoiAlignState(NamedTuple):
    """The sizes and options of a `roi_align`: what its gradients need besides images and regions.

    Fields:
        op: "roi_align".
        images: Number of images.
        height: Height of the images.
        width: Width of the images.
        channels: Channels of the images.
        rows: Rows of bins.
        cols: Columns of bins.
        spatial_scale: What coordinates are multiplied by to get pixels.
        sampling_ratio: Samples of a bin along each axis; 0 means its length in pixels, rounded up.
        aligned: Whether coordinates count from the outer edge of the first pixel.
    """

    op: str
    images: int
    height: int
    width: int
    channels: int
    rows: int
    cols: int
    spatial_scale: float
    sampling_ratio: int
    aligned: bool

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: gradients take the regions and the images themselves."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> RoiAlignState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def roi_align(
    x: mx.array,
    rois: mx.array,
    output_size: IntOrPair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
    *,
    box_indices: mx.array | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Divides regions of interest into bins, and takes the mean of each bin without rounding its edges to pixels.

    Region r, ``rois[r] = (n, x1, y1, x2, y2)``, lies on image n. Along the y axis it reaches from ``y1 *
    spatial_scale`` to ``y2 * spatial_scale`` in pixels, where 0 is the centre of the first pixel, and is at least one
    pixel long; with ``aligned`` 0 is the outer edge of the first pixel, half a pixel earlier, and there is no minimum
    length. The x axis works in the same way. A region is divided into D bins of equal length, and a bin into S parts
    with a sample at the centre of each. S is ``sampling_ratio`` or, if that is not positive, the length of a bin in
    pixels, rounded up, and at most 65536. A sample interpolates the two nearest pixels along each axis. Up to one pixel
    outside the image it is the outermost pixel, and further outside it is 0. The result is the mean over the S x S
    samples of a bin, including those outside.

    A bin without samples is 0: with ``aligned`` and no ``sampling_ratio`` this is a bin of a region without length.
    Bins at NaN or infinity, and those of a region whose image does not exist, are also 0.

    Gradients of every order, with respect to images and regions, are exact and have the same bits on every run. The
    number of samples counts as a constant. At whole pixels, where the interpolation has no derivative, they are the
    derivative from the right; on the outermost pixels and outside the gradient with respect to regions is 0.

    Source: torchvision's ``roi_align``, which has no gradient with respect to regions. MPS has no such function.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        rois: Regions (r, 5), each (n, x1, y1, x2, y2), as torchvision's; or (r, 4) without n where ``box_indices`` is
            given. Of x's dtype or float32; r may be 0. Positions are computed in float32, or in float64 for
            float64 images. 16 bits can represent the numbers of few images: use float32 there.
        output_size: Bins of a region, an int or (rows, columns).
        spatial_scale: What coordinates are multiplied by to get pixels, such as 1/16 for features with a stride of 16.
            Default 1.
        sampling_ratio: Samples of a bin along each axis; 0 or less for its length in pixels, rounded up. Default -1.
        aligned: Whether coordinates count from the outer edge of the first pixel. Default False.
        box_indices: For each region the index of its image (r,), of an integer dtype. Default: in ``rois``.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Bins (r, rows, columns, c) of x's dtype.

    Raises:
        TypeError: x or rois is not a floating array, box_indices is not one of integers, float64 on a GPU, the regions
            have neither x's dtype nor float32, another argument is not a number, or aligned is not a bool.
        ValueError: x is not NHWC, rois is not (r, 5), or with box_indices not (r, 4), output_size is less than 1,
            spatial_scale is not finite, sampling_ratio is beyond 65536, or an axis or the result is too large.

    Example:
        >>> x = mx.arange(1.0, 17).reshape(1, 4, 4, 1)
        >>> roi_align(x, mx.array([[0.0, 0, 0, 4, 2]]), (1, 2), aligned=True).reshape(2)
        array([3.5, 5.5], dtype=float32)
    """
    return roi_align_fwd(
        x, rois, output_size, spatial_scale, sampling_ratio, aligned, box_indices=box_indices, stream=stream
    )[0]


def roi_align_fwd(
    x: mx.array,
    rois: mx.array,
    output_size: IntOrPair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
    *,
    box_indices: mx.array | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, RoiAlignState]:
    """`roi_align`, and the state that its gradients need. Arguments and errors are those of `roi_align`.

    Returns:
        The bins and the state.

    Example:
        >>> y, state = roi_align_fwd(mx.ones((1, 4, 4, 2)), mx.zeros((3, 5)), 7)
        >>> y.shape, state.sampling_ratio
        ((3, 7, 7, 2), 0)
    """
    op, stream = "roi_align", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = _state(op, x.shape, output_size, spatial_scale, sampling_ratio, aligned)
    rows = _rows(op, rois, box_indices, "x", x.dtype, state, stream)
    return rules.sample(x, rows, _spec(state, stream)), state


def roi_align_state(
    x_shape: Sequence[int],
    output_size: IntOrPair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> RoiAlignState:
    """The state of `roi_align_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        output_size: As for `roi_align`, like the rest.
        spatial_scale: As for `roi_align`.
        sampling_ratio: As for `roi_align`.
        aligned: As for `roi_align`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, another argument is not a number, or aligned is not a bool.
        ValueError: x_shape is not (n, h, w, c), output_size is less than 1, spatial_scale is not finite, sampling_ratio
            is beyond 65536, or an axis or the result of one region is too large.

    Example:
        >>> roi_align_state((1, 4, 6, 3), 7, 1 / 16).width
        6
    """
    op = "roi_align_state"
    shape = checks.shape_of_images(op, "x_shape", x_shape)
    return _state(op, shape, output_size, spatial_scale, sampling_ratio, aligned)


def roi_align_grad(
    dy: mx.array,
    rois: mx.array,
    state: RoiAlignState,
    *,
    box_indices: mx.array | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `roi_align` with respect to its images.

    ``dx`` of a pixel is the sum of dy over the bins that read it, each times its weight. The order of the sum is fixed,
    so every run gives the same bits.

    Args:
        dy: Gradient of the bins (r, rows, columns, c), floating.
        rois: The regions, as for `roi_align`.
        state: From `roi_align_fwd` or `roi_align_state`.
        box_indices: For each region the index of its image. Default: in ``rois``.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy or rois is not a floating array, box_indices is not one of integers, the regions have neither dy's
            dtype nor float32, or state is not a RoiAlignState.
        ValueError: dy does not belong to the state or the regions, or rois or box_indices has another shape.

    Example:
        >>> state = roi_align_state((1, 2, 4, 1), (1, 2), aligned=True)
        >>> roi_align_grad(
        ...     mx.array([4.0, 8]).reshape(1, 1, 2, 1),
        ...     mx.array([[0.0, 0, 0, 4, 2]]),
        ...     state,
        ... ).reshape(2, 4)
        array([[1, 1, 2, 2],
               [1, 1, 2, 2]], dtype=float32)
    """
    op, stream = "roi_align_grad", launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    spec = _checked(op, state, stream)
    rows = _rows(op, rois, box_indices, "dy", dy.dtype, state, stream)
    _check_bins(op, dy, rois, state)
    return rules.spread(dy, rows, spec)


def roi_align_grad_rois(
    dy: mx.array,
    x: mx.array,
    rois: mx.array,
    state: RoiAlignState,
    *,
    box_indices: mx.array | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `roi_align` with respect to its regions, which torchvision does not have.

    Args:
        dy: Gradient of the bins (r, rows, columns, c), floating.
        x: The images, as for `roi_align`.
        rois: The regions, as for `roi_align`.
        state: From `roi_align_fwd` or `roi_align_state`.
        box_indices: For each region the index of its image. Default: in ``rois``.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of the regions' shape and dtype; that of the number of an image is 0.

    Raises:
        TypeError: An array is not floating, box_indices is not one of integers, dy and x differ in dtype, the regions
            have neither theirs nor float32, or state is not a RoiAlignState.
        ValueError: x or dy does not belong to the state, dy not to the regions, or rois or box_indices has another
            shape.

    Example:
        >>> x = mx.arange(1.0, 17).reshape(1, 4, 4, 1)
        >>> state = roi_align_state(x.shape, 1, sampling_ratio=1, aligned=True)
        >>> roi_align_grad_rois(
        ...     mx.ones((1, 1, 1, 1)), x, mx.array([[0.0, 1, 1, 2, 3]]), state
        ... )
        array([[0, 0.5, 2, 0.5, 2]], dtype=float32)
    """
    op, stream = "roi_align_grad_rois", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    checks.array(op, "dy", dy, stream=stream)
    spec = _checked(op, state, stream)
    expected = state.images, state.height, state.width, state.channels
    checks.shape(op, "x", x, expected, "x does not belong to this state")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    rows = _rows(op, rois, box_indices, "x", x.dtype, state, stream)
    _check_bins(op, dy, rois, state)
    with mx.stream(stream):
        # By the beginnings and the lengths of bins; the rest is a few numbers a region, which MLX differentiates.
        wide = rois.astype(rows.dtype)
        made = launch.cut(rules.slopes(dy, x, rows, spec), (..., slice(1, 5)))
        return mx.vjp(lambda rois: mx.concatenate(_bins_of(rois, state), axis=1), [wide], [made])[1][0].astype(
            rois.dtype
        )


def _state(
    op: str, x_shape: Sequence[int], output_size: Any, spatial_scale: Any, sampling_ratio: Any, aligned: Any
) -> RoiAlignState:
    images, height, width, channels = x_shape
    given.check_images(op, images, height, width)
    rows, cols = given.bins(op, "output_size", output_size, channels)
    scale = checks.number(op, "spatial_scale", spatial_scale)
    samples = checks.whole(op, "sampling_ratio", sampling_ratio, -(2**31), _MOST_SAMPLES)
    size = images, height, width, channels, rows, cols
    return RoiAlignState("roi_align", *size, scale, max(0, samples), checks.switch(op, "aligned", aligned))


def _rows(
    op: str, rois: Any, indices: Any, other: str, dtype: mx.Dtype, state: RoiAlignState, stream: mx.Stream
) -> mx.array:
    """Regions as the rules take them: for each axis where they begin and how long a bin is, in pixels."""
    if indices is None:
        given.check_boxes(op, "rois", rois, 5, other, dtype, stream, "(n, x1, y1, x2, y2)")
    else:
        given.check_boxes(op, "rois", rois, 4, other, dtype, stream, "(x1, y1, x2, y2)")
        given.check_indices(op, indices, rois.shape[0], "rois")
    with mx.stream(stream):
        wide = rois.astype(launch.accumulator(dtype))
        numbers = mx.floor(launch.cut(wide, (..., 0))) if indices is None else indices
        return given.with_numbers(numbers, _bins_of(wide, state), dtype)


def _bins_of(rois: mx.array, state: RoiAlignState) -> list[mx.array]:
    """Where regions begin and how long their bins are, along y and along x: columns (r, 1)."""
    scale, shift, first = float(state.spatial_scale), 0.5 if state.aligned else 0.0, rois.shape[1] - 4
    corners = [launch.cut(rois, (..., slice(i, i + 1))) * scale - shift for i in range(first, first + 4)]
    made = []
    for begin, end, bins in ((corners[1], corners[3], state.rows), (corners[0], corners[2], state.cols)):
        length = end - begin
        made += [begin, (length if state.aligned else mx.maximum(length, 1.0)) / bins]
    return made


def _check_bins(op: str, dy: mx.array, rois: mx.array, state: RoiAlignState) -> None:
    expected = rois.shape[0], state.rows, state.cols, state.channels
    checks.shape(op, "dy", dy, expected, "dy does not belong to this state")


def _checked(op: str, state: Any, stream: mx.Stream) -> rules.Spec:
    """What a state says, which may have been made by hand."""
    checks.state(op, state, RoiAlignState, stream=stream)
    if type(state.op) is not str or state.op != "roi_align":
        raise ValueError(f'{op}: a state of another operation; got state.op={describe(state.op)}, expected "roi_align"')
    given.check_state(op, state)
    checks.number(op, "state.spatial_scale", state.spatial_scale)
    checks.whole(op, "state.sampling_ratio", state.sampling_ratio, 0, _MOST_SAMPLES)
    checks.switch(op, "state.aligned", state.aligned)
    return _spec(state, stream)


def _spec(state: RoiAlignState, stream: mx.Stream) -> rules.Spec:
    size = state.images, state.height, state.width, state.rows, state.cols
    return rules.Spec(BoxSampleParams(*size, rules.ROI_ALIGN, state.sampling_ratio, 0, 0, 0.0), stream)
