"""`deform_conv` where its records say nothing: torchvision's results, places that are none, threads, memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from core.test_cpu import run
from metal_host.cases import CASES
from support import DTYPES, exact, nodes, numbers, same_bits, same_bits_for_threads

import mpsfunc as mf
from mpsfunc import nn
from mpsfunc.convolution import deform_rules
from mpsfunc.convolution.params import DeformParams
from mpsfunc.core.params import for_cpu

FIXTURES = Path(__file__).parents[1] / "fixtures"
_spec = importlib.util.spec_from_file_location("make_deform_conv", FIXTURES / "make_deform_conv.py")
assert _spec is not None and _spec.loader is not None
theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(theirs)


def arguments(name: str, given: dict[str, Any], dtype: mx.Dtype) -> tuple[list[mx.array], mx.array, Any]:
    """x, offsets, weights, bias and mask of a case of torchvision's, dy, and our function of them."""
    (_, x_depth), w_shape = theirs.CASES[name][0][2:], theirs.CASES[name][1]
    arrays = {key: mx.array(a, dtype) for key, a in given.items()}
    how = {"groups": x_depth // w_shape[3], "offset_groups": theirs.CASES[name][3], **theirs.CASES[name][-1]}
    taken = [arrays[key] for key in ("x", "offsets", "w", "b", "mask") if key in arrays]
    return taken, arrays["dy"], partial(mf.deform_conv, **how)


def agree(name: str, given: dict[str, Any], right: dict[str, Any], dtype: mx.Dtype, rounding: float) -> None:
    """Asserts the results and gradients of torchvision."""
    taken, dy, f = arguments(name, given, dtype)
    (y,), grads = mx.vjp(f, taken, [dy])
    names = [key for key in ("dx", "doffsets", "dw", "db", "dmask") if key in right]
    for key, a in zip(["y", *names], [y, *grads], strict=True):
        np.testing.assert_allclose(exact(a), right[key], rtol=0, atol=rounding * abs(right[key]).max(), err_msg=key)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", theirs.CASES)
def test_as_torchvision(name: str) -> None:
    """By its stored results: places at borders and far away, too."""
    stored = np.load(FIXTURES / "deform_conv.npz")
    known = {key.partition("/")[2]: stored[key] for key in stored.files if key.startswith(f"{name}/")}
    given = {key: a for key, a in known.items() if key in ("x", "offsets", "w", "b", "mask", "dy")}
    drawn = theirs.inputs(name)
    assert {key: a.shape for key, a in given.items()} == {key: a.shape for key, a in drawn.items()}
    agree(name, given, known, mx.float64, 1e-13)
    agree(name, given, known, mx.float32, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", theirs.CASES)
def test_beside_torchvision(name: str) -> None:
    """Live, where torchvision is."""
    try:
        import torchvision.ops  # type: ignore[import-not-found,unused-ignore]  # an environment need not have it
    except (ImportError, RuntimeError):  # RuntimeError: it is for another PyTorch
        pytest.skip("no torchvision")
    import torch

    assert torchvision.ops is not None
    given = theirs.inputs(name)
    right = theirs.convolved(name, given, "cuda" if torch.cuda.is_available() else "cpu")
    agree(name, given, right, mx.float32, 1e-4)


# Places -------------------------------------------------------------------------------------------------

X = mx.arange(1.0, 10).reshape(1, 3, 3, 1)
ONE = mx.ones((1, 1, 1, 1))


def placed(*moves: tuple[float, float], dtype: mx.Dtype = mx.float32) -> mx.array:
    """Offsets of the first outputs of X, and none of the others."""
    made = np.zeros((9, 2))
    made[: len(moves)] = moves
    return mx.array(made.reshape(1, 3, 3, 2), dtype)


@pytest.mark.usefixtures("on_cpu")
def test_worked_numbers(dtype: mx.Dtype) -> None:
    """A quarter down, a half to the right, and both beyond the image."""
    offsets = placed((0.25, 0), (0, 0.5), (-0.5, 0.5))
    x, state = X.astype(dtype), mf.deform_conv_state(X.shape, ONE.shape)
    y = mf.deform_conv(x, offsets, ONE)
    assert y.dtype == dtype and exact(y).ravel()[:3].tolist() == [1.75, 2.5, 0.75]
    dy = mx.array([4.0, 2, 8] + [0] * 6, dtype).reshape(X.shape)
    dx = mf.deform_conv_grad_input(dy, offsets, ONE, state)
    assert dx.dtype == dtype and exact(dx).ravel().tolist() == [3, 1, 3, 1, 0, 0, 0, 0, 0]
    by = mf.deform_conv_grad_offsets(dy, x, offsets, ONE, state)
    assert by.dtype == mx.float32 and by.reshape(9, 2)[:3].tolist() == [[12, 4], [6, 2], [12, -12]]
    mask = mx.full((1, 3, 3, 1), 0.5)
    assert exact(mf.deform_conv(x, offsets, ONE, mask=mask)).ravel()[:3].tolist() == [0.875, 1.25, 0.375]
    by = mf.deform_conv_grad_mask(dy, x, offsets, ONE, state, mask)
    assert by.reshape(-1)[:3].tolist() == [7, 5, 6]
    state = mf.deform_conv_grad_weights(dy, x, offsets, state, mask)
    assert (state.dw.item(), state.db.item()) == (9, 14)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("far", [np.nan, np.inf, -np.inf, 1e30, -4.0, 4.0])
def test_places_that_are_none_read_nothing(far: float) -> None:
    """And have no slope, nor give anything to a pixel."""
    offsets = placed((far, 0), (0, far))
    x, dy, state = numbers(X.shape), mx.ones(X.shape), mf.deform_conv_state(X.shape, ONE.shape)
    assert exact(mf.deform_conv(x, offsets, ONE)).ravel()[:2].tolist() == [0, 0]
    by = exact(mf.deform_conv_grad_offsets(dy, x, offsets, ONE, state)).reshape(9, 2)
    assert not by[:2].any() and np.isfinite(by).all()
    dx = exact(mf.deform_conv_grad_input(dy, offsets, ONE, state))
    assert dx.sum() == 7 and dx.ravel()[:2].tolist() == [0, 0]


@pytest.mark.usefixtures("on_cpu")
def test_a_mask_that_is_no_number() -> None:
    """Its sample is none either, wherever it lies, and neither is the gradient of the pixels that were read."""
    offsets, state = placed((9, 0)), mf.deform_conv_state(X.shape, ONE.shape)
    mask = mx.where(mx.arange(9) < 2, mx.nan, 1.0).reshape(1, 3, 3, 1)
    y = exact(mf.deform_conv(X, offsets, ONE, mask=mask)).ravel()
    assert np.isnan(y[:2]).all() and y[2:].tolist() == [3, 4, 5, 6, 7, 8, 9]
    dx = exact(mf.deform_conv_grad_input(mx.ones(X.shape), offsets, ONE, state, mask)).ravel()
    assert dx[0] == 0 and np.isnan(dx[1]) and dx[2:].tolist() == [1] * 7
    by = exact(mf.deform_conv_grad_mask(mx.ones(X.shape), X, offsets, ONE, state, mask)).ravel()
    assert by.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.usefixtures("on_cpu")
def test_slopes_at_borders_are_those_to_the_right() -> None:
    """One pixel beyond the first, where the sample is 0, the first one's; at the last none is left to come."""
    offsets, state = placed((-1, 0), (-1, -1), (2, 0)), mf.deform_conv_state(X.shape, ONE.shape)
    assert exact(mf.deform_conv(X, offsets, ONE)).ravel()[:3].tolist() == [0, 0, 9]
    by = mf.deform_conv_grad_offsets(mx.ones(X.shape), X, offsets, ONE, state).reshape(9, 2)
    assert by[:3].tolist() == [[1, 0], [1, 0], [-9, -9]]


@pytest.mark.usefixtures("on_cpu")
def test_without_offsets_it_is_conv(dtype: mx.Dtype) -> None:
    how: dict[str, Any] = {"stride": (2, 1), "padding": "same", "dilation": (1, 2), "groups": 2}
    x, w, b = numbers((2, 7, 6, 4), dtype), numbers((6, 3, 2, 2), dtype, 1), numbers((6,), dtype, 2)
    y = mf.conv(x, w, b, **how)
    made, state = mf.deform_conv_fwd(x, mx.zeros((*y.shape[:3], 24)), w, b, offset_groups=2, **how)
    np.testing.assert_allclose(exact(made), exact(y), rtol=8e-3 if dtype.size == 2 else 1e-5, atol=1e-5)
    assert state.rows == mf.conv_state(x.shape, w.shape, **how).rows
    assert state == mf.deform_conv_state(x.shape, w.shape, offset_groups=2, dtype=state.dw.dtype, **how)._replace(
        dw=state.dw, db=state.db
    )


# Threads and memory -------------------------------------------------------------------------------------


def problem(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32) -> tuple[list[mx.array], dict[str, Any]]:
    """Arguments with a mask, of windows of three by three with two groups of offsets; and how."""
    places = 1.5 * numbers((*shape[:3], 36), dtype, 1), numbers((*shape[:3], 18), dtype, 2)
    w, b = numbers((5, 3, 3, shape[3]), dtype, 3), numbers((5,), dtype, 4)
    return [numbers(shape, dtype), places[0], w, b, places[1]], {"padding": 1, "offset_groups": 2}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 40, 19, 4), (2, 33, 30, 40), (9, 5, 4, 2)], ids=str)
def test_bits_do_not_depend_on_threads(dtype: mx.Dtype, shape: Any, threads: Callable[[int], None]) -> None:
    arrays, how = problem(shape, dtype)
    dy = numbers((*shape[:3], 5), dtype, 5)

    def compute() -> list[mx.array]:
        y, grads = mx.vjp(lambda *a: mf.deform_conv(*a, **how), arrays, [dy])
        return [*y, *grads]

    same_bits_for_threads(threads, compute)


def everything(arrays: list[mx.array], how: dict[str, Any]) -> list[mx.array]:
    """The result, its gradients by derivation and by hand, and a map of it."""
    x, offsets, w, b, mask = arrays
    y, state = mf.deform_conv_fwd(*arrays, **how)
    dy = numbers(tuple(y.shape), x.dtype, 6)
    _, grads = mx.vjp(lambda *a: mf.deform_conv(*a, **how), arrays, [dy])
    by_hand = [
        mf.deform_conv_grad_input(dy, offsets, w, state, mask),
        mf.deform_conv_grad_offsets(dy, x, offsets, w, state, mask),
        *mf.deform_conv_grad_weights(dy, x, offsets, state, mask).arrays,
        mf.deform_conv_grad_mask(dy, x, offsets, w, state, mask),
    ]
    mapped = mx.vmap(lambda x: mf.deform_conv(x, offsets, w, b, mask, **how))(mx.stack([x, 2 * x]))
    second = mx.grad(lambda o: (mx.grad(lambda x: (mf.deform_conv(x, o, w, b, mask, **how) ** 2).sum())(x) ** 2).sum())
    return [y, *grads, *by_hand, mapped, second(offsets)]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("images", [1, 2, 5])
def test_parts_of_a_batch_come_to_the_same(images: int) -> None:
    """Bits too, but of sums over images, which are added in another order."""
    arrays, how = problem((5, 6, 7, 4))
    whole = everything(arrays, how)
    of_image = 6 * 7 * 9 * 4 * 4
    with mock.patch.multiple(deform_rules, _WHOLE=0, _PART=images * of_image):
        assert nodes(mf.deform_conv(*arrays, **how))["deform_columns"] == -(-5 // images)
        parts = everything(arrays, how)
    for i, (a, b) in enumerate(zip(whole, parts, strict=True)):
        if i in (3, 8, 12):
            np.testing.assert_allclose(exact(a), exact(b), rtol=1e-4, atol=1e-4 * abs(exact(a)).max())
        else:
            assert same_bits(a, b), i


@pytest.mark.usefixtures("on_cpu")
def test_columns_are_made_part_by_part() -> None:
    """Memory holds a few of them at a time, also for the gradients, for which MLX would keep them all."""
    shape = 40, 16, 16, 32
    x, w, dy = numbers(shape), numbers((4, 3, 3, 32)), numbers((*shape[:3], 4), seed=5)
    arrays = [x, numbers((*shape[:3], 18)), w]
    mx.eval(arrays, dy)
    of_image = 16 * 16 * 9 * 32 * 4

    def peak() -> float:
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(mx.vjp(lambda *a: mf.deform_conv(*a, padding=1), arrays, [dy]))
        return (mx.get_peak_memory() - before) / of_image

    assert peak() > 80
    with mock.patch.multiple(deform_rules, _WHOLE=0, _PART=of_image):
        assert peak() < 30


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("channels", [9, 16])
def test_columns_that_are_stored_past_the_caches(channels: int) -> None:
    """Those of more than 16 MiB, in memory that was used before: whole vectors of aligned ones alone."""
    x, w = numbers((4, 120, 120, channels)), numbers((1, 3, 3, channels), seed=1)
    offsets, right = mx.zeros((4, 120, 120, 18)), exact(mf.conv(x, w, padding=1))
    for _ in range(3):
        y = exact(mf.deform_conv(x, offsets, w, padding=1))
        np.testing.assert_allclose(y, right, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("images", [1, 3, 40])
def test_bands_of_an_image_add_up_all(images: int) -> None:
    """However many there are, and however far the places of a line lie from each other."""
    shape = images, 40, 6, 2
    offsets = mx.clip(30 * numbers((*shape[:3], 2), mx.float64), -60, 60)
    offsets[:, ::2] = 0.01 * offsets[:, ::2]  # lines that few bands read
    w, state = mx.ones((1, 1, 1, 2)), mf.deform_conv_state(shape, (1, 1, 1, 2))
    dy, x = numbers((*shape[:3], 1), mx.float64, 1), numbers(shape, mx.float64, 2)
    right = (mf.deform_conv(x, offsets, w) * dy).sum().item()
    left = (mf.deform_conv_grad_input(dy, offsets, w, state) * x).sum().item()
    assert left == pytest.approx(right, rel=1e-11)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("deform_conv")])
def test_what_gpus_are_asked(name: str) -> None:
    CASES[name].run()


@pytest.mark.usefixtures("on_cpu")
def test_offsets_of_float32_for_images_of_16_bits() -> None:
    """Gradients have the dtypes of what they are by."""
    arrays, how = problem((1, 5, 6, 4))
    x, offsets, w, _, mask = arrays
    narrow = [x.astype(mx.bfloat16), offsets, w, mask]

    def f(x: mx.array, offsets: mx.array, w: mx.array, mask: mx.array) -> mx.array:
        return mf.deform_conv(x, offsets, w, mask=mask, **how).astype(mx.float32).sum()

    grads = mx.grad(f, argnums=(0, 1, 2, 3))(*narrow)
    assert [g.dtype for g in grads] == [mx.bfloat16, *[mx.float32] * 3]
    np.testing.assert_allclose(
        exact(mf.deform_conv(*narrow[:3], mask=mask, **how)),
        exact(mf.deform_conv(narrow[0].astype(mx.float32), *narrow[1:3], mask=mask, **how)),
        rtol=4e-3,
    )


# What the kernels refuse --------------------------------------------------------------------------------

_STATE = mf.deform_conv_state((2, 7, 8, 4), (1, 3, 3, 4), stride=2, padding=1, offset_groups=2)
ROWS, COLS = _STATE.rows, _STATE.cols
IMAGE, PLACES, COLUMNS = (2, 7, 8, 4), (2, 4, 4, 2 * 9 * 3), (2, 4, 4, 36)


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize(
    ("op", "inputs", "params", "output"),
    [
        ("deform_columns", [IMAGE], {}, COLUMNS),
        ("deform_columns", [IMAGE, IMAGE], {}, COLUMNS),
        ("deform_columns", [(2, 7, 8, 5), PLACES], {}, (2, 4, 4, 45)),
        ("deform_columns", [(3, 7, 8, 4), PLACES], {}, (3, 4, 4, 36)),
        ("deform_columns", [(2, 8, 8, 4), PLACES], {}, COLUMNS),
        ("deform_columns", [IMAGE, (2, 4, 5, 54)], {}, (2, 4, 5, 36)),
        ("deform_columns", [IMAGE, PLACES], {}, IMAGE),
        ("deform_columns", [IMAGE, PLACES], {"masked": 0}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"masked": 2}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"groups": 0}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"groups": 4}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"order_y": -1}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"order_mask": 9}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"rows": ROWS._replace(edge=1)}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"cols": COLS._replace(begin=1)}, COLUMNS),
        ("deform_columns", [IMAGE, PLACES], {"cols": COLS._replace(size=4)}, COLUMNS),
        ("deform_columns_grad", [COLUMNS, PLACES], {}, (2, 7, 8, 5)),
        ("deform_columns_grad", [IMAGE, PLACES], {}, IMAGE),
        ("deform_columns_grad", [COLUMNS, PLACES, PLACES], {}, IMAGE),
        ("deform_places_grad", [COLUMNS, IMAGE], {}, PLACES),
        ("deform_places_grad", [IMAGE, IMAGE, PLACES], {}, PLACES),
        ("deform_places_grad", [COLUMNS, IMAGE, PLACES], {}, (2, 4, 4, 36)),
    ],
)
def test_malformed_calls_are_refused(op: str, inputs: Any, params: Any, output: Any) -> None:
    words = for_cpu(DeformParams(ROWS, COLS, 2, 1, 0, 0, 0)._replace(**params))
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [mx.zeros(shape) for shape in inputs], words, (output, mx.float32))


@pytest.mark.needs_cpu_module
def test_kernels_take_wide_images_alone() -> None:
    words = for_cpu(DeformParams(ROWS, COLS, 2, 1, 0, 0, 0))
    assert run("deform_columns", [mx.zeros(IMAGE), mx.zeros(PLACES)], words, (COLUMNS, mx.float32))
    for dtypes in ((mx.float16, mx.float32), (mx.float32, mx.float64), (mx.float64, mx.float32)):
        given = [mx.zeros(shape, dtype) for shape, dtype in zip((IMAGE, PLACES), dtypes, strict=True)]
        with pytest.raises(ValueError, match="^deform_columns: expected "):
            run("deform_columns", given, words, (COLUMNS, dtypes[0]))


# The layer ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_cpu")
def test_the_layer() -> None:
    (x, offsets, w, b, mask), _ = problem((2, 5, 6, 4))
    layer = nn.DeformConv2d(4, 5, 3, padding=1)
    assert layer.weight.shape == w.shape and not layer.bias.any() and abs(layer.weight).max() <= 1 / 6
    layer.update({"weight": w, "bias": b})
    for groups, moves in ((2, offsets), (1, offsets[..., :18])):
        made = layer(x, moves, mask[..., : 9 * groups])
        assert same_bits(made, mf.deform_conv(x, moves, w, b, mask[..., : 9 * groups], padding=1, offset_groups=groups))
    assert "4, 5, kernel_size=(3, 3), stride=1, padding=1, dilation=1, groups=1, bias=True" in repr(layer)
    plain = nn.DeformConv2d(4, 6, (2, 1), stride=(1, 2), dilation=2, groups=2, bias=False)
    assert list(plain.parameters()) == ["weight"] and plain.weight.shape == (6, 2, 1, 2)
    y = plain(x, mx.zeros((2, 3, 3, 4)))
    expected = mf.conv(x, plain.weight, stride=(1, 2), dilation=2, groups=2)
    np.testing.assert_allclose(exact(y), exact(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_cpu")
def test_a_layer_learns_where_to_look() -> None:
    """The image's left neighbour, by offsets that a bias makes."""
    x = numbers((2, 6, 6, 2))
    target = mx.pad(x[:, :, :-1], [(0, 0), (0, 0), (1, 0), (0, 0)])
    w = mx.eye(2).reshape(2, 1, 1, 2)

    def loss(move: mx.array) -> mx.array:
        offsets = mx.broadcast_to(move, (2, 6, 6, 2))
        return ((mf.deform_conv(x, offsets, w) - target) ** 2).mean()

    move = mx.array([0.2, -0.3])
    for _ in range(200):
        move = move - 0.05 * mx.grad(loss)(move)
    np.testing.assert_allclose(exact(move), [0, -1], atol=0.05)


@pytest.mark.usefixtures("on_cpu")
def test_what_the_layer_refuses() -> None:
    layer, x = nn.DeformConv2d(4, 6, 3, groups=2), numbers((1, 5, 5, 4))
    with pytest.raises(ValueError, match="^DeformConv2d: groups do not divide the channels; got groups=3"):
        nn.DeformConv2d(4, 6, 3, groups=3)
    with pytest.raises(ValueError, match="^deform_conv: offsets and windows do not fit together"):
        layer(x, mx.zeros((1, 3, 3, 17)))
    with pytest.raises(TypeError, match="^deform_conv: offsets is not an array"):
        layer(x, None)  # type: ignore[arg-type]  # what is wrong
