"""PyTorch's deterministic mode as a rival: its answers, what it refuses, and that it is off afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from .problems import Problem
from .rivals import Call, Refused

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


@pytest.mark.parametrize("op", ["grid_sample_grad", "grid_sample_grads", "crop_and_resize_grad", "roi_align_grad"])
def test_answers_are_those_of_the_other_mode(op: str) -> None:
    from .operations import OPERATIONS
    from .rivals import pytorch
    from .rivals.pytorch import deterministic

    problem = Problem(op, (2, 8, 8, 4), "float32", **OPERATIONS[op].gpu[0].how)
    found = []
    for functions in (pytorch.functions, deterministic.functions):
        side = pytorch.side("", torch.contiguous_format, "cpu", functions=functions)
        call = side.bind(problem, side.place(problem.inputs(), "float32"))
        assert call is not None
        found.append(side.answer(op, call()))
    for plain, repeatable in zip(*found, strict=True):
        np.testing.assert_allclose(repeatable, plain, rtol=0, atol=1e-5 * abs(plain).max())
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_it_has_no_implementation_of_is_refused() -> None:
    from .rivals.pytorch.deterministic import _deterministic

    def bind(p: Any, a: SimpleNamespace) -> Call:
        return lambda: [torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))]

    call = _deterministic(bind)(Problem("put", (1, 1, 1, 1), "float32"), SimpleNamespace())
    with pytest.raises(Refused, match="put_"):
        call()
    assert not torch.are_deterministic_algorithms_enabled()


def test_other_errors_stay_errors() -> None:
    from .rivals.pytorch.deterministic import _deterministic

    def bind(p: Any, a: SimpleNamespace) -> Call:
        return lambda: [torch.ones(2) @ torch.ones(3)]

    with pytest.raises(RuntimeError, match="size"):
        _deterministic(bind)(Problem("product", (1, 1, 1, 1), "float32"), SimpleNamespace())()
