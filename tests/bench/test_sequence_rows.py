"""The rows of sequences and of transposed convolutions: shapes, layouts, and that a wrong answer would not be timed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.benchmarks import OURS, PYTORCH, Target

from .operations import OF_FAMILY
from .problems import Problem

SEQUENCES = list(OF_FAMILY["sequences"])
TRANSPOSED = [op for op in OF_FAMILY["convolution"] if op.startswith("conv_transpose")]


def _rows(op: str) -> list[tuple[Problem, tuple[Target, ...]]]:
    from . import cpu

    return cpu.problems([op], cpu.QUICK_SHAPE)


def _checked(problem: Problem, functions: Any) -> tuple[dict[str, Any], dict[str, float]]:
    import torch

    from .results import checked
    from .rivals import on_mlx, pytorch

    sides = [on_mlx.side(OURS, functions)]
    sides += [pytorch.side(name, layout, "cpu") for name, layout in pytorch.LAYOUTS.items()]
    oracle = pytorch.side("oracle", torch.contiguous_format, "cpu")
    return checked(problem, sides, oracle, problem.inputs())


def test_shapes_and_titles() -> None:
    pooled = Problem("max_pool1d", (2, 9, 16), "float32", 3, 2, 1)
    assert (pooled.out_shape, pooled.nhwc, pooled.title) == ((2, 5, 16), (2, 1, 9, 16), "max_pool1d 3 s2 p1")
    conv = Problem("conv1d", (2, 9, 16), "float32", 3, 1, 1)
    assert (conv.out_shape, conv.w_shape, conv.of_images) == ((2, 9, 16), (16, 3, 16), True)
    assert conv.necessary_bytes == 4 * (2 * 2 * 9 * 16 + 16 * 3 * 16)
    wider = Problem("conv_transpose1d_grad_input", (2, 9, 16), "float32", 4, 2, 1)
    assert (wider.out_shape, wider.w_shape) == ((2, 18, 16), (16, 4, 16))
    image = Problem("conv_transpose", (2, 9, 8, 16), "float32", 4, 2, 1)
    assert (image.out_shape, image.w_shape) == ((2, 18, 16, 16), (16, 4, 4, 16))
    norm = Problem("group_norm1d_grad", (2, 9, 16), "float32", groups=8)
    assert (norm.out_shape, norm.title) == ((2, 9, 16), "group_norm1d and its gradient g8")
    assert norm.necessary_bytes == 8 * 4 * math.prod(norm.shape)


def test_every_function_of_sequences_has_a_row_and_a_gradient() -> None:
    import mpsfunc as mf

    functions = {name for name in mf.__all__ if name.endswith("1d")}
    assert functions == {op for op in SEQUENCES if "_grad" not in op} and len(functions) == 8
    for name in functions:
        assert f"{name}_grad" in SEQUENCES or {f"{name}_grad_input", f"{name}_grad_weights"} < {*SEQUENCES}


@pytest.mark.parity
def test_full_rows_are_as_large_as_those_of_images() -> None:
    pytest.importorskip("torch")
    from . import cpu

    for op in SEQUENCES:
        ((problem, targets),) = cpu.problems([op], cpu.SHAPE)
        assert math.prod(problem.shape) == math.prod(cpu.SHAPE) and problem.dtype == "float32"
        assert targets == (Target(PYTORCH, 1),)


@pytest.mark.parity
@pytest.mark.parametrize("op", [*SEQUENCES, *TRANSPOSED])
def test_every_side_agrees(op: str) -> None:
    pytest.importorskip("torch")
    from .rivals import ours

    ((problem, _),) = _rows(op)
    right, wrong = _checked(problem, ours.functions)
    assert {*right} == {OURS, *PYTORCH} and not wrong


@pytest.mark.parity
@pytest.mark.parametrize("op", [*SEQUENCES, *TRANSPOSED])
def test_one_wrong_result_is_seen(op: str) -> None:
    pytest.importorskip("torch")
    from .rivals import ours

    ((problem, _),) = _rows(op)
    right = getattr(ours.functions, op)

    def results(a: SimpleNamespace) -> list[Any]:
        made: list[Any] = right(problem, a)()
        return made

    count = 1 if not op.endswith("1d_grad") or op.startswith("avg") else 2 if "pool" in op else 4
    for wrong in range(count):

        def spoilt(p: Problem, a: SimpleNamespace, wrong: int = wrong) -> Any:
            made = results(a)
            assert len(made) == count
            return lambda: [y * 1.01 if i == wrong else y for i, y in enumerate(made)]

        with pytest.raises(AssertionError, match="float32: wrong"):
            _checked(problem, SimpleNamespace(**{op: spoilt}))


@pytest.mark.parity
def test_both_layouts_of_a_sequence() -> None:
    torch = pytest.importorskip("torch")
    from .rivals import pytorch

    given = Problem("conv1d", (2, 9, 16), "float32", 3, 1, 1).inputs()
    placed = {
        name: pytorch.side(name, layout, "cpu").place(given, "float32") for name, layout in pytorch.LAYOUTS.items()
    }
    contiguous, last = (placed[name].x for name in PYTORCH)
    assert contiguous.is_contiguous() and contiguous.shape == last.shape == (2, 16, 9)
    assert last.stride() == (9 * 16, 1, 16) and torch.equal(contiguous, last)
    (back,) = pytorch.answer("conv1d", [last])
    np.testing.assert_array_equal(back, given.x)
