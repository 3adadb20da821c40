"""Functions of sequences (n, l, c) run what those of images run, on views: the same launches, and nothing copied."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import numbers, same_bits

import mpsfunc as mf

W, WB = numbers((8, 3, 8)), numbers((8,))
# Each, and its images': the same with one row.
PAIRS: dict[str, tuple[Callable[[mx.array], mx.array], Callable[[mx.array], mx.array]]] = {
    "conv1d": (
        lambda x: mf.conv1d(x, W, WB, stride=2, padding=1, neuron="relu"),
        lambda x: mf.conv(x, W[:, None], WB, stride=(1, 2), padding=(0, 1), neuron="relu"),
    ),
    "conv_transpose1d": (
        lambda x: mf.conv_transpose1d(x, W, WB, stride=2, padding=(1, 0)),
        lambda x: mf.conv_transpose(x, W[:, None], WB, stride=(1, 2), padding=((0, 0), (1, 0))),
    ),
    "avg_pool1d": (
        lambda x: mf.avg_pool1d(x, 3, stride=2, padding=1),
        lambda x: mf.avg_pool(x, (1, 3), stride=(1, 2), padding=(0, 1)),
    ),
    "max_pool1d": (
        lambda x: mf.max_pool1d(x, 3, stride=2, padding=1),
        lambda x: mf.max_pool(x, (1, 3), stride=(1, 2), padding=(0, 1)),
    ),
    "l2_pool1d": (lambda x: mf.l2_pool1d(x, 2), lambda x: mf.l2_pool(x, (1, 2))),
    "batch_norm1d": (lambda x: mf.batch_norm1d(x, WB, WB), lambda x: mf.batch_norm(x, WB, WB)),
    "instance_norm1d": (lambda x: mf.instance_norm1d(x, WB), lambda x: mf.instance_norm(x, WB)),
    "group_norm1d": (lambda x: mf.group_norm1d(x, 4, WB), lambda x: mf.group_norm(x, 4, WB)),
}
each = pytest.mark.parametrize("name", PAIRS)


def operations(*outputs: mx.array) -> Counter[str]:
    """What evaluating the outputs runs, kernels of ours and of MLX."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    return Counter(re.findall(r'label ?= ?"(\w+)"', dot.getvalue()))


def test_every_function_of_sequences_is_here() -> None:
    assert set(PAIRS) == {name for name in mf.__all__ if name.endswith("1d")}


@each
def test_nothing_runs_but_what_images_need(name: str, on_cpu: mx.Device) -> None:
    """Forward, and in the gradient: what comes on top of what runs on the view ``x[:, None]`` are views."""
    x = numbers((2, 9, 8))
    of_sequences, of_images = PAIRS[name]
    made, of_view = operations(of_sequences(x)), operations(of_images(x[:, None]))
    assert made - of_view == {"Squeeze": 1} and not of_view - made

    def slope(f: Callable[[mx.array], mx.array]) -> mx.array:
        return mx.grad(lambda x: (f(x) ** 2).sum())(x)

    def on_a_view(x: mx.array) -> mx.array:
        return of_images(x[:, None]).squeeze(1)

    one, other = slope(of_sequences), slope(on_a_view)
    assert operations(one) == operations(other)
    assert same_bits(one, other)


@each
def test_nothing_is_copied(name: str, on_cpu: mx.Device) -> None:
    """A copy of the sequences, of 8 MB, would be alive beside them and the result."""
    of_sequences, of_images = PAIRS[name]
    x = mx.random.normal((4, 2**16, 8))
    image = mx.contiguous(x[:, None])
    mx.eval(x, image)
    needed = []
    for f, a in ((of_images, image), (of_sequences, x)):
        mx.synchronize()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        y = f(a)
        mx.eval(y)
        needed.append(mx.get_peak_memory() - before)
        del y
    assert needed[1] < needed[0] + x.nbytes // 2


@each
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.float64], ids=str)
def test_bits_are_those_of_images(name: str, dtype: mx.Dtype, on_cpu: mx.Device) -> None:
    of_sequences, of_images = PAIRS[name]
    x = numbers((2, 9, 8), dtype)
    y = of_sequences(x)
    assert y.dtype == dtype and y.ndim == 3
    assert same_bits(y, of_images(x[:, None])[:, 0])


@each
def test_derivatives_of_derivatives(name: str, on_cpu: mx.Device) -> None:
    """A second order through both, and mapped over a batch of batches."""
    of_sequences, of_images = PAIRS[name]
    x = numbers((2, 9, 8), mx.float64)

    def second(f: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
        slope = mx.grad(lambda x: (f(x) ** 3).sum())
        return mx.grad(lambda x: (slope(x) ** 2).sum())

    want = second(of_images)(x[:, None])[:, 0]
    np.testing.assert_array_equal(np.array(second(of_sequences)(x)), np.array(want))
    many = mx.stack([x, 2 * x])
    mapped = mx.vmap(of_sequences)(many)
    np.testing.assert_allclose(
        np.array(mapped), np.array(mx.stack([of_sequences(a) for a in many])), rtol=1e-12, atol=1e-13
    )


@each
def test_a_view_of_any_layout(name: str, device: mx.Device) -> None:
    of_sequences, _ = PAIRS[name]
    x = numbers((2, 9, 8))
    for seen in (mx.contiguous(x.transpose(2, 0, 1)).transpose(1, 2, 0), mx.repeat(x, 2, axis=1)[:, ::2]):
        assert same_bits(of_sequences(seen), of_sequences(x))


ERRORS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: mf.conv1d(mx.ones((2, 7, 4)), mx.ones((6, 2, 3)), groups=2),
        "conv1d: the weights do not fit the sequences; got w.shape=(6, 2, 3), expected (o, k, 2), none of them 0; "
        "weights are (o, k, i / groups), and these look like (o, i / groups, k)",
    ),
    (
        lambda: mf.conv_transpose1d(mx.ones((2, 7, 4)), mx.ones((4, 6, 3))),
        "conv_transpose1d: the weights do not fit the sequences; got w.shape=(4, 6, 3), expected (o, k, 4), none of "
        "them 0; weights are (o, k, i / groups), and these look like (i, o / groups, k)",
    ),
    *(
        (
            lambda f=f: f(mx.ones((2, 7, 4)), 9),
            f"{f.__name__}: window does not fit; got kernel_size=9, expected at most 7 with padding",
        )
        for f in (mf.avg_pool1d, mf.max_pool1d, mf.l2_pool1d)
    ),
    (
        lambda: mf.conv1d(mx.ones((2, 7, 4)), mx.ones((5, 9, 4))),
        "conv1d: window does not fit; got kernel_size=9, expected at most 7 with padding",
    ),
    (
        lambda: mf.avg_pool1d(mx.ones((2, 7, 4)), "adaptive"),
        "avg_pool1d: kernel_size='adaptive' needs out_size; got out_size=None, expected an int >= 1",
    ),
    (
        lambda: mf.conv1d(mx.ones((2, 4, 7)), mx.ones((5, 3, 4))),
        "conv1d: the weights do not fit the sequences; got w.shape=(5, 3, 4), expected (o, k, 7), none of them 0; "
        "sequences are (n, l, c), and these look like (n, c, l)",
    ),
    (
        # Checkers refuse it too.
        lambda: mf.conv_transpose1d(mx.ones((2, 7, 4)), mx.ones((5, 3, 4)), padding="valid"),  # type: ignore[arg-type]
        "conv_transpose1d: unknown padding; got padding='valid', expected an int >= 0 or (before, after), 'same' or "
        "'same_lower'",
    ),
    (
        lambda: mf.avg_pool1d(mx.ones((2, 7, 4)), 2, stride=0),
        "avg_pool1d: stride is too small; got stride=0, expected an int >= 1",
    ),
    (
        lambda: mf.group_norm1d(mx.ones((2, 1, 7, 4)), 2),
        "group_norm1d: not a batch of sequences; got x.shape=(2, 1, 7, 4), expected (n, l, c)",
    ),
    (
        lambda: mf.batch_norm1d(mx.ones((0, 7, 4))),
        "batch_norm1d: no elements to take statistics of; got x.shape=(0, 7, 4), expected n >= 1",
    ),
]


@pytest.mark.parametrize(("call", "words"), ERRORS)
def test_errors_in_full(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        call()
