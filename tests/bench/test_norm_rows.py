"""The rows of normalizations: their inputs, their rivals, and that a wrong one would not be timed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.benchmarks import COPY, DTYPES, OURS, PYTORCH, Target

from .operations import OF_FAMILY
from .problems import EPS, Problem
from .results import checked
from .rivals import Side

NORMALIZATION = list(OF_FAMILY["normalization"])
SMALL = (2, 6, 7, 16)
WINDOWS = ("cross_channel_norm", "spatial_norm", "local_contrast_norm")


def _rows(only: Sequence[str] = ()) -> list[tuple[Problem, tuple[Target, ...]]]:
    from . import cpu

    return cpu.problems(only or NORMALIZATION, SMALL)


def _checked(problem: Problem, functions: Any) -> tuple[dict[str, Any], dict[str, float]]:
    import torch

    from .rivals import on_mlx, pytorch, stock

    sides: list[Side] = [on_mlx.side(OURS, functions), on_mlx.side("MLX", stock.functions)]
    sides += [pytorch.side(name, layout, "cpu") for name, layout in pytorch.LAYOUTS.items()]
    oracle = pytorch.side("oracle", torch.contiguous_format, "cpu")
    return checked(problem, sides, oracle, problem.inputs())


def test_passes_titles_and_shapes() -> None:
    image = 4 * 2 * 6 * 7 * 16
    passes = {"instance_norm": 3, "instance_norm_grad": 5, "bn_relu_grad": 3, "bn_relu_normalize": 2}
    assert [Problem(op, SMALL, "float32").necessary_bytes for op in passes] == [n * image for n in passes.values()]
    response = Problem("cross_channel_norm", SMALL, "float32", 5, exponent=0.75)
    assert (response.necessary_bytes, response.out_shape) == (2 * image, SMALL)
    assert response._replace(op="cross_channel_norm_grad").necessary_bytes == 3 * image
    assert response.title == "cross_channel_norm 5 beta 0.75"
    assert response._replace(op="spatial_norm", exponent=5).title == "spatial_norm 5x5 beta 5"
    assert Problem("group_norm", SMALL, "float32", groups=8).title == "group_norm g8"
    assert Problem("bn_relu_forward", SMALL, "float32").title == "bn_stats + bn_normalize relu"


def test_no_gradient_comes_through_a_relu_where_rounding_decides_its_slope() -> None:
    problem = Problem("bn_relu_backward", (8, 32, 32, 16), "float32")
    a, plain = problem.inputs(), problem._replace(op="bn_backward").inputs()
    x = a.x.astype(np.float64)
    z = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + EPS) * a.gamma + a.beta
    near = np.abs(z) < 1e-4
    assert 0 < near.sum() < 1e-3 * near.size
    assert not a.dy[near].any() and plain.dy[near].all()
    np.testing.assert_array_equal(a.dy[~near], plain.dy[~near])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_loud_inputs_are_numbers_that_the_dtype_has_with_their_squares(dtype: str) -> None:
    response = Problem("cross_channel_norm", (8, 56, 56, 64), dtype, 5, exponent=0.75)
    x = response.inputs().x
    np.testing.assert_array_equal(x, 32 * response._replace(op="spatial_norm").inputs().x)
    assert np.square(x).max() < 65504


@pytest.mark.parity
def test_targets_are_for_float32_and_tell_exponents_apart() -> None:
    pytest.importorskip("torch")
    assert not any(targets for problem, targets in _rows() if problem.dtype != "float32")
    assert {problem.dtype for problem, _ in _rows(["group_norm_grad"])} == {"float32", "float16", "bfloat16"}
    spatial = {(p.kernel_size, p.exponent): targets for p, targets in _rows(["spatial_norm"]) if p.dtype == "float32"}
    assert [[str(t) for t in targets] for targets in spatial.values()] == [
        ["33% of copy bandwidth"], ["33% of copy bandwidth"], ["50% of copy bandwidth"], ["50% of copy bandwidth"], [],
    ]  # fmt: skip
    assert Problem("spatial_norm", SMALL, "float32", 5, exponent=1).necessary_bytes == 2 * 4 * np.prod(SMALL)
    assert [t for p, t in _rows(["bn_relu_backward"]) if t] == [(Target(PYTORCH, 1.3),)]


@pytest.mark.parity
def test_every_row_has_a_right_answer_of_ours_and_of_pytorch() -> None:
    pytest.importorskip("torch")
    from .rivals import ours

    for problem, _ in _rows():
        right, wrong = _checked(problem, ours.functions)
        assert OURS in right and "MLX" in {*right, *wrong}, problem
        if problem.dtype == "float32":
            assert {*right} == {OURS, "MLX", *PYTORCH} and not wrong, problem
        elif not problem.op.startswith("cross"):  # PyTorch has no avg_pool3d in half precision on the CPU
            assert {*PYTORCH} <= {*right, *wrong}, problem


@pytest.mark.parity
@pytest.mark.parametrize("op", [name + grad for name in WINDOWS for grad in ("", "_grad")])
@pytest.mark.parametrize("change", [{"kernel_size": 6}, {"kernel_size": 3}, {"exponent": 0.45}])
def test_another_window_or_exponent_is_wrong_in_every_dtype(op: str, change: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from .rivals import ours

    changed = SimpleNamespace(**{op: lambda p, a: getattr(ours.functions, op)(p._replace(**change), a)})
    for dtype in ("float32", "float16", "bfloat16"):
        with pytest.raises(AssertionError, match=f"{op} .* {dtype}: wrong"):
            _checked(Problem(op, SMALL, dtype, 5, exponent=0.75), changed)


@pytest.mark.parity
@pytest.mark.parametrize(("op", "other"), [("bn_relu_forward", "bn_forward"), ("bn_relu_backward", "bn_backward")])
def test_a_missing_relu_is_wrong(op: str, other: str) -> None:
    pytest.importorskip("torch")
    from .rivals import ours

    for dtype in ("float32", "float16", "bfloat16"):
        with pytest.raises(AssertionError, match="wrong"):
            _checked(Problem(op, SMALL, dtype), SimpleNamespace(**{op: getattr(ours.functions, other)}))


@pytest.mark.parity
@pytest.mark.parametrize("op", WINDOWS)
def test_gradients_by_hand_are_autograd_s(op: str) -> None:
    torch = pytest.importorskip("torch")
    from .rivals import pytorch

    problem = Problem(op, SMALL, "float32", 5, exponent=0.75)
    a = pytorch.side("oracle", torch.contiguous_format, "cpu").place(problem.inputs(), "float64")
    by_hand = getattr(pytorch.functions, f"{op}_grad")(problem, a)()[0]
    torch.set_grad_enabled(True)
    a.x.requires_grad_()
    y = getattr(pytorch.functions, op)(problem, a)()[0]
    (dx,) = torch.autograd.grad(y, a.x, a.dy)
    torch.testing.assert_close(by_hand, dx, rtol=1e-9, atol=1e-9)


@pytest.mark.parity
def test_gpu_rows_are_known_to_every_side_that_needs_them() -> None:
    pytest.importorskip("torch")
    from . import gpu
    from .rivals import cudnn, ours, pytorch

    rows = gpu.problems(NORMALIZATION, gpu.SHAPE, tf32=False)
    assert rows and all(hasattr(ours.functions, p.op) and hasattr(pytorch.functions, p.op) for p, _ in rows)
    of_dtypes = [{p._replace(dtype=""): ts for p, ts in rows if p.dtype == dtype} for dtype in DTYPES]
    assert of_dtypes[0] == of_dtypes[1] == of_dtypes[2]
    large = {p.op: targets for p, targets in rows if p.shape[0] == 512}
    assert large == dict.fromkeys(("bn_stats", "bn_stats_grad"), (Target((COPY,), 0.85),))
    against = next(targets for p, targets in rows if p.op == "bn_backward" and targets)[0].versus
    assert against == (*PYTORCH, *gpu.CUDNN) and hasattr(cudnn, "bn_backward")
