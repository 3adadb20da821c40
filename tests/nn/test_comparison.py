"""How outputs are compared, within what rounding makes of them in each dtype, and how variants take turns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from models.comparison import DTYPES, made
from models.registry import SMALL

from mpsfunc import nn
from mpsfunc.core import launch
from mpsfunc.nn.comparison import (
    BOUNDS,
    CONVERTED,
    INFERENCE,
    STOCK,
    NotMeasured,
    Timing,
    Variant,
    apart,
    bounds_of,
    difference,
    measured,
    timings,
    turns,
)
from mpsfunc.nn.timing import Passes

# How far outputs are apart ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([1.0, 4.0], [1.0, 4.0], 0.0),
        ([1.0, 3.0], [1.0, 4.0], 0.25),
        ([1.0, math.nan], [1.0, math.nan], 0.0),
        ([1.0, math.inf], [1.0, math.inf], 0.0),
        ([1.0, math.nan], [1.0, 4.0], math.inf),
        ([1.0, 4.0], [1.0, math.nan], math.inf),
        ([1.0, math.inf], [1.0, -math.inf], math.inf),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 1.0], [0.0, 0.0], math.inf),
        ([], [], 0.0),
        ([1.0 + 1.0j, 4.0], [1.0 + 3.0j, 4.0], 0.5),
        ([1, 2, 3, 900], [1, 2, 3, 4], 0.25),
        ([True, False], [True, True], 0.5),
    ],
)
def test_the_greatest_difference_is_a_share_of_the_largest(got: list[Any], want: list[Any], expected: float) -> None:
    assert difference(mx.array(got), mx.array(want)) == expected


def test_each_output_has_the_bound_of_its_own_dtype() -> None:
    """What is right for bfloat16 is wrong for float32 beside it."""
    want = {"a": mx.ones(4, mx.bfloat16), "b": mx.ones(4)}
    assert apart(want, want) == (0.0, "")
    assert apart({**want, "a": want["a"] * 1.05}, want)[1] == ""
    off, why = apart({**want, "b": want["b"] * 1.05}, want)
    assert off == pytest.approx(0.05, rel=1e-3)
    assert why == "its output b differs by 0.05 of the largest; float32 may by 1e-05"


def test_the_output_that_is_most_off_is_told() -> None:
    want = {"a": mx.ones(4, mx.bfloat16), "b": mx.ones(4)}
    off, why = apart({"a": want["a"] * 1.5, "b": want["b"] * 1.01}, want)
    assert off == pytest.approx(0.5, rel=1e-2) and why.startswith("its output b differs by 0.01 ")


@pytest.mark.parametrize(
    ("got", "want", "why"),
    [
        (mx.ones(3), mx.ones(4), "its output is float32[3] and mlx.nn's float32[4]"),
        (mx.ones(4, mx.float16), mx.ones(4), "its output is float16[4] and mlx.nn's float32[4]"),
        (mx.ones(4, mx.int32), mx.ones(4), "its output is int32[4] and mlx.nn's float32[4]"),
        (mx.array([math.nan]), mx.ones(1), "its output differs by what is infinite, NaN or nothing but zeros; float32"),
        (mx.arange(50), mx.arange(50) // 2, "its output differs by 0.98 of its numbers; int32 may by 0.01"),
        (mx.arange(200), mx.minimum(mx.arange(200), 198), ""),
        (mx.array([1 + 1j]), mx.array([1 + 1.001j]), "its output differs by 0.001 of the largest; complex64 may by"),
    ],
)
def test_what_is_not_the_same(got: mx.array, want: mx.array, why: str) -> None:
    said = apart({"": got}, {"": want})[1]
    assert said.startswith(why) and bool(said) == bool(why)


def test_outputs_at_other_places() -> None:
    off, why = apart({"a": mx.ones(2)}, {"a": mx.ones(2), "b": mx.ones(2)})
    assert off == math.inf and why == "its outputs are ['a'] and mlx.nn's ['a', 'b']"


def test_what_is_computed_in_a_narrower_dtype_has_its_bound() -> None:
    cpu = mx.Device(mx.cpu)
    assert bounds_of([mx.float32, mx.uint8], cpu) == {**BOUNDS, mx.float64: BOUNDS[mx.float32]}
    assert bounds_of([mx.float64], cpu) == bounds_of([], cpu) == BOUNDS
    assert set(bounds_of([mx.float32, mx.bfloat16], cpu).values()) == {BOUNDS[mx.bfloat16]}
    assert bounds_of([mx.float16], cpu)[mx.float32] == BOUNDS[mx.float16] < bounds_of([mx.float16], cpu)[mx.bfloat16]


def test_tf32_has_the_digits_of_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend, tf32, bound in (("cuda", "1", BOUNDS[mx.float16]), ("cuda", "0", 1e-4), ("metal", "1", 1e-4)):
        monkeypatch.setattr(launch, "backend", lambda stream, backend=backend: backend)
        monkeypatch.setattr(mx, "default_stream", lambda device: None)
        monkeypatch.setenv("MLX_ENABLE_TF32", tf32)
        assert bounds_of([mx.float32], mx.Device(mx.gpu))[mx.float32] == bound
        assert bounds_of([mx.float32], mx.Device(mx.cpu))[mx.float32] == BOUNDS[mx.float32]


NETWORKS = [each for each in SMALL if each.name in ("U-Net", "CIFAR ResNet", "ConvNeXt")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda each: str(each.name))
def test_networks_are_well_within_the_bounds(network: Any, dtype: str, on_cpu: mx.Device) -> None:
    """Which are a few times what these differ by, U-Nets the most."""
    found = []
    for how in (STOCK, CONVERTED, INFERENCE):
        model, x = made(network, 0, DTYPES[dtype])
        model.eval()
        if how != STOCK:
            nn.convert(model, example=(x,), inference=how == INFERENCE)
        passes = Passes(model, x)
        passes.once("forward")
        found.append(passes.outputs)
    want, *others = found
    for got in others:
        off, why = apart(got, want)
        assert not why and 0 < off < BOUNDS[DTYPES[dtype]] / 2


def test_a_tenth_is_no_rounding() -> None:
    """In no dtype."""
    assert max(BOUNDS.values()) < 0.1 and BOUNDS[mx.float64] * 5 < BOUNDS[mx.float32] < BOUNDS[mx.float16] / 100


# Turns and medians ------------------------------------------------------------------------------------------


def test_they_take_turns_and_a_slow_one_sits_out() -> None:
    order: list[str] = []

    def side(name: str, seconds: float) -> Callable[[], float]:
        return lambda: order.append(name) or seconds  # type: ignore[func-returns-value]

    found = turns({"a": side("a", 1.0), "b": side("b", 3.0)}, 4, 5.0)
    assert order == ["a", "b", "b", "a", "a", "a"]
    assert found["a"] == [1.0] * 4 and found["b"][:2] == [3.0, 3.0] and all(map(math.isnan, found["b"][2:]))
    assert turns({}, 3, 1.0) == {}


def test_ratios_are_of_the_rounds_in_which_both_took_part() -> None:
    nan = math.nan
    found = timings({STOCK: [2.0, 9.0, nan], CONVERTED: [1.0, 3.0, 8.0]}, {STOCK: 5, CONVERTED: 6})
    assert found == {STOCK: Timing(5.5, 1.0, 5), CONVERTED: Timing(3.0, 2.5, 6)}
    assert timings({CONVERTED: [1.0]}, {CONVERTED: 6}) == {CONVERTED: Timing(1.0, None, 6)}


class Fake:
    """A model that takes so many seconds, of which one pass may be too slow."""

    report = nn.Conversion({}, {}, {}, {"a": "no drop-in for A"})

    def __init__(self, seconds: float, slow: str = "") -> None:
        self._seconds, self._slow = seconds, slow

    def first(self, what: str) -> int:
        if what == self._slow:
            raise NotMeasured(f"no {what}")
        return 7

    def outputs(self) -> dict[str, mx.array]:
        return {"": mx.ones(2)}

    def outputs_of_one(self) -> dict[str, mx.array] | None:
        return None

    def seconds(self, what: str) -> float:
        return self._seconds


def test_a_pass_that_is_too_slow_is_told_and_the_others_go_on() -> None:
    starts: Any = {STOCK: lambda: Fake(6.0, "step"), CONVERTED: lambda: Fake(2.0), INFERENCE: lambda: Fake(0.5)}
    found = measured("setting", starts, train=True, rounds=2, limit=60)
    assert found.variants == (
        Variant(STOCK, Timing(6.0, 1.0, 7), None, None, None, "no step"),
        Variant(CONVERTED, Timing(2.0, 3.0, 7), Timing(2.0, None, 7), 0.0, True, ""),
        Variant(INFERENCE, Timing(0.5, 12.0, 7), None, 0.0, True, ""),
    )
    assert str(found).splitlines() == [
        "setting",
        "               forward   x  MB    step  x  MB  difference",
        "mlx.nn          6.00 s   1   0       -",
        "converted       2.00 s   3   0  2.00 s      0       0e+00",
        "for inference   500 ms  12   0       -              0e+00",
        "mlx.nn: no step",
        *str(Fake.report).splitlines(),
    ]


def test_where_stock_has_no_outputs_nothing_is_said_to_agree() -> None:
    class Wrong(Fake):
        def outputs(self) -> dict[str, mx.array]:
            return {"": mx.zeros(2)}

    starts: Any = {STOCK: lambda: Fake(6.0, "forward"), CONVERTED: lambda: Wrong(2.0), INFERENCE: lambda: Fake(0.5)}
    found = measured("setting", starts, train=False, rounds=1, limit=60)
    assert found.agree is None and [each.agrees for each in found.variants] == [None, None, None]
    for each in found.variants[1:]:
        assert each.note == "not compared with mlx.nn" and each.forward and each.forward.ratio is None
    assert "converted: not compared with mlx.nn" in str(found) and found.as_dict()["agree"] is None


def test_what_differs_in_dtype_is_strict_json() -> None:
    class Half(Fake):
        def outputs(self) -> dict[str, mx.array]:
            return {"": mx.ones(2, mx.float16)}

    starts: Any = {STOCK: lambda: Fake(6.0), CONVERTED: lambda: Half(2.0), INFERENCE: lambda: Fake(0.5)}
    found = measured("setting", starts, train=True, rounds=1, limit=60)
    assert found.agree is False and found.variants[1].difference == math.inf and found.variants[1].step is None
    told = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert told["variants"][1]["difference"] is None and told["variants"][1]["agrees"] is False
    assert found.variants[1].note == "not timed, since its output is float16[2] and mlx.nn's float32[2]"
