"""The random callers of tests/soak: a few rounds of each, every function in the tables, and faults that they find."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import mpsfunc as mf
from tests.soak import models, programs, rounded, run

PROGRAMS = programs()


@pytest.mark.programs
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_few_rounds(name: str) -> None:
    end, rounds = time.monotonic() + 2, PROGRAMS[name].rounds(7)
    while True:
        assert next(rounds).total() > 0
        if time.monotonic() > end:
            return


def test_every_public_function_has_a_row() -> None:
    from tests.soak.tables import ROWS

    public = {name for name in mf.__all__ if inspect.isfunction(getattr(mf, name))}
    assert public == {name for row in ROWS.values() for name in row.names}


@pytest.mark.programs
@pytest.mark.parametrize(("program", "function"), [("differential", "conv"), ("differential", "avg_pool_grad"),
    ("graphs", "tanh"), ("models", "conv")])  # fmt: skip
def test_a_wrong_result_is_found(program: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(mf, function)

    def wrong(*args: Any, **how: Any) -> mx.array:
        return right(*args, **how) * 1.01

    monkeypatch.setattr(mf, function, wrong)
    with pytest.raises(AssertionError, match="round"):
        for at in range(400):
            PROGRAMS[program].one_round(7, at)


@pytest.mark.programs
# Some rounds cannot: a norm divides by the factor again, or a ReLU makes 0 of everything.
@pytest.mark.parametrize(("program", "kind", "factor"), [("models", mx.float32, 1.0001), ("models", mx.float16, 1.02),
    ("models", mx.bfloat16, 1.1), ("graphs", mx.float32, 1.0001)])  # fmt: skip
def test_most_rounds_find_wrong_results(
    program: str, kind: mx.Dtype, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = 0

    def fault(right: Any) -> Any:
        def wrong(x: mx.array, *args: Any, **how: Any) -> mx.array:
            nonlocal met
            met += x.dtype == kind
            return right(x, *args, **how) * (factor if x.dtype == kind else 1)

        return wrong

    for name in ("conv", "fully_connected", "softmax", "neuron"):
        monkeypatch.setattr(mf, name, fault(getattr(mf, name)))
    found = missed = at = 0
    while found + missed < 20:
        before, at = met, at + 1
        if program == "models" and models._made(11, at)[2] != kind:
            continue  # it would not be met
        try:
            PROGRAMS[program].one_round(11, at)
            missed += met > before
        except AssertionError:
            found += 1
    assert found >= 16


def test_a_round_without_a_kink_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = models._run, iter([1.1])

    def run(model: nn.Module, x: mx.array, kind: mx.Dtype) -> dict[str, np.ndarray]:
        made = right(model, x, kind)
        if type(model).__module__.startswith("mpsfunc"):
            made["result"] = made["result"] * next(wrong, 1.0)
        return made

    monkeypatch.setattr(models, "_run", run)
    with pytest.raises(AssertionError, match="result is off"):
        for at in range(3):
            models.one_round(7, at)


@pytest.mark.parametrize(("layer", "numbers", "met"), [
    (nn.ReLU(), [0.0, 1.0, 2.0, 3.0], True),
    (nn.ReLU(), [-1.0, 1.0, 2.0, 3.0], False),
    (nn.relu, [1e-8, 1.0, 2.0, 3.0], True),
    (nn.ReLU6(), [-1.0, 1.0, 2.0, 6.0], True),
    (nn.MaxPool2d(2), [0.0, 1.0, 3.0, 3.0], True),
    (nn.MaxPool2d(2), [3.0, 1.0, 1.0, 2.0], False),
    (nn.MaxPool2d(2, padding=1), [3.0, 3.0, 1.0, 2.0], False),
    (nn.Tanh(), [0.0, 0.0, 0.0, 0.0], False),
])  # fmt: skip
def test_kinks(layer: Any, numbers: list[float], met: bool) -> None:
    assert bool(rounded.kinks(nn.Sequential(layer), mx.array(numbers).reshape(1, 2, 2, 1))) == met


def test_a_bias_ahead_of_a_norm_alone_is_bounded_by_its_terms() -> None:
    def run(size: float) -> dict[str, np.ndarray]:
        terms = np.array([100.0, -100.0]) * (1 + size * np.array(mx.random.uniform(-1, 1, (2,))))
        return {"cancels": terms.sum(keepdims=True), "the terms": np.array([1e-4])}

    drawn = rounded.Drawn(lambda: run(rounded.SIZE[mx.float32]), run(0.0), mx.float32)
    drawn.check("cancels", np.array([2e-5]))
    for name, wrong in (("cancels", 1e-3), ("the terms", 1.2e-4)):
        with pytest.raises(AssertionError, match=f"{name} is off"):
            drawn.check(name, np.array([wrong]))


@pytest.mark.parametrize(("layer", "shape"), [
    (nn.BatchNorm(4, 0.01), (2, 1, 1, 4)),
    (nn.InstanceNorm(4, 0.01), (1, 2, 1, 4)),
    (nn.GroupNorm(2, 4, 0.01, False), (1, 1, 1, 4)),
    (nn.GroupNorm(2, 4, 0.01, False, pytorch_compatible=True), (1, 1, 1, 4)),
    (nn.LayerNorm(2, 0.01), (1, 1, 1, 2)),
])  # fmt: skip
def test_the_terms_of_a_norm_of_two_elements(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x, size = 100 * mx.random.normal(shape, key=mx.random.key(1)), 2.0**-10

    def gradient(size: float) -> mx.array:
        def value(x: mx.array) -> mx.array:
            return (rounded.layer_off(layer, x, layer(x), size) * mx.arange(1.0, 1 + x.size).reshape(shape)).sum()

        return mx.grad(value)(x)

    true, moved = gradient(0.0), mx.zeros(shape)
    for _ in range(20):
        moved = mx.maximum(moved, mx.abs(gradient(size) - true))
    terms = mx.arange(1.0, 1 + x.size) / 100 * size
    assert (moved.flatten() > 0.05 * terms).all() and mx.abs(true).max() < 1e-3


def test_the_table_keeps_what_others_found() -> None:
    def result(name: str, checks: int) -> run.Result:
        return run.Result(name, 1.0, range(1, 2), 3, Counter({"kind": checks}), [], 2**20)

    page = run.merged("# Page\n\n## Properties\n\ntext\n", [result("a", 1), result("b", 2)])
    again = run.merged(page, [result("b", 4)])
    assert "a: kind 1." in again and "b: kind 4." in again and "kind 2" not in again
    assert again.count("| a |") == again.count("| b |") == 1 and "## Properties\n\ntext" in again
    assert np.char.count(page, "## Programs") == 1
