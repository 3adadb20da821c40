"""Layers: drop-ins compute what those of mlx.nn do, in training and evaluation, and their parameters are the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mpsfunc as mf
from mpsfunc import nn
from mpsfunc.nn.conversion import DROP_INS

X, LINE = (3, 8, 6, 4), (3, 9, 4)
ROWS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "Conv2d": (lambda m: m.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2), dilation=1, groups=2), X),
    "Conv2d, no bias": (lambda m: m.Conv2d(4, 6, (3, 2), dilation=(2, 1), bias=False), X),
    "ConvTranspose2d": (lambda m: m.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), X),
    "ConvTranspose2d, dilation": (lambda m: m.ConvTranspose2d(4, 5, 2, 1, 0, 2, 1), X),
    "ConvTranspose2d, no bias": (lambda m: m.ConvTranspose2d(4, 5, (2, 3), dilation=2, bias=False), X),
    "Linear": (lambda m: m.Linear(4, 7), X),
    "Linear, vectors": (lambda m: m.Linear(4, 7, bias=False), (5, 4)),
    "Linear, one vector": (lambda m: m.Linear(4, 7), (4,)),
    "BatchNorm": (lambda m: m.BatchNorm(4, eps=1e-3, momentum=0.3), X),
    "BatchNorm, rows": (lambda m: m.BatchNorm(4, affine=False), (9, 5, 4)),
    "BatchNorm, vectors": (lambda m: m.BatchNorm(4, track_running_stats=False), (9, 4)),
    "BatchNorm, odd momentum": (lambda m: m.BatchNorm(4, momentum=mx.array(0.3)), X),
    "InstanceNorm": (lambda m: m.InstanceNorm(4, affine=True), X),
    "InstanceNorm, rows": (lambda m: m.InstanceNorm(4, eps=1e-3), (3, 8, 4)),
    "GroupNorm": (lambda m: m.GroupNorm(2, 4, pytorch_compatible=True), X),
    "GroupNorm, interleaved": (lambda m: m.GroupNorm(2, 4, affine=False), X),
    "GroupNorm, vectors": (lambda m: m.GroupNorm(2, 4, pytorch_compatible=True), (3, 4)),
    "Conv1d": (lambda m: m.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), LINE),
    "Conv1d, no bias": (lambda m: m.Conv1d(4, 6, 4, bias=False), LINE),
    "ConvTranspose1d": (lambda m: m.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), LINE),
    "ConvTranspose1d, no bias": (lambda m: m.ConvTranspose1d(4, 5, 2, 1, 0, 2, 1, bias=False), LINE),
    "AvgPool1d": (lambda m: m.AvgPool1d(3, 2, 1), LINE),
    "AvgPool1d, defaults": (lambda m: m.AvgPool1d((3,)), LINE),
    "MaxPool1d": (lambda m: m.MaxPool1d(3, 2, 1), LINE),
    "LayerNorm": (lambda m: m.LayerNorm(4), X),
    "LayerNorm, no shift": (lambda m: m.LayerNorm(4, eps=1e-3, bias=False), (3, 8, 4)),
    "LayerNorm, one vector": (lambda m: m.LayerNorm(4, affine=False), (4,)),
    "AvgPool2d": (lambda m: m.AvgPool2d(3, 2, 1), X),
    "AvgPool2d, defaults": (lambda m: m.AvgPool2d((3, 2)), X),
    "MaxPool2d": (lambda m: m.MaxPool2d(3, 2, 1), X),
    "Upsample": (lambda m: m.Upsample((2, 3)), X),
    "Upsample, linear": (lambda m: m.Upsample(2.0, mode="linear"), X),
    "Upsample, corners": (lambda m: m.Upsample(3, mode="linear", align_corners=True), X),
    "Upsample, cubic": (lambda m: m.Upsample(2, mode="cubic"), X),
    "Upsample, cubic corners": (lambda m: m.Upsample(2.5, mode="cubic", align_corners=True), X),
    "Upsample, smaller cubic": (lambda m: m.Upsample(0.3, mode="cubic", antialias=True), X),
    "Upsample, filtered": (lambda m: m.Upsample((0.7, 1.3), mode="linear", antialias=True), X),
    "Upsample, factor of 1.3": (lambda m: m.Upsample(1.3, mode="linear"), X),
    "Upsample, half": (lambda m: m.Upsample(1.5), X),
    "Upsample, smaller": (lambda m: m.Upsample((0.6, 1.4)), X),
    "Upsample, cubic rows": (lambda m: m.Upsample(1.7, mode="cubic"), (3, 8, 4)),
    "Upsample, filtered rows": (lambda m: m.Upsample(0.4, mode="linear", antialias=True), (3, 8, 4)),
    "Upsample, volumes": (lambda m: m.Upsample(1.5, mode="linear"), (2, 3, 4, 5, 2)),
    "Upsample, rows": (lambda m: m.Upsample(2), (3, 8, 4)),
    "Upsample, one factor": (lambda m: m.Upsample((2,)), (3, 8, 4)),
    "PReLU": (lambda m: m.PReLU(4), X),
    "PReLU, one slope": (lambda m: m.PReLU(), X),
    "PReLU, one number": (lambda m: m.PReLU(), ()),
    "LeakyReLU": (lambda m: m.LeakyReLU(0.1), X),
    "LeakyReLU, steep": (lambda m: m.LeakyReLU(2.0), X),
    "LeakyReLU, slopes": (lambda m: m.LeakyReLU(mx.array([0.1, 0.2, -0.3, 0.4])), X),
    "ELU": (lambda m: m.ELU(0.7), X),
    "ELU, alphas": (lambda m: m.ELU(mx.array([0.1, 0.2, -0.3, 0.4])), X),
    "GELU": (lambda m: m.GELU(), X),
    "GELU, fast": (lambda m: m.GELU("fast"), X),
    "GELU, by a tanh": (lambda m: m.GELU("precise"), X),
    "CELU": (lambda m: m.CELU(0.7), X),
    "CELU, alphas": (lambda m: m.CELU(mx.array([0.1, 0.2, 0.3, 0.4])), X),
    "CELU, below 0": (lambda m: m.CELU(-0.7), X),
    "HardShrink": (lambda m: m.HardShrink(0.3), X),
    "HardShrink, below 0": (lambda m: m.HardShrink(-0.3), X),
    "Softshrink": (lambda m: m.Softshrink(0.3), X),
    "Softshrink, below 0": (lambda m: m.Softshrink(-0.3), X),
    "Step": (lambda m: m.Step(0.2), X),
    "GLU": (lambda m: m.GLU(), X),
    "GLU, along another axis": (lambda m: m.GLU(1), (2, 8, 9, 4)),
    **{
        name: (lambda m, name=name: getattr(m, name)(), X)
        for name in (
            *("ReLU", "ReLU6", "Sigmoid", "Tanh", "Softplus", "Softsign", "Softmax", "LogSoftmax", "SiLU", "Hardswish"),
            *("Mish", "SELU", "HardTanh", "ReLU2", "LogSigmoid", "Softmin"),
        )
    },
}
each = pytest.mark.parametrize("name", ROWS)


# Arguments that MLX's layers do not have.
BEYOND = {"Conv": {"padding_mode"}, "ConvTranspose": {"groups"}, "AvgPool": {"divisor_override"}}


def numbers(shape: tuple[int, ...], seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def close(got: Any, want: Any) -> None:
    got, want = dict(tree_flatten(got)), dict(tree_flatten(want))
    assert got.keys() == want.keys()
    for name, expected in want.items():
        if isinstance(expected, mx.array):
            assert got[name].shape == expected.shape and got[name].dtype == expected.dtype, name
            scale = max(1e-2, float(mx.abs(expected).max()))
            one, other = np.array(got[name]), np.array(expected)
            np.testing.assert_allclose(one, other, rtol=0, atol=3e-5 * scale, err_msg=name)


def pair(name: str) -> tuple[Any, Any, mx.array]:
    """The drop-in and MLX's layer with the same parameters, and an input."""
    make, shape = ROWS[name]
    ours, theirs = make(nn), make(stock)
    ours.update(theirs.parameters())
    return ours, theirs, numbers(shape)


def gradients(layer: Any, x: mx.array) -> Any:
    dy = numbers(layer(x).shape, 1)

    def loss(params: Any, x: mx.array) -> mx.array:
        layer.update(params)
        return (layer(x) * dy).sum()

    return mx.grad(loss, argnums=(0, 1))(layer.trainable_parameters(), x)


def test_every_drop_in_has_a_row() -> None:
    assert {name.partition(",")[0] for name in ROWS} | {"Dropout", "Dropout2d", "Sequential"} == {
        theirs.__name__ for theirs in DROP_INS
    }
    for theirs, ours in DROP_INS.items():
        assert getattr(nn, theirs.__name__) is ours and getattr(stock, theirs.__name__) is theirs
        # To mypy the __init__ of a class that is a variable may be that of a derived one: here it is the class's own.
        mine, other = (list(inspect.signature(c.__init__).parameters.values()) for c in (ours, theirs))  # type: ignore[misc]
        own = [each for each in mine if each.kind is each.KEYWORD_ONLY and each.default is not each.empty]
        kept = [each for each in mine if each not in own]
        assert [(p.name, p.kind, p.default) for p in kept] == [(p.name, p.kind, p.default) for p in other]
        assert {each.name for each in own} == BEYOND.get(theirs.__name__[:-2], set())


@each
@pytest.mark.parametrize("training", [True, False])
def test_a_drop_in_computes_what_the_layer_does(name: str, training: bool, device: mx.Device) -> None:
    ours, theirs, x = pair(name)
    for layer in (ours, theirs):
        layer.train(training)
    close(ours(x), theirs(x))
    close(ours.parameters(), theirs.parameters())  # running statistics too
    close(gradients(ours, x), gradients(theirs, x))


@each
def test_checkpoints_load_both_ways(name: str, tmp_path: Any) -> None:
    ours, theirs, x = pair(name)
    path = str(tmp_path / "layer.safetensors")
    for one, other in ((ours, theirs), (theirs, ours)):
        one.update({k: v + 1 for k, v in tree_flatten(one.parameters())})
        one.save_weights(path)
        other.load_weights(path, strict=True)
        close(other.eval()(x), one.eval()(x))


@each
@pytest.mark.parametrize("dtype", [mx.uint8, mx.int32, mx.complex64], ids=str)
def test_what_ours_does_not_take_is_mlx_s(name: str, dtype: mx.Dtype) -> None:
    ours, theirs, x = pair(name)
    x = (mx.abs(x) * 100).astype(dtype)
    try:
        want = theirs(x)
        mx.eval(want)
    except ValueError:
        return
    got = ours(x)
    assert got.dtype == want.dtype and mx.array_equal(got, want, equal_nan=True)


# Arguments of MLX's layers that our functions refuse, why `convert` leaves such layers, and the error.
REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "output padding": (
        lambda m: m.ConvTranspose2d(4, 1, 3, stride=1, output_padding=2),
        "an output padding of at least the stride",
        "conv_transpose: output_padding is too large; got output_padding=(2, 2), expected less than stride or dilation",
    ),
    "output padding along x": (
        lambda m: m.ConvTranspose2d(4, 1, 3, stride=(3, 2), output_padding=(2, 2)),
        "an output padding of at least the stride",
        "conv_transpose: output_padding is too large; got output_padding=(2, 2), expected less than stride or dilation",
    ),
    "negative output padding": (
        lambda m: m.ConvTranspose2d(4, 1, 3, stride=2, output_padding=-1),
        "negative padding",
        "conv_transpose: output_padding is too small; got output_padding=(-1, -1), expected ",
    ),
    "negative padding, transposed": (
        lambda m: m.ConvTranspose2d(4, 1, 3, padding=(0, -1)),
        "negative padding",
        "conv_transpose: padding is negative, only offsets crop so; got padding=(0, -1), expected ",
    ),
    "negative padding": (
        lambda m: m.Conv2d(4, 1, 3, padding=-1),
        "negative padding",
        "conv: padding is negative, only an offset crops; got padding=(-1, -1), expected ",
    ),
    "negative padding along a line": (
        lambda m: m.Conv1d(4, 1, 3, padding=-1),
        "negative padding",
        "conv1d: padding is negative; got padding=-1, expected ",
    ),
    "output padding along a line": (
        lambda m: m.ConvTranspose1d(4, 1, 3, stride=1, output_padding=1),
        "an output padding of at least the stride",
        "conv_transpose1d: output_padding is too large; got output_padding=(0, 1), expected less than stride or dil",
    ),
    "windows of padding along a line": (
        lambda m: m.MaxPool1d(2, 2, 2),
        "windows that contain only padding",
        "max_pool1d: a window contains no pixel; got edge_mode='exclude', expected ",
    ),
    "windows of padding": (
        lambda m: m.MaxPool2d(2, 2, 2),
        "windows that contain only padding",
        "max_pool: a window contains no pixel; got edge_mode='exclude', expected ",
    ),
    "momentum": (
        lambda m: m.BatchNorm(4, momentum=1.5),
        "a momentum outside 0 to 1",
        "BatchNorm: momentum is out of range; got momentum=1.5, expected 0 to 1",
    ),
    "slope": (
        lambda m: m.LeakyReLU(float("-inf")),
        "a slope that is not a number of float32",
        "neuron: a is out of range; got a=-inf, expected ",
    ),
    "slope of NaN": (
        lambda m: m.LeakyReLU(float("nan")),
        "a slope that is not a number of float32",
        "neuron: a is out of range; got a=nan, expected ",
    ),
    "alpha": (
        lambda m: m.ELU(1e39),
        "an alpha that is not a number of float32",
        "neuron: a is out of range; got a=1e+39, expected ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_our_functions_refuse_stays_mlx_s_and_its_drop_in_refuses_it(name: str, device: mx.Device) -> None:
    make, why, message = REFUSED[name]
    theirs = make(stock)
    x = numbers((2, 8, 4) if type(theirs).__name__.endswith("1d") else (2, 8, 8, 4))
    before = theirs(x)
    kind = type(theirs)
    assert nn.convert(theirs) == nn.Conversion({}, {}, {}, {"": why}) and type(theirs) is kind
    assert mx.array_equal(theirs(x), before, equal_nan=True)
    ours = make(nn)
    assert type(ours) is DROP_INS[kind]
    for dtype in (mx.float32, mx.bfloat16):
        with pytest.raises(ValueError, match=re.escape(message)):
            ours(x.astype(dtype))
    with pytest.raises((ValueError, TypeError)):  # whatever is wrong first
        ours(x.astype(mx.int32))
    chain = nn.Sequential(ours, nn.ReLU())
    report = nn.convert(chain)
    assert report.fused == {} and report.left == {"layers.0": why}
    with pytest.raises(ValueError, match=re.escape(message)):
        chain(x)
    assert nn.revert(ours)(x).shape == before.shape


def test_arrays_of_parameters_stay_mlx_s() -> None:
    many = mx.array([0.1, 0.2])
    layers = {"slopes": stock.LeakyReLU(many), "alphas": stock.ELU(many)}
    assert {why for layer in layers.values() for why in nn.convert(layer).left.values()} == {
        f"an array of {name}" for name in layers
    }
    assert nn.convert(stock.ELU(mx.array(0.5))).replaced == {"": "ELU"}


def test_what_ours_takes(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = numbers(X).astype(mx.float64)
    assert nn.Conv2d(4, 6, 3)(wide).dtype == mx.float64  # MLX's raises
    assert not nn.ConvTranspose2d.why_left(stock.ConvTranspose2d(4, 5, 2, 1, 0, 2, 1))
    one = mx.ones((1, 4))
    for layer in (nn.BatchNorm(4, track_running_stats=False), stock.BatchNorm(4, track_running_stats=False)):
        assert not layer.eval()(one).any()
    linear = nn.Linear(4, 2)
    assert linear.takes(one)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert not linear.takes(one)


@each
def test_running_statistics_keep_their_dtype(name: str) -> None:
    ours, _, x = pair(name)
    for dtype in (mx.bfloat16, mx.float32):
        ours.set_dtype(dtype)
        ours(x.astype(mx.bfloat16))
        assert all(value.dtype == dtype for _, value in tree_flatten(ours.parameters()))


@each
def test_half_precision_stays(name: str) -> None:
    ours, _, x = pair(name)
    if ours.takes(x):
        assert ours(x.astype(mx.float16)).dtype == (mx.int32 if name == "Step" else mx.float16)


def test_batch_normalization_over_a_training() -> None:
    ours, theirs, _ = pair("BatchNorm")
    for step in range(4):
        close(ours(numbers(X, step)), theirs(numbers(X, step)))
    close(ours.parameters(), theirs.parameters())
    ours.unfreeze()
    assert ours.trainable_parameters().keys() == {"weight", "bias"}


def test_batch_normalization_in_a_compiled_step() -> None:
    ours, theirs, x = pair("BatchNorm")
    for layer in (ours, theirs):
        state = [layer.state]

        @lambda f, state=state: mx.compile(f, inputs=state, outputs=state)
        def step(x: mx.array, layer: Any = layer) -> mx.array:
            return layer(x)

        for seed in range(3):
            mx.eval(step(numbers(X, seed)))
    close(ours.parameters(), theirs.parameters())


@pytest.mark.parametrize("layer", [nn.BatchNorm(4), stock.BatchNorm(4)])
@pytest.mark.parametrize("shape", [(4,), (1, 2, 3, 5, 4), (1, 4), (1, 1, 1, 4)])
def test_what_batch_normalization_refuses(layer: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        layer(mx.ones(shape))


@pytest.mark.parametrize("kind", ["Dropout", "Dropout2d"])
def test_dropout(kind: str) -> None:
    layer = getattr(nn, kind)(0.25)
    x = mx.ones((64, 8, 8, 64))
    mx.random.seed(3)
    y = layer(x)
    kept = np.array(y) != 0
    assert np.allclose(np.array(y)[kept], 4 / 3) and abs(kept.mean() - 0.75) < 0.03
    whole = (kept == kept[:, :1, :1]).all()
    assert whole if kind == "Dropout2d" else not whole
    mx.random.seed(3)
    assert mx.array_equal(layer(x), y) and not mx.array_equal(layer(x), y)
    assert layer.eval()(x) is x and getattr(nn, kind)(0.0)(x) is x
    with pytest.raises(ValueError):
        getattr(nn, kind)(1.0)


def test_dropout_of_channels_of_one_image() -> None:
    y = nn.Dropout2d(0.5)(mx.ones((4, 4, 64)))
    assert y.shape == (4, 4, 64) and mx.array_equal(y, mx.broadcast_to(y[:1, :1], y.shape))
    with pytest.raises(ValueError, match=r"Dropout2d: not images; got x.shape=\(4, 4\), expected 3 or 4 axes"):
        nn.Dropout2d(0.5)(mx.ones((4, 4)))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("factor", "told"), [(0.3, "scale leaves no pixels"), (-1.0, "is out of"), (float("nan"), "is out of")]
)
def test_an_upsampling_that_leaves_no_pixels(factor: float, told: str, mode: str) -> None:
    for x in (mx.ones((1, 1, 1, 1)), mx.ones((1, 1, 1))):
        with pytest.raises(ValueError, match=f"^resize_[a-z]+: .*{told}.*; got scale="):
            nn.Upsample(factor, mode=mode)(x)
    left = nn.convert(stock.Sequential(stock.Upsample(factor, mode=mode))).left
    assert left == ({} if factor == 0.3 else {"layers.0": "a scale out of range"})


@pytest.mark.parametrize("name", ["BatchNorm", "Conv2d", "MaxPool2d", "ReLU"])
def test_it_runs_our_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    function = {"BatchNorm": "batch_norm_fwd", "Conv2d": "conv", "MaxPool2d": "max_pool", "ReLU": "neuron"}[name]
    real = getattr(mf, function)
    monkeypatch.setattr(mf, function, lambda *args, **kwargs: called.append(function) or real(*args, **kwargs))
    ours, _, x = pair(name)
    mx.eval(ours(x))
    assert called == [function]


# What MLX lacks -----------------------------------------------------------------------------------------------------
