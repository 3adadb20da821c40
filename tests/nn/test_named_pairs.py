"""Pairs of layers that a user names: they compute what they did, whatever happens to the model and the arrays."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_conversion import X, step
from nn.test_layers import close, numbers

import mpsfunc as mf
from mpsfunc import nn


class Residual(stock.Module):
    """One activation for everything, as many write it."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(1)
        self.conv, self.norm, self.act = stock.Conv2d(3, 3, 3, padding=1), stock.BatchNorm(3), stock.Sigmoid()
        self.body = stock.Sequential(stock.Conv2d(3, 3, 1), self.act, stock.Linear(3, 3))

    def __call__(self, x: mx.array) -> mx.array:
        y = self.norm(self.act(self.conv(x)))
        return self.act(x + self.body(self.act(y)) * y)


def same_after(change: Any) -> None:
    """A converted model computes what the model does, in training and evaluation, after something is done to both."""
    for mode in (True, False):
        one, other = Residual(), Residual()
        nn.convert(one, (("conv", "act"), ("norm", "act")))
        one, other = change(one), change(other)
        for each in (one, other):
            each.train(mode)
        for _ in range(2):
            close(step(one), step(other))
        close(one.parameters(), other.parameters())
        close(one(numbers(X)), other(numbers(X)))


def test_a_shared_activation_is_fused_where_it_can_be() -> None:
    assert nn.convert(Residual(), [("conv", "act"), ("norm", "act")]).fused == {
        "body.layers.0": "body.layers.1", "conv": "act", "norm": "act",
    }  # fmt: skip
    same_after(lambda block: block)


def test_models_are_changed_after_their_conversion() -> None:
    def exchanged(block: Any) -> Any:
        block.body.layers[1] = stock.Tanh()
        return block

    def without(block: Any) -> Any:
        block.conv = stock.Identity()
        del block.body.layers[1]
        return block

    def frozen(block: Any) -> Any:
        block.conv.freeze()
        return block

    def pickled(block: Any) -> Any:
        block(numbers(X))
        return pickle.loads(pickle.dumps(block))

    for change in (exchanged, without, frozen, pickled, copy.deepcopy):
        same_after(change)

    chains = [stock.Sequential(stock.Linear(64, 64), stock.ReLU(), stock.Linear(64, 64)) for _ in range(2)]
    chains[1].update(chains[0].parameters())
    nn.convert(chains[0])
    for chain in chains:
        stock.quantize(chain)
    assert isinstance(chains[0].layers[0], stock.QuantizedLinear)
    close(chains[0](numbers((4, 64))), chains[1](numbers((4, 64))))


def test_layers_are_called_by_themselves() -> None:
    chain = stock.Sequential(stock.Conv2d(3, 3, 1), stock.BatchNorm(3), stock.Tanh())
    want = [chain.layers[0](numbers(X)), chain.layers[2](numbers(X))]
    nn.convert(chain)
    close([chain.layers[0](numbers(X)), chain.layers[2](numbers(X))], want)


def convolutions(y: mx.array, path: Any) -> int:
    """How often one is computed for y."""
    mx.export_to_dot(str(path), y)
    return path.read_text().count('label ="conv"')


def test_a_named_pair_computes_nothing_twice(on_cpu: mx.Device, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Residual()
    conv, act, x = block.conv, block.act, numbers(X)
    plain = conv(x)
    nn.convert(block, [("conv", "act")])
    given = []
    monkeypatch.setattr(mf, "neuron", lambda *args: given.append(args) or mx.sigmoid(args[0]))
    y = conv(x)
    z = act(y)
    assert not given and convolutions(z, tmp_path / "one.dot") == 1
    close(y, plain)
    close(z, mx.sigmoid(plain))
    close(act(y), mx.sigmoid(plain))  # once more, from the array itself
    assert len(given) == 1


Between = Callable[[Any, mx.array, mx.array], Any]
BETWEEN: dict[str, Between] = {
    "the result": lambda block, x, y: y.__iadd__(x),
    "one entry": lambda block, x, y: y.__setitem__(0, 1.0),
    "the input": lambda block, x, y: x.__imul__(3),
    "a parameter": lambda block, x, y: block.norm.weight.__imul__(3),
    "another parameter": lambda block, x, y: setattr(block.norm, "weight", block.norm.weight * 2),
    "no parameter": lambda block, x, y: block.norm.pop("bias"),
    "statistics": lambda block, x, y: block.norm.running_mean.__imul__(0),
    "evaluation": lambda block, x, y: block.eval(),
    "an exchange": lambda block, x, y: setattr(block, "act", stock.Tanh()),
    "another call": lambda block, x, y: block.norm(x + 1),
    "evaluated": lambda block, x, y: mx.eval(y, x),
    "nothing": lambda block, x, y: None,
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_named_pair_between_whose_calls_something_is_changed(between: str) -> None:
    block, same = Residual(), Residual()
    nn.convert(block, [("norm", "act"), ("conv", "act")])
    results = []
    for each in (block, same):
        x = numbers(X)
        y = each.norm(x)
        BETWEEN[between](each, x, y)
        results.append([each.act(y), each.act(y), y, x, each.act(x), each.norm.running_mean, each.norm.running_var])
    close(*results)


def test_a_call_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Residual()
    nn.convert(block, [("norm", "act")])
    y = block.norm(numbers(X))
    moved = mx.array(block.norm.running_mean)
    monkeypatch.setattr(mf, "batch_norm_fwd", lambda *args, **how: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        block.act(y)
    assert mx.array_equal(block.norm.running_mean, moved) and moved.any()


def test_named_pairs_keep_nothing(on_cpu: mx.Device) -> None:
    block, x = Residual(), mx.zeros((64, 64, 64, 3))
    nn.convert(block.eval(), [("norm", "act"), ("conv", "act")])
    mx.eval(x, block.parameters())
    before = mx.get_active_memory()
    for between in (lambda y: y, lambda y: y * 1.0, mx.tanh):
        mx.eval(block.act(between(block.norm(block.conv(x)))))
        assert mx.get_active_memory() - before < x.nbytes / 2
    assert not block.act._following._calls


def test_threads_use_named_pairs(on_cpu: mx.Device) -> None:
    block = Residual()
    xs = [numbers(X, seed) for seed in range(8)]
    want = [block.eval()(x) for x in xs]
    mx.eval(xs, want)
    nn.convert(block, [("norm", "act"), ("conv", "act")])

    def run(i: int) -> bool:
        with mx.stream(mx.new_thread_local_stream(mx.cpu)):
            return all(bool(mx.allclose(block(xs[i]), want[i], rtol=1e-4, atol=1e-5).item()) for _ in range(30))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_a_named_pair_under_transformations() -> None:
    block, same = Residual(), Residual()
    nn.convert(block, [("norm", "act"), ("conv", "act")])
    for each in (block, same):
        each.eval()
    x = numbers(X)
    for transform in (mx.compile, mx.checkpoint, mx.vmap, lambda f: mx.grad(lambda x: f(x).sum())):
        given = x[None] if transform is mx.vmap else x
        close(transform(block)(given), transform(same)(given))
    close(block.act(mx.checkpoint(block.norm)(x)), same.act(same.norm(x)))


def test_classes_derived_from_drop_ins_keep_what_they_do() -> None:
    class Doubled(nn.Conv2d):
        def __call__(self, x: mx.array) -> mx.array:
            y = super().__call__(x)
            y *= 2
            return y

    class Shifted(nn.ReLU):
        def __call__(self, x: mx.array) -> mx.array:
            return super().__call__(x) - 1

    class Chain(nn.Sequential):
        pass

    x = numbers(X)
    chain = Chain(Doubled(3, 3, 1), nn.Tanh(), nn.Conv2d(3, 3, 1), Shifted(), nn.Linear(3, 3), nn.ReLU())
    want = x
    for layer in chain.layers:
        want = layer(want)
    assert nn.convert(chain).fused == {"layers.4": "layers.5"}
    close(chain(x), want)

    class Backwards(nn.Sequential):
        def __call__(self, x: mx.array) -> mx.array:
            return self.layers[0](self.layers[1](x))

    chain = Backwards(nn.Conv2d(3, 3, 1), nn.Tanh())
    want = chain(x)
    assert not nn.convert(chain).fused
    close(chain(x), want)

    block = Residual()
    block.conv, block.act = Doubled(3, 3, 3, padding=1), nn.Sigmoid()
    want = block.act(block.conv(x))
    nn.convert(block, [("conv", "act")])
    close(block.act(block.conv(x)), want)
    nn.revert(block)
    assert not {"_following", "_together"} & vars(block.conv).keys()
