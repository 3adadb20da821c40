"""Weights that are laid out for inference: who keeps them, how much memory that is, and when they are made again."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from mlx.utils import tree_map
from nn.test_inference import spread
from nn.test_layers import close, numbers
from support import same_bits

from mpsfunc import nn
from mpsfunc.convolution import laid_out
from mpsfunc.core import launch

pytestmark = pytest.mark.usefixtures("on_cpu")

X = (2, 9, 10, 24)


class Net(stock.Module):
    """Layers with a normalization behind them, and without; by themselves, and in a chain."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(3)
        self.chain = stock.Sequential(
            stock.Conv2d(24, 32, 3, padding=1), spread(stock.BatchNorm(32), 1), stock.ReLU(),
            stock.Conv2d(32, 32, 3, padding=1, groups=32), stock.Conv2d(32, 48, 1),
        )  # fmt: skip
        self.conv, self.norm = stock.Conv2d(48, 32, 3, stride=2, bias=False), spread(stock.BatchNorm(32), 2)
        self.line, self.linear = stock.Conv1d(32, 64, 3, padding=1), stock.Linear(64, 32)
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        x = stock.relu(self.norm(self.conv(self.chain(x))))
        return self.linear(stock.silu(self.line(x.flatten(1, 2))))


def pair() -> tuple[Any, Any]:
    """A model that was converted for inference, and one that was not."""
    net, same = Net().eval(), Net().eval()
    nn.convert(net, example=X, inference=True)
    return net, same


def laid(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> tuple[int, int]:
    """How many layers of a call read weights that are laid out, and how many are laid out in it."""
    counts = [0, 0]
    call, make = laid_out.LaidOut.conv, laid_out.lay_out

    def called(self: Any, *args: Any) -> mx.array:
        counts[0] += 1
        return call(self, *args)

    def made(*args: Any) -> Any:
        found = make(*args)
        counts[1] += found is not None
        return found

    with monkeypatch.context() as patched:
        patched.setattr(laid_out.LaidOut, "conv", called)
        patched.setattr(laid_out, "lay_out", made)
        mx.eval(run())
    return counts[0], counts[1]


def layouts(net: Any) -> list[Any]:
    return [vars(each).get("_layouts") for each in (net.chain.layers[4], net.line, net.linear)]


# Two with a normalization; conv, line and linear are built again with what is behind them, which is all that is made.
LAYERS = 5


def test_what_is_kept_is_counted_and_weights_are_there_twice_at_most() -> None:
    net = Net().eval()
    report = nn.convert(net, example=X, inference=True)
    words = launch.module("conv_layout").conv_layout_words
    number = launch.module("conv_layout").isa_number()

    def of(layer: Any, shape: tuple[int, ...]) -> int:
        return 4 * words(number, layer.weight.dtype, shape, 1)

    first, last, conv, line = net.chain.layers[0], net.chain.layers[4], net.conv, net.line
    folded = of(first, first.weight.shape) + of(conv, conv.weight.shape) + 2 * 4 * 32
    own = of(last, last.weight.shape) + of(line, (64, 1, 3, 32)) + of(net.linear, (32, 1, 1, 64))
    assert report.kept_twice == folded + own and f"kept twice {report.kept_twice:,} bytes" in str(report)
    assert net.norm._following.folds.nbytes == folded
    dense = (first, last, conv, line, net.linear)
    assert report.kept_twice <= 1.4 * sum(layer.weight.nbytes for layer in dense)  # lanes to spare of 48 channels
    net(numbers(X))
    assert net.norm._following.folds.nbytes + sum(each.nbytes for each in layouts(net)) == report.kept_twice
    nn.revert(net)
    assert layouts(net) == [None] * 3 and not any("_layouts" in vars(module) for module in net.modules())


def turned() -> int:
    """How many of the layers more have their weights laid out in bfloat16: what is depthwise, in some sets."""
    module = launch.module("conv_layout")
    return int(module.conv_layout_words(module.isa_number(), mx.bfloat16, (32, 3, 3, 1), 32) > 0)


def loaded(net: Any) -> None:
    net.update(tree_map(lambda a: a * 1.25, net.parameters()))


def in_place(net: Any) -> None:
    net.linear.weight *= 2
    net.chain.layers[4].weight[3] = 1.0
    net.norm.bias[3] = 4.0


def fresh(net: Any) -> None:
    net.line = stock.Conv1d(32, 64, 3, padding=1)
    net.line.weight, net.line.bias = mx.ones((64, 3, 32)) / 8, mx.zeros(64)


ACTIONS: dict[str, tuple[Callable[[Any], Any], int, int]] = {  # and how many are read laid out, and made, then
    "nothing": (lambda net: None, 0, 0),
    "update": (loaded, 0, 5),
    "in place": (in_place, 0, 3),
    "set_dtype": (lambda net: net.set_dtype(mx.bfloat16), 0, 5),
    "apply": (lambda net: net.apply(lambda a: a * 0.5), 0, 5),
    "quantize": (lambda net: stock.quantize(net, group_size=32), -1, 0),
    "a layer of MLX's": (fresh, -2, 0),
    "train": (lambda net: net.train(), -99, 0),
    "trained": (lambda net: (net.train(), net(numbers(X)), net.eval()), 0, -1),
    "freeze": (lambda net: net.freeze(), 0, 0),
    "no bias": (lambda net: net.linear.pop("bias"), 0, 0),
    "one trains": (lambda net: net.norm.train(), -2, 0),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_done_to_a_model_is_seen(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, fewer, made = ACTIONS[action]
    net, same = pair()
    x = numbers(X)
    usual, again = laid(monkeypatch, lambda: net(x))
    assert usual > LAYERS and again == 0
    for each in (net, same):
        mx.random.seed(4)
        change(each)
    given = x.astype(net.linear.bias.dtype if action == "set_dtype" else mx.float32)
    read, remade = laid(monkeypatch, lambda: net(given))
    if action == "set_dtype":
        fewer, made = fewer + turned(), made + turned()
    assert read == max(0, usual + fewer) if fewer > -99 else read == 0
    assert remade == made if made >= 0 else remade > 0
    if action == "set_dtype":
        got, want = net(given).astype(mx.float32), same(given).astype(mx.float32)
        assert mx.allclose(got, want, rtol=0.1, atol=0.05 * float(mx.abs(want).max()))
    else:
        close([net(given), net(given)], [same(given), same(given)])
    if action != "train":
        assert laid(monkeypatch, lambda: net(given))[1] == 0


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_layer_computes_the_same_bits(dtype: mx.Dtype) -> None:
    for layer, shape in (
        (stock.Conv2d(24, 40, 3, stride=2, padding=1), (2, 9, 8, 24)),
        (stock.Conv2d(48, 64, 3, groups=2, dilation=2), (1, 9, 8, 48)),
        (nn.Conv2d(24, 32, 3, padding=1, padding_mode="reflect"), (2, 9, 8, 24)),
        (stock.Conv1d(24, 40, 5, padding=2, bias=False), (2, 31, 24)),
        (stock.Linear(24, 100), (70, 24)),
        (stock.Linear(24, 100, bias=False), (2, 40, 24)),
    ):
        layer.set_dtype(dtype)
        other = copy.deepcopy(layer).eval()
        nn.convert(layer.eval(), inference=True)
        nn.convert(other)
        for images in {dtype, mx.float32}:
            x = numbers(shape).astype(images)
            assert same_bits(layer(x), other(x)), (type(layer), images)
        assert layer._layouts.nbytes > 0
        exact = numbers(shape).astype(mx.float64)
        assert same_bits(layer(exact), other(exact))


def test_transformations(monkeypatch: pytest.MonkeyPatch) -> None:
    net, same = pair()
    x = numbers(X)
    assert laid(monkeypatch, lambda: mx.compile(net)(x)) == (laid(monkeypatch, lambda: net(x))[0], 0)
    for transform in (lambda f: mx.grad(lambda x: f(x).square().sum()), mx.compile, mx.checkpoint):
        close(transform(net)(x), transform(same)(x))
    close(mx.vmap(net)(x[None]), mx.vmap(same)(x[None]))
    kept = [each.nbytes for each in layouts(net)]
    for each in (net, same):
        each.freeze(keys=["running_mean", "running_var"])

    def both(model: stock.Module) -> Any:
        return stock.value_and_grad(model, lambda x: model(x).square().mean())(x)

    close(both(net), both(same))
    assert laid(monkeypatch, lambda: both(net)) == (0, 0)
    assert [each.nbytes for each in layouts(net)] == kept
    state = [net.state]
    run = mx.compile(lambda x: net(x), inputs=state)
    close(run(x), same(x))
    for each in (net, same):
        loaded(each)
        mx.eval(each.parameters())
    close(run(x), same(x))


class Residual(stock.Module):
    """A shortcut around two folded normalizations, and one of another size."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(3)
        self.conv, self.norm = stock.Conv2d(32, 32, 3, padding=1, bias=False), spread(stock.BatchNorm(32), 1)
        self.wide, self.last = stock.Conv2d(32, 64, 1, bias=False), spread(stock.BatchNorm(64), 2)
        self.short, self.behind = stock.Conv2d(32, 64, 1, bias=False), spread(stock.BatchNorm(64), 3)
        self.chain = stock.Sequential(stock.Conv2d(64, 64, 1), spread(stock.BatchNorm(64), 4))
        self.few = stock.Sequential(stock.Conv2d(64, 64, 1, groups=64), spread(stock.BatchNorm(64), 5))
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        x = stock.relu(self.norm(self.conv(x)) + x)
        x = stock.relu(self.last(self.wide(x)) + self.behind(self.short(x)))
        return stock.relu(self.few(stock.relu(self.chain(x) + x)) + x)


def test_a_shortcut_is_added_by_the_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (2, 9, 8, 32)
    net, same = Residual().eval(), Residual().eval()
    report = nn.convert(net, example=shape, inference=True)
    assert report.fused["norm"] == "a shortcut and nn.relu" and report.fused["conv"] == "norm"
    assert report.fused["chain.layers.1"] == "a shortcut and nn.relu"
    x = numbers(shape)
    added = []
    real = laid_out.Adding.conv
    with monkeypatch.context() as patched:
        patched.setattr(laid_out.Adding, "conv", lambda self, *args: added.append(1) or real(self, *args))
        for run in (net, mx.compile(net)):
            mx.eval(run(x))
    assert len(added) == 6  # of three convolutions, since what is depthwise has nothing laid out
    for transform in (lambda f: f, mx.compile, mx.vmap, lambda f: mx.grad(lambda x: f(x).square().sum())):
        given = x[None] if transform is mx.vmap else x
        close(transform(net)(given), transform(same)(given))
    for each in (net, same):
        each.norm.weight *= 2
    close(net(x), same(x))
    with monkeypatch.context() as patched:  # where nothing can be laid out
        patched.setattr(laid_out, "isa", lambda: None)
        close(net(x), same(x))
    net.train()
    same.train()
    close(net(x), same(x))
    net.eval()
    nn.convert(same.eval())  # MLX has no grouped convolutions of float64
    exact = x.astype(mx.float64)
    close(net(exact), same(exact))


def test_copies_lay_out_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    net, same = pair()
    x = numbers(X)
    for copied in (copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))):
        other = copied(net)
        assert [each.nbytes for each in layouts(other)] == [0] * 3
        assert all(one is not each for one, each in zip(layouts(other), layouts(net), strict=True))
        read, made = laid(monkeypatch, lambda other=other: other(x))
        assert read > LAYERS and made == LAYERS
        other.linear.weight *= 3
        close(net(x), same(x))


def test_a_layout_for_another_instruction_set_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = launch.module("conv_layout")
    before, names = module.isa(), module.isas()
    if len(names) == 1:
        pytest.skip("one instruction set here")
    net, same = pair()
    x = numbers(X)
    forward = mx.compile(net)
    want = forward(x)
    mx.eval(want)
    try:
        module.set_isa(next(name for name in names if name != before))
        close(forward(x), want)  # what was compiled goes on with the weights that it was compiled with
        assert laid(monkeypatch, lambda: net(x))[1] == LAYERS
        close(net(x), same(x))
    finally:
        module.set_isa(before)


def test_they_go_with_their_layer_and_with_training() -> None:
    net, _ = pair()
    assert all(each.nbytes > 0 for each in layouts(net))
    net.train()
    net(numbers(X))
    assert [each.nbytes for each in layouts(net)] == [0] * 3
    net.eval()(numbers(X))
    folds = net.norm._following.folds
    before, kept = folds.nbytes, weakref.ref(folds._kept[id(net.conv), id(net.norm)])
    gc.disable()  # what is large does not wait for that
    try:
        net.conv = stock.Identity()
        assert 0 < folds.nbytes < before and kept() is None
    finally:
        gc.enable()


def test_without_the_module_nothing_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    net, same = pair()
    with monkeypatch.context() as patched:
        patched.setattr("mpsfunc.convolution.laid_out.launch.optional_module", lambda: None)
        assert laid_out.isa() is None
    close(net(numbers(X)), same(numbers(X)))
