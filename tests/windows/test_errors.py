"""Placement: what is refused, and in which words."""

from __future__ import annotations

import enum
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mpsfunc as mf
from mpsfunc.core.checks import no_kernel_offset
from mpsfunc.windows.placement import place, restrict_outputs
from mpsfunc.windows.policy import PaddingPolicy

FAR = 2**30
VALUE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"kernel_size": 0}, "kernel_size is too small"),
    ({"kernel_size": (1, 2, 3)}, "kernel_size is not a pair"),
    ({"stride": (1, 0)}, "stride is too small"),
    ({"dilation": -1}, "dilation is too small"),
    ({"zero_pad": -1}, "zero_pad is too small"),
    ({"zero_pad": ((0, 0), (2, -1))}, "zero_pad is too small"),
    ({"zero_pad": (1, 2, 3)}, "zero_pad is not a pair"),
    ({"zero_pad": ((1, 2, 3), 1)}, "zero_pad is not a pair"),
    ({"padding": -1}, "padding is negative, only an offset crops"),
    ({"padding": ((0, 0), (0, -1))}, "padding is negative, only an offset crops"),
    ({"padding": (1, 2, 3)}, "padding is not a pair"),
    ({"padding": ((1, 2, 3), 1)}, "padding is not a pair"),
    ({"padding": "some"}, "unknown padding"),
    ({"padding": PaddingPolicy(align="left")}, "unknown align in a PaddingPolicy"),  # type: ignore[arg-type]
    ({"padding": PaddingPolicy(remainder="top")}, "unknown remainder in a PaddingPolicy"),  # type: ignore[arg-type]
    ({"padding": PaddingPolicy(size="big")}, "unknown size in a PaddingPolicy"),  # type: ignore[arg-type]
    ({"padding": PaddingPolicy(exclude_edges=2)}, "unknown exclude_edges in a PaddingPolicy"),  # type: ignore[arg-type]
    ({"padding": PaddingPolicy(exclude_edges=True)}, "exclude_edges is for averages"),
    ({"padding": PaddingPolicy(exclude_edges=True), "zero_pad": 1}, "exclude_edges sets zero_pad"),
    ({"padding": PaddingPolicy(exclude_edges=True), "zero_pad": (0, (0, 1))}, "exclude_edges sets zero_pad"),
    ({"padding": PaddingPolicy(), "ceil_mode": True}, "ceil_mode needs padding in pixels"),
    ({"padding": "same", "ceil_mode": True}, "ceil_mode needs padding in pixels"),
    ({"padding": "valid", "kernel_size": 6}, "window does not fit"),
    ({"padding": PaddingPolicy(size="valid"), "kernel_size": 6}, "window does not fit"),
    ({"n_in": (0, 5), "padding": 3}, "image is empty"),
    ({"n_in": (5, 0), "padding": "same"}, "image is empty"),
    ({"n_in": (0, 0), "padding": PaddingPolicy()}, "image is empty"),
    ({"offset": 1}, "offset needs out_size"),
    ({"out_size": 1}, "out_size needs offset"),
    ({"offset": 1, "out_size": 0}, "out_size is too small"),
    ({"offset": 1, "out_size": 1, "padding": 1}, "offset excludes padding"),
    ({"offset": 1, "out_size": 1, "padding": PaddingPolicy()}, "offset excludes padding"),
    ({"offset": 1, "out_size": 1, "ceil_mode": True}, "offset excludes ceil_mode"),
    ({"edge_mode": "mirror"}, "unknown edge_mode"),
    ({"edge_mode": "clamp"}, "unknown edge_mode"),
    ({"n_in": (5, FAR)}, "windows reach too far"),
    ({"stride": FAR}, "windows reach too far"),
    ({"kernel_size": 1, "dilation": FAR}, "windows reach too far"),
    ({"padding": FAR}, "windows reach too far"),
    ({"offset": FAR + 1, "out_size": 1}, "windows reach too far"),
    ({"offset": -FAR, "out_size": 1}, "windows reach too far"),
    ({"offset": 0, "out_size": FAR}, "windows reach too far"),
    ({"offset": 0, "out_size": 3, "stride": FAR // 2}, "windows reach too far"),
    ({"kernel_size": FAR, "stride": 1, "offset": FAR // 2, "out_size": 1}, "windows reach too far"),
    ({"edge_mode": "clamp", "edge_modes": ("clamp",), "zero_pad": FAR - 5}, "windows reach too far"),
    ({"edge_mode": "clamp", "edge_modes": ("clamp",), "zero_pad": ((0, FAR - 5), 0)}, "windows reach too far"),
]
TYPE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"kernel_size": 2.0}, "kernel_size is not an int"),
    ({"kernel_size": True}, "kernel_size is not an int"),
    ({"kernel_size": None}, "kernel_size is not an int"),
    ({"kernel_size": np.array([3, 3])}, "kernel_size is not an int"),
    ({"kernel_size": np.bool_(True)}, "kernel_size is not an int"),
    ({"stride": (1, 1.5)}, "stride is not an int"),
    ({"dilation": "2"}, "dilation is not an int"),
    ({"padding": None}, "padding is not an int"),
    ({"padding": ((0, 1), (0, False))}, "padding is not an int"),
    ({"offset": 0.5, "out_size": 1}, "offset is not an int"),
    ({"zero_pad": 1.0}, "zero_pad is not an int"),
    ({"zero_pad": (0, (1, True))}, "zero_pad is not an int"),
    ({"edge_mode": 1}, "edge_mode is not a name"),
]


@pytest.mark.parametrize(
    ("kind", "how", "words"),
    [(ValueError, *case) for case in VALUE_ERRORS] + [(TypeError, *case) for case in TYPE_ERRORS],
)
def test_errors_say_what_is_wrong(kind: type[Exception], how: dict[str, Any], words: str) -> None:
    with pytest.raises(kind, match=rf"^avg_pool: {words}; got [\w ]+=.+, expected .+") as caught:
        place("avg_pool", **({"n_in": (5, 5), "kernel_size": 3} | how))
    assert caught.type is kind


def test_errors_in_full() -> None:
    for how, words in [
        (
            {"stride": (1, 0)},
            "stride is too small; got stride=(1, 0), expected an int or a (y, x) pair of ints >= 1",
        ),
        (
            {"edge_mode": "max", "edge_modes": ("zero", "clamp")},
            "unknown edge_mode; got edge_mode='max', expected 'zero' or 'clamp'",
        ),
        (
            {"padding": FAR},
            f"windows reach too far; got padding={FAR}, expected windows within 2**30 pixels",
        ),
        (
            {"n_in": (5, 0), "padding": 1},
            "image is empty; got height and width=(5, 0), expected at least 1, or an offset",
        ),
        (
            {"padding": PaddingPolicy(size="big")},  # type: ignore[arg-type]
            "unknown size in a PaddingPolicy; got size='big', expected 'valid' or 'same' or 'full'",
        ),
    ]:
        with pytest.raises(ValueError) as caught:
            place("avg_pool", **({"n_in": (5, 5), "kernel_size": 3, "stride": 1} | how))
        assert str(caught.value) == f"avg_pool: {words}"


def test_positions_reach_just_below_2_to_30() -> None:
    size = FAR - 1
    rows, _ = place("op", (size, size), size, stride=size, dilation=1, offset=size // 2, out_size=1)
    assert (rows.n_in, rows.size, rows.stride, rows.pad) == (size, size, size, 0)


@pytest.mark.parametrize(
    ("how", "most"),
    [
        ({"kernel_size": 5}, (4, 4)),
        ({"kernel_size": (9, 2), "padding": ((1, 2), (0, 0))}, (7, 4)),
        ({"kernel_size": 3, "dilation": 2, "padding": (1, 0)}, (3, 2)),
        ({"kernel_size": 7, "stride": 2, "ceil_mode": True}, (5, 5)),
        ({"kernel_size": 5, "padding": PaddingPolicy(size="valid")}, (4, 4)),
    ],
)
def test_a_window_that_does_not_fit_says_how_large_it_may_be(how: dict[str, Any], most: tuple[int, int]) -> None:
    size = how["kernel_size"] if isinstance(how["kernel_size"], tuple) else (how["kernel_size"],) * 2
    with pytest.raises(ValueError) as caught:
        place("avg_pool", (4, 4), **how)
    words = f"avg_pool: window does not fit; got kernel_size={size}, expected at most {most} with padding"
    assert str(caught.value) == words
    place("avg_pool", (4, 4), **(how | {"kernel_size": most}))


def test_errors_of_the_helpers() -> None:
    axes = place("op", (8, 8), 2)
    for kind, given_window, words in [
        (ValueError, 3, "source_window is not two pairs"),
        (ValueError, ((0, 0), (1, 1), (1, 1)), "source_window is not two pairs"),
        (ValueError, ((0, 0), (1, 1, 1)), "source_window is not a pair"),
        (ValueError, ((0, 0), (1, -1)), "source_window has a negative size"),
        (TypeError, ((0, 0.0), (1, 1)), "source_window is not an int"),
    ]:
        with pytest.raises(kind, match=f"^avg_pool_grad: {words}; got source_window="):
            restrict_outputs("avg_pool_grad", axes, given_window)  # type: ignore[arg-type]

    no_kernel_offset("avg_pool_grad", None)
    with pytest.raises(
        ValueError, match=r"^avg_pool_grad: kernel_offset has no meaning here; got kernel_offset=\(0, 1\)"
    ):
        no_kernel_offset("avg_pool_grad", (0, 1))

    with pytest.raises(ValueError, match="^PaddingPolicy: unknown size in a PaddingPolicy; got size='big'"):
        PaddingPolicy(size="big").forward(5, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^PaddingPolicy: stride is too small; got stride=0"):
        PaddingPolicy().reverse(5, 3, stride=0)
    with pytest.raises(TypeError, match="^PaddingPolicy: kernel_size is not an int; got kernel_size=3.0"):
        PaddingPolicy().forward(5, 3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ("kernel_size", "stride", "dilation", "padding"))
@pytest.mark.parametrize("wrong", (True, 1.0, (1, True)))
def test_an_equal_value_of_another_type_is_not_taken_for_the_one_before(name: str, wrong: object) -> None:
    for value in (1, (1, 1)):
        place("op", (5, 5), **{"kernel_size": 2, name: value})  # what a cache could remember
    with pytest.raises(TypeError, match=f"^op: {name} is not an int"):
        place("op", (5, 5), **{"kernel_size": 2, name: wrong})


@pytest.mark.parametrize("name", ("stride", "dilation", "padding"))
@pytest.mark.parametrize("wrong", (True, 1.0, (1, True)))
def test_nor_is_one_by_a_convolution(name: str, wrong: object) -> None:
    shapes = (1, 5, 5, 2), (4, 3, 3, 2)
    for value in (1, (1, 1)):
        mf.conv_state(*shapes, **{name: value})
    with pytest.raises(TypeError, match=f"^conv_state: {name} is not an int"):
        mf.conv_state(*shapes, **{name: wrong})


def test_a_kind_of_int_is_not_remembered() -> None:
    mf.conv_state((1, Size.seven, 9, 2), (4, 3, 3, 2), stride=2)
    state = mf.conv_state((1, 7, 9, 2), (4, 3, 3, 2), stride=2)
    assert type(state.rows.n_in) is int
    assert mf.conv_grad_input(mx.ones((1, 3, 4, 4)), mx.ones((4, 3, 3, 2)), state).shape == (1, 7, 9, 2)


class Size(enum.IntEnum):
    seven = 7
