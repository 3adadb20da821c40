"""What `compare` measures: the same numbers first, then times in turns, and a word where something is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest

from mpsfunc import nn
from mpsfunc.nn import timing
from mpsfunc.nn.comparison import BOUNDS, CONVERTED, INFERENCE, STOCK, NotMeasured

SHAPE = (2, 8, 8, 3)


class Mean(stock.Module):
    def __call__(self, x: mx.array) -> mx.array:
        return x.mean((1, 2))


def build() -> stock.Module:
    body = stock.Conv2d(3, 4, 3, padding=1), stock.BatchNorm(4), stock.ReLU()
    return stock.Sequential(*body, Mean(), stock.Dropout(0.5), stock.Linear(4, 5))


class Pairs(stock.Module):
    """What takes two images."""

    def __init__(self) -> None:
        super().__init__()
        self.body = stock.Conv2d(3, 4, 1)

    def __call__(self, x: mx.array) -> mx.array:
        if x.shape[0] != 2:
            raise ValueError("pairs only")
        return self.body(x)


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
    assert told["agree"] is True and told["variants"][1]["name"] == "converted" and told["variants"][1]["agrees"]
    kept = [each["kept_twice"] for each in told["variants"]]
    assert kept[:2] == [0, 0] and kept[2] > 0 and told["report"]["kept_twice"] == 0
    assert (
        f"for inference: keeps {kept[2]:,} bytes of folded and rearranged weights in addition to its own"
        in str(found).splitlines()
    )
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
    real = timing.converted

    def noted(model: Any, x: mx.array, name: str) -> Any:
        given.append(model.layers[0].weight)
        return real(model, x, name)

    monkeypatch.setattr(timing, "converted", noted)
    nn.compare(build, SHAPE, rounds=1)
    assert len(given) == 3 and all(mx.array_equal(each, given[0]) for each in given)


def test_what_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(model: Any, **how: Any) -> Any:
        model.layers[0].bias = model.layers[0].bias + 1
        return nn.convert(model, **how)

    monkeypatch.setattr(timing, "convert", spoilt)
    found = nn.compare(build, SHAPE, rounds=1)
    assert not found.agree and found.variants[0].forward
    for each in found.variants[1:]:
        assert each.forward is None and each.step is None
        assert each.note.startswith("not timed, since its output differs by ") and each.note in str(found)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_outputs_that_are_off_by_more_than_rounding_are_refused(
    dtype: mx.Dtype, on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two networks of MLX's layers that float64 has too, the second with its last weights a little larger."""

    def linear() -> stock.Module:
        model = stock.Sequential(stock.Linear(16, 8), stock.ReLU(), stock.Linear(8, 4, bias=False))
        model.set_dtype(dtype)
        return model

    times = 1.0

    def spoilt(model: Any, **how: Any) -> Any:
        model.layers[2].weight = model.layers[2].weight * times
        return nn.convert(model, **how)

    monkeypatch.setattr(timing, "convert", spoilt)
    x = mx.random.normal((32, 16)).astype(dtype)
    for off, agree in ((0.0, True), (-1.4, False), (1.4, False)):
        times = 1 + off * BOUNDS[dtype]
        found = nn.compare(linear, x, rounds=1, train=False)
        assert found.agree is agree
        for each in found.variants[1:]:
            assert each.agrees is agree and (each.forward is None) == (not agree) and each.difference is not None
            if not agree:
                said = "not timed, since its output differs by "
                assert each.note.startswith(said) and each.difference < 2 * BOUNDS[dtype]
                assert each.note.endswith(f"of the largest; {str(dtype)[9:]} may by {BOUNDS[dtype]:.1g}")


# Where stock's layers are too slow -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [(), (CONVERTED,), (INFERENCE,)], ids=["none", "converted", "inference"])
def test_where_stock_is_left_out_one_image_is_compared(wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    real = timing.converted

    def spoilt(model: Any, x: mx.array, name: str) -> Any:
        report = real(model, x, name)
        if name in wrong:
            model.layers[-1].bias = model.layers[-1].bias + 1
        return report

    monkeypatch.setattr(timing, "converted", spoilt)
    found = nn.compare(build, SHAPE, rounds=1, limit=1e-9)
    first, *others = found.variants
    assert first.forward is None and first.step is None and first.agrees is None
    assert first.note.startswith("no forward pass, which would take ")
    assert found.agree is (not wrong)
    for each in others:
        assert each.agrees is (each.name not in wrong) and (each.forward is None) == (each.name in wrong)
        said = "not timed, since its output differs" if each.name in wrong else "compared with mlx.nn for the first"
        assert each.note.startswith(said) and f"{each.name}: {said}" in str(found)
        assert each.forward is None or each.forward.ratio is None


def test_without_outputs_of_stock_nothing_agrees() -> None:
    passes = timing._Local(STOCK, Pairs(), nn.Conversion({}, {}, {}, {}), mx.ones(SHAPE), None, 0, 60.0, Pairs())
    assert passes.first("forward") > 0 and passes.outputs_of_one() is None
    alone = timing._Local(CONVERTED, Pairs(), nn.Conversion({}, {}, {}, {}), mx.ones(SHAPE), None, 0, 60.0, None)
    assert alone.first("forward") > 0 and alone.outputs_of_one() is None and alone.seconds("forward") > 0


def test_a_step_alone_may_take_too_long() -> None:
    """The forward pass is timed all the same."""
    passes = timing.Passes
    slow = timing._Local(STOCK, build(), nn.Conversion({}, {}, {}, {}), mx.ones(SHAPE), None, 0, 60.0, build())
    assert slow.first("forward") > 0
    slow._limit = 0.0
    with pytest.raises(NotMeasured, match="no training step, which would take "):
        slow.first("step")
    assert slow.seconds("forward") > 0 and isinstance(slow._passes, passes)


def test_what_takes_no_single_image_is_tried_whole() -> None:
    assert nn.compare(Pairs, SHAPE, rounds=1).agree


# Training steps -------------------------------------------------------------------------------------------------


def frozen() -> stock.Module:
    model = build()
    model.freeze()
    return model


class Evaluating(stock.Module):
    """What no compiled step takes, and only that."""

    def __init__(self) -> None:
        super().__init__()
        self.body = build()

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = self.body(x)
        if self.training and self.why:
            raise ZeroDivisionError("while it trains")
        if self.training:
            float(y.sum().item())
        return y

    why = ""


class Dividing(Evaluating):
    """What takes no step."""

    why = "always"


NOTHING = "no training step, since the model has no parameter that is not frozen"
FAILS = "no training step, which fails with {} (train=False, or --no-train in a shell, times the forward pass alone)"


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (frozen, NOTHING),
        (lambda: stock.Sequential(stock.ReLU()), NOTHING),
        (Dividing, FAILS.format("ZeroDivisionError: while it trains")),
        (Evaluating, "no training step, which fails with ValueError: [eval] Attempting to eval an array during"),
    ],
    ids=["frozen", "without parameters", "raising", "evaluating"],
)
def test_where_no_step_can_be_made_the_forward_pass_is_timed(make: Callable[[], stock.Module], note: str) -> None:
    found = nn.compare(make, SHAPE, rounds=1)
    assert found.agree is True
    for each in found.variants:
        assert each.forward and each.forward.seconds > 0 and each.step is None
        assert each.note.startswith(note) == (each.name != INFERENCE)
    assert not any(each.note for each in nn.compare(make, SHAPE, rounds=1, train=False).variants)
    assert 0 <= mx.random.uniform().item() <= 1  # which holds no tracer


def test_what_fails_leaves_the_model_and_the_random_state() -> None:
    class Drawing(Evaluating):
        def __call__(self, x: mx.array) -> mx.array:
            return super().__call__(x) + mx.random.uniform()

    model = Drawing()
    weights = {path: mx.array(a) for path, a in timing.arrays_of(model).items()}
    mx.random.seed(8)
    expected = mx.random.uniform().item()
    mx.random.seed(8)
    with pytest.raises(ValueError, match="eval"):
        timing.Passes(model, mx.ones(SHAPE)).once("step")
    assert mx.random.uniform().item() == expected
    now = timing.arrays_of(model)
    assert now.keys() == weights.keys() and all(mx.array_equal(now[path], a) for path, a in weights.items())


def test_statistics_are_put_back_after_the_step_that_is_tried() -> None:
    model, x = build(), mx.random.normal(SHAPE) + 3
    before = {path: mx.array(a) for path, a in timing.arrays_of(model).items()}
    run = timing.Passes(model, x)._step()
    assert "layers.1.running_mean" in before and model.training
    now = timing.arrays_of(model)
    assert all(mx.array_equal(now[path], a) for path, a in before.items())
    run()
    assert not mx.array_equal(timing.arrays_of(model)["layers.1.running_mean"], before["layers.1.running_mean"])


# What is refused --------------------------------------------------------------------------------------------

KEPT = build()


def failing() -> stock.Module:
    raise KeyError("a")


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
        (
            lambda: nn.compare(build, SHAPE, limit=0),
            ValueError,
            "compare: limit is out of range; got limit=0.0, expected",
        ),
        (lambda: nn.compare(build, SHAPE, limit=1e300), ValueError, "compare: limit is out of range; got limit=1e+300"),
        (
            lambda: nn.compare(KEPT, SHAPE),
            TypeError,
            "compare: build is a module; got a Sequential, expected a function",
        ),
        (lambda: nn.compare(stock.Linear, SHAPE), TypeError, "compare: build needs arguments; got '(input_dims: int"),  # type: ignore[arg-type]
        (lambda: nn.compare(failing, SHAPE), ValueError, "compare: build fails; got a KeyError of \"'a'\", expected"),
        (
            lambda: nn.compare(build, (2, 8, 8, 5)),
            ValueError,
            "compare: the forward pass of mlx.nn fails; got a ValueError of '[conv] Expect",
        ),
        (
            lambda: nn.compare(build, SHAPE, loss=lambda y: mx.array(1 / 0)),
            ValueError,
            "compare: loss fails; got a ZeroDivisionError of 'division by zero', expected",
        ),
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
