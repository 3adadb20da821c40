"""Normalizations that are folded into the layers ahead: the numbers of two layers, whatever is done to a model."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from nn.test_conversion import X, step
from nn.test_layers import close, numbers

import mpsfunc as mf
from mpsfunc import nn
from mpsfunc.core import launch

pytestmark = pytest.mark.usefixtures("on_cpu")


def spread(norm: Any, seed: int) -> Any:
    """Parameters and statistics that are not those of the beginning."""
    key = mx.random.split(mx.random.key(seed), 4)
    shape = norm.running_mean.shape
    norm.running_mean = mx.random.normal(shape, key=key[0])
    norm.running_var = mx.random.uniform(0.2, 3.0, shape, key=key[1])
    if "weight" in norm:
        norm.weight, norm.bias = mx.random.normal(shape, key=key[2]), mx.random.normal(shape, key=key[3])
    return norm


class Block(stock.Module):
    """A chain, and layers in the block's own code."""

    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(2)
        self.chain = stock.Sequential(
            stock.Conv2d(3, 4, 3, padding=1), spread(stock.BatchNorm(4), 1), stock.ReLU(),
            stock.Conv2d(4, 3, 1, bias=False), spread(stock.BatchNorm(3), 2),
        )  # fmt: skip
        self.conv, self.norm = stock.Conv2d(3, 64, 3, padding=1, bias=False), spread(stock.BatchNorm(64), 3)
        self.linear, self.last = stock.Linear(64, 64), spread(stock.BatchNorm(64), 4)
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        x = stock.silu(self.norm(self.conv(self.chain(x))))
        return self.last(self.linear(x.mean((1, 2))))


FOLDED = {
    "chain.layers.0": "chain.layers.1", "chain.layers.1": "chain.layers.2", "chain.layers.3": "chain.layers.4",
    "conv": "norm", "linear": "last", "norm": "nn.silu",
}  # fmt: skip


def pair() -> tuple[Any, Any]:
    block, same = Block().eval(), Block().eval()
    assert nn.convert(block, example=X, inference=True).fused == FOLDED
    return block, same


def normalized(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> int:
    """How many normalizations a call evaluates by themselves."""
    counted = []
    real = mf.bn_normalize
    with monkeypatch.context() as patched:
        patched.setattr(mf, "bn_normalize", lambda *args, **how: counted.append(1) or real(*args, **how))
        mx.eval(run())
    return len(counted)


def of(dtype: mx.Dtype) -> Callable[[Any], Any]:
    return lambda model: model.update(tree_map(lambda a: a.astype(dtype), model.parameters()))


LAYERS: dict[str, Callable[[], Any]] = {
    "Conv2d": lambda: (stock.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 7, 6, 4)),
    "Conv2d without bias": lambda: (stock.Conv2d(4, 6, (1, 3), dilation=2, bias=False), (2, 7, 6, 4)),
    "reflected": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 7, 6, 4)),
    "ConvTranspose2d": lambda: (stock.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 3, 4)),
    "groups": lambda: (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 3, 4)),
    "Conv1d": lambda: (stock.Conv1d(4, 6, 3, padding=1), (2, 9, 4)),
    "ConvTranspose1d": lambda: (stock.ConvTranspose1d(4, 6, 3, stride=2, bias=False), (2, 9, 4)),
    "Linear": lambda: (stock.Linear(4, 6), (9, 4)),
    "Linear of images": lambda: (stock.Linear(4, 6, bias=False), (2, 3, 3, 4)),
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.float64], ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_folds_what_is_behind_it(
    name: str, affine: bool, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx.random.seed(7)
    layer, shape = LAYERS[name]()
    chain = stock.Sequential(layer, spread(stock.BatchNorm(6, affine=affine), 1), stock.silu).eval()
    of(dtype)(chain)
    exact = copy.deepcopy(nn.Sequential(*chain.layers[:2])).eval()
    for each in (exact, chain):
        nn.convert(each)
    of(mx.float64)(exact)
    x = numbers(shape).astype(dtype)
    right, apart = exact(x.astype(mx.float64)), chain(x)
    right = np.array(right * mx.sigmoid(right))
    report = nn.convert(chain, inference=True)
    assert report.fused == {"layers.0": "layers.1", "layers.1": "layers.2"} and report.unfused == {}
    assert report.kept_twice >= layer.weight.nbytes and f"kept twice {report.kept_twice:,} bytes" in str(report)
    assert normalized(monkeypatch, lambda: chain(x)) == 0
    got = chain(x)
    assert got.dtype == apart.dtype == dtype and got.shape == apart.shape
    errors = [np.abs(np.array(y.astype(mx.float64)) - right).max() for y in (got, apart)]
    assert errors[0] <= max(3 * errors[1], 4 * mx.finfo(dtype).eps * np.abs(right).max())


def kept(weight: mx.array) -> int:
    """Bytes of folded weights: laid out, unless they have too few outputs for that."""
    shape = weight.shape if weight.ndim == 4 else (weight.shape[0], 1, 1, weight.shape[1])
    module = launch.module("conv_layout")
    words: int = module.conv_layout_words(module.isa_number(), mx.float32, shape, 1)
    return 4 * (words or weight.size)


def test_parameters_stay_where_they_are(tmp_path: Any) -> None:
    block = Block().eval()
    before = {path: id(a) for path, a in tree_flatten(block.parameters())}
    report = nn.convert(block, example=X, inference=True)
    assert {path: id(a) for path, a in tree_flatten(block.parameters())} == before
    folds = block.norm._following.folds
    weights = [kept(layer.weight) for layer in (block.chain.layers[0], block.chain.layers[3], block.conv, block.linear)]
    assert folds.nbytes == report.kept_twice == sum(weights) + 4 * (4 + 3 + 64 + 64)
    block.save_weights(str(tmp_path / "w.safetensors"))
    other = Block()
    other.load_weights(str(tmp_path / "w.safetensors"))
    close(other.eval()(numbers(X)), block(numbers(X)))
    nn.revert(block)
    assert type(block) is Block and not any("_following" in vars(module) for module in block.modules())
    assert {path: id(a) for path, a in tree_flatten(block.parameters())} == before
    close(other(numbers(X)), block(numbers(X)))


def loaded(block: Any) -> None:
    block.load_weights([(path, a * 1.5) for path, a in tree_flatten(block.parameters())])


def in_place(block: Any) -> None:
    block.conv.weight *= 2
    block.norm.bias[3] = 4.0
    block.chain.layers[1].running_var += 1


def lora(block: Any) -> None:
    class LoRA(stock.Module):
        def __init__(self, linear: Any) -> None:
            super().__init__()
            self.linear, self.a = linear, mx.ones((64, 64)) / 64

        def __call__(self, x: mx.array) -> mx.array:
            return self.linear(x) + x @ self.a

    block.update_modules({"linear": LoRA(block.linear)})


ACTIONS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "nothing": (lambda block: None, 0),
    "load_weights": (loaded, 0),
    "update": (lambda block: block.update(tree_map(lambda a: a * 1.5, block.parameters())), 0),
    "set_dtype": (lambda block: block.set_dtype(mx.float16), 0),
    "apply": (lambda block: block.apply(lambda a: a * 0.5), 0),
    "in place": (in_place, 0),
    "quantize": (lambda block: stock.quantize(block), 1),
    "train": (lambda block: block.train(), 0),
    "one trains": (lambda block: block.norm.train(), 0),
    "trained": (lambda block: (block.train(), block(numbers(X)), block.eval()), 0),
    "freeze": (lambda block: block.freeze(), 0),
    "unfreeze": (lambda block: block.unfreeze(), 0),
    "an epsilon": (lambda block: setattr(block.norm, "eps", 0.5), 0),
    "another layer": (lambda block: setattr(block, "conv", nn.Conv2d(3, 64, 1)), 2),  # before and behind silu
    "no bias": (lambda block: block.linear.pop("bias"), 0),
    "other norms": (lambda block: setattr(block, "norm", block.last), 0),
    "no statistics": (lambda block: setattr(block.norm, "track_running_stats", False), 0),
    "LoRA": (lora, 1),
    "exchanged": (lambda block: block.chain.layers.__setitem__(4, stock.Identity()), 0),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_done_to_a_model_is_seen(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, apart = ACTIONS[action]
    block, same = pair()
    block(numbers(X))
    for each in (block, same):
        mx.random.seed(4)
        change(each)
    dtype = block.norm.running_mean.dtype
    x = numbers(X).astype(dtype)
    got, want = [block(x), block(x)], [same(x), same(x)]
    if dtype == mx.float16:  # one rounds weights and the convolution's result where the other rounds folded weights
        for one, other in zip(got, want, strict=True):
            assert mx.allclose(one, other, rtol=2e-2, atol=2e-2 * float(mx.abs(other).max()))
    else:
        close(got, want)
    close(block.parameters(), same.parameters())
    assert normalized(monkeypatch, lambda: block(x)) == apart
    assert not nn.revert(block).norm.__class__.__module__.startswith("mpsfunc")


def test_training_undoes_it_and_evaluation_folds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    block, same = pair()
    for each in (block, same):
        each.train()
    for _ in range(2):
        (one, grads), (other, theirs) = step(block), step(same)
        close(one, other)
        for each, by in ((block, grads), (same, theirs)):
            each.update(tree_map(lambda a, d: a - 0.01 * d, each.trainable_parameters(), by))
        close(block.chain.layers[1].running_mean, same.chain.layers[1].running_mean)
    x = numbers(X)
    for each in (block, same):
        each.eval()
    assert normalized(monkeypatch, lambda: block(x)) == 0
    for one, other in zip(*(dict(tree_flatten(each.parameters())).items() for each in (block, same)), strict=True):
        assert one[0] == other[0]
    same.update(block.parameters())
    close(block(x), same(x))


def test_transformations_keep_nothing_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    block, same = pair()
    kept = dict(block.norm._following.folds._kept)
    assert len(kept) == 4
    x = numbers(X)
    for empty in (False, True):
        if empty:  # and nothing comes in
            block.norm._following.folds._kept.clear()
        for mode in (lambda model: stock.value_and_grad(model, lambda x: model(x).square().mean()), mx.checkpoint):
            close(mode(block)(x), mode(same)(x))
            if mode is not mx.checkpoint:
                assert block.norm._following.folds._kept == ({} if empty else kept)
    block.norm._following.folds._kept.clear()

    def compiled(model: Any) -> Any:
        state = [model.state]

        def run(x: mx.array) -> Any:
            return stock.value_and_grad(model, lambda x: model(x).square().mean())(x), model(x)

        return mx.compile(run, inputs=state, outputs=state)(x)

    close(compiled(block), compiled(same))
    assert block.norm._following.folds._kept == {}
    run = mx.compile(lambda x, state: (block.update(state), block(x))[1])
    for changed in (same.parameters(), tree_map(lambda a: a * 2.0, same.parameters())):
        given = copy.deepcopy(same)
        given.update(changed)
        close(run(x, changed), given(x))
    block.update(same.parameters())
    assert normalized(monkeypatch, lambda: block(x)) == 0
    assert len(block.norm._following.folds._kept) == 4
    for empty in (False, True):  # constants of a transformation are kept, and evaluated
        for transform in (lambda f: mx.grad(lambda x: f(x).sum()), mx.compile, mx.vmap):
            if empty:
                block.norm._following.folds._kept.clear()
            given = x[None] if transform is mx.vmap else x
            close(transform(block)(given), transform(same)(given))
            assert len(block.norm._following.folds._kept) == 4
            assert normalized(monkeypatch, lambda: block(x)) == 0
    close(block(x), same(x))


def test_the_layers_are_used_elsewhere() -> None:
    class Besides(stock.Module):
        def __init__(self, how: int) -> None:
            super().__init__()
            mx.random.seed(3)
            self.how, self.conv = how, stock.Conv2d(3, 3, 1)
            self.norm, self.other = spread(stock.BatchNorm(3), 1), spread(stock.BatchNorm(3), 2)

        def __call__(self, x: mx.array) -> Any:
            y = self.conv(x)
            if self.how == 0:
                return self.norm(y) + y
            if self.how == 1:
                return self.norm(y) + self.other(y)
            if self.how == 2:
                return self.norm(self.other(y)) * self.norm(self.conv(x + 1)) + self.other(x)
            z = self.norm(y)
            y += 1
            return [z, self.other(y), self.norm(y)]

    told = "the result of conv is read besides"
    for how, fused in ((0, {}), (1, {}), (2, {"conv": "other and norm"}), (3, {})):
        block, same = Besides(how).eval(), Besides(how).eval()
        report = nn.convert(block, example=X, inference=True)
        assert report.fused == fused, how
        assert (report.unfused.get("norm") == told) == (how in (0, 1, 3))
        close(block(numbers(X)), same(numbers(X)))
        nn.convert(block, example=[numbers(X)])
        close(block(numbers(X)), same(numbers(X)))


def test_copies_fold_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    block, same = pair()
    x = numbers(X)
    for copied in (copy.deepcopy, lambda block: pickle.loads(pickle.dumps(block))):
        other = copied(block)
        assert other.norm._following is not block.norm._following and not other.norm._following.folds._kept
        assert normalized(monkeypatch, lambda other=other: other(x)) == 0
        other.norm.weight *= 3
        close(block(x), same(x))
    folds = block.norm._following.folds
    before = folds.nbytes
    block.conv = stock.Identity()
    gc.collect()
    assert 0 < folds.nbytes < before


def test_without_the_module_it_folds_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    block, same = Block().eval().chain, Block().eval().chain
    with monkeypatch.context() as patched:
        nn.convert(block)  # which needs it to compute on the CPU
        module = launch.optional_module()
        patched.setattr("mpsfunc.core.lazy.launch.optional_module", lambda: None)
        report = nn.convert(block, inference=True)
        assert module is not None and report.kept_twice == 0 and report.fused["layers.0"] == "layers.1"
        for _ in range(2):
            close(block(numbers(X)), same(numbers(X)))
            block.layers[0].weight *= 2
            same.layers[0].weight *= 2
        assert block._following.folds._kept == {}


def test_float16_that_does_not_hold_what_is_folded() -> None:
    for size, variance, times in ((1.0, 1e12, 5e3), (300.0, 1e-12, 1e-3)):
        chain = stock.Sequential(stock.Conv2d(3, 4, 1), stock.BatchNorm(4)).eval()
        chain.layers[1].running_var = mx.full((4,), variance)
        weight = size * mx.random.normal((4, 1, 1, 3), key=mx.random.key(1))
        chain.layers[0].weight = weight.astype(mx.float16)
        exact, x = copy.deepcopy(chain), (times * numbers(X)).astype(mx.float16)
        want = exact(x.astype(mx.float32))
        report = nn.convert(chain, inference=True)
        assert report.kept_twice == kept(weight) + 4 * 4
        for run in (chain, mx.compile(lambda x, w, chain=chain: (chain.layers[0].update({"weight": w}), chain(x))[1])):
            got = run(x) if run is chain else run(x, weight.astype(mx.float16))
            assert mx.allclose(got.astype(mx.float32), want, rtol=2e-3, atol=2e-3 * float(mx.abs(want).max()))


def test_what_looks_alike_is_not_folded() -> None:
    class Doubled(nn.Conv2d):
        def __call__(self, x: mx.array) -> mx.array:
            return super().__call__(x) * 2

    mx.random.seed(1)
    chain = nn.Sequential(Doubled(3, 3, 1), spread(nn.BatchNorm(3), 1), nn.ReLU()).eval()
    want = chain(numbers(X))
    report = nn.convert(chain, inference=True)
    assert report.fused == {"layers.1": "layers.2"} and report.kept_twice == 0
    close(chain(numbers(X)), want)
    chain = stock.Sequential(stock.Linear(3, 3), spread(stock.BatchNorm(3), 1)).eval()
    nn.convert(chain, inference=True)
    with pytest.raises(ValueError, match="not a batch"):  # as without folding
        chain(mx.ones(3))


def test_the_report_says_what_is_not_folded() -> None:
    class Apart(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.conv, self.norm = stock.BatchNorm(3), stock.Conv2d(3, 3, 1), stock.BatchNorm(3)

        def __call__(self, x: mx.array) -> mx.array:
            return self.norm(self.conv(self.first(x)) * 2)

    why = "not folded: its input is not the result of a convolution or linear layer that nothing else reads"
    assert nn.convert(Apart(), example=X, inference=True).unfused == {"first": why, "norm": why}
    assert nn.convert(Apart(), example=X).unfused == {}
