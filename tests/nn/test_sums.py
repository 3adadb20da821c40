"""Sums with a layer's result, also one times a vector, that another layer reads: in inference the former makes them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_inference import spread
from nn.test_layers import close, numbers
from support import nodes

from mpsfunc import nn
from mpsfunc.convolution import laid_out

pytestmark = pytest.mark.usefixtures("on_cpu")

X = (2, 9, 8, 32)


class Inverted(stock.Module):
    """A convolution and a normalization at the end of a chain, as in MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.body = stock.Sequential(
            stock.Sequential(stock.Conv2d(32, 64, 1), spread(stock.BatchNorm(64), 1), stock.ReLU6()),
            stock.Sequential(stock.Conv2d(64, 32, 3, padding=1), spread(stock.BatchNorm(32), 2)),
        )

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.body(x)


class Scaled(stock.Module):
    """Linear layers behind a norm, and a vector, as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = stock.Conv2d(32, 32, 3, padding=1, groups=32), stock.LayerNorm(32)
        self.up, self.act, self.down = stock.Linear(32, 64), stock.GELU(), stock.Linear(64, 32)
        self.gamma = mx.random.uniform(0.5, 1.5, (32,))

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.gamma * self.down(self.act(self.up(self.norm(self.conv(x)))))


class Skipped(stock.Module):
    """A convolution beside two, as in a U-Net, and a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one = stock.GroupNorm(4, 32, pytorch_compatible=True), stock.Conv2d(32, 32, 3, padding=1)
        self.two, self.skip = stock.Conv2d(32, 32, 3, padding=1), stock.Conv2d(32, 32, 1)
        self.line, self.behind = stock.Conv1d(32, 32, 3, padding=1, bias=False), stock.Conv1d(32, 32, 1)
        self.pool = stock.MaxPool2d(2)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.two(stock.silu(self.one(stock.silu(self.norm(x))))) + self.skip(x)
        x = self.pool(x)
        line = x.flatten(1, 2)
        return self.behind(line + self.line(line)).reshape(x.shape)


BLOCKS = {"inverted": (Inverted, 3), "scaled": (Scaled, 3), "skipped": (Skipped, 6)}  # and how many sums layers make


class Net(stock.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        mx.random.seed(3)
        self.stem = stock.Conv2d(32, 32, 1)  # whose result the first block adds
        self.blocks = [block() for _ in range(3)]
        self.head = stock.Linear(32, 32)
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def pair(name: str, dtype: mx.Dtype = mx.float32) -> tuple[Any, Any, Any]:
    """A model that was converted for inference, one that was not, and the report."""
    net, same = (Net(BLOCKS[name][0]).eval() for _ in range(2))
    for each in (net, same):
        each.set_dtype(dtype)
        mx.eval(each.parameters())
    return net, same, nn.convert(net, example=numbers(X).astype(dtype), inference=True)


def sums(monkeypatch: pytest.MonkeyPatch, run: Any) -> int:
    """How many sums layers make in a call."""
    counted: list[int] = []
    real = laid_out.Adding.conv
    with monkeypatch.context() as patched:
        patched.setattr(laid_out.Adding, "conv", lambda self, *args: counted.append(1) or real(self, *args))
        mx.eval(run())
    return len(counted)


@pytest.mark.parametrize("name", BLOCKS)
def test_layers_make_the_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, same, report = pair(name)
    x, count = numbers(X), BLOCKS[name][1]
    told = [behind for behind in report.fused.values() if behind == "a shortcut"]
    assert len(told) == count and "with a shortcut" in str(report)
    made = nodes(net(x))
    assert nodes(same(x))["Add"] > 0 and "Add" not in made and "Multiply" not in made
    layers = sum(isinstance(each, (stock.Conv2d, stock.Conv1d, stock.Linear)) for each in net.modules())
    assert made["conv_laid_out"] + made["conv"] == layers  # each once
    for run in (net, mx.compile(net)):
        assert sums(monkeypatch, lambda run=run: run(x)) == count
        close(run(x), same(x))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_in_16_bits(name: str, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    net, same, _ = pair(name, dtype)
    x = numbers(X).astype(dtype)
    assert sums(monkeypatch, lambda: net(x)) == BLOCKS[name][1]
    same.set_dtype(mx.float32)
    got, want = net(x).astype(mx.float32), same(x.astype(mx.float32))
    limit = 16 * float(mx.finfo(dtype).eps) * float(mx.abs(want).max())
    assert net(x).dtype == dtype and float(mx.abs(got - want).max()) <= limit


@pytest.mark.parametrize("name", BLOCKS)
def test_transformations_and_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, same, _ = pair(name)
    x, count = numbers(X), BLOCKS[name][1]
    for transform in (mx.compile, mx.checkpoint, lambda f: mx.grad(lambda x: f(x).square().sum())):
        close(transform(net)(x), transform(same)(x))
    if name != "skipped":  # MLX has no mapped poolings
        close(mx.vmap(net)(x[None]), mx.vmap(same)(x[None]))
    for each in (net, same):
        each.freeze(keys=["running_mean", "running_var"])
    run = mx.compile(lambda x: net(x), inputs=[net.state])
    close(run(x), same(x))

    def both(model: stock.Module) -> Any:
        return stock.value_and_grad(model, lambda x: model(x).square().mean())(x)

    close(both(net), both(same))
    for each in (net, same):
        for module in each.modules():
            for key in ("weight", "gamma", "bias"):
                if key in module:
                    module[key] = module[key] * 1.25
        mx.eval(each.parameters())
    close([net(x), run(x)], [same(x), same(x)])
    other = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    assert sums(monkeypatch, lambda: other(x)) == count
    close(other(x), same(x))
    for each in (net, same):
        each.train()
    trained: list[mx.array] = []
    assert sums(monkeypatch, lambda: trained.append(net(x))) == 0
    close(trained[0], same(x))
    for each in (net, same):
        each.eval()
    close(net(x), same(x))
    exact = x.astype(mx.float64)
    nn.convert(same)  # MLX has no convolutions of float64 in groups
    close(net(exact), same(exact))
    nn.revert(net)
    assert not any("_following" in vars(each) or "is_added_to" in vars(each) for each in net.modules())
    close(net(x), same(x))


def test_what_code_holds_becomes_the_sum() -> None:
    net, same, _ = pair("inverted")
    x = numbers(X)
    z = x + net.blocks[0].body(x)
    held = z
    net.blocks[1].body(z)
    assert held is z and nodes(z)["conv_laid_out"] == 2 and "Add" not in nodes(z)
    close(z, x + same.blocks[0].body(x))
    close(net.blocks[1](z), same.blocks[1](x + same.blocks[0].body(x)))


def test_where_nothing_can_be_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BLOCKS:
        net, same, _ = pair(name)
        with monkeypatch.context() as patched:
            patched.setattr(laid_out, "isa", lambda: None)
            assert sums(monkeypatch, lambda net=net: net(numbers(X))) == 0
            close(net(numbers(X)), same(numbers(X)))


class Besides(stock.Module):
    """Whose code reads the convolution's result, too, or adds what is no such images."""

    def __init__(self, how: str) -> None:
        super().__init__()
        mx.random.seed(3)
        self.conv, self.last, self.how = stock.Conv2d(32, 32, 1), stock.Conv2d(32, 32, 1), how
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> Any:
        y = self.conv(x)
        if self.how == "read besides":
            return self.last(x + y), y * y
        more = {"a number": y + 1, "a row": y + x[:1, :1, :1], "a number each": y * x + x, "a difference": y - x}
        return self.last(more[self.how])


@pytest.mark.parametrize("how", ["read besides", "a number", "a row", "a number each", "a difference"])
def test_what_stays_with_mlx(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, same = Besides(how).eval(), Besides(how).eval()
    report = nn.convert(net, example=X, inference=True)
    assert report.fused == {} and sums(monkeypatch, lambda: net(numbers(X))) == 0
    close(net(numbers(X)), same(numbers(X)))
    made = net(numbers(X))
    assert nodes(*(made if isinstance(made, tuple) else (made,)))["conv_laid_out"] == 2


def test_conversion_for_training_leaves_sums() -> None:
    net, same = (Net(Inverted).eval() for _ in range(2))
    nn.convert(net, example=X)
    made = nodes(net(numbers(X)))
    assert made["Add"] >= 3
    close(net(numbers(X)), same(numbers(X)))
