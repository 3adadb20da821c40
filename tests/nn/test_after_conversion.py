"""What users do to a model after its conversion gives stock MLX's numbers; layers can be copied and pickled."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten, tree_map
from nn.test_layers import ROWS, close, gradients, numbers, pair
from support import same_bits

import mpsfunc as mf
from mpsfunc import nn
from mpsfunc.nn.conversion import DROP_INS
from mpsfunc.nn.copying import named, unnamed

X = (4, 8, 8, 3)


class Net(stock.Module):
    """Layers in a row and in a Sequential, functions of MLX, and an activation for two layers."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(3)
        self.conv1, self.bn1, self.act = stock.Conv2d(3, 8, 3, padding=1), stock.BatchNorm(8), stock.LeakyReLU(0.1)
        self.pool, self.average = stock.MaxPool2d(2), stock.AvgPool2d(2)
        self.body = stock.Sequential(stock.Conv2d(8, 64, 3, padding=1), stock.GELU(), stock.LayerNorm(64), mx.tanh)
        self.fc1, self.fc2 = stock.Linear(64, 64), stock.Linear(64, 5)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.pool(self.act(self.bn1(self.conv1(x))))
        x = self.average(self.body(x)).mean(axis=(1, 2))
        return self.fc2(stock.relu(self.act(self.fc1(x))))


class Checkpointed(Net):
    """The same with MLX's checkpoints."""

    def __call__(self, x: mx.array) -> mx.array:
        first, body = stock.utils.checkpoint(self.bn1, self.start), stock.utils.checkpoint(self.body)
        return self.fc2(stock.relu(self.act(self.fc1(self.average(body(first(x))).mean(axis=(1, 2))))))

    def start(self, x: mx.array) -> mx.array:
        return self.pool(self.act(self.bn1(self.conv1(x))))


def by_layer(net: Net) -> None:
    nn.convert(net)


def by_name(net: Net) -> None:
    nn.convert(net, fuse=[("bn1", "act"), ("fc1", "act")])


def by_example(net: Net) -> None:
    nn.convert(net, example=numbers(X))


way = pytest.mark.parametrize("way", [by_layer, by_name, by_example])


def trained(net: Any, steps: int = 2) -> Any:
    """Losses and gradients of some steps, what they leave, and the result in evaluation."""
    found = []
    optimizer = optim.SGD(0.1)
    net.train()
    for seed in range(steps):
        loss, grads = stock.value_and_grad(net, lambda x: net(x).square().mean())(numbers(X, seed))
        optimizer.update(net, grads)
        found.append((loss, grads))
    return found, net.parameters(), net.eval()(numbers(X, 9))


def same_after(way: Callable[[Any], None], change: Callable[[Any], Any], kind: type[Net] = Net) -> tuple[Any, Any]:
    """Does something to a converted network and to MLX's, which compute the same then; returns both."""
    ours, theirs = kind(), kind()
    way(ours)
    mx.eval(ours(numbers(X)), theirs(numbers(X)))
    change(ours), change(theirs)
    close(trained(ours), trained(theirs))
    return ours, theirs


class LoRA(stock.Module):
    """A linear layer that stays as it is, and a small product beside it."""

    def __init__(self, linear: stock.Module) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.linear = linear
        self.a, self.b = 0.1 * numbers((inputs, 2)), 0.1 * numbers((2, outputs))

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear(x) + (x @ self.a) @ self.b


def with_lora(net: Any) -> None:
    net.freeze()
    net.fc1, net.fc2 = LoRA(net.fc1), LoRA(net.fc2)
    for each in (net.fc1, net.fc2):
        each.unfreeze(keys=["a", "b"], recurse=False)


def with_lora_by_modules(net: Any) -> None:
    net.freeze()
    net.update_modules({"fc1": LoRA(net.fc1), "fc2": LoRA(net.fc2)})


def exchanged(net: Any) -> None:
    net.update_modules({"pool": stock.AvgPool2d(2), "act": stock.Tanh(), "body": {"layers": [{}, stock.Tanh()]}})
    net.fc1 = stock.Linear(64, 64)
    net.fc1.update({"weight": 0.1 * numbers((64, 64)), "bias": numbers((64,))})


def quantized(net: Any) -> None:
    stock.quantize(net, group_size=64, bits=8, class_predicate=lambda _, module: module is net.fc1)
    assert type(net.fc1) is stock.QuantizedLinear


def all_quantized(net: Any) -> None:
    stock.quantize(net)
    assert type(net.fc1) is type(net.fc2) is stock.QuantizedLinear


def frozen(net: Any) -> None:
    net.freeze()
    net.unfreeze(keys="bias")
    net.bn1.unfreeze()


def frozen_and_back(net: Any) -> None:
    net.freeze().unfreeze()


def frozen_norm(net: Any) -> None:
    net.bn1.freeze().eval()


def applied(net: Any) -> None:
    net.apply(lambda a: 0.5 * a)
    net.apply_to_modules(lambda _, module: module.freeze() if isinstance(module, stock.LayerNorm) else None)


def scaled(net: Any) -> None:
    net.update(tree_map(lambda a: 0.9 * a, net.parameters()))


def wide(net: Any) -> None:
    net.set_dtype(mx.bfloat16)
    net.set_dtype(mx.float32)


CHANGES = (
    with_lora,
    exchanged,
    quantized,
    all_quantized,
    frozen,
    frozen_and_back,
    frozen_norm,
    applied,
    scaled,
    wide,
)


@way
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_gives_stock_s_numbers(way: Callable[[Any], None], change: Callable[[Any], None]) -> None:
    ours, theirs = same_after(way, change)
    for of in ("trainable_parameters", "parameters"):
        one, other = (dict(tree_flatten(getattr(net, of)())) for net in (ours, theirs))
        assert one.keys() == other.keys()
        assert {name: (a.shape, a.dtype) for name, a in one.items()} == {
            name: (a.shape, a.dtype) for name, a in other.items()
        }


@way
def test_modules_are_exchanged_by_update_modules(way: Callable[[Any], None]) -> None:
    ours, theirs = same_after(way, with_lora_by_modules)
    assert type(ours.fc1) is type(theirs.fc1) is LoRA
    assert type(ours.fc1.linear) is nn.Linear and type(theirs.fc1.linear) is stock.Linear


@way
def test_weights_are_loaded(way: Callable[[Any], None], tmp_path: Path) -> None:
    source = Net()
    trained(source)
    for path in (str(tmp_path / "net.safetensors"), str(tmp_path / "net.npz")):
        source.save_weights(path)
        same_after(way, lambda net, path=path: net.load_weights(path))
        ours = Net()
        way(ours)
        ours.load_weights(path)
        close(ours.eval()(numbers(X)), source.eval()(numbers(X)))


@way
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float64], ids=str)
def test_another_dtype_before_or_after_is_the_same(way: Callable[[Any], None], dtype: mx.Dtype, on_cpu: Any) -> None:
    """And the dtypes of parameters, statistics and results are MLX's."""
    before, after, theirs = Net(), Net(), Net()
    before.set_dtype(dtype)
    way(before), way(after)
    mx.eval(after(numbers(X)))
    after = Net()
    way(after)
    for net in (after, theirs):
        net.set_dtype(dtype)
    x = numbers(X).astype(dtype)
    results = []
    for net in (before, after, theirs):
        y, dx = mx.value_and_grad(lambda x, net=net: net(x).sum())(x)
        results.append([net.eval()(x), y, dx, *(a for _, a in sorted(tree_flatten(net.parameters())))])
    for one, other, stock_s in zip(*results, strict=True):
        assert same_bits(one, other) and one.dtype == stock_s.dtype == dtype and one.shape == stock_s.shape


@way
def test_under_mlx_s_checkpoint(way: Callable[[Any], None]) -> None:
    """Whose second call moves running statistics once more, MLX's and ours."""
    same_after(way, lambda net: None, Checkpointed)

    def whole(net: Any) -> Any:
        loss, grads = stock.value_and_grad(net, lambda x: stock.utils.checkpoint(net)(x).square().sum())(numbers(X))
        mx.eval(loss, grads)
        return loss, grads

    one, other = Net(), Net()
    way(one)
    close(whole(one), whole(other))


@way
@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
def test_copies_of_a_model(way: Callable[[Any], None], called: bool) -> None:
    for make in (copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))):
        ours, theirs = Net(), Net()
        way(ours)
        if called:
            close(trained(ours, 1), trained(theirs, 1))
        other = make(ours)
        assert [(path, type(each)) for path, each in other.named_modules()] == [
            (path, type(each)) for path, each in ours.named_modules()
        ]
        assert not {id(each) for each in other.modules()} & {id(each) for each in ours.modules()}
        ours.apply(mx.zeros_like)
        close(trained(other), trained(theirs))
        nn.revert(other)
        assert not any(type(each).__module__.startswith("mpsfunc") for each in other.modules())
        close(other(numbers(X)), theirs(numbers(X)))


def runs_of(layer: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the activations that layers of a class are run with."""
    found: list[Any] = []
    run = type(layer).run

    def recorded(self: Any, x: mx.array, neuron: Any = None) -> mx.array:
        found.append((self, neuron))
        return run(self, x, neuron)

    monkeypatch.setattr(type(layer), "run", recorded)
    return found


@pytest.mark.parametrize("make", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deep", "pickle"])
def test_a_copied_pair_fuses_with_itself_alone(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    by_name(net)
    x, held = numbers((4, 8, 8, 8)), net.bn1(numbers((4, 8, 8, 8)))  # copied between the call and the activation
    other = make(net)
    seen = runs_of(net.bn1, monkeypatch)
    want = stock.LeakyReLU(0.1)(net.bn1(x))

    close(other.act(other.bn1(x)), want)
    assert seen[-1][0] is other.bn1 and seen[-1][1] == mf.Neuron("relu", 0.1)
    del seen[:]
    close(other.act(net.bn1(x)), want)
    close(net.act(other.bn1(x)), want)
    assert [neuron for _, neuron in seen] == [None, None], "a copy fused with the original"
    close(net.act(held), stock.LeakyReLU(0.1)(held))
    close(net.act(net.bn1(x)), want)
    assert seen[-1][0] is net.bn1 and seen[-1][1] is not None


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
def test_every_layer_is_copied_and_pickled(name: str, called: bool) -> None:
    made, theirs, x = pair(name)
    for layer in (made, theirs):
        if called:
            mx.eval(layer(x))
    nn.convert(theirs)
    ways = (copy.copy, copy.deepcopy, *(lambda a, p=p: pickle.loads(pickle.dumps(a, p)) for p in (2, 5)))
    for layer in (made, theirs):
        for way in ways:
            other = way(layer)
            assert type(other) is type(layer) and other is not layer and repr(other) == repr(layer)
            assert vars(other).keys() == vars(layer).keys() and dict(other).keys() == dict(layer).keys()
            shared = {id(a) for a in layer.values()} & {
                id(a) for a in other.values() if isinstance(a, (mx.array, list))
            }
            assert bool(shared) == (way is copy.copy and any(isinstance(a, (mx.array, list)) for a in layer.values()))
            for each in (layer, other):
                each.eval()
            assert all(map(same_bits, *zip((layer(x), other(x)))))
            close(gradients(other, x), gradients(layer, x))
            close(nn.revert(other)(x), layer(x))


def test_copies_of_sequentials_and_dropouts() -> None:
    x = numbers((2, 4, 4, 3))
    chain = stock.Sequential(
        stock.Conv2d(3, 3, 1), stock.relu, stock.Dropout(0.5), mx.tanh, stock.Dropout2d(0.5), stock.MaxPool2d(2)
    )
    nn.convert(chain)
    for way in (copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))):
        other = way(chain)
        assert type(other) is nn.Sequential
        assert (other.layers is chain.layers) == (way is copy.copy)
        assert other.layers[1] is stock.relu and other.layers[3] is mx.tanh
        assert [type(each) for each in other.layers] == [type(each) for each in chain.layers]
        results = []
        for each in (chain, other):
            mx.random.seed(5)
            results.append(each(x))
        assert same_bits(*results)
        assert nn.revert(way(chain)).layers[1] is stock.relu
        nn.convert(chain)

    partly = stock.Sequential(stock.Linear(2, 2), functools.partial(stock.leaky_relu, negative_slope=0.3))
    nn.convert(partly)
    assert copy.copy(partly).layers[1] is partly.layers[1]
    for other in (copy.deepcopy(partly), pickle.loads(pickle.dumps(partly))):
        made = other.layers[1]
        assert made.func is stock.leaky_relu and made.keywords == {"negative_slope": 0.3}

    held = [stock.relu, 3, partly.layers[1]]
    assert unnamed(named(held)) == held and named(held) != held and named([3]) == [3]

    own = stock.Sequential(stock.Linear(2, 2), abs)  # a function of others is copied as Python does
    nn.convert(own)
    assert copy.deepcopy(own).layers[1] is abs and pickle.loads(pickle.dumps(own)).layers[1] is abs


def test_every_drop_in_was_copied() -> None:
    here = {name.partition(",")[0] for name in ROWS} | {"Dropout", "Dropout2d", "Sequential"}
    assert here == {theirs.__name__ for theirs in DROP_INS}
