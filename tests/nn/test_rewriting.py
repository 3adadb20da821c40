"""Code of users whose functions are fused: it is the same code, and nobody else sees a difference."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn import test_examples as examples
from nn.test_conversion import X, step
from nn.test_examples import Attribute, Block, Closed, Different, Lists, Named, Partial, neurons
from nn.test_layers import close, numbers

from mpsfunc import nn

pytestmark = pytest.mark.usefixtures("on_cpu")

Between = Callable[[Any, mx.array, mx.array], Any]
BETWEEN: dict[str, Between] = {
    "the result": lambda block, x, y: y.__iadd__(x),
    "one entry": lambda block, x, y: y.__setitem__(0, 1.0),
    "the input": lambda block, x, y: x.__imul__(3),
    "a parameter": lambda block, x, y: block.norm.weight.__imul__(3),
    "another parameter": lambda block, x, y: setattr(block.norm, "weight", block.norm.weight * 2),
    "statistics": lambda block, x, y: block.norm.running_mean.__imul__(0),
    "evaluation": lambda block, x, y: block.eval(),
    "an exchange": lambda block, x, y: setattr(block, "norm", stock.Identity()),
    "another call": lambda block, x, y: block.norm(x + 1),
    "evaluated": lambda block, x, y: mx.eval(y, x),
    "a copy": lambda block, x, y: copy.copy(y),
    "nothing": lambda block, x, y: None,
}


class Between_(Block):
    """Where something happens between a layer and its activation, and the activation comes twice."""

    between: Any = None

    def __call__(self, x: mx.array) -> Any:
        y = self.norm(x)
        if self.between is not None:
            self.between(self, x, y)
        return [stock.sigmoid(y), stock.sigmoid(y), stock.sigmoid(x), stock.silu(self.norm(x)), y * 2]


@pytest.mark.parametrize("between", BETWEEN)
def test_something_changes_between_a_layer_and_a_function(between: str) -> None:
    block, same = Between_(), Between_()
    nn.convert(block, [("norm", "act")], example=X)  # the example alone shows that y is read besides
    results = []
    for each in (block, same):
        object.__setattr__(each, "between", BETWEEN[between])
        x = numbers(X)
        statistics = each.norm
        made = each(x)
        results.append([made, x, statistics.running_mean, statistics.running_var])
    close(*results)


def test_what_is_exchanged_after_the_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(X)

    def after(kind: Any, change: Any) -> None:
        block, same = kind(), kind()
        assert nn.convert(block, example=X).fused
        for each in (block, same):
            change(each)
        close(block(x), same(x))
        nn.revert(block)
        close(block(x), same(x))

    after(Attribute, lambda block: setattr(block, "function", stock.silu))
    after(Attribute, lambda block: setattr(block, "function", stock.Tanh()))
    after(Attribute, lambda block: (delattr(block, "function"), setattr(block, "function", mx.tanh)))
    after(Named, lambda block: setattr(block, "norm", stock.Conv2d(3, 3, 1, bias=False).freeze() and stock.Identity()))
    after(Named, lambda block: setattr(block, "norm", block.more))
    after(Lists, lambda block: block.blocks.__setitem__(0, block.blocks[1]["modules"]))
    after(Lists, lambda block: block.blocks[1]["chain"].layers.__setitem__(1, stock.relu))
    monkeypatch.setattr(Named, "__call__", lambda self, x: stock.silu(self.norm(x)) + 1)
    after(Named, lambda block: None)
    block = Named()
    nn.convert(block, example=X)
    with monkeypatch.context() as patched:
        patched.setattr(Named, "__call__", lambda self, x: x)
        assert block(x) is x
        patched.delattr(Named, "__call__")
        close(block(x), Block.__call__(Named(), x))
    with monkeypatch.context() as patched:
        patched.setattr(examples, "SIGMOID", mx.square)
        patched.setattr(stock, "silu", mx.cos)
        close(block(x), Named()(x))


def test_functions_that_are_given_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    helper, default, x = examples.Helper(), examples.Default(), numbers(X)
    for block in (helper, default):
        assert nn.convert(block, example=X).fused
        block.eval()(x)
    monkeypatch.setattr(examples.acted, "__code__", (lambda block, x: stock.silu(block.norm(x)) * 2).__code__)
    close(helper(x), examples.Helper().eval()(x))
    monkeypatch.setattr(examples.Default.__call__, "__defaults__", (mx.square,))
    monkeypatch.setattr(examples.Default.__call__, "__kwdefaults__", {"last": mx.tanh})
    close(default(x), examples.Default().eval()(x))


def test_nobody_else_sees_a_difference() -> None:
    before = dict(vars(stock)), dict(vars(mx)), dict(vars(examples)), dict(vars(Attribute))
    block, other = Attribute(), Attribute()
    nn.convert(block, example=X)
    after = dict(vars(stock)), dict(vars(mx)), dict(vars(examples)), dict(vars(Attribute))
    assert [each.keys() for each in after] == [each.keys() for each in before]
    assert all(a[name] is b[name] for a, b in zip(before, after, strict=True) for name in a)
    assert type(other) is Attribute and block.function is stock.sigmoid and vars(block)["function"] is stock.sigmoid
    assert type(block).__name__ == "Attribute" and type(block).__qualname__ == "Attribute"
    assert type(block).__module__ == Attribute.__module__ and type(block).__doc__ == Attribute.__doc__
    assert inspect.getsource(block.__call__) == inspect.getsource(Attribute.__call__)
    assert inspect.signature(block) == inspect.signature(Attribute())
    assert block.__call__.__func__.__code__ is Attribute.__call__.__code__
    own = block.__call__.__func__.__globals__
    assert own["numbers"] is numbers and "SIGMOID" in own and own.get("nothing") is None
    assert dict(own.items()).keys() == vars(examples).keys() == set(own) == {*own.copy()} and len(own) == len(
        vars(examples)
    )
    own["made_here"] = 3
    assert examples.made_here == 3  # type: ignore[attr-defined]
    del own["made_here"]
    assert not hasattr(examples, "made_here") and own["len"] is len
    assert list(own.keys()) == list(vars(examples)) and len(list(own.values())) == len(own)
    with pytest.raises(KeyError):
        own["nothing"]


class Looking(Block):
    """What the rewritten code sees."""

    def __call__(self, x: mx.array) -> mx.array:
        found = getattr(stock, "sigmoid")  # noqa: B009  # not seen by its name
        self.seen = {
            "equal": found == stock.sigmoid and found in {stock.sigmoid: 1} and found != stock.silu,
            "named": (found.__name__, repr(found) == repr(stock.sigmoid), stock.__name__, "relu" in dir(stock)),
            "module": isinstance(stock, type(sys)) and isinstance(self.conv, stock.Conv2d) and callable(stock.Linear),
            "kept": (found, stock, mx),
        }
        return found(self.norm(x))


def test_what_rewritten_code_sees() -> None:
    block = Looking()
    assert nn.convert(block, example=X).fused == {"norm": "nn.sigmoid"}
    block(numbers(X))
    seen = block.seen
    assert seen["equal"] and seen["module"] and seen["named"] == ("sigmoid", True, "mlx.nn", True)
    function, module, core = pickle.loads(pickle.dumps(seen["kept"]))
    assert function is stock.sigmoid and module is stock and core is mx
    assert copy.deepcopy(seen["kept"][0]) is stock.sigmoid
    seen["kept"][1].made_here = 1
    assert stock.made_here == 1
    del seen["kept"][1].made_here
    assert not hasattr(stock, "made_here")


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda block: pickle.loads(pickle.dumps(block)),
    "old pickle": lambda block: pickle.loads(pickle.dumps(block, protocol=2)),
    "copy": copy.copy,
}


class Functions(stock.Module):
    """Functions that do not copy by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.more = stock.BatchNorm(3), stock.BatchNorm(3)
        self.function, self.partly = stock.sigmoid, Partial().partly

    def __call__(self, x: mx.array) -> mx.array:
        return self.function(self.norm(x)) + self.partly(self.more(x))


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_fused_by_themselves(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, x = Functions(), numbers(X)
    assert len(nn.convert(block, example=X).fused) == 2
    block.eval()
    other = COPIES[how](block)
    assert isinstance(other, Functions) and type(other).__name__ == "Functions"
    assert vars(other)["function"] is stock.sigmoid and vars(block)["function"] is stock.sigmoid
    assert neurons(monkeypatch, lambda: other(x)) == 2
    close(other(x), block(x))
    if how != "copy":
        other.norm.weight *= 2
        assert other.norm is not block.norm and other.norm._following is not block.norm._following
        assert type(other)._mpsfunc_owner.following is other.norm._following is other.more._following
        close(block(x), Functions().eval()(x))
    nn.revert(other)
    assert type(other) is Functions


def test_threads_recursion_and_failures() -> None:
    class Deep(Block):
        def __call__(self, x: mx.array, depth: int = 3) -> mx.array:
            y = stock.sigmoid(self.norm(x))
            if depth < 0:
                raise ZeroDivisionError("at the end")
            return self(y, depth - 1) if depth else stock.sigmoid(self.more(y))

    block, same = Deep().eval(), Deep().eval()
    xs = [numbers(X, seed) for seed in range(8)]
    assert set(nn.convert(block, example=X).fused) == {"more", "norm"}
    want = [same(x) for x in xs]
    mx.eval(xs, want)

    def run(i: int) -> bool:
        with mx.stream(mx.new_thread_local_stream(mx.cpu)):
            return all(bool(mx.allclose(block(xs[i]), want[i], rtol=1e-4, atol=1e-5).item()) for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))

    with pytest.raises(ZeroDivisionError) as caught:
        block(xs[0], -1)
    line = Deep.__call__.__code__.co_firstlineno + 3
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (frames[-1].filename, frames[-1].lineno, frames[-1].line) == (
        __file__, line, 'raise ZeroDivisionError("at the end")',
    )  # fmt: skip
    close(block(xs[0]), want[0])
    lines = set()

    def tracing(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is Deep.__call__.__code__:
            lines.add(frame.f_lineno)
        return tracing

    sys.settrace(tracing)
    try:
        block(xs[0])
    finally:
        sys.settrace(None)
    assert {line - 2, line - 1, line + 1} <= lines


def test_converted_twice_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, same = Lists(), Lists()
    parts = model.blocks[0], model.blocks[1]["modules"]
    for part in parts:
        nn.convert(part, example=X)
    assert type(parts[0]) is not Named
    assert nn.convert(model, example=X).fused == examples.FUSED[Lists]
    assert nn.convert(model, example=X).fused == examples.FUSED[Lists]
    assert neurons(monkeypatch, lambda: model(numbers(X))) == 6
    same(numbers(X))
    close(step(model), step(same))
    shared = Different()
    shared.more = shared.norm
    assert nn.convert(shared, example=X).fused["more"] == nn.convert(shared).fused["norm"]
    closed = Closed()
    assert nn.convert(closed, [("norm", "act")]).unfused == {}
    assert nn.convert(closed, example=X).fused == {"more": "nn.silu", "norm": "act and nn.sigmoid"}


def test_checkpoints_of_rewritten_blocks() -> None:
    class Net(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = examples.Slope()
            self.last = stock.Conv2d(3, 3, 1)

        def __call__(self, x: mx.array, run: Any = None) -> mx.array:
            return self.last(self.block(x) if run is None else run(self.block)(x))

    def stepped(net: Any, run: Any) -> Any:
        grads = stock.value_and_grad(net, lambda x: net(x, run).square().mean())(numbers(X))
        return grads, net.parameters()

    net, same = Net(), Net()
    assert len(nn.convert(net, example=X).fused) == 2
    close(stepped(net, nn.checkpoint), stepped(same, None))
    for each in (net, same):
        each.eval()
    close(stepped(net, stock.utils.checkpoint), stepped(same, None))
