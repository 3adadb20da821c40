"""The C++ primitives of softmax and losses by themselves: what the binding refuses, and what no length breaks."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers

from mpsfunc.core.params import for_cpu
from mpsfunc.losses.params import DiceLossParams, DiceParams, LossNumbers

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

F32 = mx.float32
LINES, HALF = ((2, 3, 4), F32), ((2, 3, 4), mx.float16)
FLAT = ((2, 12), F32)
VALUES, LABELS, PIXELS = ((2,), F32), ((2, 3), mx.uint32), ((2, 3, 1), F32)
SUMS = (2, 4), F32
NUMBERS = for_cpu(LossNumbers(1.0, 0.0, 1e-7, 1.0, 1.0, 1.0))


def run(op: str, arrays: list[mx.array], params: tuple[int, ...], outputs: list[Any]) -> list[mx.array]:
    return getattr(_primitives, op)(
        arrays, list(params), [list(s) for s, _ in outputs], [d for _, d in outputs], mx.cpu
    )


def _loss(*kinds: int) -> tuple[int, ...]:
    """Type, elements, labelled, weighted."""
    return (*kinds, *NUMBERS)


def _grad(*kinds: int) -> tuple[int, ...]:
    """Type, exact, labelled, weighted, scaled."""
    return (*kinds, *NUMBERS)


def _dice(*kinds: int) -> tuple[int, ...]:
    """Activation, squared, labelled."""
    return for_cpu(DiceLossParams(DiceParams(*kinds), 1e-5, 1.0))


MALFORMED: list[tuple[str, list[Any], tuple[int, ...], list[Any]]] = [
    ("softmax", [], (), [LINES]),
    ("softmax", [LINES, LINES], (), [LINES]),
    ("softmax", [LINES], (0,), [LINES]),
    ("softmax", [FLAT], (), [FLAT]),
    ("softmax", [LINES], (), [HALF]),
    ("softmax", [LINES], (), [FLAT]),
    ("softmax", [((2, 3, 4), mx.int32)], (), [((2, 3, 4), mx.int32)]),
    ("log_softmax", [LINES], (), []),
    ("softmin", [LINES], (0,), [LINES]),
    ("softmin", [LINES, LINES], (), [LINES]),
    ("softmax_grad", [LINES, LINES], (), [LINES]),
    ("softmax_grad", [LINES, LINES], (3,), [LINES]),
    ("softmax_grad", [LINES, LINES, LINES], (2,), [LINES]),
    ("softmax_grad", [LINES, LINES], (1,), [LINES]),
    ("softmax_grad", [LINES, LINES, LINES], (0,), [LINES]),
    ("softmax_grad", [LINES, HALF], (0,), [LINES]),
    ("log_softmax_grad", [LINES, LINES], (3,), [LINES]),
    ("log_softmax_grad", [LINES, LINES], (-1,), [LINES]),
    ("log_softmax_grad", [LINES, FLAT], (2,), [LINES]),
    ("log_softmax_grad", [FLAT, FLAT], (2,), [FLAT]),
    ("loss", [LINES, LINES], NUMBERS, [VALUES]),
    ("loss", [LINES, LINES], _loss(12, 0, 0, 0), [VALUES]),
    ("loss", [LINES, LINES], _loss(11, 0, 0, 0), [VALUES]),
    ("loss", [LINES, LINES, PIXELS], _loss(11, 0, 0, 1), [VALUES]),
    ("loss", [LINES, LABELS, LINES], _loss(11, 0, 1, 1), [VALUES]),
    ("loss_grad", [LINES, LINES], _grad(11, 1, 0, 0, 0), [LINES]),
    ("loss_grad", [LINES, LINES, PIXELS], _grad(11, 1, 0, 1, 0), [LINES]),
    ("loss", [LINES, LINES], _loss(-1, 0, 0, 0), [VALUES]),
    ("loss", [LINES, LINES], _loss(1, 2, 0, 0), [VALUES]),
    ("loss", [LINES, LINES], _loss(1, 0, 0, 1), [VALUES]),
    ("loss", [LINES, LABELS], _loss(2, 0, 2, 0), [VALUES]),
    ("loss", [LINES, LINES, LINES], _loss(1, 0, 0, 2), [VALUES]),
    ("loss", [LINES, ((2, 3, 3), F32)], _loss(1, 0, 0, 0), [VALUES]),
    ("loss", [((2, 3, 4), mx.int32)] * 2, _loss(1, 0, 0, 0), [VALUES]),
    ("loss", [((2, 3, 0), F32)] * 2, _loss(1, 0, 0, 0), [VALUES]),
    ("loss", [((1, 2**16, 2**15), F32)] * 2, _loss(1, 0, 0, 0), [((1,), F32)]),
    ("loss", [LINES, LINES], _loss(1, 0, 0, 0), [VALUES, FLAT]),
    ("loss", [LINES, LINES, LINES], _loss(1, 0, 0, 0), [VALUES]),
    ("loss", [LINES, HALF], _loss(1, 0, 0, 0), [VALUES]),
    ("loss", [LINES, LABELS], _loss(1, 0, 1, 0), [VALUES]),
    ("loss", [LINES, LABELS], _loss(2, 0, 0, 0), [VALUES]),
    ("loss", [LINES, LINES], _loss(2, 0, 1, 0), [VALUES]),
    ("loss", [LINES, ((2, 3), mx.int32)], _loss(2, 0, 1, 0), [VALUES]),
    ("loss", [LINES, ((3, 2), mx.uint32)], _loss(2, 0, 1, 0), [VALUES]),
    ("loss", [LABELS, LABELS], _loss(2, 0, 1, 0), [VALUES]),
    ("loss", [LINES, LINES, HALF], _loss(1, 0, 0, 1), [VALUES]),
    ("loss", [LINES, LINES, ((2, 3, 2), F32)], _loss(1, 0, 0, 1), [VALUES]),
    ("loss", [LINES, LINES, VALUES], _loss(1, 0, 0, 1), [VALUES]),
    ("loss", [FLAT, FLAT], _loss(1, 0, 0, 0), [VALUES]),
    ("loss", [((2, 0, 4), F32), ((2, 0, 4), F32)], _loss(1, 0, 0, 0), [VALUES]),
    ("loss", [LINES, LINES], _loss(1, 0, 0, 0), [LINES]),
    ("loss", [LINES, LINES], _loss(1, 1, 0, 0), [VALUES]),
    ("loss", [LINES, LINES], _loss(1, 0, 0, 0), [((2,), mx.float16)]),
    ("loss", [LINES, LINES], _loss(1, 0, 0, 0), [VALUES, HALF]),
    ("loss", [LINES, LINES], _loss(1, 0, 0, 0), [VALUES, LINES, LINES]),
    ("loss", [LINES, LINES], _loss(1, 0, 0, 0), []),
    ("loss_grad", [LINES, LINES], _grad(1, 0, 0, 0), [LINES]),
    ("loss_grad", [LINES, LINES], _grad(1, 2, 0, 0, 0), [LINES]),
    ("loss_grad", [LINES, LINES], _grad(1, 1, 0, 0, 2), [LINES]),
    ("loss_grad", [LINES, LINES], _grad(1, 0, 0, 0, 0), [HALF]),
    ("loss_grad", [LINES, LINES], _grad(1, 0, 0, 0, 1), [LINES]),
    ("loss_grad", [LINES, LINES, ((3,), F32)], _grad(1, 1, 0, 0, 1), [LINES]),
    ("loss_grad", [LINES, LINES, VALUES], _grad(1, 1, 0, 1, 0), [LINES]),
    ("loss_grad", [LINES, LINES, PIXELS, ((2,), mx.float16)], _grad(1, 1, 0, 1, 1), [LINES]),
    ("loss_grad", [LINES, LINES], _grad(1, 0, 0, 0, 0), [VALUES]),
    ("loss_grad", [LINES, LINES], _grad(1, 0, 0, 0, 0), [LINES, LINES]),
    ("dice_sums", [LINES], (0, 0, 0), [SUMS] * 3),
    ("dice_sums", [LINES, LINES], (0, 0), [SUMS] * 3),
    ("dice_sums", [LINES, LINES], (3, 0, 0), [SUMS] * 3),
    ("dice_sums", [LINES, LINES], (-1, 0, 0), [SUMS] * 3),
    ("dice_sums", [LINES, LINES], (0, 2, 0), [SUMS] * 3),
    ("dice_sums", [LINES, LABELS], (0, 0, 2), [SUMS] * 3),
    ("dice_sums", [LINES, LABELS], (0, 0, 0), [SUMS] * 3),
    ("dice_sums", [LINES, LINES], (0, 0, 1), [SUMS] * 3),
    ("dice_sums", [LINES, ((3, 2), mx.uint32)], (0, 0, 1), [SUMS] * 3),
    ("dice_sums", [LINES, HALF], (0, 0, 0), [SUMS] * 3),
    ("dice_sums", [FLAT, FLAT], (0, 0, 0), [SUMS] * 3),
    ("dice_sums", [((2, 0, 4), F32)] * 2, (0, 0, 0), [SUMS] * 3),
    ("dice_sums", [((1, 2**16, 2**15), F32)] * 2, (0, 0, 0), [((1, 2**15), F32)] * 3),
    ("dice_sums", [((2, 3, 4), mx.int32)] * 2, (0, 0, 0), [SUMS] * 3),
    ("dice_sums", [LINES, LINES], (0, 0, 0), [SUMS] * 2),
    ("dice_sums", [LINES, LINES], (0, 0, 0), [SUMS, SUMS, VALUES]),
    ("dice_sums", [HALF, HALF], (0, 0, 0), [((2, 4), mx.float16)] * 3),
    ("dice_grad", [LINES, LINES, SUMS], (0, 0, 0), [LINES]),
    ("dice_grad", [LINES, LINES, SUMS, VALUES], (0, 0, 0), [LINES]),
    ("dice_grad", [LINES, LINES, LINES, SUMS], (0, 0, 0), [LINES]),
    ("dice_grad", [LINES, LINES, SUMS, SUMS], (0, 0, 0), [HALF]),
    ("dice_grad", [LINES, LINES, SUMS, SUMS], (0, 0, 0), [LINES, LINES]),
    ("dice_loss_grad", [LINES, LINES], (0, 0, 0), [LINES]),
    ("dice_loss_grad", [LINES, LINES], _dice(3, 0, 0), [LINES]),
    ("dice_loss_grad", [LINES, LINES], _dice(0, 0, 1), [LINES]),
    ("dice_loss_grad", [LINES, LABELS], _dice(0, 0, 0), [LINES]),
    ("dice_loss_grad", [LINES, LINES, SUMS, SUMS], _dice(0, 0, 0), [LINES]),
    ("dice_loss_grad", [LINES, LINES], _dice(0, 0, 0), [HALF]),
    ("dice_loss_grad", [LINES, LINES], _dice(0, 0, 0), [SUMS] * 3),
]


@pytest.mark.parametrize(("op", "inputs", "params", "outputs"), MALFORMED)
def test_malformed_calls_are_refused(op: str, inputs: list[Any], params: tuple[int, ...], outputs: list[Any]) -> None:
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [mx.zeros(shape, dtype) for shape, dtype in inputs], params, outputs)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 33, 48, 63, 64, 65, 2100, 20_000])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.float64], ids=str)
def test_lines_of_every_length(isa: str, dtype: mx.Dtype, length: int) -> None:
    """Broken vectors, sums that go on in double, and more exponentials than are kept; stored past the caches or not."""
    for outer in (3, max(3, (2**24 // dtype.size + 2**16) // length)):
        x = mx.broadcast_to(numbers((1, length, 1), dtype), (outer, length, 1))
        like = [(x.shape, dtype)]
        y, logs = run("softmax", [x], (), like)[0], run("log_softmax", [x], (), like)[0]
        right = np.exp(exact(x[0])) / np.exp(exact(x[0])).sum()
        tolerance = {mx.float64: 1e-14, mx.float32: 1e-6, mx.float16: 1e-3}[dtype]
        for some in (slice(0, 2), slice(-2, None)):
            np.testing.assert_allclose(exact(y[some]), np.stack([right] * 2), rtol=tolerance, atol=6e-8)
            np.testing.assert_allclose(exact(logs[some]), np.stack([np.log(right)] * 2), rtol=tolerance, atol=tolerance)
        assert mx.array_equal(y[0], y[-1])


@pytest.mark.parametrize("smoothing", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("classes", [1, 2, 5, 31, 64, 1000, 17_000])
def test_labels_are_what_dense_targets_are(isa: str, classes: int, smoothing: float) -> None:
    """They go another way; the last pixels too, whose rows begin anywhere."""
    pixels = max(7, (1 if smoothing else 5) * 2**20 // classes)  # 5: of more than 16 MB
    y = numbers((1, pixels, classes))
    labels = mx.arange(pixels).astype(mx.uint32) * 7 % (classes + 1)  # some of no class
    hot = (labels[:, None] == mx.arange(classes)).astype(F32)[None]
    share = smoothing / classes
    hot = mx.where(labels[:, None] < classes, hot * (1 - smoothing) + share, hot)
    like = (y.shape, F32)
    rounded = 3e-7 if smoothing else 1e-7  # three roundings of a share near 1, which no target of 1 takes away
    smooth = for_cpu(LossNumbers(1 - smoothing, share, 1e-7, 1.0, 1.0, 1.0))
    for exactly in (0, 1):
        dense = run("loss_grad", [y, hot], _grad(2, exactly, 0, 0, 0), [like])[0]
        short = run("loss_grad", [y, labels[None]], (2, exactly, 1, 0, 0, *smooth), [like])[0]
        np.testing.assert_allclose(exact(short), exact(dense), rtol=1e-6, atol=rounded)
    told = (_loss(2, 0, 0, 0), hot), ((2, 0, 1, 0, *smooth), labels[None])
    both = [run("loss", [y, t], how, [((1,), F32), like]) for how, t in told]
    np.testing.assert_allclose(exact(both[1][1]), exact(both[0][1]), rtol=1e-6, atol=rounded)
    np.testing.assert_allclose(both[0][0].item(), both[1][0].item(), rtol=1e-6)
