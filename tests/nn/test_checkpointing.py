"""`checkpoint` of modules: what is computed again is what was computed first, and the module is left as it was then."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import mlx.optimizers as optimizers
import numpy as np
import pytest
from support import numbers
from support.checkpoint_case import alike, drop, seeded, state

import mpsfunc as mf


class Odd(stock.Module):
    """What a module may change in its call: arrays with and without names of parameters, in place and not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = mx.ones(8)
        self._seen = mx.zeros(8)
        self.sums = [mx.zeros(8), {"in_place": mx.zeros(8)}]
        self.pair = (mx.zeros(8), "text")
        self.calls = 0
        self.freeze(keys=["sums", "pair"], recurse=False)

    def __call__(self, x: mx.array) -> mx.array:
        here = mx.stop_gradient(x.mean((0, 1, 2)))
        y = x * self.scale + self._seen + self.sums[0] + self.sums[1]["in_place"] + self.pair[0] + self.calls
        self._seen = self._seen + here
        self.sums[0] = self.sums[0] * 0.5 + here
        self.sums[1]["in_place"] += 2 * here
        self.pair = (self.pair[0] + 1, "text")
        self.calls += 1
        return y


class Net(stock.Module):
    """A block that is called twice, by a checkpoint if there is one, and a head."""

    def __init__(self, wrap: Any, dropped: bool) -> None:
        super().__init__()
        self.block = stock.Sequential(
            stock.Conv2d(3, 8, 3, padding=1),
            stock.BatchNorm(8),
            stock.ReLU(),
            stock.Dropout(0.5 if dropped else 0.0),
            Odd(),
            stock.Conv2d(8, 8, 1),
            stock.BatchNorm(8),
            stock.Dropout2d(0.3 if dropped else 0.0),
        )
        self.head = stock.Linear(8, 5)
        self.wrap = wrap

    def __call__(self, x: mx.array) -> mx.array:
        run = self.wrap(self.block)
        return self.head(run(run(x)[..., :3]).mean((1, 2)))


def trained(wrap: Any, convert: bool, compiled: bool, evaluated: bool = False) -> Any:
    """Losses, gradients, and all that is left of the model and of the random state after three steps."""
    mx.random.seed(0)
    net = Net(wrap, True)
    if convert:
        mf.nn.convert(net)
    net.block.layers[0].freeze(keys=["bias"])
    net.train(not evaluated)
    optimizer = optimizers.SGD(0.01)
    x, labels = numbers((4, 6, 6, 3)), mx.array([0, 1, 2, 3])

    def loss(x: mx.array) -> mx.array:
        return mf.loss_value(net(x), labels, "softmax_cross_entropy", "sum").mean()

    found = stock.value_and_grad(net, loss)

    def step(x: mx.array) -> Any:
        made = found(x)
        optimizer.update(net, made[1])
        return made

    changing = [net.state, optimizer.state, mx.random.state]
    run = mx.compile(step, inputs=changing, outputs=changing) if compiled else step
    made = []
    for _ in range(3):
        made.append(run(x))
        mx.eval(made, changing)
    odd = net.block.layers[4]
    return made, dict(net.block), odd._seen, odd.calls, net.head.parameters(), state()


@pytest.mark.programs
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("convert", [False, True], ids=["stock", "converted"])
def test_training_is_what_it_is_without(device: mx.Device, convert: bool, compiled: bool) -> None:
    """Losses, gradients, weights, running statistics, all else that a module changes, and random state."""
    plain = trained(lambda block: block, convert, compiled)
    made = trained(mf.nn.checkpoint, convert, compiled)
    assert alike(made, plain)
    assert "bias" not in made[0][0][1]["block"]["layers"][0]
    stray = trained(stock.utils.checkpoint, convert, compiled)  # what MLX's does of all this
    assert not alike(stray[1], plain[1]) and not alike(stray[0], plain[0])


def test_evaluation_is_what_it_is_without(device: mx.Device) -> None:
    assert alike(trained(mf.nn.checkpoint, True, False, True), trained(lambda block: block, True, False, True))


def test_running_statistics_move_once(device: mx.Device) -> None:
    for layer in (stock.BatchNorm(3), mf.nn.BatchNorm(3)):
        x = numbers((2, 4, 4, 3))
        mx.vjp(mf.nn.checkpoint(layer), [x], [x])
        np.testing.assert_allclose(
            np.array(layer.running_mean), 0.1 * np.array(x.mean((0, 1, 2))), rtol=1e-4, atol=1e-6
        )


def test_weights_outside_are_not_lost(device: mx.Device) -> None:
    """A layer inside and beside the checkpoint; MLX's leaves arrays without gradients in the module."""
    layer = mf.nn.Linear(4, 4)
    x = numbers((3, 4))

    def loss(run: Any) -> Any:
        return lambda x: (layer(run(x)) ** 2).sum()

    plain, made = (stock.value_and_grad(layer, loss(run))(x) for run in (layer, mf.nn.checkpoint(layer)))
    assert alike(made, plain)


def test_a_function_of_a_module_and_gradients_of_its_arguments(device: mx.Device) -> None:
    layer = stock.Linear(4, 4)
    x, y = numbers((3, 4)), numbers((3, 4), seed=1)

    def function(x: mx.array, *, y: mx.array, by: float) -> tuple[mx.array, dict[str, mx.array]]:
        made = drop(layer(x) * y) * by
        return made, {"sum": made.sum()}

    kept = mf.nn.checkpoint(layer, function)
    assert kept.__name__ == "function"

    def of(f: Any) -> Any:
        return lambda p, x, y: layer.update(p) and f(x, y=y, by=2.0)[1]["sum"]

    weights = layer.parameters()
    plain, made = (seeded(mx.grad(of(f), argnums=(0, 1, 2)), weights, x, y)[0] for f in (function, kept))
    assert alike(made, plain) and np.abs(np.array(made[0]["weight"])).max() > 0


def test_a_checkpoint_in_a_checkpoint(device: mx.Device) -> None:
    def training(wrap: Any) -> Any:
        mx.random.seed(1)
        inner = stock.Sequential(mf.nn.Linear(4, 4), mf.nn.BatchNorm(4), mf.nn.Dropout(0.5))

        class Outer(stock.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def __call__(self, x: mx.array) -> mx.array:
                return mx.tanh(wrap(self.inner)(x)) * mx.random.uniform()

        outer = Outer()
        made = stock.value_and_grad(outer, lambda x: wrap(outer)(x).sum())(numbers((8, 4)))
        return made, outer.parameters(), state()

    assert alike(training(mf.nn.checkpoint), training(lambda module: module))


def test_an_exception_puts_the_module_back(device: mx.Device) -> None:
    layer, calls = stock.BatchNorm(3), []

    def function(x: mx.array) -> mx.array:
        calls.append(1)
        y = layer(x)
        if len(calls) == 2:
            raise RuntimeError("thrown")
        return y

    x = numbers((2, 4, 4, 3))
    with pytest.raises(RuntimeError, match="thrown"):
        mx.vjp(mf.nn.checkpoint(layer, function), [x], [x])
    other = stock.BatchNorm(3)
    other(x)
    assert alike(dict(layer), dict(other))


@pytest.mark.parametrize("quantized", [False, True])
def test_named_pairs_and_quantized_layers(device: mx.Device, quantized: bool) -> None:
    """Layers that look at what the one before them returned, and arrays without derivatives."""
    if quantized and mx.cuda.is_available():
        pytest.skip("MLX's quantized products need headers that not every CUDA install of it has")

    class Block(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.act = stock.Conv2d(8, 8, 3, padding=1), stock.BatchNorm(8), stock.ReLU()
            self.linear, self.drop = stock.Linear(64, 64), stock.Dropout(0.5)

        def __call__(self, x: mx.array) -> mx.array:
            y = self.act(self.norm(self.conv(x)))
            return self.drop(self.linear(y.reshape(-1, 64)))

    def training(wrap: Any) -> Any:
        mx.random.seed(0)
        block = Block()
        assert mf.nn.convert(block, fuse=[("norm", "act")]).fused == {"norm": "act"}
        if quantized:
            stock.quantize(block, group_size=32, bits=4, class_predicate=lambda path, _: path == "linear")
        found = stock.value_and_grad(block, lambda x: (wrap(block)(x) ** 2).sum())
        return [found(numbers((2, 8, 8, 8))) for _ in range(2)], block.parameters(), state()

    assert alike(training(mf.nn.checkpoint), training(lambda block: block))


def test_what_is_refused() -> None:
    layer = stock.Linear(2, 2)
    for bad in (3, drop, None):
        with pytest.raises(TypeError, match=r"^checkpoint: module is not a module; got an? \w+, expected an mlx.nn.M"):
            mf.nn.checkpoint(bad)
    with pytest.raises(TypeError, match="^checkpoint: fn is not a function; got fn=3, expected a function"):
        mf.nn.checkpoint(layer, 3)
