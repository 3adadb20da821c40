"""Models of mlx.nn become models of drop-ins, in place, and what they were."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten
from test_nn import close, numbers

import mpsfunc as mf
from mpsfunc import nn

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
        fused={
            "again.layers.0": "again.layers.1", "first.layers.1": "first.layers.2", "first.layers.3": "first.layers.4",
            "shared.layers.0": "shared.layers.1",
        },
        unfused={"act": "in no Sequential"},
        left={
            "head.layers.2": "an approximation of gelu", "layer_norm": "no drop-in for LayerNorm",
            "many.1.norm": "groups that interleave (pytorch_compatible=False)", "own": "Own is derived from Conv2d",
            "up": "cubic interpolation",
        },
    )  # fmt: skip
    assert list(report.replaced)[:2] == ["act", "again.layers.0"]
    assert str(report).splitlines()[1].startswith("fused: again.layers.0 with again.layers.1, first.layers.1 with ")
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
    assert nn.revert(block) is block
    assert {path: type(module) for path, module in block.named_modules()} == kinds
    for module in block.modules():
        assert not {"following", "group"} & module.__dict__.keys()
    close(step(block), step(same))
    assert nn.convert(block).fused == nn.convert(same).fused


def test_single_layers_and_layers_made_as_drop_ins() -> None:
    layer = stock.Conv2d(3, 4, 1)
    assert nn.convert(layer).replaced == {"": "Conv2d"} and type(layer) is nn.Conv2d
    assert type(nn.revert(layer)) is stock.Conv2d
    chain = stock.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    assert nn.convert(chain) == nn.Conversion({}, {"layers.0": "layers.1"}, {}, {})
    assert type(chain) is nn.Sequential
    assert [type(each) for each in nn.revert(chain).layers] == [stock.Conv2d, stock.ReLU]
    assert type(chain) is stock.Sequential
    for wide in (nn.GELU("fast"), nn.LeakyReLU(2.0)):
        chain = nn.Sequential(nn.Linear(8, 8), wide)
        want = nn.revert(chain)(numbers((3, 8)))
        report = nn.convert(chain)
        assert report.fused == {} and report.left.keys() == {"layers.1"}
        close(chain(numbers((3, 8))), want)


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
    assert report.fused == {"layers.0": "layers.1", "layers.11": "layers.12"}
    assert report.unfused == {
        "layers.3": "behind Sequential", "layers.4": "behind ReLU", "layers.8": "behind <lambda>",
        "layers.10": "behind Own", "layers.13": "behind ReLU",
    }  # fmt: skip
    close(block(numbers(X)), want)
    assert nn.convert(stock.Sequential(stock.Tanh())).unfused == {"layers.0": "behind nothing"}


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


def test_a_named_pair_between_whose_calls_something_happens() -> None:
    block, same = Residual(), Residual()
    nn.convert(block, [("norm", "act"), ("conv", "act")])
    results = []
    for each in (block, same):
        x, other = numbers(X), numbers(X, 1)
        y = each.norm(x)
        others = each.norm(other)  # statistics move on
        results.append([each.act(y), each.act(others), each.act(x)])
        y = each.norm(x)
        each.norm.weight = each.norm.weight * 2  # y is of the weights before
        results[-1] += [each.act(y), each.norm.running_mean, each.norm.running_var]
        y = each.norm(x)
        each.eval()
        results[-1] += [each.act(y), each.norm.running_mean, each.act(each.norm(x))]
    close(*results)


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


@pytest.mark.parametrize(
    ("fuse", "error", "message"),
    [
        ([("conv", "nothing")], ValueError, "convert: there is no such module; got 'nothing'"),
        ([("layer_norm", "act")], ValueError, "convert: not a layer that fuses; got 'layer_norm', a LayerNorm"),
        ([("own", "act")], ValueError, "convert: not a layer that fuses; got 'own', a Own"),
        ([("conv", "head.layers.2")], ValueError, "convert: not a known activation; got 'head.layers.2', a GELU"),
        (
            [("conv", "act"), ("conv", "shared.layers.1")],
            ValueError,
            "convert: a layer has two activations; got 'conv'",
        ),
        (["conv"], TypeError, "convert: fuse is not made of pairs; got 'conv'"),
        (("conv", "act"), TypeError, "convert: fuse is not made of pairs; got 'conv'"),
        ("conv", TypeError, "convert: fuse is not made of pairs; got 'conv'"),
        (None, TypeError, "convert: fuse is not made of pairs; got None"),
    ],
)
def test_what_convert_refuses(fuse: Any, error: type[Exception], message: str) -> None:
    block = model()
    with pytest.raises(error, match=message):
        nn.convert(block, fuse)
    assert type(block.conv) is stock.Conv2d  # and nothing was done
    with pytest.raises(TypeError, match="convert: not a group; got group='all'"):
        nn.convert(block, group="all")
    nn.convert(block, [("conv", "act")])
    with pytest.raises(ValueError, match="convert: a layer has two activations; got 'conv'"):
        nn.convert(block, [("conv", "shared.layers.1")])
    assert nn.convert(block, [("conv", "act")]).fused["conv"] == "act"
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
    nn.convert(block)
    assert block.first.layers[1].group is group
    close(step(block), step(model()))
    assert isinstance(mf.nn.BatchNorm(3), stock.BatchNorm)
