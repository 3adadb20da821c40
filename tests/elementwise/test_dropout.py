"""Dropout: its generator, its masks, its gradient."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, close, exact, numbers, same_bits
from support.oracle import elementwise as oracle

import mpsfunc as mf
from mpsfunc.elementwise import dropout_rules

STRIDES = tuple(itertools.product((0, 1), repeat=3))
WORD = 2.0**-32


def keeps(words: np.ndarray, keep: float) -> np.ndarray:
    return words < round(keep * 2**32)


# The generator ------------------------------------------------------------------------------------------

# The known answers that the authors of the generator publish with Random123.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers_of_the_definition(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    assert tuple(oracle.philox(counter, key)) == answer


def test_known_answers_of_the_kernels(device: mx.Device) -> None:
    """An element is kept if its word is below the threshold, so two thresholds tell the word."""
    for i, word in enumerate(KNOWN[0][2]):
        for above in (0, 1):
            mask = mf.dropout_mask((4,), keep_probability=(word + above) * WORD, key=mx.zeros(2, mx.uint32))
            assert mask[i].item() == bool(above)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 64, 129, 5000])
def test_masks_are_the_words_of_the_key(device: mx.Device, seed: int, size: int) -> None:
    mask = mf.dropout_mask((size,), keep_probability=0.3, seed=seed)
    key = mx.random.key(seed)
    assert np.array_equal(np.array(mask), keeps(oracle.words(size, (key[0].item(), key[1].item())), 0.3))
    assert same_bits(mask, mf.dropout_mask((size,), keep_probability=0.3, key=key))


@pytest.mark.parametrize("keep", [WORD, 3 * WORD, 0.5 - WORD, 0.5, 1 - WORD])
def test_thresholds_to_the_last_bit(device: mx.Device, keep: float) -> None:
    words = oracle.words(400, (9, 0))
    chosen = [keep, *(float(w) * WORD for w in words[:6]), *((float(w) + 1) * WORD for w in words[:6])]
    for p in chosen:
        mask = mf.dropout_mask((400,), keep_probability=p, key=mx.array([9, 0], mx.uint32))
        assert np.array_equal(np.array(mask), keeps(words, p))


def test_every_instruction_set_makes_the_same_masks(on_cpu: mx.Device, isa: str, threads: Any) -> None:
    shapes = [((2, 3, 5, 7), s) for s in STRIDES] + [((3, 40, 33, 16), (1, 1, 1)), ((2, 1, 9, 3000), (1, 0, 1))]
    for shape, stride in shapes:
        x, expected = numbers(shape), oracle.mask(shape, 0.6, (5, 6), stride)
        for count in (1, 2, 3):
            threads(count)
            key = mx.array([5, 6], mx.uint32)
            assert np.array_equal(
                np.array(mf.dropout_mask(shape, keep_probability=0.6, key=key, mask_stride=stride)), expected
            )
            y = mf.dropout(x, keep_probability=0.6, key=key, mask_stride=stride)
            assert np.array_equal(exact(y) != 0, np.broadcast_to(expected, shape))


# Values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", STRIDES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 4, 2, 8), (1, 1, 1, 1), (2, 1, 300, 1), (2, 5, 1, 2100)], ids=str)
def test_definition(device: mx.Device, dtype: mx.Dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    x, dy = numbers(shape, dtype), numbers(shape, dtype, 1)
    y, state = mf.dropout_fwd(x, keep_probability=0.3, seed=11, mask_stride=stride)
    mask = oracle.mask(shape, 0.3, mx.random.key(11), stride)
    assert np.array_equal(np.array(mf.dropout_mask(shape, keep_probability=0.3, seed=11, mask_stride=stride)), mask)
    assert y.dtype == dtype
    close(y, exact(x) * mask / 0.3)
    close(mf.dropout_grad(dy, state), exact(dy) * mask / 0.3)


def test_a_result_is_rounded_once(on_cpu: mx.Device) -> None:
    x = numbers((1, 20, 20, 8))
    y = mf.dropout(x, keep_probability=0.3, seed=1)
    kept = exact(y) != 0
    assert np.array_equal(exact(y)[kept], (np.array(x) / np.float32(0.3)).astype(np.float64)[kept])


@pytest.mark.parametrize(
    "shape", [(), (5,), (3, 7), (2, 3, 4), (2, 1, 3, 2, 5), (0,), (0, 3, 4, 2), (2, 0, 4, 1)], ids=str
)
def test_any_shape(device: mx.Device, shape: tuple[int, ...]) -> None:
    """Elements are counted row by row, whatever the axes."""
    x = numbers(shape)
    y, state = mf.dropout_fwd(x, keep_probability=0.5, seed=4)
    flat = mf.dropout_mask((x.size,), keep_probability=0.5, seed=4)
    assert y.shape == mf.dropout_grad(x, state).shape == mf.dropout_mask(shape, p=0.5, seed=4).shape == shape
    assert mx.array_equal(y.reshape(-1), 2 * x.reshape(-1) * flat)


@pytest.mark.parametrize("view", VIEWS)
def test_views(device: mx.Device, dtype: mx.Dtype, view: str) -> None:
    for shape in ((2, 3, 5, 7), (2, 4, 4, 16)):
        x, mask = numbers(shape, dtype), numbers(shape) > 0
        assert same_bits(mf.dropout(VIEWS[view](x), seed=1), mf.dropout(x, seed=1))
        seen = VIEWS[view](mask.astype(mx.float32)) > 0
        assert same_bits(mf.dropout(VIEWS[view](x), mask=seen), mf.dropout(x, mask=mask))


def test_what_is_not_finite(device: mx.Device, dtype: mx.Dtype) -> None:
    """By the formula: kept it stays, and times 0 it is NaN."""
    x = mx.array([np.inf, -np.inf, np.nan, np.inf, np.nan], dtype)
    y = exact(mf.dropout(x, mask=mx.array([1, 1, 1, 0, 0])))
    assert np.array_equal(y, [np.inf, -np.inf, np.nan, np.nan, np.nan], equal_nan=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_a_mask_without_memory_is_an_error(on_cpu: mx.Device) -> None:
    program = """
import resource
import mlx.core as mx, mpsfunc as mf
mx.set_default_device(mx.cpu)
mx.eval(mf.dropout_mask((4,), seed=1))
resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
try:
    mx.eval(mf.dropout_mask((2**18, 2**20), seed=1))
except MemoryError:
    print("refused", mf.dropout_mask((4,), seed=0).tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "refused [True, False, False, False]\n"


# Masks that are given -----------------------------------------------------------------------------------

GIVEN = [(2, 3, 4, 8), (1, 3, 4, 8), (2, 1, 1, 8), (2, 3, 4, 1), (1, 1, 4, 1), (2, 1, 4, 1), (1, 1, 1, 1), (2, 3, 1, 8)]


@pytest.mark.parametrize("shape", GIVEN, ids=str)
@pytest.mark.parametrize("kind", [mx.bool_, mx.uint8, mx.int32, mx.float32, mx.float16], ids=str)
def test_masks_of_every_kind(device: mx.Device, dtype: mx.Dtype, shape: tuple[int, ...], kind: mx.Dtype) -> None:
    x, dy = numbers((2, 3, 4, 8), dtype), numbers((2, 3, 4, 8), dtype, 1)
    floating = mx.issubdtype(kind, mx.floating)
    mask = (numbers(shape, seed=2) if floating else numbers(shape, seed=2) > 0).astype(kind)
    y, state = mf.dropout_fwd(x, keep_probability=0.7, mask=mask)
    m = exact(mask.astype(dtype)) if floating else exact(mask)
    close(y, exact(x) * m / 0.7, slack=2)
    close(mf.dropout_grad(dy, state), exact(dy) * m / 0.7, slack=2)
    assert state.mask.dtype == (kind if floating else mx.bool_) and state.op == "dropout_by_mask"


def test_an_integer_mask_keeps_what_is_not_0(device: mx.Device) -> None:
    assert mf.dropout(mx.ones(4), mask=mx.array([0, 1, 7, -3])).tolist() == [0, 2, 2, 2]


@pytest.mark.parametrize("kind", [mx.bool_, mx.uint8, mx.int32, mx.int64, mx.uint32], ids=str)
def test_an_integer_mask_in_a_state_keeps_what_is_not_0(device: mx.Device, kind: mx.Dtype) -> None:
    """As `dropout` reads it."""
    mask = mx.array([1, 0, 3]).astype(kind)
    y, state = mf.dropout_fwd(mx.ones(3), mask=mx.array([0, 1, 1]))
    other = state.with_arrays((state.key, mask))
    assert mf.dropout(mx.ones(3), mask=mask).tolist() == mf.dropout_grad(mx.ones(3), other).tolist() == [2, 0, 2]
    assert mx.array_equal(mf.dropout_grad(mx.ones(3), state), y)


def test_a_made_mask_given_is_the_same_dropout(device: mx.Device, dtype: mx.Dtype) -> None:
    for stride in STRIDES:
        x = numbers((2, 3, 4, 8), dtype)
        mask = mf.dropout_mask(x.shape, keep_probability=0.3, seed=1, mask_stride=stride)
        assert same_bits(
            mf.dropout(x, keep_probability=0.3, mask=mask),
            mf.dropout(x, keep_probability=0.3, seed=1, mask_stride=stride),
        )


def test_the_gradient_of_a_floating_mask(device: mx.Device) -> None:
    x, mask, dy = numbers((2, 3, 4, 5)), numbers((1, 3, 1, 5), seed=1), numbers((2, 3, 4, 5), seed=2)
    made = mx.grad(lambda mask: (mf.dropout(x, keep_probability=0.4, mask=mask) * dy).sum())(mask)
    close(made, (exact(x) * exact(dy) / 0.4).sum((0, 2), keepdims=True), 40)


# Statistics: each bound is 5 standard deviations ----------------------------------------------------------

COUNT = 200_000


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.5, 0.75, 0.999])
@pytest.mark.parametrize("seed", [0, 12345])
def test_the_share_that_is_kept(on_cpu: mx.Device, keep: float, seed: int) -> None:
    kept = np.array(mf.dropout_mask((COUNT,), keep_probability=keep, seed=seed)).sum()
    assert abs(kept - COUNT * keep) < 5 * np.sqrt(COUNT * keep * (1 - keep))


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """How many pairs are alike, in standard deviations from what independence at 0.5 gives."""
    return float((np.sum(a == b) - a.size / 2) / np.sqrt(a.size / 4))


def test_neighbours_are_independent(on_cpu: mx.Device) -> None:
    mask = np.array(mf.dropout_mask((8, 40, 50, 16), keep_probability=0.5, seed=3))
    for axis in range(4):
        for lag in (1, 2, 3, 4, 5):
            ahead = np.take(mask, range(lag, mask.shape[axis]), axis)
            behind = np.take(mask, range(mask.shape[axis] - lag), axis)
            assert abs(agreement(ahead, behind)) < 5, (axis, lag)


@pytest.mark.parametrize("other", [1, 2, 2**32, 2**63])
def test_keys_are_independent(on_cpu: mx.Device, other: int) -> None:
    a, b = (np.array(mf.dropout_mask((COUNT,), keep_probability=0.5, seed=seed)) for seed in (0, other))
    assert abs(agreement(a, b)) < 5


def test_the_mean_stays(on_cpu: mx.Device) -> None:
    y = exact(mf.dropout(mx.ones(COUNT), keep_probability=0.25, seed=8))
    assert abs(y.mean() - 1) < 5 * np.sqrt(0.75 / 0.25 / COUNT)


# Keys ---------------------------------------------------------------------------------------------------


def test_a_key_is_drawn_from_the_global_state(device: mx.Device) -> None:
    x = mx.ones((1, 8, 8, 4))
    mx.random.seed(5)
    first, second = mf.dropout(x), mf.dropout(x)
    mx.random.seed(5)
    again = mf.dropout(x)
    assert not mx.array_equal(first, second) and mx.array_equal(first, again)
    mx.random.seed(5)
    other = mx.random.uniform()
    mx.random.seed(5)
    _ = mf.dropout_mask((3,))
    assert mx.random.uniform().item() != other.item()  # the state moved on


def test_a_compiled_dropout_draws_each_time(device: mx.Device) -> None:
    x = mx.ones((1, 8, 8, 4))
    step = mx.compile(lambda x: mf.dropout(x), inputs=mx.random.state, outputs=mx.random.state)
    mx.random.seed(5)
    made = [step(x) for _ in range(3)]
    mx.random.seed(5)
    plain = [mf.dropout(x) for _ in range(3)]
    assert all(mx.array_equal(a, b) for a, b in zip(made, plain, strict=True))
    assert not mx.array_equal(made[0], made[1])


def test_a_compiled_gradient_has_the_mask_of_its_forward(device: mx.Device) -> None:
    x = numbers((1, 8, 8, 4))

    def loss(x: mx.array) -> tuple[mx.array, mx.array]:
        y = mf.dropout(x)
        return y.sum(), y

    step = mx.compile(mx.value_and_grad(loss), inputs=mx.random.state, outputs=mx.random.state)
    for _ in range(2):
        (_, y), dx = step(x)
        assert mx.array_equal(y != 0, dx != 0)


def test_a_key_is_taken_as_it_is_and_not_kept_by_name(device: mx.Device) -> None:
    key = mx.random.key(3)
    _, state = mf.dropout_fwd(mx.ones(4), key=key)
    key[0] = 99
    assert state.key.tolist() == mx.random.key(3).tolist()


# Transformations that the matrix does not know: over keys -----------------------------------------------


@pytest.mark.parametrize("stride", [(1, 1, 1), (0, 1, 0)], ids=str)
def test_vmap_over_keys(on_cpu: mx.Device, stride: tuple[int, ...]) -> None:
    keys, x = mx.random.split(mx.random.key(2), 3), numbers((3, 2, 3, 4, 5))
    drop = lambda x, key: mf.dropout(x, keep_probability=0.6, key=key, mask_stride=stride)  # noqa: E731
    both = mx.vmap(drop)(x, keys)
    assert same_bits(both, mx.stack([drop(x[i], keys[i]) for i in range(3)]))
    shared = mx.vmap(drop, in_axes=(None, 0))(x[0], keys)
    assert same_bits(shared, mx.stack([drop(x[0], key) for key in keys]))
    alike = mx.vmap(drop, in_axes=(0, None))(x, keys[0])
    assert same_bits(alike, mx.stack([drop(one, keys[0]) for one in x]))
    masks = mx.vmap(lambda key: mf.dropout_mask((2, 3, 4, 5), keep_probability=0.6, key=key, mask_stride=stride))(keys)
    assert same_bits(
        masks,
        mx.stack([mf.dropout_mask((2, 3, 4, 5), keep_probability=0.6, key=key, mask_stride=stride) for key in keys]),
    )


def test_vmap_of_vmap_over_keys_and_images(on_cpu: mx.Device) -> None:
    keys, x = mx.random.split(mx.random.key(2), 6).reshape(2, 3, 2), numbers((4, 2, 3, 4, 5))
    drop = lambda x, key: mf.dropout(x, keep_probability=0.6, key=key)  # noqa: E731
    over_keys = mx.vmap(mx.vmap(drop, in_axes=(None, 0)), in_axes=(None, 0))
    made = mx.vmap(over_keys, in_axes=(0, None))(x, keys)
    for i, j, k in itertools.product(range(4), range(2), range(3)):
        assert same_bits(made[i, j, k], drop(x[i], keys[j, k]))


def test_gradients_of_vmaps_over_keys(on_cpu: mx.Device) -> None:
    keys, x = mx.random.split(mx.random.key(2), 3), numbers((2, 3, 4, 5), mx.float64)
    loss = lambda x, key: (mf.dropout(x, keep_probability=0.6, key=key) ** 3).sum()  # noqa: E731
    total = mx.grad(lambda x: mx.vmap(loss, in_axes=(None, 0))(x, keys).sum())(x)
    each = mx.vmap(mx.grad(loss), in_axes=(None, 0))(x, keys)
    expected = mx.stack([mx.grad(loss)(x, key) for key in keys])
    np.testing.assert_allclose(exact(each), exact(expected), rtol=1e-12)
    np.testing.assert_allclose(exact(total), exact(expected).sum(0), rtol=1e-12)


def test_vmap_over_given_masks(on_cpu: mx.Device) -> None:
    x, masks = numbers((3, 2, 3, 4, 5)), numbers((3, 1, 3, 1, 5)) > 0
    drop = lambda x, mask: mf.dropout(x, keep_probability=0.6, mask=mask)  # noqa: E731
    for axes in ((0, 0), (None, 0), (0, None)):
        x_of = (lambda i: x[i]) if axes[0] == 0 else (lambda i: x[0])
        m_of = (lambda i: masks[i]) if axes[1] == 0 else (lambda i: masks[0])
        made = mx.vmap(drop, in_axes=axes)(x if axes[0] == 0 else x[0], masks if axes[1] == 0 else masks[0])
        assert same_bits(made, mx.stack([drop(x_of(i), m_of(i)) for i in range(3)]))


def test_nobody_is_copied_for_a_mapped_key(on_cpu: mx.Device) -> None:
    """One image under many keys is read where it lies."""
    x, keys = mx.zeros((1, 64, 64, 64)), mx.random.split(mx.random.key(0), 4)
    mx.eval(x, keys)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(mx.vmap(lambda key: mf.dropout(x, key=key, mask_stride=(0, 0, 1)))(keys))
    assert mx.get_peak_memory() - before < 4.5 * x.nbytes


# States -------------------------------------------------------------------------------------------------


def test_a_state_without_a_mask(device: mx.Device) -> None:
    _, state = mf.dropout_fwd(numbers((2, 3, 4, 5)), keep_probability=0.3, seed=7, mask_stride=(1, 1, 0))
    assert state.key.tolist() == mx.random.key(7).tolist() and state.mask.size == 0
    assert state[2:] == ("dropout", 0.3, (1, 1, 0), (2, 3, 4, 5))


def test_the_adjoint(device: mx.Device) -> None:
    x, dy = numbers((2, 3, 4, 5)), numbers((2, 3, 4, 5), seed=1)
    for how in ({"seed": 3}, {"mask": x > 0}, {"mask": numbers((1, 3, 4, 5), seed=2)}):
        y, state = mf.dropout_fwd(x, keep_probability=0.4, **how)
        np.testing.assert_allclose(
            (exact(y) * exact(dy)).sum(), (exact(x) * exact(mf.dropout_grad(dy, state))).sum(), rtol=1e-5
        )


def test_a_compiled_gradient_takes_states(device: mx.Device) -> None:
    x, grad = numbers((2, 3, 4, 5)), mx.compile(mf.dropout_grad)
    for how in ({"seed": 3}, {"seed": 4}, {"mask": x > 0}, {"seed": 3, "mask_stride": (0, 1, 1)}):
        _, state = mf.dropout_fwd(x, keep_probability=0.4, **how)
        assert same_bits(grad(x, state), mf.dropout_grad(x, state))


@given(
    shape=st.tuples(st.integers(1, 3), *[st.integers(1, 9)] * 2, st.sampled_from([1, 2, 3, 8, 17])),
    stride=st.sampled_from(STRIDES),
    keep=st.floats(1e-6, 1 - 1e-6),
    seed=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, ...], stride: tuple[int, ...], keep: float, seed: int, dtype: mx.Dtype, view: str
) -> None:
    with mx.stream(mx.cpu):
        x = numbers(shape, dtype)
        y = mf.dropout(VIEWS[view](x), keep_probability=keep, seed=seed, mask_stride=stride)
        mask = oracle.mask(shape, keep, mx.random.key(seed), stride)
        with np.errstate(over="ignore"):
            expected = exact(mx.array(exact(x) * mask / keep).astype(dtype))
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(exact(y)), finite)
        close(mx.array(exact(y)[finite]).astype(dtype), expected[finite])


def test_thresholds_travel_as_ints() -> None:
    assert [dropout_rules.threshold(p) for p in (WORD, 0.5, 1 - WORD)] == [1, 2**31, 2**32 - 1]
