"""The rows of the pointwise families: their inputs, their rivals, and that a wrong one would not be timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support.benchmarks import COPY, DTYPES, OURS, PYTORCH, Target

from . import report
from .operations import OF_FAMILY, named
from .problems import KEEP, Problem, drop_error
from .results import Row, checked
from .rivals import Side

POINTWISE = list(OF_FAMILY["pointwise"])
SMALL = (2, 6, 7, 16)
# What PyTorch filters in float32 only; what MLX has nothing for, or something else of an odd number of pixels; and what
# PyTorch's rounded logarithms are too coarse for.
FILTERED = {"resize_filtered", "resize_filtered_grad"}
SMALLER = {f"{name}{end}" for name in ("resize_area", "shrink_nearest", "shrink_bilinear") for end in ("", "_grad")}
OVERLAP = {"focal_loss", "focal_loss_grad", "dice_loss", "dice_loss_grad"}
# What is measured on CPUs alone: those that MLX has, and those that it lacks.
OF_MPS = {f"{name}{end}" for name in ("sigmoid", "tanh", "softplus", "elu") for end in ("", "_grad")}
PADDED = {f"pad_{mode}{end}" for mode in ("zero", "clamp", "mirror", "circular") for end in ("", "_grad")}
PAIRED = {f"{name}{end}" for name in ("local_correlation", "gram_matrix") for end in ("", "_grad")}
SAMPLED = {"grid_sample", "grid_sample_grad", "grid_sample_grads"} | PAIRED
ENTROPY = {"cross_entropy_weighted", "cross_entropy_images", "sigmoid_entropy"}
BOXES = {"box_iou", "box_iou_pairs", "box_iou_loss", "box_iou_loss_grad", "nms"}
DETECTED = BOXES | {"yolo_loss", "yolo_loss_grad", "yolo_boxes"}
ON_CPU = PADDED | ENTROPY | DETECTED | {"shrink_filtered", "shrink_filtered_grad"}
SAMPLED |= {"crop_and_resize", "crop_and_resize_grad", "roi_align", "roi_align_grad"}
NOT_MLX = {"upsample_asymmetric", "upsample_asymmetric_grad"} | FILTERED | SMALLER | OVERLAP | ON_CPU | SAMPLED
REDUCED = {op for op in POINTWISE if op.startswith("reduce_")}  # on CPUs alone, too
# What is measured in float32 alone.
BEYOND_MPS = (
    *("hard_swish", "mish", "gelu_tanh", "gelu_fast", "celu", "selu", "hard_tanh", "hard_shrink", "soft_shrink"),
    *("log_sigmoid", "relu2", "relu6", "glu", "softmin"),
)
IN_FLOAT32 = (
    FILTERED
    | SMALLER
    | OVERLAP
    | OF_MPS
    | ON_CPU
    | SAMPLED
    | {"step"}
    | {op for op in REDUCED if op.startswith(("reduce_arg", "reduce_min")) or "_grad" in op}
    | {f"{name}{end}" for name in BEYOND_MPS for end in ("", "_grad")}
)
COARSE = ("cross_entropy_dense", "bfloat16")


def _rows(only: Sequence[str] = ()) -> list[tuple[Problem, tuple[Target, ...]]]:
    from . import cpu

    return cpu.problems(only or POINTWISE, SMALL)


def _problem(op: str, dtype: str = "float32") -> Problem:
    return next(problem for problem, _ in _rows([op]) if problem.dtype == dtype)


def _checked(problem: Problem, functions: Any) -> tuple[dict[str, Any], dict[str, float]]:
    import torch

    from .rivals import on_mlx, pytorch, stock

    sides: list[Side] = [on_mlx.side(OURS, functions), on_mlx.side("MLX", stock.functions)]
    sides += [pytorch.side(name, layout, "cpu") for name, layout in pytorch.LAYOUTS.items()]
    oracle = pytorch.side("oracle", torch.contiguous_format, "cpu")
    return checked(problem, sides, oracle, problem.inputs())


def test_passes_titles_and_shapes() -> None:
    images = {"relu": 2, "gelu_grad": 3, "softmax_grad": 3, "dropout": 2, "add": 3, "upsample_nearest": 5}
    problems = [Problem(op, SMALL, "float16") for op in images]
    assert [p.necessary_bytes for p in problems] == [n * 2 * math.prod(SMALL) for n in images.values()]
    masked = Problem("dropout_masked_grad", SMALL, "float32")
    assert (masked.necessary_bytes, masked.title) == ((4 + 4 + 1) * math.prod(SMALL), "dropout_grad mask")
    wide = Problem("upsample_bilinear_grad", SMALL, "float32")
    assert (wide.out_shape, wide.title) == ((2, 12, 14, 16), "upsample_bilinear_grad x2")
    rows = Problem("cross_entropy", (4096, 1000), "float32")
    assert (rows.out_shape, rows.nhwc, rows.of_images) == ((4096, 1000), (4096, 1, 1, 1000), False)
    assert rows.necessary_bytes == 2 * 4 * 4096 * 1000


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_numbers_that_the_dtype_has_and_labels_are_integers(dtype: str) -> None:
    wide, narrow = _inputs("cross_entropy_dense", "float32"), _inputs("cross_entropy_dense", dtype)
    np.testing.assert_allclose(narrow.targets, wide.targets, rtol=2**-8, atol=2**-24)
    np.testing.assert_allclose(narrow.targets.sum(1), 1, rtol=1e-3)
    assert dtype != "bfloat16" or not np.any(narrow.targets.view(np.uint32) & 0xFFFF)
    assert dtype != "float16" or np.array_equal(narrow.targets.astype(np.float16), narrow.targets)
    labels = _inputs("cross_entropy", dtype).labels
    assert labels.dtype == np.int32 and labels.shape == (64,) and 0 <= labels.min() and labels.max() < 1000
    mask = _inputs("dropout_masked", dtype).mask
    assert mask.dtype == np.uint8 and mask.shape == SMALL and {*mask.ravel()} == {0, 1}


def _inputs(op: str, dtype: str) -> SimpleNamespace:
    shape = (64, 1000) if op.startswith("cross") else SMALL
    return Problem(op, shape, dtype).inputs()


@pytest.mark.parity
def test_labels_and_masks_stay_integers_on_every_side() -> None:
    torch = pytest.importorskip("torch")
    from .rivals import on_mlx, pytorch

    given = Problem("dropout_masked", SMALL, "bfloat16").inputs()
    assert on_mlx.place(given, "bfloat16").mask.dtype == mx.uint8
    placed = pytorch.side("", torch.channels_last, "cpu").place(given, "bfloat16")
    assert (placed.x.dtype, placed.mask.dtype) == (torch.bfloat16, torch.uint8)
    assert torch.equal(placed.mask.permute(0, 2, 3, 1), torch.from_numpy(given.mask))


def test_drop_error_sees_a_wrong_value_a_wrong_share_and_another_mask() -> None:
    a = Problem("dropout_grad", (8, 16, 16, 64), "float32").inputs()
    assert a.x.all()
    rng = np.random.default_rng(1)
    kept, others = rng.random((2, *a.x.shape)) < KEEP
    y, dx = np.where(kept, a.x / KEEP, 0), np.where(kept, a.dy / KEEP, 0)
    assert drop_error([y], a) == 0 and drop_error([dx, y], a) == 0
    assert drop_error([1.01 * y], a) == pytest.approx(0.01, rel=1e-3)
    assert drop_error([dx, 1.01 * y], a) == pytest.approx(0.01, rel=1e-3)
    assert drop_error([1.01 * dx, y], a) == pytest.approx(0.01, rel=1e-3)
    assert drop_error([np.where(others, a.dy / KEEP, 0), y], a) > 0.5
    more = rng.random(a.x.shape) < KEEP + 6 * math.sqrt(KEEP * (1 - KEEP) / a.x.size)
    assert drop_error([np.where(more, a.x / KEEP, 0)], a) == math.inf
    assert drop_error([a.x], a) == math.inf and drop_error([0 * a.x], a) == math.inf


def test_dropout_s_inputs_have_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
            return np.full(shape, -1, dtype)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Zeros())
    assert not Problem("relu", SMALL, "float32").inputs().x.any()
    assert Problem("dropout", SMALL, "float32").inputs().x.all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_taken_beside_the_jumps_of_slopes(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = np.array([-3, -1, -0.5, 0, 0.5, 1, 3, 6], np.float32)

    class Jumps:
        def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
            return np.resize(jumps - 1, shape).astype(dtype)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Jumps())
    x = Problem("hard_tanh_grad", SMALL, dtype).inputs().x
    assert not np.isin(x, jumps).any()
    assert np.array_equal(np.unique(x), jumps + 2**-4)
    assert np.isin(Problem("hard_tanh", SMALL, dtype).inputs().x, jumps).all()


@pytest.mark.parity
def test_targets() -> None:
    pytest.importorskip("torch")
    from . import cpu, gpu

    assert {problem.op for problem, _ in _rows()} == {*POINTWISE}
    for op in POINTWISE:
        assert {p.dtype for p, _ in _rows([op])} == {*(("float32",) if op in IN_FLOAT32 else DTYPES)}
    without = {op for op in POINTWISE if "multiply" in op} | {"add", "cross_entropy_dense"}
    for problem, targets in _rows():
        free = problem.dtype != "float32" or problem.op in without or problem.op.startswith("upsample_asymmetric")
        few = problem.nhwc[3] <= 10 and problem.of_images
        assert targets == (() if free else (Target(PYTORCH[1:] if few else PYTORCH, 1),)), problem
    full = {p.op: p.shape for p, _ in reversed(cpu.problems(POINTWISE, cpu.SHAPE))}  # of each the first row
    assert {full.pop(op) for op in [*full] if op.startswith("cross_entropy")} == {
        (4096, 1000),
        (2, 256, 256, 1),
    }
    assert {full.pop(op) for op in DETECTED} == {(8, 13, 13, 75), (16384, 4), (1024, 4)}
    assert {*full.values()} == {(8, 56, 56, 64)}
    rows = gpu.problems(POINTWISE, gpu.SHAPE, tf32=False)
    assert {p.op for p, _ in rows} == {*POINTWISE} - ON_CPU - OF_MPS - REDUCED and not any(
        t for p, t in rows if p.dtype != "float32"
    )
    least = {p.op: targets[0].least for p, targets in rows if targets and targets[0].versus == (COPY,)}
    without = {"multiply_channels_grad", "cross_entropy", "cross_entropy_dense", "dice_loss", "dice_loss_grad"}
    assert {*POINTWISE} - ON_CPU - OF_MPS - REDUCED - {*least} == without | SAMPLED
    beside = {p.op: targets for p, targets in rows if p.op in SAMPLED}
    assert {op: target.least for op, (target,) in beside.items()} == {
        "grid_sample": 1, "grid_sample_grad": 0.8, "grid_sample_grads": 0.8, **dict.fromkeys(PAIRED, 1),
        "crop_and_resize": 1, "crop_and_resize_grad": 0.8, "roi_align": 1, "roi_align_grad": 0.8,
    }  # fmt: skip
    slow = {op for op in least if any(of in op for of in ("softm", "up", "resize")) or op in SMALLER}
    assert {op for op, share in least.items() if share == 0.7} == slow
    assert {*least.values()} == {0.7, 0.8}
    assert not gpu.problems(POINTWISE, gpu.SHAPE, tf32=True)


@pytest.mark.parity
@pytest.mark.parametrize("op", POINTWISE)
def test_every_row_has_a_right_answer_of_every_side(op: str) -> None:
    pytest.importorskip("torch")
    from .rivals import ours

    for problem, _ in _rows([op]):
        right, wrong = _checked(problem, ours.functions)
        one = problem.shape[-1] == 1 and not op.startswith("softm")
        expected = {OURS, *PYTORCH, "MLX"} - ({"MLX"} if op in NOT_MLX or one else set())
        if (op, problem.dtype) == COARSE:
            expected -= {*PYTORCH}
            assert {*wrong} == {*PYTORCH}
        else:
            assert not wrong, problem
        assert {*right} == expected, problem


def _instead(op: str, other: str) -> SimpleNamespace:
    from .rivals import ours

    return SimpleNamespace(**{op: getattr(ours.functions, other)})


@pytest.mark.parity
@pytest.mark.parametrize(
    ("op", "other"),
    [
        ("relu", "gelu"),
        ("relu_grad", "gelu_grad"),
        ("softmax", "log_softmax"),
        ("softmax_grad", "log_softmax_grad"),
        ("upsample_bilinear", "upsample_asymmetric"),
        ("upsample_bilinear", "upsample_nearest"),
        ("upsample_bilinear_grad", "upsample_asymmetric_grad"),
        ("upsample_asymmetric_grad", "upsample_nearest_grad"),
        ("dropout_masked", "dropout"),
        ("dropout", "relu"),
        ("multiply", "add"),
        ("multiply_grad", "multiply"),
        ("hard_swish", "silu"),
        ("gelu_fast", "silu"),
        ("gelu_tanh_grad", "gelu_fast_grad"),
        ("celu", "selu"),
        ("relu6", "hard_tanh"),
        ("soft_shrink", "hard_shrink"),
        ("soft_shrink_grad", "relu2_grad"),
        ("softmin", "softmax"),
        ("shrink_bilinear", "resize_area"),
        ("shrink_nearest_grad", "shrink_bilinear_grad"),
        ("shrink_filtered", "shrink_bilinear"),
        ("pad_mirror", "pad_circular"),
        ("pad_clamp_grad", "pad_zero_grad"),
        ("tanh", "sigmoid"),
        ("cross_entropy_weighted", "cross_entropy"),
        ("focal_loss_grad", "focal_loss"),
        ("grid_sample", "relu"),
        ("grid_sample_grad", "grid_sample"),
        ("gram_matrix", "relu"),
        ("local_correlation", "gram_matrix"),
        ("crop_and_resize", "roi_align"),
        ("crop_and_resize_grad", "roi_align_grad"),
        ("roi_align", "crop_and_resize"),
        ("roi_align_grad", "crop_and_resize_grad"),
    ],
)
def test_another_operation_is_wrong_in_every_dtype(op: str, other: str) -> None:
    pytest.importorskip("torch")

    def given(problem: Problem, arrays: SimpleNamespace) -> Any:
        return getattr(_instead(op, other), op)(problem, arrays)

    for dtype in ("float32",) if op in IN_FLOAT32 else DTYPES:
        with pytest.raises(AssertionError, match=f"{dtype}: wrong"):
            _checked(_problem(op, dtype), SimpleNamespace(**{op: given}))


@pytest.mark.parity
@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy_dense", *sorted(ENTROPY)])
def test_a_loss_with_a_wrong_value_or_a_wrong_gradient_is_wrong(op: str) -> None:
    pytest.importorskip("torch")
    from .rivals import ours

    right = getattr(ours.functions, op)
    for at in (0, 1):
        for dtype in ("float32",) if op in IN_FLOAT32 else DTYPES:

            def call(p: Problem, a: SimpleNamespace, at: int = at) -> Any:
                return lambda: [y * 1.05 if i == at else y for i, y in enumerate(right(p, a)())]

            *_, last = [
                problem for problem, _ in _rows([op]) if problem.dtype == dtype
            ]  # the first may be of one class
            with pytest.raises(AssertionError, match=f"{dtype}: wrong"):
                _checked(last, SimpleNamespace(**{op: call}))


@pytest.mark.parity
def test_gelu_by_a_hyperbolic_tangent_is_wrong() -> None:
    pytest.importorskip("torch")
    import mlx.nn as nn

    approximate = SimpleNamespace(gelu=lambda p, a: lambda: [nn.gelu_approx(a.x)])
    with pytest.raises(AssertionError, match="gelu float32: wrong"):
        _checked(_problem("gelu"), approximate)


@pytest.mark.parity
def test_images_that_go_on_as_zeros_between_their_pixels() -> None:
    torch = pytest.importorskip("torch")
    from .rivals import pytorch

    problem = Problem("upsample_asymmetric", (1, 2, 2, 1), "float32")
    side = pytorch.side("oracle", torch.contiguous_format, "cpu")
    a = side.place(SimpleNamespace(x=np.array([[1, 3], [5, 9]], np.float32).reshape(1, 2, 2, 1)), "float64")
    y = side.answer(problem.op, getattr(pytorch.functions, problem.op)(problem, a)())[0]
    expected = [[1, 2, 3, 1.5], [3, 4.5, 6, 3], [5, 7, 9, 4.5], [2.5, 3.5, 4.5, 2.25]]
    np.testing.assert_array_equal(y.reshape(4, 4), expected)


@pytest.mark.parity
@pytest.mark.parametrize(
    "op",
    [
        *("relu", "gelu", "softmax", "log_softmax", "upsample_bilinear", "upsample_asymmetric", "upsample_nearest"),
        *("resize_bicubic", "resize_filtered", "resize_area", "shrink_nearest", "shrink_bilinear", "shrink_filtered"),
        *("sigmoid", "tanh", "softplus", "elu", "pad_zero", "pad_clamp", "pad_mirror", "pad_circular"),
        *BEYOND_MPS,
    ],
)
def test_gradients_are_autograd_s(op: str) -> None:
    torch = pytest.importorskip("torch")
    from .rivals import pytorch

    for name, layout in pytorch.LAYOUTS.items():
        a = pytorch.side(name, layout, "cpu").place(_problem(op).inputs(), "float64")
        by_name = getattr(pytorch.functions, f"{op}_grad")(_problem(f"{op}_grad"), a)()[0]
        torch.set_grad_enabled(True)
        a.x.requires_grad_()
        y = getattr(pytorch.functions, op)(_problem(op), a)()[0]
        assert y.is_contiguous(memory_format=layout) or op == "pad_circular"
        # Gradients of some PyTorch has in NCHW alone.
        assert by_name.is_contiguous(memory_format=layout) or "resize" in op or op == "pad_circular"
        (dx,) = torch.autograd.grad(y, a.x, a.dy)
        torch.testing.assert_close(by_name, dx, rtol=1e-9, atol=1e-9)


@pytest.mark.parity
@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy_dense"])
def test_losses_and_their_gradients_are_autograd_s(op: str) -> None:
    torch = pytest.importorskip("torch")
    from .rivals import pytorch

    a = pytorch.side("oracle", torch.contiguous_format, "cpu").place(_problem(op).inputs(), "float64")
    value, dx = getattr(pytorch.functions, op)(_problem(op), a)()
    torch.set_grad_enabled(True)
    a.x.requires_grad_()
    targets = a.labels.long() if op == "cross_entropy" else a.targets
    expected = torch.nn.functional.cross_entropy(a.x, targets, reduction="none")
    torch.testing.assert_close(value[:, 0], expected.detach())
    # Targets that float32 has add up to 1 within rounding, which the operator takes for granted.
    torch.testing.assert_close(dx, torch.autograd.grad(expected.sum(), a.x)[0], rtol=1e-5, atol=1e-9)


def test_rows_in_tables(tmp_path: Path) -> None:
    problem = Problem("cross_entropy", (64, 1000), "float32")
    times = {OURS: [1.0], PYTORCH[0]: [2.0], COPY: [0.5]}
    row = Row(problem, times, dict.fromkeys(times, 1), {}, {}, (Target(PYTORCH, 1),))
    text = report.write(tmp_path, "table", "Title", {}, "How.", [row])
    assert "| loss softmax_cross_entropy | float32 | 64x1000 | 1 x PyTorch | 2.00 (2.00 to 2.00) | met |" in text
    assert (tmp_path / "table.csv").read_text().splitlines()[1].startswith("cross_entropy,64,1,1,1000,float32,")


@pytest.mark.parity
def test_rows_have_one_layout() -> None:
    pytest.importorskip("torch")
    from . import cpu

    args = SimpleNamespace(only=["cross_entropy"], quick=True, rounds=1, jax=False, openblas=None, no_mlx=False)
    row = cpu.measure(_problem("cross_entropy"), (), args)
    assert {*row.times} == {OURS, "MLX", PYTORCH[0]} and {*row.kept} == {*row.times, COPY}


def test_names_of_families_stand_for_their_operations() -> None:
    assert named(["pointwise", "conv"]) == [*POINTWISE, "conv"]
    with pytest.raises(ValueError, match="no operation or family reluu; families are pooling, "):
        named(["reluu"])
