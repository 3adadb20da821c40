"""An example shows which activations follow which layers; each call then looks for itself."""

from __future__ import annotations

import functools
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from mlx import nn as also
from nn.test_conversion import X, step
from nn.test_layers import close, numbers

from mpsfunc import nn
from mpsfunc.core import launch, recomputing

pytestmark = pytest.mark.usefixtures("on_cpu")

SIGMOID = stock.sigmoid  # with slopes that no rounding hides


def acted(block: Any, x: mx.array) -> mx.array:
    """A function that a method calls."""
    return stock.sigmoid(block.norm(x))


class Block(stock.Module):
    """Layers, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(3)
        self.conv, self.norm, self.more = stock.Conv2d(3, 3, 3, padding=1), stock.BatchNorm(3), stock.BatchNorm(3)
        self.act, self.function = stock.Sigmoid(), stock.sigmoid
        self.partly = functools.partial(stock.leaky_relu, negative_slope=0.25)
        self.short = lambda x: stock.silu(x)
        self.bound = self.helped

    def __call__(self, x: mx.array) -> mx.array:
        return stock.sigmoid(self.norm(self.conv(x)))

    def helped(self, x: mx.array) -> mx.array:
        return stock.silu(x)


class Named(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return SIGMOID(self.norm(x))


class Another(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return also.sigmoid(self.norm(x))


class OfMLX(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return mx.maximum(0, self.more(x)) - mx.maximum(self.norm(x), 0.0)


class Attribute(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return self.function(self.norm(x))


class Partial(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return self.partly(self.norm(x))


class Slope(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return stock.leaky_relu(self.norm(x), negative_slope=0.2) + stock.leaky_relu(self.more(x), 0.3)


class Lambda(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return self.short(self.norm(x))


class Bound(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return self.bound(self.norm(x))


class Helper(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return acted(self, x)


class Default(Block):
    def __call__(self, x: mx.array, act: Any = stock.sigmoid, *, last: Any = stock.silu) -> mx.array:
        return last(self.more(act(self.norm(x))))


class Inherited(Named):
    def __call__(self, x: mx.array) -> mx.array:
        return stock.sigmoid(self.more(super().__call__(x)))


class Inner(Block):
    def __call__(self, x: mx.array) -> mx.array:
        def inner(x: mx.array) -> mx.array:
            return stock.sigmoid(self.norm(x))

        return sum(stock.sigmoid(norm(y)) for norm, y in [(self.more, inner(x))])


class Generated(Block):
    def each(self, x: mx.array) -> Any:
        yield stock.sigmoid(self.norm(x))
        yield from (stock.silu(norm(x)) for norm in [self.more])

    def __call__(self, x: mx.array) -> mx.array:
        return sum(self.each(x), mx.zeros_like(x))


class Static(Block):
    last = staticmethod(stock.sigmoid)

    @staticmethod
    def acted(x: mx.array) -> mx.array:
        return stock.sigmoid(x)

    @classmethod
    def acted_too(cls, x: mx.array) -> mx.array:
        return cls.last(x)

    def __call__(self, x: mx.array) -> mx.array:
        return self.acted_too(self.more(self.acted(self.norm(x))))


def wrapped(f: Any) -> Any:
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    return wrapper


class Wrapped(Block):
    @wrapped
    def __call__(self, x: mx.array) -> mx.array:
        return stock.sigmoid(self.norm(x))


def closed(act: Any, module: Any) -> Any:
    def call(self: Any, x: mx.array) -> mx.array:
        return module.silu(self.more(act(self.norm(x))))

    return call


class Closed(Block):
    __call__ = closed(stock.sigmoid, stock)


class Modules(Block):
    """One activation for many layers."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.act(self.more(self.act(self.norm(self.act(self.conv(x))))))


class Different(Block):
    """A layer with one activation after another."""

    def __call__(self, x: mx.array) -> mx.array:
        return stock.silu(self.norm(x)) + self.act(self.norm(x + 1)) + stock.sigmoid(self.norm(x - 1))


class Chain(stock.Sequential):
    """Derived, with a function in it."""

    def __init__(self) -> None:
        mx.random.seed(3)
        super().__init__(stock.Conv2d(3, 3, 1), stock.sigmoid, stock.BatchNorm(3), stock.ReLU())


class Lists(stock.Module):
    """Blocks in lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Named(), {"chain": Chain(), "modules": Modules()}]

    def __call__(self, x: mx.array) -> mx.array:
        return self.blocks[1]["modules"](self.blocks[1]["chain"](self.blocks[0](x)))


FUSED = {
    Block: {"norm": "nn.sigmoid"},
    Named: {"norm": "nn.sigmoid"},
    Another: {"norm": "nn.sigmoid"},
    OfMLX: {"more": "mx.maximum", "norm": "mx.maximum"},
    Attribute: {"norm": "nn.sigmoid"},
    Partial: {"norm": "nn.leaky_relu"},
    Slope: {"more": "nn.leaky_relu", "norm": "nn.leaky_relu"},
    Lambda: {"norm": "nn.silu"},
    Bound: {"norm": "nn.silu"},
    Helper: {"norm": "nn.sigmoid"},
    Default: {"more": "nn.silu", "norm": "nn.sigmoid"},
    Inherited: {"more": "nn.sigmoid", "norm": "nn.sigmoid"},
    Inner: {"more": "nn.sigmoid", "norm": "nn.sigmoid"},
    Generated: {"more": "nn.silu", "norm": "nn.sigmoid"},
    Static: {"more": "nn.sigmoid", "norm": "nn.sigmoid"},
    Wrapped: {"norm": "nn.sigmoid"},
    Closed: {"more": "nn.silu", "norm": "nn.sigmoid"},
    Modules: {"conv": "act", "more": "act", "norm": "act"},
    Different: {"norm": "nn.silu and act and nn.sigmoid"},
    Chain: {"layers.0": "layers.1", "layers.2": "layers.3"},
    Lists: {
        "blocks.0.norm": "nn.sigmoid", "blocks.1.chain.layers.0": "blocks.1.chain.layers.1",
        "blocks.1.chain.layers.2": "blocks.1.chain.layers.3", "blocks.1.modules.conv": "blocks.1.modules.act",
        "blocks.1.modules.more": "blocks.1.modules.act", "blocks.1.modules.norm": "blocks.1.modules.act",
    },
}  # fmt: skip


def neurons(monkeypatch: pytest.MonkeyPatch, run: Any) -> int:
    """How many normalizations and convolutions apply an activation in a call."""
    import mpsfunc as mf

    count = 0
    for name in ("bn_normalize", "batch_norm_fwd", "conv"):
        real = getattr(mf, name)

        def counted(*args: Any, real: Any = real, **how: Any) -> Any:
            nonlocal count
            count += how.get("neuron") is not None
            return real(*args, **how)

        monkeypatch.setattr(mf, name, counted)
    run()
    monkeypatch.undo()
    return count


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.__name__)
def test_what_an_example_shows(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    block, same, x = kind(), kind(), numbers(X)
    report = nn.convert(block, example=X)
    assert report.fused == FUSED[kind]
    assert neurons(monkeypatch, lambda: block(x)) == sum(name.count(" and ") + 1 for name in FUSED[kind].values())
    same(x)
    assert isinstance(block, kind) and repr(block) == repr(same)
    for mode in (True, False):
        for each in (block, same):
            each.train(mode)
        for _ in range(2):
            close(step(block), step(same))
        close(block.parameters(), same.parameters())
        for transform in (mx.compile, mx.checkpoint, mx.vmap, lambda f: mx.grad(lambda x: f(x).sum())):
            if not mode and kind in (Different, Lists, Closed):
                given = x[None] if transform is mx.vmap else x
                close(transform(block)(given), transform(same)(given))
    assert nn.convert(block).fused == FUSED[kind]  # it is still known
    nn.revert(block)
    assert type(block) is kind and {type(m) for m in block.modules()} == {type(m) for m in same.modules()}
    assert all(vars(m).keys() == vars(n).keys() for m, n in zip(block.modules(), same.modules(), strict=True))
    close(block(x), same(x))


def test_the_example_leaves_no_traces() -> None:
    class Changing(Block):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.count, self.drop = [], mx.zeros(2), stock.Dropout(0.5)
            self.norm.freeze(keys=["running_mean", "running_var"], strict=False)

        def __call__(self, x: mx.array) -> mx.array:
            self.calls.append(x)
            self.count += 1
            self.norm.weight += 1
            self.norm.running_mean = self.norm.running_mean + 1
            self.extra = x
            mx.random.normal((2,))
            return stock.sigmoid(self.norm(self.drop(x)))

    block = Changing()
    block.more.eval()
    mx.random.seed(5)
    state, weight = recomputing.random_state(), block.norm.weight
    modes = [module.training for module in block.modules()]
    assert nn.convert(block, example=X).fused == {"norm": "nn.sigmoid"}
    assert [module.training for module in block.modules()] == modes
    assert block.calls == [] and "extra" not in block and block.norm.weight is weight
    close([block.count, weight, block.norm.running_mean], [mx.zeros(2), mx.ones(3), mx.zeros(3)])
    assert mx.array_equal(recomputing.random_state(), state)


def test_a_call_that_fails_leaves_the_model_as_it_was() -> None:
    class Failing(Block):
        def __call__(self, x: mx.array) -> mx.array:
            self.norm.weight += 1
            if x.shape[1] > 4:
                raise KeyError("no such thing")
            return stock.sigmoid(self.norm(x))

    block = Failing()
    before = {path: (type(module), dict(vars(module))) for path, module in block.named_modules()}
    told = (
        r"convert: the model's call raises a KeyError of .*no such thing.*; got example=float32\[4, 8, 8, 3\], expected"
    )
    with pytest.raises(ValueError, match=told) as caught:
        nn.convert(block, [("norm", "act")], example=X)
    assert type(caught.value.__cause__) is KeyError
    assert {path: (type(module), dict(vars(module))) for path, module in block.named_modules()} == before
    assert mx.array_equal(block.norm.weight, mx.ones(3)) and block.training
    assert nn.convert(block, example=(2, 3, 3, 3)).fused == {"norm": "nn.sigmoid"}
    with pytest.raises(ValueError, match="raises a KeyError"):
        nn.convert(block, [("conv", "act")], example=X, inference=True)
    assert nn.convert(block).fused == {"norm": "nn.sigmoid"} and not block.norm._following.folding


@pytest.mark.parametrize(
    ("example", "error"),
    [(3, TypeError), ("x", TypeError), ((), TypeError), ({}, TypeError), ((2, 0, 3), ValueError), ([-1], ValueError)],
)
def test_what_is_no_example(example: Any, error: type[Exception]) -> None:
    block = Block()
    with pytest.raises(error, match=r"convert: (not an example|example is no shape); got example="):
        nn.convert(block, example=example)
    assert type(block.conv) is stock.Conv2d


def test_models_of_several_arguments() -> None:
    class Two(Block):
        def __call__(self, x: mx.array, more: Any) -> mx.array:
            return stock.sigmoid(self.norm(x)) + more["y"][0]

    for example in ([numbers(X), {"y": (1, 2)}], (numbers(X), {"y": [mx.array(2.0)]})):
        assert nn.convert(Two(), example=example).fused == {"norm": "nn.sigmoid"}


def test_the_example_runs_in_evaluation_mode() -> None:
    assert nn.convert(Block(), example=(1, 1, 1, 3)).fused == {"norm": "nn.sigmoid"}  # of one value no variance


def test_what_is_not_fused_and_why() -> None:
    class Reasons(Block):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third, self.soft = stock.ReLU(), stock.Tanh(), stock.SiLU(), stock.Softmax()
            self.many = [stock.relu]

        @mx.compile
        def compiled(self: Any) -> mx.array:
            return stock.relu(self)

        def inside(self, x: mx.array) -> mx.array:
            class Inside:
                found = stock.relu(x)

            return Inside.found

        def __call__(self, x: mx.array) -> mx.array:
            y = self.conv(x)
            x = self.first(x + 1) + y * self.second(y)
            return self.soft(stock.relu(x) + self.many[0](self.norm(x)) + self.compiled(x) + self.inside(x))

    report = nn.convert(Reasons(), example=X)
    line = Reasons.__call__.__code__.co_firstlineno + 3
    inside = "test_what_is_not_fused_and_why.<locals>.Reasons.inside"
    assert report.fused == {} and report.unfused == {
        "act": "not called on the example", "first": "on no layer's result", "soft": "no layer applies Softmax",
        "second": "the result of conv is read besides", "third": "not called on the example",
        "item 0 of many": "a function in a list or dict", "compiled": "compiled before the conversion",
        inside: f"{inside} defines a class", "nn.relu": f"on no layer's result in line {line}",
    }  # fmt: skip


def test_layers_of_mlx_that_call_functions() -> None:
    report = nn.convert(stock.LSTM(4, 8), example=(2, 5, 4))
    assert report.unfused == {} and list(report.left) == [""]
    encoder, same, given = stock.TransformerEncoder(1, 8, 2).eval(), stock.TransformerEncoder(1, 8, 2).eval(), (2, 5, 8)
    same.update(encoder.parameters())
    assert nn.convert(encoder, example=(numbers(given), mx.zeros((5, 5)))).fused == {"layers.0.linear1": "nn.relu"}
    close(encoder(numbers(given), None), same(numbers(given), None))


def test_without_the_module_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "optional_module", lambda: None)
    block = Modules()
    report = nn.convert(block, example=X)
    assert report.fused == {} and "C++ module" in report.unfused["act"]
    close(block(numbers(X)), Modules()(numbers(X)))
