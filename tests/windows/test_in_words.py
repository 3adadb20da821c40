"""How states print their axes: one line of meaning where the numbers have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

import mpsfunc as mf

pytestmark = pytest.mark.usefixtures("on_cpu")
X = (1, 7, 8, 4)
IN_WORDS: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: mf.avg_pool_state(X, 2), "7 -> 3 pixels: windows of 2, stride 2, last 1 unread", "8 -> 4 pixels: windows"),
    (
        lambda: mf.avg_pool_state(X, 3, stride=2, padding=1, edge_mode="clamp", zero_pad=1),
        "7 -> 4 pixels: windows of 3, stride 2, padding 1, clamp, zero_pad 1",
        "8 -> 4 pixels: windows of 3, stride 2, padding (1, 0), clamp, zero_pad 1",
    ),
    (
        lambda: mf.avg_pool_state(X, 3, padding=1, divisor_override=7),
        "7 -> 3 pixels: windows of 3, stride 3, divided by 7, padding 1",
        "8 -> 3 pixels: windows of 3, stride 3, divided by 1, padding (1, 0)",
    ),
    (
        lambda: mf.avg_pool_state(X, "adaptive", out_size=3),
        "7 -> 3 pixels: adaptive, windows of at most 3",
        "8 -> 3 pixels: adaptive, windows of at most 4",
    ),
    (lambda: mf.avg_pool_state(X, "global"), "7 -> 1 pixel: windows of 7", "8 -> 1 pixel: windows of 8"),
    (
        lambda: mf.conv_state(X, (2, 3, 3, 4), dilation=(1, 2), offset=3, out_size=(2, 3)),
        "7 -> 2 pixels: windows of 3, stride 1, from pixel 2 on, last 1 unread",
        "8 -> 3 pixels: windows of 3, stride 1, dilation 2, from pixel 1 on)",
    ),
    (
        lambda: mf.conv_state(X, (2, 3, 3, 4), padding=((0, 1), (2, 2)), padding_mode="reflect"),
        "7 -> 6 pixels: windows of 3, stride 1, padding (0, 1), reflect",
        "8 -> 10 pixels: windows of 3, stride 1, padding 2, reflect",
    ),
    (lambda: mf.pad_state(X, 1, (0, 2), "mirror"), "7 -> 8: 1 before, 0 behind, mirror", "8 -> 11: 1 before, 2 behind"),
    (
        lambda: mf.resize_bicubic_state(X, scale=0.7, antialias=True),
        "7 -> 4 pixels: bicubic, half_pixel, antialias, 0.7 times as large",
        "8 -> 5 pixels: bicubic, half_pixel, antialias, 0.7 times as large",
    ),
    (
        lambda: mf.upsample_bilinear_state(X, 2),
        "7 -> 14 pixels: bilinear, half_pixel, clamp",
        "8 -> 16 pixels: bilinear",
    ),
    (lambda: mf.resize_area_state(X, 3), "7 -> 3 pixels: area", "8 -> 3 pixels: area"),
]


@pytest.mark.parametrize(("make", "rows", "cols"), IN_WORDS)
def test_an_axis_is_one_line_of_meaning(make: Callable[[], Any], rows: str, cols: str) -> None:
    state = make()
    for field, words in (("rows", rows), ("cols", cols)):
        said = f"{type(state.rows).__name__}({words}"
        assert repr(getattr(state, field)).startswith(said) and f" {field}={said}" in repr(state)
        assert f"<td>{field}</td><td><code>{said.replace('>', '&gt;')}" in state._repr_html_()


@pytest.mark.parametrize("odd", [{"edge": 9}, {"stride": 0}, {"pad": 0.5}, {"pad": mx.array(1)}, {"size": None}])
def test_an_axis_that_means_nothing_has_its_numbers(odd: dict[str, Any]) -> None:
    """So that one sees which is wrong; errors always have them."""
    state = mf.avg_pool_state((2, 5, 4, 3), 2)
    forged = state._replace(rows=state.rows._replace(**odd))
    assert "rows=Axis(n_in=5, " in repr(forged) and "cols=Axis(4 -> 2 pixels: " in repr(forged)
    with pytest.raises((TypeError, ValueError), match=r"got state\.rows=Axis\(n_in=5, "):
        mf.avg_pool_grad(mx.ones((2, 2, 2, 3)), forged)


def test_a_forged_switch_is_printed_once_at_most() -> None:
    """Not as often as the number says that is in its place, for which there might be no memory."""
    state = mf.resize_bicubic_state(X, scale=0.7, antialias=True)
    told = repr(state._replace(rows=state.rows._replace(antialias=2**20)))
    assert len(told) < 1000
