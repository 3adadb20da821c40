"""The random callers of tests/soak: a few rounds of each, every function in the tables, and faults that they find."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mpsfunc as mf
from tests.soak import programs, run

PROGRAMS = programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_few_rounds(name: str) -> None:
    end, rounds = time.monotonic() + 2, PROGRAMS[name].rounds(7)
    while True:
        assert next(rounds).total() > 0
        if time.monotonic() > end:
            return


def test_every_public_function_has_a_row() -> None:
    from tests.soak.tables import ROWS

    public = {name for name, value in vars(mf).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert public == {name for row in ROWS.values() for name in row.names}


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


def test_the_table_keeps_what_others_found() -> None:
    def result(name: str, checks: int) -> run.Result:
        return run.Result(name, 1.0, range(1, 2), 3, Counter({"kind": checks}), [], 2**20)

    page = run.merged("# Page\n\n## Properties\n\ntext\n", [result("a", 1), result("b", 2)])
    again = run.merged(page, [result("b", 4)])
    assert "a: kind 1." in again and "b: kind 4." in again and "kind 2" not in again
    assert again.count("| a |") == again.count("| b |") == 1 and "## Properties\n\ntext" in again
    assert np.char.count(page, "## Programs") == 1
