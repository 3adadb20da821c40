"""Placement: worked values, and the rules of other frameworks by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsfunc.windows.axis import Axis
from mpsfunc.windows.placement import edge_code, place, restrict_outputs
from mpsfunc.windows.policy import PaddingPolicy


def taps(axis: Axis, o: int) -> list[int]:
    """The positions that output o reads, inside the image or not: the definition of an Axis."""
    return [o * axis.stride - axis.pad + k * axis.dilation for k in range(axis.size)]


def rows_of(length: int, kernel: int, stride: int = 1, dilation: int = 1, **how: Any) -> Axis:
    rows, cols = place("op", (length, length), kernel, stride=stride, dilation=dilation, **how)
    if not isinstance(how.get("padding"), PaddingPolicy):
        assert rows == cols
    return rows


def spot(axis: Axis) -> tuple[int, int]:
    """(D, o): the size, and the pixel under the centre of the first window."""
    return axis.n_out, ((axis.size - 1) * axis.dilation + 1) // 2 - axis.pad


# ---- MPS policies ----

POLICIES = {
    "same, top left": PaddingPolicy(),
    "same, bottom right": PaddingPolicy(remainder="bottom_right"),
    "valid, top left": PaddingPolicy(size="valid"),
    "valid, bottom right": PaddingPolicy(size="valid", remainder="bottom_right"),
    "valid, aligned bottom right": PaddingPolicy("bottom_right", size="valid"),
    "full, top left": PaddingPolicy(size="full"),
}
WORKED = {
    (5, 3, 1, 1): ((5, 0), (5, 0), (3, 1), (3, 1), (3, 1), (7, -1)),
    (5, 2, 1, 1): ((5, 0), (5, 1), (4, 1), (4, 1), (4, 1), (6, 0)),
    (6, 2, 2, 1): ((3, 1), (3, 1), (3, 1), (3, 1), (3, 1), (4, 0)),
    (5, 3, 2, 1): ((3, 0), (3, 0), (2, 1), (2, 1), (2, 1), (4, -1)),
    (6, 3, 2, 1): ((3, 0), (3, 1), (2, 1), (2, 1), (2, 1), (4, -1)),
    (7, 4, 2, 1): ((4, 0), (4, 1), (2, 2), (2, 2), (2, 2), (5, -1)),
    (8, 3, 3, 1): ((3, 0), (3, 1), (2, 1), (2, 2), (2, 1), (4, -1)),
    (7, 2, 3, 1): ((3, 0), (3, 1), (2, 1), (2, 2), (2, 1), (3, 0)),
    (6, 3, 1, 2): ((6, 0), (6, 0), (2, 2), (2, 2), (2, 2), (10, -2)),
}


@pytest.mark.parametrize(
    ("geometry", "policy", "expected"),
    [
        pytest.param(geometry, policy, values[column], id=f"{geometry} {name}")
        for geometry, values in WORKED.items()
        for column, (name, policy) in enumerate(POLICIES.items())
    ],
)
def test_policy_worked_values(
    geometry: tuple[int, int, int, int], policy: PaddingPolicy, expected: tuple[int, int]
) -> None:
    length, kernel, stride, dilation = geometry
    assert policy.forward(length, kernel, stride, dilation) == expected
    assert policy.forward(length, kernel, stride, dilation, axis=1) == expected
    rows, cols = place("op", (length, length), kernel, stride=stride, dilation=dilation, padding=policy)
    assert spot(rows) == spot(cols) == expected


def test_remainder_corners_decide_each_axis() -> None:
    first = {"top_left": (0, 0), "top_right": (0, 1), "bottom_left": (1, 0), "bottom_right": (1, 1)}
    for corner, (y, x) in first.items():
        policy = PaddingPolicy(remainder=corner)  # type: ignore[arg-type]
        assert (policy.forward(6, 3, 2, axis=0), policy.forward(6, 3, 2, axis=1)) == ((3, y), (3, x))
        rows, cols = place("op", (6, 6), 3, stride=2, padding=policy)
        assert (spot(rows), spot(cols)) == ((3, y), (3, x))


def test_alignment_moves_all_of_the_overhang() -> None:
    assert rows_of(7, 4, 2, padding=PaddingPolicy("top_left")).pad == 3  # (4 - 1) * 2 + 4 - 7
    assert rows_of(7, 4, 2, padding=PaddingPolicy("bottom_right")).pad == 0
    assert rows_of(8, 3, 3, padding=PaddingPolicy("top_left", size="valid")).pad == -2


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_default_policy_at_stride_1_is_centred_on_pixel_0(kernel: int) -> None:
    assert PaddingPolicy().forward(9, kernel) == (9, 0)
    assert PaddingPolicy().forward(9, kernel, dilation=2) == (9, 0)


def test_default_policy_is_not_tensorflow_same_when_the_total_is_odd() -> None:
    assert rows_of(6, 3, 2, padding=PaddingPolicy()) != rows_of(6, 3, 2, padding="same")
    assert rows_of(6, 3, 2, padding=PaddingPolicy(remainder="bottom_right")) == rows_of(6, 3, 2, padding="same")


def test_centred_valid_may_start_inside() -> None:
    assert taps(rows_of(8, 3, 3, padding=POLICIES["valid, bottom right"]), 0) == [1, 2, 3]
    assert rows_of(8, 3, 3, padding=POLICIES["valid, aligned bottom right"]) == rows_of(8, 3, 3)


def test_tensorflow_clamps_its_padding_at_0_and_mps_does_not() -> None:
    assert taps(rows_of(9, 1, 4, padding="same"), 0) == [0]
    assert taps(rows_of(8, 1, 4, padding=POLICIES["same, bottom right"]), 0) == [1]  # extra -3, half of it -1
    assert taps(rows_of(8, 1, 4, padding="same"), 0) == [0]


@pytest.mark.parametrize(("length", "kernel", "stride"), [(6, 3, 2), (7, 4, 2), (5, 2, 1), (9, 1, 4), (8, 5, 3)])
def test_same_lower_has_the_odd_pixel_in_front(length: int, kernel: int, stride: int) -> None:
    upper, lower = (rows_of(length, kernel, stride, padding=name) for name in ("same", "same_lower"))
    total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
    assert (upper.pad, lower.pad) == (total // 2, -(-total // 2))
    assert lower == upper._replace(pad=lower.pad)


def test_halving_truncates_toward_zero() -> None:
    assert rows_of(8, 3, 3, padding=POLICIES["valid, top left"]).pad == 0  # (-2 + 1) / 2


def test_tensorflow_average_pooling_is_same_with_clamp() -> None:
    rows = rows_of(6, 3, 2, padding="same", edge_mode="clamp", edge_modes=("zero", "clamp"), zero_pad=0)
    assert (rows.n_out, rows.pad, rows.edge, rows.zero_pad) == (3, 0, 1, 0)


def test_reverse_direction_runs_over_the_zero_inserted_source() -> None:
    assert PaddingPolicy(size="full").reverse(2, 3, stride=2) == (5, -1)
    assert PaddingPolicy(size="valid").reverse(4, 3, stride=2) == (5, 1)
    assert PaddingPolicy().reverse(3, 4, stride=2) == (5, 0)
    assert PaddingPolicy(remainder="bottom_left").reverse(3, 4, stride=2, axis=0) == (5, 1)
    assert PaddingPolicy(remainder="bottom_left").reverse(3, 4, stride=2, axis=1) == (5, 0)
    assert PaddingPolicy(size="full").reverse(3, 2, stride=2, dilation=3) == (8, -1)


def test_inverse_policies() -> None:
    inverse = {"valid": "full", "full": "valid", "same": "same"}
    for size, other in inverse.items():
        policy = PaddingPolicy("top_left", "bottom_left", size, True)  # type: ignore[arg-type]
        assert policy.inverse() == PaddingPolicy("top_left", "bottom_left", other, True)  # type: ignore[arg-type]


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.data())
def test_inverse_policy_finds_the_smallest_length(
    length: int, kernel: int, stride: int, dilation: int, data: st.DataObject
) -> None:
    policy = PaddingPolicy(size=data.draw(st.sampled_from(["same", "valid", "full"])))
    outputs = {n: policy.forward(n, kernel, stride, dilation)[0] for n in range(1, length + 1)}
    if outputs[length] >= 1:
        smallest = min(n for n in outputs if outputs[n] == outputs[length])
        found, _ = policy.inverse().reverse(outputs[length], kernel, stride, dilation)
        assert found <= smallest and policy.forward(max(found, 1), kernel, stride, dilation)[0] == outputs[length]
        assert found == smallest or smallest == 1


def test_exclude_edges_counts_the_padding_before_the_image() -> None:
    for policy, zero_pad in [
        (PaddingPolicy(exclude_edges=True), 1),
        (PaddingPolicy(remainder="bottom_right", exclude_edges=True), 0),
        (PaddingPolicy(size="full", exclude_edges=True), 2),
        (PaddingPolicy(size="valid", remainder="bottom_right", exclude_edges=True), 0),
    ]:
        for axis in place("op", (8, 8), 3, padding=policy, zero_pad=0):
            assert (axis.edge, axis.zero_pad, axis.zero_pad_after) == (1, zero_pad, zero_pad), policy


# ---- Offsets, even windows, pixels, names ----


def test_even_and_dilated_windows_are_centred_on_their_extent() -> None:
    assert taps(rows_of(9, 2, offset=0, out_size=1), 0) == [-1, 0]
    assert taps(rows_of(9, 3, offset=0, out_size=1), 0) == [-1, 0, 1]
    assert taps(rows_of(9, 2, dilation=3, offset=0, out_size=1), 0) == [-2, 1]
    assert taps(rows_of(9, 4, dilation=2, offset=5, out_size=1), 0) == [2, 4, 6, 8]


def test_offsets_may_be_negative_and_windows_lie_wholly_outside() -> None:
    rows, cols = place("op", (3, 4), (2, 3), stride=(2, 1), offset=(-4, 9), out_size=(5, 1))
    assert rows == Axis(3, 5, 2, 2, 1, 5, 0, 0, 0, 5, 0)
    assert cols == Axis(4, 1, 3, 1, 1, -8, 0, 0, 0, 1, 0)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 6))
def test_recommended_offset_spreads_windows_evenly(length: int, kernel: int, stride: int) -> None:
    rest = (length - 1) % stride
    offset = -(-rest // 2) if kernel % 2 else rest // 2 + 1
    axis = rows_of(length, kernel, stride, offset=offset, out_size=-(-length // stride))
    behind = taps(axis, axis.n_out - 1)[-1] - (length - 1)
    assert behind - axis.pad in (0, 1)
    if (length, stride) in ((8, 3), (5, 3)) and kernel in (2, 3):
        assert offset == 1


def test_padding_in_pixels() -> None:
    assert place("op", (5, 6), 3, stride=1, padding=1) == place("op", (5, 6), 3, stride=1, padding=(1, 1))
    rows, cols = place("op", (5, 6), (3, 2), padding=((1, 2), (0, 3)), stride=(2, 1), dilation=(1, 2))
    assert rows == Axis(5, 3, 3, 2, 1, 1, 0, 0, 0, 3, 0)
    assert cols == Axis(6, 7, 2, 1, 2, 0, 0, 0, 0, 7, 0)
    assert place("op", (5, 6), 3, padding=(1, (1, 1))) == place("op", (5, 6), 3, padding=[[1, 1], [1, 1]])
    assert rows_of(1, 1, 1, padding=3).n_out == 7  # windows wholly in the padding


def test_stride_is_the_window_by_default() -> None:
    rows, cols = place("op", (9, 9), (2, 3))
    assert (rows.stride, cols.stride) == (2, 3)


def test_an_axis_holds_plain_ints() -> None:
    clamp: Any = {"edge_mode": "clamp", "edge_modes": ("clamp",), "zero_pad": np.int8(1)}
    rows, cols = place("op", (4, 4), np.int64(2), padding=(np.int32(1), 0), **clamp)
    assert {type(value) for value in (*rows, *cols)} == {int}


def test_edge_modes_and_zero_pad() -> None:
    both = ("zero", "clamp")
    rows, cols = place("op", (4, 4), 2, edge_mode="clamp", edge_modes=both, zero_pad=(1, 2))
    assert (rows.edge, rows.zero_pad, cols.edge, cols.zero_pad) == (1, 1, 1, 2)
    assert (rows.zero_pad_after, cols.zero_pad_after) == (1, 2)
    assert (
        place("op", (4, 4), 2, zero_pad=3)
        == place("op", (4, 4), 2, zero_pad=((1, 2), (3, 4)))
        == place("op", (4, 4), 2)
    )
    assert [edge_code("op", mode) for mode in both] == [0, 1]


@pytest.mark.parametrize(
    ("zero_pad", "sides"),
    [
        (2, (2, 2, 2, 2)),
        ((1, 3), (1, 1, 3, 3)),
        ([1, 3], (1, 1, 3, 3)),
        (((0, 1), (2, 3)), (0, 1, 2, 3)),
        ((4, (2, 0)), (4, 4, 2, 0)),
        ([[0, 1], np.int64(5)], (0, 1, 5, 5)),
    ],
    ids=str,
)
def test_zeros_that_count_are_said_as_padding_is(zero_pad: Any, sides: tuple[int, ...]) -> None:
    rows, cols = place("op", (4, 4), 2, edge_mode="clamp", edge_modes=("clamp",), zero_pad=zero_pad)
    assert (rows.zero_pad, rows.zero_pad_after, cols.zero_pad, cols.zero_pad_after) == sides
    assert [type(value) for value in (*rows, *cols)] == [int] * 22
    padded = place("op", (4, 4), 2, padding=zero_pad)
    assert [axis.pad for axis in padded] == [axis.zero_pad for axis in (rows, cols)]


def test_empty_image_needs_an_offset() -> None:
    assert rows_of(0, 2, offset=0, out_size=3) == Axis(0, 3, 2, 1, 1, 1, 0, 0, 0, 3, 0)


# ---- The rules of other frameworks, by enumeration ----

lengths, kernels, strides, dilations = (
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 3),
)
pixels = st.integers(0, 5)


def starts(before: int, stride: int, keep: Callable[[int], bool]) -> list[int]:
    """Where windows start: every stride from ``-before`` on, as long as ``keep`` says so."""
    found = []
    while keep(start := -before + stride * len(found)):
        found.append(start)
    return found


def agrees(axis: Axis, expected: list[int]) -> bool:
    return [taps(axis, o)[0] for o in range(axis.n_out)] == expected


@given(lengths, kernels, strides, dilations, pixels, pixels, st.booleans())
def test_pixels_as_pytorch_and_onnx(
    length: int, kernel: int, stride: int, dilation: int, before: int, after: int, ceil_mode: bool
) -> None:
    extent = (kernel - 1) * dilation + 1

    def fits(start: int) -> bool:
        if ceil_mode:  # overhangs by less than a stride, and does not start behind the image
            return start + extent < length + after + stride and start < length
        return start + extent <= length + after

    expected = starts(before, stride, fits)
    how: Any = {"padding": ((before, after), (before, after)), "ceil_mode": ceil_mode}
    if expected:
        assert agrees(rows_of(length, kernel, stride, dilation, **how), expected)
    else:
        with pytest.raises(ValueError, match=r"^op: window does not fit; .* at most \((\d+), \1\)"):
            rows_of(length, kernel, stride, dilation, **how)


@given(lengths, kernels, strides, dilations)
def test_same_as_tensorflow(length: int, kernel: int, stride: int, dilation: int) -> None:
    extent = (kernel - 1) * dilation + 1
    last = starts(0, stride, lambda start: start < length)[-1]
    total = next(t for t in range(99) if last + extent <= length + t)
    expected = starts(total // 2, stride, lambda start: start < length - total // 2)
    assert agrees(rows_of(length, kernel, stride, dilation, padding="same"), expected)


@given(lengths, kernels, strides, dilations)
def test_full_reads_every_pixel_with_every_tap(length: int, kernel: int, stride: int, dilation: int) -> None:
    extent = (kernel - 1) * dilation + 1
    expected = starts(extent - 1, stride, lambda start: start < length)
    assert agrees(rows_of(length, kernel, stride, dilation, padding="full"), expected)
    assert (
        rows_of(length, extent, stride, padding="full").n_out
        == PaddingPolicy(size="full").forward(length, extent, stride)[0]
    )


def test_valid_is_no_padding() -> None:
    assert rows_of(7, 3, 2, padding="valid") == rows_of(7, 3, 2)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parity
@given(
    length=lengths,
    kernel=kernels,
    stride=strides,
    dilation=dilations,
    padding=pixels,
    ceil_mode=st.booleans(),
)
def test_sizes_of_pytorch(
    torch: Any, length: int, kernel: int, stride: int, dilation: int, padding: int, ceil_mode: bool
) -> None:
    image, padding = torch.zeros(1, 1, length), min(padding, kernel // 2)
    try:
        n_out = torch.nn.functional.max_pool1d(image, kernel, stride, padding, dilation, ceil_mode).shape[-1]
    except RuntimeError:
        with pytest.raises(ValueError, match="^op: window does not fit;"):
            rows_of(length, kernel, stride, dilation, padding=padding, ceil_mode=ceil_mode)
    else:
        axis = rows_of(length, kernel, stride, dilation, padding=padding, ceil_mode=ceil_mode)
        assert axis.n_out == n_out


# ---- source_window ----


def test_source_window_is_cut_to_the_output() -> None:
    axes = place("op", (8, 8), 2)
    assert restrict_outputs("op", axes, None) == axes
    for given_window, expected in [
        (((0, 0), (4, 4)), (0, 4, 0, 4)),
        (((1, -1), (9, 3)), (1, 4, 0, 2)),
        (((4, -3), (2, 3)), (4, 4, 0, 0)),
        (((2, 1), (0, 1)), (2, 2, 1, 2)),
        ([[2, 1], 1], (2, 3, 1, 2)),
    ]:
        rows, cols = restrict_outputs("op", axes, given_window)
        assert (rows.begin, rows.end, cols.begin, cols.end) == expected
        whole = [now._replace(begin=0, end=4) for now in (rows, cols)]
        assert whole == list(axes)


def test_source_windows_intersect() -> None:
    once = restrict_outputs("op", place("op", (8, 8), 2), ((1, 1), (2, 2)))
    rows, cols = restrict_outputs("op", once, ((0, 2), (2, 2)))
    assert (rows.begin, rows.end, cols.begin, cols.end) == (1, 2, 2, 3)
