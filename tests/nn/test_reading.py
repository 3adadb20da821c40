"""What layers read in place of means over pixels and of images times a number for each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from mlx.utils import tree_flatten
from support import exact, nodes, numbers, same_bits

import mpsfunc as mf
from mpsfunc.core import lazy
from mpsfunc.nn.reading import read

pytestmark = pytest.mark.usefixtures("on_cpu")


class SqueezeExcite(stock.Module):
    """As users write it."""

    def __init__(self, channels: int = 24, squeeze: int = 8) -> None:
        super().__init__()
        self.fc1, self.fc2 = stock.Conv2d(channels, squeeze, 1), stock.Conv2d(squeeze, channels, 1)
        self.project, self.head = stock.Conv2d(channels, 5, 1), stock.Linear(5, 3)

    def __call__(self, x: mx.array) -> mx.array:
        mean = x.mean(axis=(1, 2), keepdims=True)
        y = self.project(x * mx.sigmoid(self.fc2(stock.relu(self.fc1(mean)))))
        return self.head(y.mean(axis=(1, 2)))


def pair(dtype: mx.Dtype = mx.float32) -> tuple[Any, Any]:
    mx.random.seed(1)
    model, same = SqueezeExcite(), SqueezeExcite()
    same.update(model.parameters())
    for each in (model, same):
        each.set_dtype(dtype)
        mx.eval(each.parameters())
    mf.nn.convert(model)
    return model, same


def defined(model: Any, x: mx.array) -> np.ndarray:
    """What it computes in float64."""
    of = {path: exact(a) for path, a in tree_flatten(model.parameters())}
    images = exact(x)
    mean = images.mean((1, 2))
    hidden = np.maximum(mean @ of["fc1.weight"][:, 0, 0].T + of["fc1.bias"], 0)
    scale = 1 / (1 + np.exp(-(hidden @ of["fc2.weight"][:, 0, 0].T + of["fc2.bias"])))
    y = (images * scale[:, None, None]) @ of["project.weight"][:, 0, 0].T + of["project.bias"]
    return y.mean((1, 2)) @ of["head.weight"].T + of["head.bias"]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_squeeze_and_excite_runs_ours(dtype: mx.Dtype, compiled: bool) -> None:
    model, _ = pair(dtype)
    x = numbers((3, 5, 6, 24), dtype)
    y = (mx.compile(model) if compiled else model)(x)
    ran = nodes(y)
    assert ran["arithmetic"] == 1 and ran["avg_pool"] == 2
    assert not ran["Sum"] and not ran["Multiply"], ran
    off = {mx.float32: 1e-5, mx.float16: 5e-3, mx.bfloat16: 4e-2}[dtype]
    np.testing.assert_allclose(exact(y), defined(model, x), rtol=off, atol=off)


@pytest.mark.parametrize("compiled", [False, True])
def test_its_gradients(compiled: bool) -> None:
    model, same = pair()
    x = numbers((3, 5, 6, 24))

    def gradients(of: Any) -> Any:
        def loss(x: mx.array) -> mx.array:
            return (of(x) ** 2).sum()

        both = stock.value_and_grad(of, loss)
        state = [of.state]
        run = mx.compile(lambda x: (both(x)[1], mx.grad(loss)(x)), inputs=state) if compiled else None
        return run(x) if run else (both(x)[1], mx.grad(loss)(x))

    ours, theirs = (dict(tree_flatten(gradients(of))) for of in (model, same))
    assert ours.keys() == theirs.keys()
    for path, expected in theirs.items():
        scale = float(mx.abs(expected).max())
        np.testing.assert_allclose(exact(ours[path]), exact(expected), rtol=0, atol=2e-5 * scale, err_msg=path)


def test_it_is_mapped_and_has_tangents() -> None:
    model, same = pair()
    x, t = numbers((4, 3, 5, 6, 24)), numbers((3, 5, 6, 24), seed=1)
    np.testing.assert_allclose(exact(mx.vmap(model)(x)), [exact(same(each)) for each in x], rtol=0, atol=1e-5)
    (pushed,), dy = mx.jvp(model, [x[0]], [t])[1], numbers((3, 3), seed=2)
    (pulled,) = mx.vjp(same, [x[0]], [dy])[1]
    np.testing.assert_allclose((exact(pushed) * exact(dy)).sum(), (exact(t) * exact(pulled)).sum(), rtol=1e-4)


def test_bits_of_a_product_are_the_product_s(threads: Callable[[int], None]) -> None:
    x, s = numbers((3, 7, 5, 19)), numbers((3, 1, 1, 19), seed=1)
    for product in (lambda: x * s, lambda: s * x, lambda: x * s[:1]):
        want = product()
        mx.eval(want)
        for count in (1, 2, 3):
            threads(count)
            got = read(product())
            assert nodes(got)["arithmetic"] == 1 and same_bits(got, want)


def test_the_array_itself_stays() -> None:
    x, s = numbers((2, 3, 3, 4)), numbers((2, 1, 1, 4), seed=1)
    product, mean = x * s, x.mean((1, 2))
    got = read(product), read(mean)
    np.testing.assert_allclose(exact(product), exact(x) * exact(s), rtol=1e-6)
    np.testing.assert_allclose(exact(mean), exact(got[1]), rtol=1e-6)
    assert read(product) is product and read(mean) is mean  # which are evaluated by now


def test_changes_in_place_are_heeded() -> None:
    x, s = numbers((2, 3, 3, 4)), numbers((2, 1, 1, 4), seed=1)
    product = x * s
    product[0] = 0
    assert read(product) is product
    product, before = x * s, exact(x)
    x += 1
    np.testing.assert_allclose(exact(read(product)), before * exact(s), rtol=1e-6)


X = (2, 3, 3, 4)
OTHERS: dict[str, Callable[[mx.array], mx.array]] = {
    "as large": lambda x: x * mx.sin(x),
    "a number": lambda x: x * 2.0,
    "a number an image": lambda x: x * mx.ones((2, 1, 1, 1)),
    "a number a pixel": lambda x: x * mx.ones((2, 3, 3, 1)),
    "a vector": lambda x: x * mx.ones(4),
    "another sum": lambda x: x + mx.ones((2, 1, 1, 4)),
    "images that are repeated": lambda x: x[:1] * mx.ones((2, 1, 1, 4)),
    "a mean of rows": lambda x: x.mean(1),
    "a mean of all": lambda x: x.mean((1, 2, 3)),
    "a mean of channels": lambda x: x.mean((2, 3)),
    "no mean": lambda x: x.sum((1, 2)) * 0.25,
    "a sum": lambda x: x.sum((1, 2), keepdims=True),
    "volumes": lambda x: x[:, None].mean((1, 2)),
    "a greatest": lambda x: x.max((1, 2)) * (1 / 9),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_neither_stays(what: str) -> None:
    made = OTHERS[what](numbers(X))
    assert read(made) is made


def test_no_images_and_no_pixels() -> None:
    for shape in ((0, 3, 3, 4), (2, 3, 3, 0)):
        made = mx.zeros(shape).mean((1, 2))
        assert read(made).shape == made.shape
    empty = mx.zeros((2, 0, 3, 4)).mean((1, 2))
    assert read(empty) is empty


def test_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpsfunc.core.launch._primitives", None)
    x = numbers(X)
    assert lazy.channel_factors(x * mx.ones((2, 1, 1, 4))) is None and lazy.mean_of(x.mean((1, 2))) is None
