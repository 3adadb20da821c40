"""The program of forged states runs, repeats itself, and tells faults that are put there."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

import mpsfunc as mf
from soak import forged_states

pytestmark = pytest.mark.usefixtures("on_cpu")


def run(seed: int, rounds: int) -> Any:
    running = forged_states.rounds(seed)
    return [next(running) for _ in range(rounds)]


def test_it_runs_and_repeats_itself() -> None:
    assert run(1, 3) == run(1, 3)


def keyed(*_: Any) -> Any:
    raise KeyError("a")


@pytest.mark.parametrize("wrong", (keyed, lambda *_: mx.zeros((1, 2))))
def test_it_finds_a_planted_fault(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mf, "dropout_grad", wrong)
    with pytest.raises(AssertionError, match=r"^seed 2, round \d+: dropout_grad [\w ]+ of seed"):
        run(2, 40)
