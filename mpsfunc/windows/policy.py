"""MPS's padding policies, and what an int or a pair of ints may look like: what `windows.placement` stands on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from mpsfunc.core.printing import told
from mpsfunc.core.scalars import entries, is_a, whole
from mpsfunc.core.suggestions import near

Ints = tuple[int, int]

# Below this the 32-bit sums of geometry.h, of two positions each, cannot overflow.
LIMIT = 2**30

STYLES = {"valid": -1, "same": 0, "full": 1}
PIXELS = "pixels >= 0 as an int, (y, x) or ((top, bottom), (left, right))"
_POLICY: dict[str, tuple[object, ...]] = {
    "align": ("centered", "top_left", "bottom_right"),
    "remainder": ("top_left", "top_right", "bottom_left", "bottom_right"),
    "size": tuple(STYLES),
    "exclude_edges": (False, True),
}


class PaddingPolicy(NamedTuple):
    """How MPS sizes an output and spreads the overhang (``MPSNNPaddingMethod``), with MPS's defaults.

    Over ``length`` pixels, with ``style`` -1 for valid, 0 for same and 1 for full::

        n_out = ceil((length + style * (K - 1)) / stride)
        extra = (n_out - 1) * stride + K - length        # pixels read beyond the image; may be negative
        pad = trunc((extra + corner) / 2)                # before the image; corner is 1 for top or left, else 0

    ``PaddingPolicy(remainder="bottom_right")`` is MPS's form of TensorFlow's SAME; where ``extra`` is
    negative only ``padding="same"`` is TensorFlow's rule. A valid policy may skip pixels before its first
    window, as no other framework does; ``align="bottom_right"`` starts it at pixel 0.

    Fields:
        align: Where ``extra`` goes: half to each side by the last formula, all before the image, or all behind it.
        remainder: The corner of "centered", which gets an odd pixel.
        size: The style.
        exclude_edges: Average pooling only, Caffe's rule: divide by the taps within the image and its
            padding. That is edge mode "clamp", with what the policy puts before the image as the zero pad.

    A field with another value is a ValueError where the policy is used.

    Example:
        >>> PaddingPolicy().forward(7, 4, stride=2)
        (4, 0)
    """

    align: Literal["centered", "top_left", "bottom_right"] = "centered"
    remainder: Literal["top_left", "top_right", "bottom_left", "bottom_right"] = "top_left"
    size: Literal["same", "valid", "full"] = "same"
    exclude_edges: bool = False

    def forward(
        self, length: int, kernel_size: int, stride: int = 1, dilation: int = 1, *, axis: int = 0
    ) -> tuple[int, int]:
        """The output length, and the offset: the input pixel under the centre of the first window.

        Args:
            length: Input length. Where no window fits, the output length is below 1.
            kernel_size: Taps in a window.
            stride: Pixels between two windows.
            dilation: Pixels between two taps.
            axis: 0 for y, 1 for x; a remainder corner can mean either side.

        Raises:
            ValueError: An argument is below 1, or a field of the policy is none of its names.
            TypeError: An argument is not an int.

        Example:
            >>> PaddingPolicy(size="valid").forward(8, 3, stride=3)
            (2, 1)
        """
        check_policy("PaddingPolicy", self)
        sizes = {"length": length, "kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        length, kernel_size, stride, dilation = (_one(arg, value) for arg, value in sizes.items())
        if whole(axis) not in (0, 1):
            refuse("PaddingPolicy", "there is no such axis", "axis", axis, "0 or 1")
        extent = (kernel_size - 1) * dilation + 1
        n_out, pad = policy_spot(self, length, extent, stride, axis)
        return n_out, extent // 2 - pad

    def reverse(
        self, length: int, kernel_size: int, stride: int = 1, dilation: int = 1, *, axis: int = 0
    ) -> tuple[int, int]:
        """What `forward` returns, for a kernel that enlarges: a transposed convolution, or a gradient.

        Such a kernel runs with stride 1 over its source with ``stride - 1`` zeros between neighbours, and the
        offset counts in those coordinates; ``n_out = (length - 1) * stride + 1 + style * (K - 1)``. That is
        the smallest length from which the `inverse` policy makes ``length``; a gradient state knows the right
        one, so gradient functions need no policy. Arguments and errors are those of `forward`.

        Example:
            >>> valid = PaddingPolicy(size="valid")
            >>> valid.forward(5, 3, stride=2), valid.inverse().reverse(2, 3, stride=2)
            ((2, 1), (5, -1))
        """
        length, stride = _one("length", length), _one("stride", stride)
        return self.forward((length - 1) * stride + 1, kernel_size, 1, dilation, axis=axis)

    def inverse(self) -> PaddingPolicy:
        """The policy whose `reverse` undoes this one's size: valid and full change places, same stays."""
        swapped: dict[str, Literal["valid", "full"]] = {"valid": "full", "full": "valid"}
        return self._replace(size=swapped.get(self.size, self.size))


def _one(arg: str, value: object) -> int:
    """An int >= 1 that an axis has of its own."""
    one = whole(value)
    if one is None:
        refuse("PaddingPolicy", f"{arg} is not an int", arg, value, "an int >= 1", TypeError)
    if one < 1:
        refuse("PaddingPolicy", f"{arg} is too small", arg, value, "an int >= 1")
    return one


def policy_spot(policy: PaddingPolicy, length: int, extent: int, stride: int, axis: int) -> Ints:
    """How many windows one axis has, and how far ahead of the image the first begins."""
    n_out = -(-(length + STYLES[policy.size] * (extent - 1)) // stride)
    extra = (n_out - 1) * stride + extent - length
    if policy.align != "centered":
        return n_out, extra if policy.align == "top_left" else 0
    doubled = extra + (policy.remainder.startswith("top"), policy.remainder.endswith("left"))[axis]
    return n_out, doubled // 2 if doubled >= 0 else -(-doubled // 2)  # toward zero, as C divides


def check_policy(op: str, policy: PaddingPolicy) -> None:
    """Refuses a policy with a field that is none of its names."""
    for (field, names), value in zip(_POLICY.items(), policy, strict=True):
        if type(value) is not type(names[0]) or value not in names:
            rule = " or ".join(map(repr, names))
            meant = near(field, value, map(str, names)) if is_a(value, str) else ""
            refuse(op, f"unknown {field} in a PaddingPolicy", field, value, f"{rule}{meant}")


# Arguments ----------------------------------------------------------------------------------------------


def two(op: str, arg: str, value: object, rule: str, of: object = None) -> tuple[object, object]:
    """A pair's two entries, or one value twice; ``of`` is the argument where the value is a part of it."""
    given = entries(value)
    if given is None:
        return value, value
    if len(given) != 2:
        refuse(op, f"{arg} is not a pair", arg, value if of is None else of, rule)
    return given[0], given[1]


def pair(op: str, arg: str, value: object, least: int | None = None, rule: str = "", of: object = None) -> Ints:
    """An int, or a pair of ints, as a pair; ``rule`` replaces the usual words for what is expected.

    Where the value is a part of an argument, that is ``of``, and what errors show.
    """
    if type(value) is int and (least is None or value >= least):  # nearly every call
        return value, value
    rule = rule or "an int or a (y, x) pair of ints" + ("" if least is None else f" >= {least}")
    y, x = map(whole, two(op, arg, value, rule, of))
    of = value if of is None else of
    if y is None or x is None:
        refuse(op, f"{arg} is not an int", arg, of, rule, TypeError)
    if least is not None and min(y, x) < least:
        refuse(op, f"{arg} is too small", arg, of, rule)
    return y, x


def pixels(op: str, arg: str, value: object, negative: str = "") -> list[Ints]:
    """Pixels as [(top, bottom), (left, right)]; ``negative`` says what is wrong where there are less than none."""
    sides = [pair(op, arg, part, rule=PIXELS, of=value) for part in two(op, arg, value, PIXELS)]
    if min(map(min, sides)) < 0:
        refuse(op, negative or f"{arg} is too small", arg, value, PIXELS)
    return sides


def told_apart(values: Iterable[Any]) -> bool:
    """Whether a typed `functools.lru_cache` tells these arguments from all others: in a tuple it takes True for 1."""
    for value in values:  # no generators: this runs at every call
        kind = type(value)
        if kind is int or kind is str or kind is bool or value is None:
            continue
        if kind is not tuple or not value:
            return False
        for entry in value:
            if type(entry) is not int:
                return False
    return True


def refuse(op: str, wrong: str, arg: str, value: object, rule: str, kind: type[Exception] = ValueError) -> NoReturn:
    """Raises what is wrong with an argument, in the words of all errors."""
    raise kind(f"{op}: {wrong}; got {arg}={told(value)}, expected {rule}")


_Axis = TypeVar("_Axis")


def within_reach(op: str, axis: _Axis) -> _Axis:
    """An `Axis`, if the 32-bit sums of geometry.h cannot overflow on it."""
    a: Any = axis
    extent = (a.size - 1) * a.dilation + 1
    zeros = max(a.zero_pad, a.zero_pad_after)
    reach = {  # by the argument of a call, how far each takes the windows, and its value
        "kernel_size": (a.size, a.size),
        "dilation": (max(extent, a.dilation), a.dilation),
        "stride": (a.stride, a.stride),
        "padding": (abs(a.pad), a.pad),
        "zero_pad": (a.n_in + zeros if zeros else 0, zeros),
        "out_size": (a.n_out, a.n_out),
        "the length of the image": (a.n_in, a.n_in),
    }
    far = [(arg, value) for arg, (distance, value) in reach.items() if distance >= LIMIT]
    if not far and abs((a.n_out - 1) * a.stride - a.pad + extent) >= LIMIT:
        far = [("stride", a.stride)]
    if far:
        refuse(op, "windows reach too far", *far[0], "windows within 2**30 pixels")
    return axis
