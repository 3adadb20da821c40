"""`checkpoint` of functions and of modules: what is computed again is what was computed first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as stock
import mlx.optimizers as optimizers
import numpy as np
import pytest
from mlx.utils import tree_flatten
from support import numbers, same_bits

import mpsfunc as mf

X = mx.arange(1.0, 65.0)


def drop(x: mx.array) -> mx.array:
    return mf.dropout(x, keep_probability=0.5)


def noise(x: mx.array) -> mx.array:
    """MLX's own random functions, more than one."""
    return x * mx.random.bernoulli(0.5, x.shape) * mx.random.uniform(shape=x.shape)


def both(x: mx.array) -> mx.array:
    return drop(mx.sin(noise(drop(x))))


DRAWING = pytest.mark.parametrize("function", [drop, noise, both])


def state() -> mx.array:
    drawn: Any = mx.random.state
    return mx.array(drawn[0])


def seeded(function: Callable[..., Any], *arrays: mx.array) -> tuple[Any, mx.array]:
    """What a function makes from seed 3, and the random state that it leaves."""
    mx.random.seed(3)
    made = function(*arrays)
    mx.eval(made)
    return made, state()


def alike(a: Any, b: Any) -> bool:
    pairs = zip(tree_flatten(a), tree_flatten(b), strict=True)
    return all(np.allclose(v, w, rtol=1e-6) if isinstance(v, mx.array) else v == w for (_, v), (_, w) in pairs)


# Functions ----------------------------------------------------------------------------------------------


def test_a_dropout_agrees_with_its_gradient(device: mx.Device) -> None:
    """And under mx.checkpoint it does not, or nothing of this would be needed."""
    ones = mx.ones(4096)
    (y,), (dx,) = mx.vjp(mf.checkpoint(drop), [ones], [ones])
    assert same_bits(y, dx)
    (y,), (dx,) = mx.vjp(mx.checkpoint(drop), [ones], [ones])
    assert not same_bits(y, dx)


@DRAWING
def test_everything_is_what_it_is_without(device: mx.Device, function: Any) -> None:
    kept = mf.checkpoint(function)

    def square(f: Any) -> Any:
        return lambda x: (f(x) ** 2).sum()

    transformed: list[Callable[[Any], Any]] = [
        lambda f: f,
        lambda f: lambda x: mx.vjp(f, [x], [mx.cos(x)]),
        lambda f: lambda x: mx.jvp(f, [x], [mx.cos(x)]),
        lambda f: mx.value_and_grad(square(f)),
        lambda f: mx.grad(lambda x: mx.grad(square(f))(x).sum()),
        lambda f: mx.grad(lambda x: f(f(x)).sum()),
    ]
    for transform in transformed:
        plain, after = seeded(transform(function), X)
        made, then = seeded(transform(kept), X)
        assert alike(made, plain) and same_bits(then, after)
        again, then = seeded(transform(mf.checkpoint(kept)), X)
        assert alike(again, plain) and same_bits(then, after)


@DRAWING
def test_maps(device: mx.Device, function: Any) -> None:
    """A draw is not mapped: each gets the same, and the state is one that goes on to be used."""
    kept, many = mf.checkpoint(function), mx.stack([X, mx.cos(X)])
    plain, after = seeded(mx.vmap(function), many)
    made, then = seeded(mx.vmap(kept), many)
    assert same_bits(made, plain) and same_bits(then, after)
    (y,), (dx,) = mx.vjp(mx.vmap(kept), [many], [mx.ones_like(many)])
    assert dx.shape == y.shape
    mx.eval(mx.random.uniform(shape=(3,)))
    for f in (mf.checkpoint(both), mx.checkpoint(both)):  # MLX maps no gradient of either
        with pytest.raises(ValueError, match="Not implemented for Depends"):
            mx.vmap(mx.grad(lambda x, f=f: f(x).sum()))(many)


@DRAWING
def test_compiled(device: mx.Device, function: Any) -> None:
    kept = mf.checkpoint(function)
    told: dict[str, Any] = {"inputs": mx.random.state, "outputs": mx.random.state}
    ones = mx.ones(512)
    steps = [mx.compile(lambda x, f=f: mx.vjp(f, [x], [x]), **told) for f in (function, kept)]
    rounds = []
    for step in steps:
        mx.random.seed(3)
        rounds.append([step(ones) for _ in range(3)])
        rounds[-1].append([state()])
    assert alike(*rounds)
    assert not same_bits(rounds[1][0][0][0], rounds[1][1][0][0])  # other masks in each step
    inner = mx.compile(lambda x: kept(x).sum(), **told)
    made, _ = seeded(mx.grad(inner), X)
    plain, _ = seeded(mx.grad(lambda x: function(x).sum()), X)
    np.testing.assert_allclose(np.array(made), np.array(plain), rtol=1e-6)


class Pair(NamedTuple):
    a: mx.array
    name: str
    b: Any


def test_trees_and_what_is_no_array_pass(device: mx.Device) -> None:
    seen: list[Any] = []
    token = object()

    def function(pair: Pair, items: list[Any], *, by: float, more: dict[str, Any]) -> Any:
        seen.append((type(pair), pair.name, items[1], by, more["token"]))
        x = drop(pair.a) * by + pair.b[0] * items[0]
        return Pair(x, pair.name, (more["y"] * x, 3)), {"token": more["token"], "none": None}, [x.sum()]

    kept = mf.checkpoint(function)

    def call(f: Any, a: mx.array, b: mx.array, c: mx.array, y: mx.array) -> Any:
        pair, rest, (total,) = f(Pair(a, "p", [b]), [c, "text"], by=2.0, more={"y": y, "token": token})
        assert isinstance(pair, Pair) and pair.name == "p" and pair.b[1] == 3 and type(pair.b) is tuple
        assert rest["token"] is token and rest["none"] is None
        return total + (pair.b[0] ** 2).sum()

    arrays = [X, mx.cos(X), mx.sin(X), X / 7]
    plain, made = (
        seeded(mx.value_and_grad(lambda *a, f=f: call(f, *a), argnums=(0, 1, 2, 3)), *arrays)[0]
        for f in (function, kept)
    )
    assert alike(made, plain)
    assert all(s == (Pair, "p", "text", 2.0, token) for s in seen) and len(seen) == 3


def test_states_and_keys_are_arguments(device: mx.Device) -> None:
    x, w = numbers((2, 4, 4, 3)), numbers((5, 3, 3, 3), seed=1)

    def function(x: mx.array, w: mx.array, key: mx.array) -> Any:
        y, conv = mf.conv_fwd(x, w)
        return mx.random.bernoulli(0.5, y.shape, key=key) * y, conv

    def loss(f: Any, x: mx.array, w: mx.array) -> mx.array:
        y, conv = f(x, w, mx.random.key(4))
        return (y**2).sum() + mf.conv_grad_input(y, w, conv).sum()

    plain, made = (
        mx.grad(lambda x, w, f=f: loss(f, x, w), argnums=(0, 1))(x, w) for f in (function, mf.checkpoint(function))
    )
    assert alike(made, plain)


@pytest.mark.parametrize("fails_in_call", [1, 2])
def test_an_exception_leaves_the_random_state(device: mx.Device, fails_in_call: int) -> None:
    """In the second call that of before; in the first, that of where it was thrown."""
    calls: list[int] = []

    def function(x: mx.array) -> mx.array:
        calls.append(1)
        y = drop(x)
        if len(calls) == fails_in_call:
            raise RuntimeError("thrown")
        return y

    mx.random.seed(3)
    mx.random.uniform()
    after = state()
    mx.random.seed(3)
    with pytest.raises(RuntimeError, match="thrown"):
        mx.grad(lambda x: mf.checkpoint(function)(x).sum())(X)
    assert same_bits(state(), after) and len(calls) == fails_in_call


def test_a_random_state_that_somebody_holds_stays(device: mx.Device) -> None:
    drawn: Any = mx.random.state
    mx.random.seed(8)
    held = drawn[0]
    mx.eval(mx.grad(lambda x: mf.checkpoint(drop)(x).sum())(X))
    assert same_bits(held, mx.random.key(8))


def test_what_is_computed_again_is_not_kept(on_cpu: mx.Device) -> None:
    """A chain of functions takes no more memory than under mx.checkpoint."""

    def deep(x: mx.array) -> mx.array:
        for _ in range(30):
            x = mx.sin(x)
        return x

    def peak(f: Callable[[mx.array], mx.array]) -> int:
        x = mx.ones(2**18)
        mx.eval(x)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(mx.grad(lambda x: f(f(f(f(x)))).sum())(x))
        return mx.get_peak_memory() - before

    assert peak(mf.checkpoint(deep)) <= 1.05 * peak(mx.checkpoint(deep)) < 0.6 * peak(deep)


def test_a_function_keeps_its_name() -> None:
    assert mf.checkpoint(both).__name__ == "both"


class Counter(dict[str, mx.array]):
    pass


def test_what_is_refused(device: mx.Device) -> None:
    with pytest.raises(TypeError, match="^checkpoint: function is not a function; got function=3, expected a function"):
        mf.checkpoint(3)  # type: ignore[arg-type]
    layer = stock.Linear(2, 2)
    for module in (layer, layer.__call__):
        with pytest.raises(TypeError, match=r"^checkpoint: a module's .* expected .*mpsfunc\.nn\.checkpoint\(module\)"):
            mf.checkpoint(module)
    for given in (Counter(x=X), [Counter(x=X)]):
        with pytest.raises(TypeError, match="^checkpoint: an argument holds a collection .* got a Counter, expected "):
            mf.checkpoint(lambda x: X)(given)
    with pytest.raises(TypeError, match="^checkpoint: the result holds a collection .* got a Counter, expected "):
        mf.checkpoint(lambda x: Counter(x=x))(X)
    for bad in (3, drop, None):
        with pytest.raises(TypeError, match=r"^checkpoint: module is not a module; got a \w+, expected an mlx.nn.Mod"):
            mf.nn.checkpoint(bad)
    with pytest.raises(TypeError, match="^checkpoint: fn is not a function; got fn=3, expected a function"):
        mf.nn.checkpoint(layer, 3)


# Modules ------------------------------------------------------------------------------------------------


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
