"""Sums and concatenations of channels that a layer reads in a model for inference, made by all threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_inference import spread
from nn.test_layers import close, numbers
from support import same_bits, same_bits_for_threads

from mpsfunc import nn
from mpsfunc.core import lazy

pytestmark = pytest.mark.usefixtures("on_cpu")

X = (2, 33, 31, 64)  # more than one thread copies as soon


class Cross(stock.Module):
    """Half of the channels through a pair of convolutions, and every stage of it beside the others, as in YOLO."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(3)
        self.one, self.norm = stock.Conv2d(32, 32, 3, padding=1), spread(stock.BatchNorm(32), 1)
        self.two, self.last = stock.Conv2d(32, 32, 1), stock.Conv2d(128, 48, 1)
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        parts = list(mx.split(x, 2, axis=-1))
        for layer in (lambda y: self.norm(self.one(y)), self.two):
            parts.append(parts[-1] + stock.silu(layer(parts[-1])))
        return self.last(mx.concatenate(parts, axis=-1))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_a_model_computes_what_it_did(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    net, same = Cross().eval(), Cross().eval()
    for each in (net, same):
        each.set_dtype(dtype)
        mx.eval(each.parameters())
    x = numbers(X).astype(dtype)
    nn.convert(net, example=x, inference=True)
    counted: list[int] = []
    real = lazy.join
    with monkeypatch.context() as patched:
        patched.setattr(lazy, "join", lambda parts: counted.append(len(parts)) or real(parts))
        for run in (net, mx.compile(net)):
            mx.eval(run(x))
    assert counted == [4, 4]
    if dtype == mx.float32:
        for transform in (lambda f: f, mx.compile, lambda f: mx.grad(lambda x: f(x).square().sum()), mx.checkpoint):
            close(transform(net)(x), transform(same)(x))
        close(mx.vmap(net)(x[None]), mx.vmap(same)(x[None]))
        return
    same.set_dtype(mx.float32)
    got, want = net(x).astype(mx.float32), same(x.astype(mx.float32))
    assert float(mx.abs(got - want).max()) <= 0.03 * float(mx.abs(want).max())


WHOLE = numbers(X)
PARTS: dict[str, Callable[[mx.array], list[mx.array]]] = {
    "whole": lambda a: [a, a * 2],
    "of 64 bytes and others": lambda a: [a[..., :16], a[..., 3:12], a[..., 16:48], a],
    "of 128 and 512": lambda a: [a[..., :32], mx.concatenate([a, a], axis=-1)],
    "every second row": lambda a: [a[:, ::2], a[:, ::2] + 1],
    "every second channel": lambda a: [a[..., ::2], a],
    "of some columns": lambda a: [a[:, :, 3:20], a[:, :, 4:21]],
    "turned": lambda a: [a.swapaxes(1, 2), a.swapaxes(1, 2) * 2],
    "flipped": lambda a: [a[:, :, ::-1], a],
    "flipped twice": lambda a: [a[:, ::-1, ::-1], a[:, ::-1]],
    "a flipped batch": lambda a: [a[::-1], a[::-1, :, ::-1]],
    "repeated": lambda a: [mx.broadcast_to(a[:1], a.shape), a],
    "an empty one": lambda a: [a[..., :0], a, a],
    "one": lambda a: [a],
    "few": lambda a: [a[:1, :2, :2], a[1:, :2, :2]],
    "a matrix": lambda a: [a.reshape(-1, 64)[:, 5:37], a.reshape(-1, 64)],
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.uint8], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_bits_are_those_of_mlx(name: str, dtype: mx.Dtype, threads: Callable[[int], None]) -> None:
    given = PARTS[name](WHOLE.astype(dtype))
    mx.eval(given)
    right = mx.concatenate(given, axis=-1)
    assert lazy.join(given).dtype == dtype
    same_bits_for_threads(threads, lambda: [lazy.join(given)])
    assert same_bits(lazy.join(given), right)
    later = PARTS[name](WHOLE.astype(dtype))  # not evaluated
    assert same_bits(lazy.join(later), right)


def test_derivatives_are_mlx_s() -> None:
    def run(join: Any) -> Any:
        return lambda a, b: (join([a[..., 3:40], b]) ** 2).sum()

    mlx = run(lambda parts: mx.concatenate(parts, axis=-1))
    arrays = WHOLE, WHOLE * 0.5
    for one, other in zip(mx.grad(run(lazy.join), (0, 1))(*arrays), mx.grad(mlx, (0, 1))(*arrays), strict=True):
        assert same_bits(one, other)
    tangents = [WHOLE + 1, WHOLE - 1]
    for one, other in zip(
        mx.jvp(run(lazy.join), list(arrays), tangents), mx.jvp(mlx, list(arrays), tangents), strict=True
    ):
        assert same_bits(one[0], other[0])
    mapped = [mx.stack([a, a * 2]) for a in arrays]
    assert same_bits(mx.vmap(lambda a, b: lazy.join([a, b]))(*mapped), mx.concatenate(mapped, axis=-1))


def test_what_is_no_such_concatenation() -> None:
    a = WHOLE
    assert lazy.joined(a) is None and lazy.joined(a + 1) is None
    assert lazy.joined(mx.concatenate([a, a], axis=1)) is None
    made = mx.concatenate([a, a], axis=-1)
    parts = lazy.joined(made)
    assert parts is not None and len(parts) == 2 and lazy.same(parts[0], a)
    assert lazy.joined(lazy.join(parts)) is None  # which is one already
    mx.eval(made)
    assert lazy.joined(made) is None
