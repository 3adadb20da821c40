"""The rows of `deform_conv`: their inputs, answers and targets, and torchvision, which need not be there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact
from support.benchmarks import PYTORCH
from support.oracle import deform as oracle

import mpsfunc as mf

from .operations import OPERATIONS
from .problems import Problem
from .results import has_oracle

PROBLEMS = {op: Problem(op, (2, 6, 5, 4), "float32", 3, 1, 1) for op in ("deform_conv", "deform_conv_grads")}


def expected(problem: Problem, a: Any) -> list[np.ndarray]:
    """By the definition."""
    state = mf.deform_conv_state(a.x.shape, a.w.shape, padding=1)
    x, dy, w, offsets, mask = (np.asarray(v, np.float64) for v in (a.x, a.dy, a.w, a.offsets, a.tap_mask))
    of = oracle.tables(offsets, mask, state.rows, state.cols, 1)
    if problem.op == "deform_conv":
        return [oracle.deform_conv(x, w, 0, of, 1)]
    by_offsets, by_mask = (f(dy, x, w, of, 1) for f in (oracle.grad_offsets, oracle.grad_mask))
    return [oracle.grad_input(dy, w, of, 1), by_offsets, oracle.grad_weights(dy, x, w.shape, of, 1), by_mask]


def same(answers: list[np.ndarray], right: list[np.ndarray]) -> None:
    for answer, r in zip(answers, right, strict=True):
        np.testing.assert_allclose(answer, r, rtol=0, atol=1e-5 * abs(r).max())


@pytest.mark.parametrize("op", PROBLEMS)
def test_ours(op: str, on_cpu: mx.Device) -> None:
    from .rivals import ours

    arrays = PROBLEMS[op].inputs()
    placed = SimpleNamespace(**{key: mx.array(value) for key, value in vars(arrays).items()})
    same([exact(a) for a in getattr(ours.functions, op)(PROBLEMS[op], placed)()], expected(PROBLEMS[op], arrays))


@pytest.mark.parity
@pytest.mark.parametrize("op", PROBLEMS)
def test_torchvision(op: str) -> None:
    torch = pytest.importorskip("torch")
    from .rivals import pytorch

    try:
        import torchvision.ops  # type: ignore[import-not-found,unused-ignore]  # an environment need not have it
    except (ImportError, RuntimeError):  # RuntimeError: it is for another PyTorch
        assert not hasattr(pytorch.functions, op)
        pytest.skip("no torchvision")
    assert torchvision.ops is not None
    arrays = PROBLEMS[op].inputs()
    for name in PYTORCH:
        side = pytorch.side(name, pytorch.LAYOUTS[name], "cpu")
        call = side.bind(PROBLEMS[op], side.place(arrays, "float32"))
        assert call is not None and torch is not None
        same(side.answer(op, call()), expected(PROBLEMS[op], arrays))


def test_targets() -> None:
    """Level with torchvision on a CPU; on a GPU its gradients have atomics."""
    for op, least in (("deform_conv", 1.0), ("deform_conv_grads", 0.8)):
        benchmark = OPERATIONS[op]
        assert [(t.versus, t.least) for measured in benchmark.cpu for t in measured.targets] == [(PYTORCH, 1.0)]
        assert [(t.versus, t.least) for measured in benchmark.gpu for t in measured.targets] == [(PYTORCH, least)]


def test_rows_that_nothing_checks_are_left_out() -> None:
    for op, problem in PROBLEMS.items():
        assert not has_oracle(problem, SimpleNamespace(conv=1)) and has_oracle(problem, SimpleNamespace(**{op: 1}))
    assert has_oracle(Problem("dropout", (2, 6, 5, 4), "float32"), SimpleNamespace())  # random: by what it drops
