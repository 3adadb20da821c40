"""Models of mlx.nn become models of drop-ins, in place, and what they were."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten
from test_nn import close, numbers

import mpsfunc as mf
from mpsfunc import nn
from mpsfunc.nn.conversion import Passed

X = (4, 8, 8, 3)


class Own(stock.Conv2d):
    """A layer that a user derived."""


class Block(stock.Module):
    """Modules in attributes, lists and dicts; a shared one; a convolution and an activation in no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first = stock.Sequential(
            stock.Conv2d(3, 8, 3, padding=1),
            stock.BatchNorm(8),
            stock.ReLU(),
            stock.Conv2d(8, 8, 3, padding=1),
            stock.elu,
        )
        self.many = [stock.Conv2d(8, 8, 1), {"norm": stock.GroupNorm(2, 8), "pool": stock.MaxPool2d(2)}]
        self.conv, self.act = stock.Conv2d(8, 8, 3, padding=1), stock.LeakyReLU(0.1)
        self.shared = stock.Sequential(stock.Linear(8, 8), stock.Tanh())
        self.again = self.shared
        self.own, self.layer_norm = Own(8, 8, 1), stock.LayerNorm(8)
        self.up = stock.Upsample(2, mode="cubic")
        self.head = stock.Sequential(stock.Dropout(0.0), stock.Linear(8, 5), stock.GELU("fast"))

    def __call__(self, x: mx.array) -> mx.array:
        x = self.many[1]["pool"](self.many[1]["norm"](self.many[0](self.first(x))))
        x = self.act(self.conv(x))
        x = self.up(self.layer_norm(self.own(self.again(self.shared(x)))))
        return self.head(x.mean(axis=(1, 2)))


def model(seed: int = 0) -> Block:
    mx.random.seed(seed)
    return Block()


def step(block: Any) -> Any:
    """The loss, and gradients by parameter."""
    return stock.value_and_grad(block, lambda x: block(x).square().mean())(numbers(X))


def test_what_is_converted() -> None:
    block = model()
    report = nn.convert(block)
    assert report == nn.Conversion(
        replaced={
            "act": "LeakyReLU", "again.layers.0": "Linear", "again.layers.1": "Tanh", "conv": "Conv2d",
            "first.layers.0": "Conv2d", "first.layers.1": "BatchNorm", "first.layers.2": "ReLU",
            "first.layers.3": "Conv2d", "head.layers.0": "Dropout", "head.layers.1": "Linear", "many.0": "Conv2d",
            "many.1.pool": "MaxPool2d", "shared.layers.0": "Linear", "shared.layers.1": "Tanh",
        },
        fused={"first.layers.1": "first.layers.2", "first.layers.3": "first.layers.4"},
        unfused={
            "act": "no layer right ahead of it in a Sequential", "again.layers.1": "shared", "shared.layers.1": "shared"
        },
        left={
            "head.layers.2": "an approximation of gelu", "layer_norm": "no drop-in for LayerNorm",
            "many.1.norm": "groups that interleave (pytorch_compatible=False)", "own": "Own is derived from Conv2d",
            "up": "cubic interpolation",
        },
    )  # fmt: skip
    assert (
        str(report).splitlines()[1] == "fused: first.layers.1 with first.layers.2, first.layers.3 with first.layers.4"
    )
    assert nn.convert(block).replaced == {}


@pytest.mark.parametrize("fuse", [[], [("conv", "act")]])
def test_a_converted_model_computes_the_same(fuse: list[tuple[str, str]], device: mx.Device) -> None:
    before, after = model(), model()
    report = nn.convert(after, fuse)
    assert (report.fused.get("conv") == "act") == bool(fuse)
    for _ in range(2):  # running statistics move
        close(step(after), step(before))
    close(after.parameters(), before.parameters())
    close(after.eval()(numbers(X)), before.eval()(numbers(X)))


def test_the_tree_and_its_objects_stay() -> None:
    block = model()
    modules = {path: id(module) for path, module in block.named_modules()}
    arrays = {path: id(array) for path, array in tree_flatten(block.parameters())}
    block.conv.freeze()
    block.eval()
    for change in (nn.convert, nn.revert):
        change(block)
        assert {path: id(module) for path, module in block.named_modules()} == modules
        assert {path: id(array) for path, array in tree_flatten(block.parameters())} == arrays
        assert "conv" not in dict(block.trainable_parameters()).get("conv", {}) and not block.conv.training
    assert block.shared is block.again


def test_revert_undoes_it() -> None:
    block, same = model(), model()
    kinds = {path: type(module) for path, module in block.named_modules()}
    nn.convert(block, [("conv", "act")])
    assert isinstance(block.first.layers[4], Passed) and repr(block.first.layers[4]) == "Passed(elu)"
    assert nn.revert(block) is block
    assert {path: type(module) for path, module in block.named_modules()} == kinds
    assert block.first.layers[4] is stock.elu
    for module in block.modules():
        assert not {"fused", "passes", "group"} & module.__dict__.keys()
    close(step(block), step(same))
    assert nn.convert(block).fused == nn.convert(same).fused


def test_single_layers_and_layers_made_as_drop_ins() -> None:
    layer = stock.Conv2d(3, 4, 1)
    assert nn.convert(layer).replaced == {"": "Conv2d"} and type(layer) is nn.Conv2d
    assert type(nn.revert(layer)) is stock.Conv2d
    chain = stock.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    assert nn.convert(chain) == nn.Conversion({}, {"layers.0": "layers.1"}, {}, {})
    assert [type(each) for each in nn.revert(chain).layers] == [stock.Conv2d, stock.ReLU]


@pytest.mark.parametrize(
    ("activation", "same"),
    [
        (stock.ReLU(), stock.relu), (stock.ReLU6(), stock.relu6), (stock.LeakyReLU(), stock.leaky_relu),
        (stock.ELU(), stock.elu), (stock.GELU(), stock.gelu), (stock.Sigmoid(), stock.sigmoid),
        (stock.Tanh(), stock.tanh), (stock.Softplus(), stock.softplus), (stock.Softsign(), stock.softsign),
        (stock.Sigmoid(), mx.sigmoid), (stock.Tanh(), mx.tanh),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)  # fmt: skip
@pytest.mark.parametrize(
    "layer", [stock.Conv2d(3, 4, 3), stock.ConvTranspose2d(3, 4, 2), stock.Linear(3, 4), stock.BatchNorm(3)]
)
def test_every_layer_fuses_every_activation(layer: Any, activation: Any, same: Any) -> None:
    for behind in (activation, same):
        chain = stock.Sequential(layer, behind)
        want = chain(numbers(X))
        assert nn.convert(chain).fused == {"layers.0": "layers.1"}
        close(chain(numbers(X)), want)
        nn.revert(chain)


def test_what_is_not_fused() -> None:
    relu = stock.ReLU()
    block = stock.Sequential(
        stock.Conv2d(3, 4, 1), relu, stock.Sequential(stock.Conv2d(4, 4, 1)), relu, stock.ReLU(), stock.PReLU(),
        stock.Conv2d(4, 4, 1), lambda x: x, stock.Sigmoid(), Own(4, 4, 1), stock.Tanh(), stock.BatchNorm(4),
        stock.ReLU(), stock.ReLU(),
    )  # fmt: skip
    want = block(numbers(X))
    report = nn.convert(block)
    assert report.fused == {"layers.11": "layers.12"}
    assert report.unfused.keys() == {f"layers.{i}" for i in (1, 3, 4, 8, 10, 13)}
    assert report.unfused["layers.1"] == "shared"
    close(block(numbers(X)), want)


@pytest.mark.parametrize(
    ("fuse", "error", "message"),
    [
        ([("conv", "nothing")], ValueError, "convert: there is no such module; got 'nothing'"),
        ([("layer_norm", "act")], ValueError, "convert: not a layer that fuses; got 'layer_norm', a LayerNorm"),
        ([("own", "act")], ValueError, "convert: not a layer that fuses; got 'own', a Own"),
        ([("conv", "head.layers.2")], ValueError, "convert: not a activation; got 'head.layers.2', a GELU"),
        ([("shared.layers.0", "act")], ValueError, "convert: a module is used more than once; got 'shared.layers.0'"),
        (["conv"], TypeError, "convert: fuse is not made of pairs; got 'conv'"),
    ],
)
def test_what_convert_refuses(fuse: Any, error: type[Exception], message: str) -> None:
    block = model()
    with pytest.raises(error, match=message):
        nn.convert(block, fuse)
    assert type(block.conv) is stock.Conv2d  # and nothing was done
    for function in (nn.convert, nn.revert):
        with pytest.raises(TypeError, match="model is not a module; got a int"):
            function(3)


def test_training_goes_the_same_way() -> None:
    losses = []
    for change in (lambda block: None, nn.convert):
        block = model()
        change(block)
        optimizer = optim.SGD(0.05, momentum=0.9)
        optimizer.init(block.trainable_parameters())
        state = [block.state, optimizer.state, mx.random.state]

        def train(x: mx.array, block: Any = block, optimizer: Any = optimizer) -> mx.array:
            value, grads = stock.value_and_grad(block, lambda x: (block(x) - 1).square().mean())(x)
            optimizer.update(block, grads)
            return value

        run = mx.compile(train, inputs=state, outputs=state)
        losses.append([run(numbers(X, seed)).item() for seed in range(6)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_a_group_reaches_batch_normalization() -> None:
    group = mx.distributed.init()
    block = model()
    nn.convert(block, group=group)
    assert block.first.layers[1].group is group
    close(step(block), step(model()))
    assert isinstance(mf.nn.BatchNorm(3), stock.BatchNorm)
