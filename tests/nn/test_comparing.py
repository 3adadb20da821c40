"""What `compare` measures: the same numbers first, then times in turns, and a word where something is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest

from mpsfunc import nn
from mpsfunc.nn import comparing, comparison
from mpsfunc.nn.comparison import CONVERTED, INFERENCE, STOCK, Timing, TooSlow, difference, measured, timings, turns

SHAPE = (2, 8, 8, 3)


class Mean(stock.Module):
    def __call__(self, x: mx.array) -> mx.array:
        return x.mean((1, 2))


def build() -> stock.Module:
    body = stock.Conv2d(3, 4, 3, padding=1), stock.BatchNorm(4), stock.ReLU()
    return stock.Sequential(*body, Mean(), stock.Dropout(0.5), stock.Linear(4, 5))


# The whole --------------------------------------------------------------------------------------------------


def test_a_model_is_compared_with_its_conversions() -> None:
    found = nn.compare(build, SHAPE, rounds=2)
    stocks, converted, inference = found.variants
    assert [each.name for each in found.variants] == [STOCK, CONVERTED, INFERENCE] and found.agree
    assert stocks.difference is None and converted.difference is not None and converted.difference < 1e-4
    for each in (stocks, converted):
        assert each.forward and each.step and each.forward.seconds > 0 and each.step.seconds > 0 and not each.note
        assert each.step.bytes > each.forward.bytes > 0
    assert stocks.forward and stocks.forward.ratio == 1 and inference.step is None and not inference.note
    assert inference.forward and inference.difference is not None and inference.difference < 1e-4
    assert found.report.fused == {"layers.1": "layers.2"} and len(found.report.replaced) == 5
    assert found.setting.startswith("2x8x8x3 float32 on the ") and ", 2 rounds\n" in found.setting
    lines = str(found).splitlines()
    assert len(lines) < 20 and lines[3].startswith("mlx.nn ") and lines[4].startswith("converted ")
    assert "\n".join(lines).endswith(str(found.report)) and lines[-3].startswith("5 layers: 5 replaced, 1 fused")


def test_training_can_be_left_out_and_the_result_is_json() -> None:
    found = nn.compare(build, mx.ones(SHAPE), train=False, rounds=1)
    told = json.loads(json.dumps(found.as_dict()))
    assert told["agree"] is True and told["variants"][1]["name"] == "converted"
    assert told["variants"][1]["forward"].keys() == {"seconds", "ratio", "bytes"}
    assert [each["step"] for each in told["variants"]] == [None, None, None]
    assert told["report"]["fused"] == {"layers.1": "layers.2"} and told["report"]["hint"] == ""


def test_dtypes_lists_of_outputs_and_a_loss_of_one_s_own() -> None:
    class Two(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = stock.Conv2d(3, 4, 1)

        def __call__(self, x: mx.array) -> Any:
            y = self.body(x)
            return {"y": y, "more": [y * 2, 3]}

    seen = []

    def loss(y: Any) -> mx.array:
        seen.append(sorted(y))
        return y["more"][0].sum()

    def half() -> stock.Module:
        model = Two()
        model.set_dtype(mx.float16)
        return model

    found = nn.compare(half, mx.ones(SHAPE, mx.float16), loss=loss, rounds=1)
    assert found.agree and found.variants[1].step and set(map(tuple, seen)) == {("more", "y")}
    assert "float16" in found.setting


def test_all_have_the_parameters_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And begin with them, though the first has been trained by then."""
    given: list[mx.array] = []
    real = comparing.converted

    def noted(model: Any, x: mx.array, name: str) -> Any:
        given.append(model.layers[0].weight)
        return real(model, x, name)

    monkeypatch.setattr(comparing, "converted", noted)
    nn.compare(build, SHAPE, rounds=1)
    assert len(given) == 3 and all(mx.array_equal(each, given[0]) for each in given)


def test_what_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(model: Any, **how: Any) -> Any:
        model.layers[0].bias = model.layers[0].bias + 1
        return nn.convert(model, **how)

    monkeypatch.setattr(comparing, "convert", spoilt)
    found = nn.compare(build, SHAPE, rounds=1)
    assert not found.agree and found.variants[0].forward
    for each in found.variants[1:]:
        assert each.forward is None and each.step is None
        assert each.note.startswith("not timed, since its outputs differ by ") and each.note in str(found)


def test_stock_is_left_out_where_one_image_says_that_it_takes_too_long() -> None:
    found = nn.compare(build, SHAPE, rounds=1, limit=1e-9)
    first, converted, _ = found.variants
    assert first.forward is None and first.step is None
    assert first.note.startswith("no forward pass, which by that of one image takes ")
    assert converted.forward and converted.forward.ratio is None and converted.difference is None


def test_a_step_alone_may_take_too_long() -> None:
    """The forward pass is timed all the same."""
    passes = comparing.Passes
    slow = comparing._Local(build(), nn.Conversion({}, {}, {}, {}), mx.ones(SHAPE), None, 0, 60.0, build())
    assert slow.first("forward") > 0
    slow._limit = 0.0
    with pytest.raises(TooSlow, match="no training step, which by that of one image takes "):
        slow.first("step")
    assert slow.seconds("forward") > 0 and isinstance(slow._passes, passes)


def test_what_takes_no_single_image_is_tried_whole() -> None:
    class Pairs(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = stock.Conv2d(3, 4, 1)

        def __call__(self, x: mx.array) -> mx.array:
            if x.shape[0] != 2:
                raise ValueError("pairs only")
            return self.body(x)

    assert nn.compare(Pairs, SHAPE, rounds=1).agree


# What is refused --------------------------------------------------------------------------------------------

KEPT = build()
SIZES = iter(range(4, 100))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.compare(3, SHAPE), TypeError, "compare: build is not a function; got build=3"),  # type: ignore[arg-type]
        (lambda: nn.compare(lambda: 3, SHAPE), TypeError, "compare: build makes no module; got an int"),  # type: ignore[arg-type,return-value]
        (lambda: nn.compare(lambda: KEPT, SHAPE), ValueError, "compare: build makes one module twice"),
        (
            lambda: nn.compare(lambda: stock.Linear(3, next(SIZES)), SHAPE),
            ValueError,
            "compare: build makes another model each time",
        ),
        (lambda: nn.compare(build, 3), TypeError, "compare: x is no example; got x=3"),  # type: ignore[arg-type]
        (lambda: nn.compare(build, (2, 0, 8, 3)), TypeError, "compare: x is no example; got x=(2, 0, 8, 3)"),
        (lambda: nn.compare(build, (2, -8, 8, 3)), ValueError, "compare: not a shape; got x=(2, -8, 8, 3)"),
        (lambda: nn.compare(build, SHAPE, rounds=0), ValueError, "compare: rounds is out of range; got rounds=0"),
        (lambda: nn.compare(build, SHAPE, train=1), TypeError, "compare: train is not a bool; got train=1"),  # type: ignore[arg-type]
        (lambda: nn.compare(build, SHAPE, limit=-1), ValueError, "compare: limit is"),
        (lambda: nn.compare(build, SHAPE, loss=3), TypeError, "compare: loss is not a function; got loss=3"),  # type: ignore[arg-type]
        (lambda: nn.compare(build, SHAPE, loss=lambda y: y), TypeError, "compare: loss makes no number; got float32["),
        (lambda: nn.compare(stock.Module, SHAPE), Exception, ""),
    ],
)
def test_what_compare_refuses(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def test_a_model_has_to_return_arrays() -> None:
    class Nothing(stock.Linear):
        def __call__(self, x: mx.array) -> Any:
            return {"n": 3}

    with pytest.raises(TypeError, match="compare: the model returns no arrays; got a dict, expected arrays"):
        nn.compare(lambda: Nothing(3, 3), SHAPE)


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


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([1.0, 4.0], [1.0, 4.0], 0.0),
        ([1.0, 3.0], [1.0, 4.0], 0.25),
        ([1.0, math.nan], [1.0, math.nan], 0.0),
        ([1.0, math.nan], [1.0, 4.0], math.inf),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 1.0], [0.0, 0.0], math.inf),
        ([1.0], [1.0, 2.0], math.inf),
        ([], [], 0.0),
    ],
)
def test_the_greatest_difference_is_a_share_of_the_largest(
    got: list[float], want: list[float], expected: float
) -> None:
    assert difference({"y": mx.array(got)}, {"y": mx.array(want)}) == expected
    assert difference({"y": mx.array(got)}, {"z": mx.array(want)}) == math.inf


class Fake:
    """A model that takes so many seconds, of which one pass may be too slow."""

    report = nn.Conversion({}, {}, {}, {"a": "no drop-in for A"})

    def __init__(self, seconds: float, slow: str = "") -> None:
        self._seconds, self._slow = seconds, slow

    def first(self, what: str) -> int:
        if what == self._slow:
            raise TooSlow(f"no {what}")
        return 7

    def outputs(self) -> dict[str, mx.array]:
        return {"": mx.ones(2)}

    def seconds(self, what: str) -> float:
        return self._seconds


def test_a_pass_that_is_too_slow_is_told_and_the_others_go_on() -> None:
    starts: Any = {STOCK: lambda: Fake(6.0, "step"), CONVERTED: lambda: Fake(2.0), INFERENCE: lambda: Fake(0.5)}
    found = measured("setting", starts, train=True, rounds=2, limit=60)
    assert found.variants == (
        comparison.Variant(STOCK, Timing(6.0, 1.0, 7), None, None, "no step"),
        comparison.Variant(CONVERTED, Timing(2.0, 3.0, 7), Timing(2.0, None, 7), 0.0, ""),
        comparison.Variant(INFERENCE, Timing(0.5, 12.0, 7), None, 0.0, ""),
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
