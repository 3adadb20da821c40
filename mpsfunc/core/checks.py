"""Refuses arrays, shapes and states, all in the form ``{op}: {complaint}; got {argument}={value}, expected {rule}``.

Everything here looks at shapes and dtypes only, so bad input is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import mlx.core as mx

from mpsfunc.core import arguments
from mpsfunc.core.arguments import choice as choice
from mpsfunc.core.arguments import entries, is_a
from mpsfunc.core.params import LARGEST as LARGEST
from mpsfunc.core.printing import describe, name_of

FLOATING = frozenset((mx.float32, mx.float16, mx.bfloat16, mx.float64))

# Positions inside one image are int32 in the kernels; the batch may take an array past that.
_IMAGE_ELEMENTS = 2**31 - 1

_AXES = 16  # of a shape in an error


def array(op: str, name: str, value: Any, *, stream: mx.Stream | None = None) -> None:
    """An mx.array of a floating dtype that the stream's device has."""
    if type(value) is not mx.array and not is_a(value, mx.array):  # this runs at every call
        raise TypeError(f"{op}: {name} is not an array; got {name}={describe(value)}, expected an mx.array")
    if value.dtype not in FLOATING:
        raise TypeError(
            f"{op}: {name} has no floating dtype; got {name}.dtype={value.dtype}, "
            "expected float32, float16, bfloat16 or float64"
        )
    if stream is not None:
        on_device(op, name, value.dtype, stream)


def numbers(op: str, name: str, value: Any, *, stream: mx.Stream) -> None:
    """An mx.array of numbers that can be compared: floating, or integers of any size."""
    if is_a(value, mx.array) and value.dtype not in FLOATING:
        if mx.issubdtype(value.dtype, mx.integer):
            return
        raise TypeError(
            f"{op}: {name} has no dtype of real numbers; got {name}.dtype={value.dtype}, "
            "expected float32, float16, bfloat16, float64 or an integer dtype"
        )
    array(op, name, value, stream=stream)


def on_device(op: str, name: str, dtype: mx.Dtype, stream: mx.Stream) -> None:
    """A dtype that the stream's device has."""
    if dtype == mx.float64 and stream.device != mx.Device(mx.cpu):
        raise TypeError(
            f"{op}: float64 runs on the CPU only; got {name}.dtype={dtype} on {stream.device}, "
            "expected stream=mx.cpu or another dtype"
        )


def image(op: str, name: str, value: Any, *, stream: mx.Stream | None = None) -> None:
    """An NHWC batch. The batch may be empty or past 2**31 elements, an image may not."""
    array(op, name, value, stream=stream)
    given = value.shape  # by hand where nothing is wrong: this runs at every call
    if len(given) != 4 or not 0 < given[1] * given[2] * given[3] <= _IMAGE_ELEMENTS:
        image_shape(op, f"{name}.shape", given)


def sequences(op: str, name: str, value: Any, *, stream: mx.Stream, moved: bool = False) -> None:
    """A batch (n, l, c), which may be empty; integers too where elements are only compared or ``moved``."""
    (numbers if moved else array)(op, name, value, stream=stream)
    given = value.shape
    if len(given) != 3:
        raise ValueError(f"{op}: not a batch of sequences; got {name}.shape={describe(given)}, expected (n, l, c)")
    if 0 in given[1:]:
        raise ValueError(f"{op}: a sequence has no elements; got {name}.shape={describe(given)}, expected l, c >= 1")
    if given[1] * given[2] > _IMAGE_ELEMENTS:
        raise ValueError(f"{op}: a sequence is too large; got {name}.shape={describe(given)}, expected l * c < 2**31")


def moved_image(op: str, name: str, value: Any, *, stream: mx.Stream) -> None:
    """An NHWC batch whose elements are moved only, so that they may be integers."""
    numbers(op, name, value, stream=stream)
    image_shape(op, f"{name}.shape", value.shape)


def image_shape(op: str, name: str, shape: tuple[int, ...]) -> None:
    """The shape of an NHWC batch."""
    if len(shape) != 4 or [d for d in shape if type(d) is not int or d < 0]:  # no generator: it runs at every call
        raise ValueError(f"{op}: not an image batch; got {name}={describe(tuple(shape))}, expected (n, h, w, c)")
    _, h, w, c = shape
    if 0 in (h, w, c):
        raise ValueError(f"{op}: an image has no elements; got {name}={describe(tuple(shape))}, expected h, w, c >= 1")
    if h * w * c > _IMAGE_ELEMENTS:
        raise ValueError(
            f"{op}: an image is too large; got {name}={describe(tuple(shape))}, expected h * w * c < 2**31"
        )


def shape_of_images(op: str, name: str, value: Any) -> tuple[int, int, int, int]:
    """The shape of an NHWC batch as an argument."""
    n, h, w, c = shape_of(op, name, value, "(n, h, w, c)", "not an image batch", rank=4)
    image_shape(op, name, (n, h, w, c))
    return n, h, w, c


def shape_of(op: str, name: str, value: Any, rule: str, wrong: str, *, rank: int | None = None) -> tuple[int, ...]:
    """A shape as an argument: a list or tuple of ints, as Python's; ``wrong`` is said of other entries."""
    given = entries(value)
    if given is None:
        raise TypeError(f"{op}: {name} is not a shape; got {name}={describe(value)}, expected {rule}")
    lengths = [arguments.whole(length) for length in given] if rank in (None, len(given)) else [None]
    made = tuple(length for length in lengths if length is not None and length >= 0)
    if len(made) != len(lengths):
        raise ValueError(f"{op}: {wrong}; got {name}={describe(value)}, expected {rule}")
    return made


def shape(
    op: str, name: str, value: mx.array, expected: tuple[int | str, ...], why: str, *, of: tuple[int, ...] = ()
) -> None:
    """A shape that another argument decides; words in ``expected`` stand for any length.

    Where the shape ``of`` images decides, and its axes are in PyTorch's order, the error says so; likewise where the
    array's own axes are.
    """
    given = value.shape
    if given == expected:
        return
    if not _fits(given, expected):
        rule = ", ".join(e if isinstance(e, str) else describe(e) for e in expected[:_AXES])
        rule = f"({rule}{', ...' if len(expected) > _AXES else ',' if len(expected) == 1 else ''})"
        swapped = len(given) == 4 and _fits((given[0], given[2], given[3], given[1]), expected)
        turned_ones = (of[1:2], of[:2], (*of[:1], *of[2:]))  # of channels, of each image, or labels
        swapped |= len(of) == 4 and given in turned_ones
        hint = turned(swapped)
        raise ValueError(f"{op}: {why}; got {name}.shape={tuple(value.shape)}, expected {rule}{hint}")


def _fits(given: Sequence[int], expected: tuple[int | str, ...]) -> bool:
    fits = len(given) == len(expected)
    for d, e in zip(given, expected, strict=False):  # no generator: this runs at every call
        fits = fits and (d == e or isinstance(e, str))
    return fits


def turned(swapped: bool) -> str:
    """What an error ends with where images seem to have PyTorch's order of axes."""
    return "; images are (n, h, w, c), and these look like (n, c, h, w)" if swapped else ""


def vectors_alike(arrays: Sequence[Any]) -> bool:
    """Whether they are float32 vectors of one length, which fit every device: then there is nothing to complain of."""
    first = arrays[0]
    if type(first) is not mx.array or first.ndim != 1:
        return False
    length = first.shape
    for a in arrays:  # no generator: this runs at every call
        if type(a) is not mx.array or a.dtype != mx.float32 or a.shape != length:
            return False
    return True


def same_dtype(op: str, name: str, value: mx.array, other: str, dtype: mx.Dtype) -> None:
    """A cotangent has the dtype of the image it belongs to."""
    if value.dtype != dtype:
        raise TypeError(f"{op}: {name} and {other} differ in dtype; got {name}.dtype={value.dtype}, expected {dtype}")


def gradient(op: str, dy: Any, x: Any, *, stream: mx.Stream) -> None:
    """Images and a gradient of their shape and dtype."""
    image(op, "x", x, stream=stream)
    like_image(op, "dy", dy, x, stream=stream)


def like_image(op: str, name: str, value: Any, x: mx.array, *, stream: mx.Stream) -> None:
    """An array of the shape and dtype that checked images x have."""
    array(op, name, value, stream=stream)
    shape(op, name, value, tuple(x.shape), f"{name} does not belong to x")
    same_dtype(op, name, value, "x", x.dtype)


def whole(op: str, name: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """An int of any kind within a range, as Python's."""
    plain = arguments.whole(value)
    if plain is None:
        raise TypeError(f"{op}: {name} is not an int; got {name}={describe(value)}, expected an int")
    if not least <= plain <= most:
        raise ValueError(f"{op}: {name} is out of range; got {name}={describe(value)}, expected {least} to {most}")
    return plain


def switch(op: str, name: str, value: Any) -> bool:
    """True or False."""
    if not is_a(value, bool):
        raise TypeError(f"{op}: {name} is not a bool; got {name}={describe(value)}, expected True or False")
    return value


def axis(op: str, name: str, value: mx.array, at: Any) -> int:
    """An axis that the array has, counted from the front."""
    rank = value.ndim
    if rank == 0:
        raise ValueError(f"{op}: {name} has no axes; got {name}.shape=(), expected one axis or more")
    return whole(op, "axis", at, -rank, rank - 1) % rank


def no_kernel_offset(op: str, value: object) -> None:
    """MPS's ``kernelOffset`` only where zeros are inserted; elsewhere it would place nothing."""
    if value is not None:
        raise ValueError(
            f"{op}: kernel_offset has no meaning here; got kernel_offset={describe(value)}, "
            "expected None, because the state places the windows"
        )


def real(op: str, name: str, value: Any, rule: str = "a float") -> float | int:
    """A number of any kind, as Python's; True and False are none."""
    plain = arguments.real(value)
    if plain is None:
        raise TypeError(f"{op}: {name} is not a number; got {name}={describe(value)}, expected {rule}")
    return plain


def number(op: str, name: str, value: Any, least: float = -LARGEST, most: float = LARGEST) -> float:
    """A number of any kind within a range that float32 has, as Python's."""
    if type(value) is float and least <= value <= most:  # nearly every call
        return value
    plain = real(op, name, value)
    if not least <= plain <= most:
        raise ValueError(
            f"{op}: {name} is out of range; got {name}={describe(value)}, expected {least:g} <= {name} <= {most:g}"
        )
    return float(plain)


_PLAINLY = "Python's or NumPy's own classes"


def state(op: str, value: Any, kind: type[Any], *, stream: mx.Stream, said: str = "state") -> None:
    """A state that the matching forward function made, of dtypes that the device has; ``said`` is the argument."""
    if not is_a(value, kind):
        raise TypeError(
            f"{op}: not a state of this operation; got {said} of type {name_of(type(value))}, expected {kind.__name__}"
        )
    for name, field in zip(value._fields, value, strict=False):
        if type(field) is not mx.array and arguments.is_derived(field):  # kernels ask later, and nobody knows for what
            raise TypeError(
                f"{op}: the state holds another class; got {said}.{name}={describe(field)}, expected {_PLAINLY}"
            )
    for name, a in zip(value._fields, value.arrays, strict=False):
        if not is_a(a, mx.array):
            raise TypeError(f"{op}: the state holds no array; got {said}.{name}={describe(a)}, expected an mx.array")
        on_device(op, f"{said}.{name}", a.dtype, stream)


def arrays_of(kind: str, arrays: Any, count: int) -> tuple[Any, ...]:
    """So many arrays for a state, in a list or tuple."""
    given = entries(arrays)
    if given is None:
        raise TypeError(
            f"{kind}: arrays is not a sequence; got arrays={describe(arrays)}, expected a list of {count} arrays"
        )
    if len(given) != count:
        raise ValueError(f"{kind}: wrong number of arrays; got {len(given)} arrays, expected {count}")
    return given


_State = TypeVar("_State")


def no_arrays(state: _State, arrays: Sequence[mx.array]) -> _State:
    """The state, which has no arrays to replace."""
    arrays_of(type(state).__name__, arrays, 0)
    return state
