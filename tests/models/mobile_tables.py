"""What MobileNetV2, MobileNetV3-Large and EfficientNet-B0 consist of, for both libraries."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """An inverted residual block; ``squeeze`` channels in its squeeze and excite, or none of that."""

    kernel_size: int
    channels: int
    expanded: int
    out: int
    squeeze: int
    stride: int
    act: str


class Table(NamedTuple):
    """A network: the first convolution, the blocks, the last convolution and the head's hidden layer, if any."""

    stem: int
    act: str  # of the first and the last convolution, and of the head
    rows: tuple[Row, ...]
    last: int
    hidden: int
    squeezed: str  # the activation in squeeze and excite
    gate: str
    eps: float


def of_eight(width: float) -> int:
    """The next multiple of 8."""
    return int(width + 4) // 8 * 8


def _v2() -> tuple[Row, ...]:
    rows, channels = [], 32
    for expand, out, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for i in range(count):
            rows.append(Row(3, channels, expand * channels, out, 0, 1 if i else stride, "relu6"))
            channels = out
    return tuple(rows)


def _v3() -> tuple[Row, ...]:
    rows, channels = [], 16
    for kernel_size, expanded, out, squeezes, act, stride in (
        *((3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1)),
        *((5, 72, 40, True, "relu", 2), (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1)),
        *((3, 240, 80, False, "hardswish", 2), (3, 200, 80, False, "hardswish", 1)),
        *((3, 184, 80, False, "hardswish", 1), (3, 184, 80, False, "hardswish", 1)),
        *((3, 480, 112, True, "hardswish", 1), (3, 672, 112, True, "hardswish", 1)),
        *(
            (5, 672, 160, True, "hardswish", 2),
            (5, 960, 160, True, "hardswish", 1),
            (5, 960, 160, True, "hardswish", 1),
        ),
    ):
        rows.append(Row(kernel_size, channels, expanded, out, of_eight(expanded / 4) * squeezes, stride, act))
        channels = out
    return tuple(rows)


def _b0() -> tuple[Row, ...]:
    rows, channels = [], 32
    for expand, kernel_size, stride, out, count in (
        *((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)),
        *((6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)),
    ):
        for i in range(count):
            squeeze = max(1, channels // 4)
            rows.append(Row(kernel_size, channels, expand * channels, out, squeeze, 1 if i else stride, "silu"))
            channels = out
    return tuple(rows)


TABLES = {
    "MobileNetV2": Table(32, "relu6", _v2(), 1280, 0, "", "", 1e-5),
    "MobileNetV3-Large": Table(16, "hardswish", _v3(), 960, 1280, "relu", "hard_sigmoid", 1e-3),
    "EfficientNet-B0": Table(32, "silu", _b0(), 1280, 0, "silu", "sigmoid", 1e-3),
}
