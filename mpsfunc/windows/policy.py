"""MPS's padding policies."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from mpsfunc.core.arguments import IntPair, is_a, near, refuse, whole

Align = Literal["centered", "top_left", "bottom_right"]
Corner = Literal["top_left", "top_right", "bottom_left", "bottom_right"]
SizeName = Literal["valid", "same", "full"]
PaddingName = Literal[SizeName, "same_lower"]
STYLES: dict[SizeName, int] = {name: style for style, name in enumerate(get_args(SizeName), -1)}
PADDINGS: tuple[PaddingName, ...] = get_args(PaddingName)
_POLICY: dict[str, tuple[object, ...]] = {
    "align": get_args(Align),
    "remainder": get_args(Corner),
    "size": tuple(STYLES),
    "exclude_edges": (False, True),
}


class PaddingPolicy(NamedTuple):
    """How MPS chooses the size of an output and its padding (``MPSNNPaddingMethod``), with MPS's defaults.

    Over ``length`` pixels, with ``style`` -1 for valid, 0 for same and 1 for full::

        n_out = ceil((length + style * (K - 1)) / stride)
        extra = (n_out - 1) * stride + K - length        # pixels read outside the image; may be negative
        pad = trunc((extra + corner) / 2)                # before the image; corner is 1 for top or left, else 0

    ``PaddingPolicy(remainder="bottom_right")`` is MPS's form of TensorFlow's SAME; where ``extra`` is
    negative only ``padding="same"`` is TensorFlow's rule. A valid policy may skip pixels before its first
    window, as no other framework does; ``align="bottom_right"`` starts it at pixel 0.

    Fields:
        align: Where ``extra`` goes: half to each side by the last formula ("centered"), all before the image, or all
            after it.
        remainder: The corner of "centered", which gets an odd pixel.
        size: The style.
        exclude_edges: Average pooling only, Caffe's rule: divide by the taps within the image and its padding. That is
            edge mode "clamp", with the policy's padding before the image as ``zero_pad``.

    A field with another value is a ValueError where the policy is used.

    Example:
        >>> PaddingPolicy().forward(7, 4, stride=2)
        (4, 0)
    """

    align: Align = "centered"
    remainder: Corner = "top_left"
    size: SizeName = "same"
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
            ValueError: An argument is below 1, or a field of the policy has an unknown value.
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

        Such a kernel runs with stride 1 over its source with ``stride - 1`` zeros between neighbours, and the offset
        counts in those coordinates; ``n_out = (length - 1) * stride + 1 + style * (K - 1)``. That is the smallest of
        the lengths from which the `inverse` policy makes ``length``. Gradient functions need no policy, since the state
        of the forward function contains the length. Arguments and errors are those of `forward`.

        Example:
            >>> valid = PaddingPolicy(size="valid")
            >>> valid.forward(5, 3, stride=2), valid.inverse().reverse(2, 3, stride=2)
            ((2, 1), (5, -1))
        """
        length, stride = _one("length", length), _one("stride", stride)
        return self.forward((length - 1) * stride + 1, kernel_size, 1, dilation, axis=axis)

    def inverse(self) -> PaddingPolicy:
        """The policy whose `reverse` undoes this one's size: it exchanges "valid" and "full"."""
        swapped: dict[SizeName, SizeName] = {"valid": "full", "full": "valid"}
        return self._replace(size=swapped.get(self.size, self.size))


def _one(arg: str, value: object) -> int:
    """An int >= 1 that an axis has of its own."""
    one = whole(value)
    if one is None:
        refuse("PaddingPolicy", f"{arg} is not an int", arg, value, "an int >= 1", TypeError)
    if one < 1:
        refuse("PaddingPolicy", f"{arg} is too small", arg, value, "an int >= 1")
    return one


def policy_spot(policy: PaddingPolicy, length: int, extent: int, stride: int, axis: int) -> IntPair:
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
