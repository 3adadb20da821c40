"""Models of mlx.nn become models of drop-ins, in place, and what they were."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten
from nn.test_layers import close, numbers

import mpsfunc as mf
from mpsfunc import nn

X = (4, 8, 8, 3)


class Own(stock.Conv2d):
    """A layer that a user derived."""


class Unhashable:
    """A function that no dict takes."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: mx.array) -> mx.array:
        return x


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
        self.own, self.rms_norm, self.layer_norm = Own(8, 8, 1), stock.RMSNorm(8), stock.LayerNorm(8)
        self.up = stock.Upsample(2, mode="cubic")
        self.head = stock.Sequential(stock.Dropout(0.0), stock.Linear(8, 5), stock.LeakyReLU(2.0))

    def __call__(self, x: mx.array) -> mx.array:
        x = self.many[1]["pool"](self.many[1]["norm"](self.many[0](self.first(x))))
        x = self.act(self.conv(x))
        x = self.up(self.layer_norm(self.rms_norm(self.own(self.again(self.shared(x))))))
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
            "first.layers.3": "Conv2d", "head.layers.0": "Dropout", "head.layers.1": "Linear",
            "layer_norm": "LayerNorm", "many.0": "Conv2d", "many.1.pool": "MaxPool2d",
            "shared.layers.0": "Linear", "shared.layers.1": "Tanh", "up": "Upsample",
        },
        fused={
            "again.layers.0": "again.layers.1", "first.layers.1": "first.layers.2", "first.layers.3": "first.layers.4",
            "shared.layers.0": "shared.layers.1",
        },
        unfused={"act": "in no Sequential"},
        left={
            "head.layers.2": "a slope beyond 1", "many.1.norm": "groups that interleave (pytorch_compatible=False)",
            "own": "Own is derived from Conv2d", "rms_norm": "no drop-in for RMSNorm",
        },
    )  # fmt: skip
    assert list(report.replaced)[:2] == ["act", "again.layers.0"]
    assert type(block.head.layers[2]) is stock.LeakyReLU and type(block.up) is nn.Upsample
    assert str(report).splitlines()[0] == (
        "20 layers: 16 replaced, 4 fused; left: 1 LeakyReLU, 1 GroupNorm, 1 Own, 1 RMSNorm"
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
    assert nn.revert(block) is block
    assert {path: type(module) for path, module in block.named_modules()} == kinds
    for module in block.modules():
        assert not {"_following", "_together"} & vars(module).keys()
    close(step(block), step(same))
    assert nn.convert(block).fused == nn.convert(same).fused


def test_a_reverted_model_exports(on_cpu: mx.Device, tmp_path: Path) -> None:
    """With what it was trained to while it was converted, which itself does not export."""
    block, path, x = model(), str(tmp_path / "model.mlxfn"), numbers(X)
    block.up = stock.Upsample(2)  # MLX's cubic one does not export
    nn.convert(block, [("conv", "act")])
    step(block)
    block.eval()
    mx.eval(block.state)
    want = block(x)
    with pytest.raises(ValueError, match="Unable to serialize primitive"):
        mx.export_function(path, lambda x: block(x), x)
    nn.revert(block)
    mx.export_function(path, lambda x: block(x), x)
    (got,) = mx.import_function(path)(x)
    assert mx.array_equal(got, block(x))
    close(got, want)


def test_single_layers_and_layers_made_as_drop_ins() -> None:
    layer = stock.Conv2d(3, 4, 1)
    assert nn.convert(layer).replaced == {"": "Conv2d"} and type(layer) is nn.Conv2d
    assert type(nn.revert(layer)) is stock.Conv2d
    chain = stock.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    assert nn.convert(chain) == nn.Conversion({}, {"layers.0": "layers.1"}, {}, {})
    assert type(chain) is nn.Sequential
    assert [type(each) for each in nn.revert(chain).layers] == [stock.Conv2d, stock.ReLU]
    assert type(chain) is stock.Sequential
    for wide in (nn.CELU(-1.0), nn.LeakyReLU(2.0)):
        chain = nn.Sequential(nn.Linear(8, 8), wide)
        report = nn.convert(chain)
        assert report.fused == report.unfused == {} and report.left.keys() == {"layers.1"}
        got = chain(numbers((3, 8)))
        close(got, nn.revert(chain)(numbers((3, 8))))


@pytest.mark.parametrize(
    ("activation", "same"),
    [
        (stock.ReLU(), stock.relu), (stock.ReLU6(), stock.relu6), (stock.LeakyReLU(), stock.leaky_relu),
        (stock.ELU(), stock.elu), (stock.GELU(), stock.gelu), (stock.Sigmoid(), stock.sigmoid),
        (stock.Tanh(), stock.tanh), (stock.Softplus(), stock.softplus), (stock.Softsign(), stock.softsign),
        (stock.Sigmoid(), mx.sigmoid), (stock.Tanh(), mx.tanh), (stock.SiLU(), stock.silu),
        (stock.Hardswish(), stock.hardswish), (stock.Mish(), stock.mish), (stock.CELU(), stock.celu),
        (stock.SELU(), stock.selu), (stock.HardTanh(), stock.hard_tanh), (stock.HardShrink(), stock.hard_shrink),
        (stock.Softshrink(), stock.softshrink), (stock.ReLU2(), stock.relu2), (stock.LogSigmoid(), stock.log_sigmoid),
        (stock.GELU("precise"), stock.gelu_approx), (stock.GELU("fast"), stock.gelu_fast_approx),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)  # fmt: skip
@pytest.mark.parametrize(
    "layer",
    [
        stock.Conv2d(3, 4, 3),
        stock.ConvTranspose2d(3, 4, 2),
        stock.Linear(3, 4),
        stock.BatchNorm(3),
        stock.InstanceNorm(3, affine=True),
        stock.GroupNorm(3, 3, pytorch_compatible=True),
    ],  # fmt: skip
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
        stock.ReLU(), stock.ReLU(), stock.relu, stock.Linear(4, 4), Unhashable(), stock.Softmax(),
        stock.Sequential(stock.Identity()),
    )  # fmt: skip
    want = block(numbers(X))
    report = nn.convert(block)
    assert report.fused == {"layers.0": "layers.1", "layers.11": "layers.12"}
    assert report.unfused == {
        "layers.3": "after Sequential", "layers.4": "after ReLU", "layers.5": "after ReLU",
        "layers.8": "after <lambda>", "layers.10": "after Own", "layers.13": "after ReLU",
        "layers.14": "after ReLU", "layers.17": "after Unhashable",
    }  # fmt: skip
    assert list(report.unfused)[-1] == "layers.17"
    assert report.left == {
        "layers.7": "no drop-in for <lambda>", "layers.9": "Own is derived from Conv2d",
        "layers.16": "no drop-in for Unhashable",
    }  # fmt: skip
    assert type(block.layers[9]) is Own
    close(block(numbers(X)), want)
    assert nn.convert(stock.Sequential(stock.Tanh())).unfused == {"layers.0": "after nothing"}
    normalized = nn.convert(stock.Sequential(stock.LayerNorm(3), stock.ReLU()))
    assert (normalized.fused, normalized.unfused) == ({}, {"layers.1": "after LayerNorm"})
    assert not nn.convert(stock.MultiHeadAttention(8, 2)).left  # whose layers are drop-ins


@pytest.mark.parametrize("dtype", [mx.int32, mx.complex64], ids=str)
def test_what_ours_does_not_take_is_not_fused(dtype: mx.Dtype) -> None:
    chain = stock.Sequential(stock.BatchNorm(3), stock.Tanh()).eval()
    x = (numbers(X) * 10).astype(dtype)
    want = chain(x)
    nn.convert(chain, [("layers.0", "layers.1")])
    close(chain(x), want)
    close(chain.layers[1](chain.layers[0](x)), want)


@pytest.mark.parametrize(
    ("fuse", "error", "message"),
    [
        ([("conv", "nothing")], ValueError, "convert: there is no such module; got 'nothing'"),
        ([("layer_norm", "act")], ValueError, "convert: not a layer that fuses; got 'layer_norm', a LayerNorm"),
        ([("own", "act")], ValueError, "convert: not a layer that fuses; got 'own', an Own"),
        *(
            ([("conv", path)], ValueError, f"convert: not an activation that can be fused; got {path!r}, a {kind}")
            for path, kind in (("head.layers.2", "LeakyReLU"), ("layer_norm", "LayerNorm"))
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
    for again in ([], [("conv", "act")]):
        report = nn.convert(block, again)
        assert report.fused["conv"] == "act" and "act" not in report.unfused
    assert nn.convert(block, [("conv", "shared.layers.1")]).fused["conv"] == "act and again.layers.1"
    both = nn.convert(model(), [("first.layers.1", "act")])
    assert both.fused["first.layers.1"] == "first.layers.2 and act" and not both.unfused
    for function in (nn.convert, nn.revert):
        with pytest.raises(TypeError, match="model is not a module; got an int"):
            function(3)


def test_modules_that_hold_themselves() -> None:
    block, deep = model(), model()
    block.first.layers[0].up = {"a": [block]}
    deep.more = more = []
    more.append(more)
    for function in (nn.convert, nn.revert):
        said = f"^{function.__name__}: a module "
        with pytest.raises(ValueError, match=said + r"contains itself; got 'first\.layers\.0\.up\.a\.0', "):
            function(block)
        with pytest.raises(ValueError, match=said + "is nested too deep; got '', expected lists"):
            function(deep)
    assert type(block.conv) is stock.Conv2d  # and nothing was done
    twice = stock.Sequential(block.conv, stock.Sequential(block.conv))
    assert list(nn.convert(twice).replaced) == ["layers.0", "layers.1.layers.0"]


def test_the_slope_of_a_fused_relu_at_exactly_0() -> None:
    """As the page on layers says, where it differs from the layer's."""
    layers = {"Conv2d": (1, 1, 1), "ConvTranspose2d": (1, 1, 1), "Linear": (1, 1), "BatchNorm": (1,)}
    for name, sizes in layers.items():
        layer = getattr(stock, name)(*sizes)
        layer.weight = mx.ones_like(layer.weight)
        if "bias" in layer:
            layer.bias = mx.zeros_like(layer.bias)
        pair = stock.Sequential(layer, stock.ReLU()).eval()
        nn.convert(pair)
        slope = mx.grad(lambda x, f=pair: f(x).sum())(mx.zeros((1, 1, 1, 1))).item()
        fused = name != "BatchNorm" and (name != "Linear" or mx.default_device() == mx.Device(mx.cpu))
        assert slope == pytest.approx(0 if fused else 1, abs=1e-4)


def test_more_output_padding_than_padding() -> None:
    """Of which MLX's gradient has too small a shape."""
    layer = stock.ConvTranspose2d(1, 1, 3, stride=3, output_padding=(2, 0))
    nn.convert(layer)
    x = numbers((1, 4, 4, 1))
    dy = numbers(layer(x).shape, 1)
    dx = mx.grad(lambda x: (layer(x) * dy).sum())(x)
    close((dx * x).sum(), ((layer(x) - layer.bias) * dy).sum())


@pytest.mark.programs
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


def test_a_group_reaches_batch_normalization(monkeypatch: pytest.MonkeyPatch) -> None:
    group = mx.distributed.init()
    block = model()
    block.first.layers[1].group = "a user's word"
    nn.convert(block, group=group)
    norm = block.first.layers[1]
    assert norm.processes is group and norm.group == "a user's word"
    nn.convert(block)
    assert norm.processes is group and copy.deepcopy(norm).processes is group
    given = []
    real = mf.batch_norm_fwd
    monkeypatch.setattr(mf, "batch_norm_fwd", lambda *a, **how: given.append(how["group"]) or real(*a, **how))
    close(step(block), step(model()))
    assert given == [group]
    for wrong in (numbers(X).astype(mx.int32), mx.ones((1, 3))):
        alone = nn.BatchNorm(3)
        alone.processes = group
        with pytest.raises((TypeError, ValueError)):
            alone(wrong)
    nn.revert(block)
    assert "_together" not in vars(norm) and norm.group == "a user's word"
    assert isinstance(mf.nn.BatchNorm(3), stock.BatchNorm) and mf.nn.BatchNorm(3).processes is None
