"""Dropout and its gradient (``MPSCNNDropout``, ``MPSCNNDropoutGradient``)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import mlx.core as mx

from mpsfunc.channels import broadcast
from mpsfunc.channels.broadcast import Shape
from mpsfunc.core import arguments, checks, launch, printing, thread_ends
from mpsfunc.core.arguments import entries, is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.elementwise import arithmetic_rules, dropout_rules
from mpsfunc.elementwise.dropout_rules import Given, Random

Stride = Sequence[int]
_INDEPENDENT = (1, 1, 1)
_MOST = 2**40  # entries of a mask


@printing.printed
class DropoutState(NamedTuple):
    """What the mask of a dropout is computed from: all that its gradient needs.

    Fields:
        key: Two uint32 that the mask is computed from; zeros if a mask was passed.
        mask: The mask that was passed, bool unless it is floating; empty if there was none. Integers of 0 drop.
        op: "dropout", or "dropout_by_mask" if a mask was passed.
        keep_probability: Share of elements that are kept.
        mask_stride: (y, x, c), as given.
        shape: Of the images.
    """

    key: mx.array
    mask: mx.array
    op: str
    keep_probability: float
    mask_stride: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(key, mask)."""
        return (self.key, self.mask)

    def with_arrays(self, arrays: Sequence[mx.array]) -> DropoutState:
        """This state with another key and mask."""
        key, mask = checks.arrays_of("DropoutState", arrays, 2)
        return self._replace(key=key, mask=mask)


P = ParamSpec("P")
R = TypeVar("R")


def by_name(op: str, first: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuses all arguments without a name but the first: a number could say what is kept or what is dropped."""

    def refusing(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) > 1:
                raise TypeError(
                    f"{op}: only {first} goes without a name; got the second argument={describe(args[1])}, expected "
                    "keep_probability=, the share that is kept (MPS), or p=, the share that is dropped (MLX, PyTorch)"
                )
            return function(*args, **kwargs)

        return call

    return refusing


@by_name("dropout", "x")
def dropout(
    x: mx.array,
    *,
    keep_probability: float | None = None,
    p: float | None = None,
    seed: int | None = None,
    key: mx.array | None = None,
    mask: mx.array | None = None,
    mask_stride: Stride = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """Zeroes elements at random, and scales the others so that the mean is kept.

    ``y = x * m / keep_probability``, where m is 1 with that probability, else 0. There is no switch for inference:
    leave it out there. Equal keys give equal masks on every device; see `dropout_mask` for how they are made.

    Without ``seed``, ``key`` and ``mask`` a key is drawn from MLX's global state, so ``mx.random.seed`` repeats it and
    ``mx.compile`` needs ``inputs=mx.random.state, outputs=mx.random.state``. Under ``mx.vmap`` a key that is not mapped
    gives every mapped element the same mask, and a mapped key gives each its own. Under ``mx.checkpoint``, which calls
    a function twice, the two masks differ unless ``seed``, ``key`` or ``mask`` come from outside the function: use
    `checkpoint`.

    Linear in x; the derivative is dropout with the same mask. A floating mask has a derivative too.

    Source: ``MPSCNNDropout``, whose generator is unknown. A NaN or an infinity that is dropped becomes NaN.

    Args:
        x: Images (n, h, w, c), or an array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        keep_probability: Share of elements that are kept (MPS), more than 0 and at most 1, which keeps all. Shares are
            rounded to multiples of 2^-32, but not to 0. Default 0.5. By name only, like all arguments that follow,
            since a number alone could mean either share.
        p: Share of elements that are dropped (MLX, PyTorch), likewise: ``keep_probability = 1 - p``.
        seed: An int from 0 to 2^64 - 1, instead of ``mx.random.key(seed)``.
        key: Two uint32, as ``mx.random.key`` makes them.
        mask: m itself: bool, or integers of which 0 drops, or floating; of x's shape, or, for images, with axes of
            length 1 that are broadcast.
        mask_stride: (y, x, c), each 1 for values of its own along that axis, or 0 for one value shared along it. Images
            of a batch never share: (0, 0, 0) drops whole images, which is stochastic depth. Only images have strides.
            Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, an argument is of another type, or an argument after x has no name.
        ValueError: keep_probability or p is out of range, shapes do not fit, or arguments exclude each other.

    Example:
        >>> x = mx.arange(1.0, 7.0)
        >>> y = dropout(x, p=0.2, key=mx.random.key(1))
        >>> mx.array_equal(
        ...     y, dropout_mask((6,), keep_probability=0.8, seed=1) * x / 0.8
        ... ).item()
        True
        >>> dropout(x, p=0.5, mask=x < 3)
        array([2, 4, 0, 0, 0, 0], dtype=float32)
    """
    y, _ = dropout_fwd(
        x, keep_probability=keep_probability, p=p, seed=seed, key=key, mask=mask, mask_stride=mask_stride, stream=stream
    )
    return y


@by_name("dropout", "x")
def dropout_fwd(
    x: mx.array,
    *,
    keep_probability: float | None = None,
    p: float | None = None,
    seed: int | None = None,
    key: mx.array | None = None,
    mask: mx.array | None = None,
    mask_stride: Stride = (1, 1, 1),
    stream: StreamLike = None,
) -> tuple[mx.array, DropoutState]:
    """`dropout`, and the state that `dropout_grad` needs. Arguments and errors are those of `dropout`.

    Returns:
        The result, and the state. It holds the key, from which the gradient function computes the mask again, or the
        mask that was passed.

    Example:
        >>> y, state = dropout_fwd(mx.ones((1, 2, 2, 1)), p=0.75, seed=7)
        >>> mx.array_equal(dropout_grad(mx.ones((1, 2, 2, 1)), state), y).item()
        True
    """
    op = "dropout"
    stream = launch.resolve(stream)
    checks.array(op, "x", x, stream=stream)
    keep, strides = _kept(op, keep_probability, p), _stride(op, mask_stride, x.ndim)
    shape = tuple(x.shape)
    with mx.stream(stream):
        if mask is None:
            state = DropoutState(_key(op, seed, key), mx.zeros(0, mx.uint8), op, keep, strides, shape)
        else:
            _check_mask(op, "mask", mask, shape, stream)
            for name, value in (("seed", seed), ("key", key)):
                if value is not None:
                    raise ValueError(
                        f"{op}: a mask needs no {name}; got {name}={describe(value)}, expected None with a mask"
                    )
            if strides != _INDEPENDENT:
                raise ValueError(f"{op}: a mask has no stride; got mask_stride={strides}, expected (1, 1, 1)")
            if not mx.issubdtype(mask.dtype, mx.floating):
                mask = _as_bools(mask)
            state = DropoutState(mx.zeros(2, mx.uint32), mask, "dropout_by_mask", keep, strides, shape)
        return _apply(op, x, state, stream), state


def dropout_grad(dy: mx.array, state: DropoutState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `dropout` with respect to its images: dropout of dy with the same mask.

    ``dx = dy * m / keep_probability``. For the gradient of a floating mask use autodiff.

    Source: ``MPSCNNDropoutGradient``.

    Args:
        dy: Gradient of the result, of its shape.
        state: From `dropout_fwd`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of dy's shape and dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not a DropoutState.
        ValueError: dy does not belong to the state, or the state does not fit together.

    Example:
        >>> _, state = dropout_fwd(mx.ones(3), mask=mx.array([1, 0, 1]))
        >>> dropout_grad(mx.array([1.0, 2.0, 3.0]), state)
        array([2, 0, 6], dtype=float32)
    """
    op = "dropout_grad"
    stream = launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    checks.state(op, state, DropoutState, stream=stream)
    checks.choice(op, "state.op", state.op, ("dropout", "dropout_by_mask"))
    keep = _share(op, "state.keep_probability", state.keep_probability)
    shape = checks.shape_of(op, "state.shape", state.shape, "a tuple of ints >= 0", "the state does not fit together")
    checks.shape(op, "dy", dy, shape, "dy does not belong to this state")
    _stride(op, state.mask_stride, dy.ndim, "state.mask_stride")
    if state.op == "dropout":
        _check_key(op, "state.key", state.key)
    else:
        _check_mask(op, "state.mask", state.mask, tuple(dy.shape), stream)
    with mx.stream(stream):
        return _apply(op, dy, state._replace(keep_probability=keep), stream)


@by_name("dropout_mask", "shape")
def dropout_mask(
    shape: Sequence[int],
    *,
    keep_probability: float | None = None,
    p: float | None = None,
    seed: int | None = None,
    key: mx.array | None = None,
    mask_stride: Stride = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """The mask that `dropout` makes for arrays of a shape.

    Element i, counted in the mask's own shape row by row, is kept if a random word of 32 bits is less than
    ``round(keep_probability * 2^32)``. The word is number ``i % 4`` of what Philox4x32-10 makes of the counter
    ``(i // 4, 0)``, lower half first, and the key.

    Args:
        shape: Of images (n, h, w, c), or any other.
        keep_probability: As for `dropout`, like the arguments after it.
        p: Share of elements that are dropped, instead.
        seed: An int instead of ``mx.random.key(seed)``.
        key: Two uint32. Default: drawn from MLX's global state.
        mask_stride: (y, x, c), each 1 or 0.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A bool mask, True where an element is kept, of the shape with length 1 along axes whose stride is 0.

    Raises:
        TypeError: A length is not an int, an argument is of another type, or an argument after shape has no name.
        ValueError: A length is negative, the mask has 2^40 elements or more, an image 2^31, or as for `dropout`.
        MemoryError: There is no memory for the mask; on the CPU, and where it is evaluated.

    Example:
        >>> dropout_mask((1, 2, 3, 8), seed=3, mask_stride=(1, 1, 0)).shape
        (1, 2, 3, 1)
        >>> dropout_mask((4,), p=0.5, seed=0)
        array([True, False, False, False], dtype=bool)
    """
    op = "dropout_mask"
    stream = launch.resolve(stream)
    lengths = _lengths(op, shape)
    keep, strides = _kept(op, keep_probability, p), _stride(op, mask_stride, len(lengths))
    flat = broadcast.sized(op, "shape", broadcast.as_images(lengths))
    each = _mask_of(flat, strides)
    if flat[0] * math.prod(each) >= _MOST:
        raise ValueError(f"{op}: a mask is too large; got shape={describe(lengths)}, expected less than 2**40 elements")
    with mx.stream(stream):
        made = _key(op, seed, key)
        spec = Random(keep, flat[0], each, stream)
        own = (lengths[0], *spec.mask) if len(lengths) == 4 else lengths
        if 0 in own or keep == 1:
            return mx.ones(own, mx.bool_)
        return dropout_rules.masks(made.reshape(1, 2), spec).reshape(own).view(mx.bool_)


# Parts --------------------------------------------------------------------------------------------------


def _apply(op: str, x: mx.array, state: DropoutState, stream: mx.Stream) -> mx.array:
    flat = broadcast.sized(op, "shape", broadcast.as_images(tuple(x.shape)))
    if x.size == 0 or (state.op == "dropout" and state.keep_probability == 1):
        return x
    images, keep, mask = x.reshape(flat), state.keep_probability, state.mask
    if state.op == "dropout":
        spec = Random(keep, flat[0], _mask_of(flat, state.mask_stride), stream)
        return dropout_rules.by_key(images, state.key.reshape(1, 2), spec).reshape(x.shape)
    mask = mask.reshape(broadcast.as_images(tuple(mask.shape)))
    per = flat[0] if mask.shape[0] == 1 else 1
    if not mx.issubdtype(mask.dtype, mx.floating):
        mask = mx.stop_gradient(_as_bools(mask).view(mx.uint8))  # mx.checkpoint asks bytes for a derivative, too
        return dropout_rules.by_mask(images, mask, Given(keep, flat[0], per, stream)).reshape(x.shape)
    scaled = arithmetic_rules.Spec(
        *(arithmetic_rules.MULTIPLY, 1 / keep, 1.0, 0.0, None, None, flat[0], (1, per), stream)
    )
    return arithmetic_rules.value(images, mask.astype(x.dtype), scaled).reshape(x.shape)


def _lengths(op: str, shape: Any) -> Shape:
    given = entries(shape)
    lengths = [None] if given is None else [arguments.whole(length) for length in given]
    made = tuple(length for length in lengths if length is not None)
    if len(made) != len(lengths):
        raise TypeError(f"{op}: shape is not a shape; got shape={describe(shape)}, expected a tuple of ints")
    if not all(0 <= length < 2**31 for length in made):
        raise ValueError(
            f"{op}: shape is out of range; got shape={describe(shape)}, expected lengths from 0 to 2**31 - 1"
        )
    return made


def _as_bools(mask: mx.array) -> mx.array:
    return mask if mask.dtype == mx.bool_ else mask != 0


def _mask_of(flat: Shape, strides: Sequence[int]) -> tuple[int, int, int]:
    h, w, c = (length if step else 1 for length, step in zip(flat[1:], strides, strict=True))
    return h, w, c


def _kept(op: str, keep_probability: Any, p: Any) -> float:
    """The share that is kept, of whichever was given."""
    if keep_probability is not None and p is not None:
        raise ValueError(
            f"{op}: keep_probability and p exclude each other; got p={describe(p)}, expected None with keep_probability"
        )
    if p is not None:
        return _share(op, "p", p, kept=False)
    return 0.5 if keep_probability is None else _share(op, "keep_probability", keep_probability)


def _share(op: str, name: str, value: Any, *, kept: bool = True) -> float:
    """The share that is kept, from that or the share that is dropped.

    What rounds to 1 in steps of 2^-32 keeps all; what rounds to 0 keeps in one case of 2^32.
    """
    rule = f"0 < {name.rpartition('.')[2]} <= 1" if kept else f"0 <= {name} < 1"
    value = checks.real(op, name, value, rule)
    if 0 <= value <= 1:
        keep = float(value) if kept else 1 - float(value)
        if float(value) == (1 if kept else 0):
            return 1.0
        if keep > 0:
            steps = dropout_rules.threshold(keep)
            return keep if 0 < steps < 2**32 else 1.0 if steps else 2.0**-32
    raise ValueError(f"{op}: {name} is out of range; got {name}={describe(value)}, expected {rule}")


def _stride(op: str, value: Any, ndim: int, name: str = "mask_stride") -> tuple[int, ...]:
    stride = broadcast.stride(op, name, value)
    if ndim != 4 and stride != _INDEPENDENT:
        raise ValueError(f"{op}: only images have strides; got {name}={describe(value)}, expected (1, 1, 1)")
    return stride


def _key(op: str, seed: Any, key: Any) -> mx.array:
    """The key that the arguments mean, drawn from MLX's global state where they mean none."""
    if seed is not None and key is not None:
        raise ValueError(f"{op}: seed and key exclude each other; got seed={describe(seed)}, expected None with a key")
    if key is not None:
        _check_key(op, "key", key)
        return mx.array(key)
    if seed is not None:
        return mx.random.key(checks.whole(op, "seed", seed, 0, 2**64 - 1))
    # What MLX's next random function would use, and then that function, for the state to move on.
    _, drawn = mx.random.split(thread_ends.random_state()[0])
    mx.random.uniform()
    return drawn


def _check_key(op: str, name: str, key: Any) -> None:
    if not is_a(key, mx.array) or key.dtype != mx.uint32:
        raise TypeError(f"{op}: {name} is not a key; got {name}={describe(key)}, expected mx.random.key(seed)")
    if key.shape != (2,):
        raise ValueError(f"{op}: {name} is not a key; got {name}.shape={key.shape}, expected (2,)")


def _check_mask(op: str, name: str, mask: Any, shape: Shape, stream: mx.Stream) -> None:
    if not is_a(mask, mx.array) or mask.dtype == mx.complex64:
        raise TypeError(
            f"{op}: {name} is not a mask; got {name}={describe(mask)}, expected a bool, integer or floating array"
        )
    checks.on_device(op, name, mask.dtype, stream)
    fits = mask.shape == shape or (
        len(shape) == mask.ndim == 4 and all(m in (1, s) for m, s in zip(mask.shape, shape, strict=True))
    )
    if not fits:
        rule = f"{shape}" + (" or 1 along some axes" if len(shape) == 4 else "")
        raise ValueError(f"{op}: {name} does not fit; got {name}.shape={mask.shape}, expected {rule}")
