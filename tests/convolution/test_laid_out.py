"""Convolutions with weights that were laid out ahead: what those without give, and refused for any other weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from support import numbers, same_bits
from support.convolution_case import each_isa

from mpsfunc.channels.activation_spec import TANH, Activation
from mpsfunc.convolution import convolution, laid_out, routes, states
from mpsfunc.convolution.laid_out import LaidOut, LaidOutSpec, conv_laid_out
from mpsfunc.core import launch
from mpsfunc.core.params import for_cpu

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")
pytestmark = pytest.mark.usefixtures("on_cpu")

# Images, weights, groups, and where windows sit.
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = {
    "a pixel": ((3, 1, 1, 70), (100, 1, 1, 70), 1, {}),
    "a long pixel": ((2, 1, 1, 1300), (300, 1, 1, 1300), 1, {}),
    "few pixels": ((1, 7, 7, 600), (288, 1, 1, 600), 1, {}),
    "few pixels, windows": ((2, 7, 7, 72), (257, 3, 3, 72), 1, {"padding": 1}),
    "few pixels, two apart": ((1, 14, 14, 40), (260, 3, 3, 40), 1, {"padding": 1, "stride": 2}),
    "many pixels": ((2, 64, 60, 24), (48, 1, 1, 24), 1, {}),
    "two apart": ((1, 30, 31, 24), (48, 1, 1, 24), 1, {"stride": 2}),
    "Winograd": ((1, 28, 28, 32), (48, 3, 3, 32), 1, {"padding": 1}),
    "Winograd, shared": ((1, 14, 14, 136), (130, 3, 3, 136), 1, {"padding": 1}),
    "Winograd, dilated": ((1, 24, 24, 32), (48, 3, 3, 32), 1, {"padding": 2, "dilation": 2}),
    "Winograd, two apart": ((1, 48, 48, 32), (48, 3, 3, 32), 1, {"padding": 1, "stride": 2}),
    "colours": ((1, 33, 35, 3), (64, 7, 7, 3), 1, {"padding": 3, "stride": 2}),
    "groups": ((2, 9, 8, 48), (96, 3, 3, 24), 2, {"padding": 1}),
    "dilated": ((1, 20, 9, 20), (40, 5, 3, 20), 1, {"padding": 2, "dilation": (2, 1)}),
    "lanes to spare": ((1, 9, 9, 20), (35, 2, 3, 20), 1, {}),
    "the whole image": ((4, 5, 6, 7), (64, 5, 6, 7), 1, {}),
    "reflected": ((1, 9, 9, 20), (32, 3, 3, 20), 1, {"padding": 2, "padding_mode": "reflect"}),
    "in the middle": ((1, 9, 9, 20), (32, 3, 3, 20), 1, {"offset": (-9, 4), "out_size": (20, 5)}),
    "few pixels in the middle": ((1, 5, 6, 40), (290, 3, 3, 40), 1, {"offset": (-9, 4), "out_size": (20, 5)}),
}


# Without a layout these may be summed in another order, by weights that are read where they lie.
FEW_PIXELS = ("a pixel", "a long pixel", "the whole image", *(name for name in GEOMETRIES if name.startswith("few")))


def as_good(name: str, got: mx.array, want: mx.array, call: Callable[..., mx.array], *arrays: mx.array) -> bool:
    """Whether results have the same bits, or of few pixels are right to roundings of float32 sums and their dtype."""
    if name not in FEW_PIXELS:
        return same_bits(got, want)
    exact, size = (call(*[f(a.astype(mx.float64)) for a in arrays]) for f in (lambda a: a, mx.abs))
    off = mx.abs(got.astype(mx.float64) - exact)
    allowed = 8 * mx.finfo(mx.float32).eps * size + 0.5 * mx.finfo(got.dtype).eps * mx.abs(exact)
    return got.dtype == want.dtype and bool(mx.all(off <= allowed))


def made(name: str, dtype: mx.Dtype, own: mx.Dtype) -> tuple[Any, ...]:
    """Images, weights of their own dtype, a bias and the call."""
    shape, w_shape, groups, where = GEOMETRIES[name]
    x, w, b = numbers(shape).astype(dtype), (0.1 * numbers(w_shape, seed=1)).astype(own), numbers(w_shape[:1], seed=2)
    mx.eval(x, w, b)

    def call(x: mx.array, w: mx.array, b: mx.array | None, laid: LaidOut | None, neuron: Any = None) -> mx.array:
        how = {"stride": 1, **where}
        return convolution.forward("conv", x, w, b, neuron, None, groups, keeping=False, laid=laid, **how)[0]

    return x, w, b, groups, call


@each_isa
@pytest.mark.parametrize("own", [None, mx.float32], ids=["weights of their dtype", "float32 weights"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_bits_are_those_without(isa: str, name: str, dtype: mx.Dtype, own: mx.Dtype | None) -> None:
    if own is not None and own == dtype:
        pytest.skip("the same as the other")
    x, w, b, groups, call = made(name, dtype, own or dtype)
    laid = laid_out.lay_out(lambda: w, groups)
    assert laid is not None and laid.words.dtype == mx.uint32
    assert laid.words.nbytes <= 64 + 2.1 * 4 * w.size  # lanes to spare, and 16 bits as 32
    for bias, neuron in ((b, None), (None, "relu"), (b, "tanh")):
        got, want = call(x, w, bias, laid, neuron), call(x, w, bias, None, neuron)
        if neuron is None:
            assert as_good(name, got, want, lambda x, w, b: call(x, w, b, None), x, w, bias)
        elif name in FEW_PIXELS:  # activations are the same functions of what came before
            linear = call(x, w, bias, laid)
            assert neuron == "tanh" or same_bits(got, mx.maximum(linear, 0))
            assert neuron == "relu" or mx.allclose(got, mx.tanh(linear), rtol=0, atol=1.5 * mx.finfo(dtype).eps)
        elif dtype == mx.float32 or neuron != "tanh":
            assert same_bits(got, want)
        else:  # of what was not rounded
            z = call(x.astype(mx.float32), w.astype(mx.float32), bias, None)
            close = mx.abs(got.astype(mx.float32) - mx.tanh(z)) <= mx.abs(want.astype(mx.float32) - mx.tanh(z)) + 0.005
            assert got.dtype == dtype and mx.all(close)


@each_isa
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_images_are_added_ahead_of_the_activation(isa: str, name: str, dtype: mx.Dtype) -> None:
    x, w, b, groups, call = made(name, dtype, dtype)
    laid = laid_out.lay_out(lambda: w, groups)
    assert laid is not None
    y = call(x, w, b, None)
    more = numbers(y.shape, seed=9).astype(dtype)
    for neuron in (None, "relu"):
        got = call(x, w, b, laid.adding(more), neuron)
        if dtype == mx.float32:
            y = call(x, w, b, laid)
            assert same_bits(got, y + more if neuron is None else mx.maximum(y + more, 0))
            continue
        exact = call(x.astype(mx.float32), w.astype(mx.float32), b, None) + more.astype(mx.float32)
        want = exact if neuron is None else mx.maximum(exact, 0)
        # One rounding, and sums in another order.
        assert mx.allclose(got.astype(mx.float32), want, rtol=2.0**-8, atol=2.0**-10 * float(mx.abs(exact).max()))


def test_images_that_are_added_have_derivatives() -> None:
    x, w, b, _, call = made("Winograd", mx.float32, mx.float32)
    laid = laid_out.lay_out(lambda: w, 1)
    assert laid is not None
    more, dy = numbers((1, 28, 28, 48), seed=8), numbers((1, 28, 28, 48), seed=5)

    def run(x: mx.array, b: mx.array, more: mx.array) -> mx.array:
        return call(x, w, b, laid.adding(more), "relu")

    def plain(x: mx.array, b: mx.array, more: mx.array) -> mx.array:
        return mx.maximum(call(x, w, b, None) + more, 0)

    arrays = [x, b, more]
    for one, other in zip(
        [*mx.vjp(run, arrays, [dy])[1], *mx.jvp(run, arrays, arrays)[1], mx.compile(run)(*arrays)],
        [*mx.vjp(plain, arrays, [dy])[1], *mx.jvp(plain, arrays, arrays)[1], plain(*arrays)],
        strict=True,
    ):
        assert mx.allclose(one, other, rtol=1e-5, atol=1e-5)
    given = [mx.stack([a, a * 0.5]) for a in arrays]
    assert mx.allclose(mx.vmap(run)(*given), mx.vmap(plain)(*given), rtol=1e-5, atol=1e-5)


@each_isa
def test_what_is_read_as_it_is_has_none(isa: str) -> None:
    for shape, groups in (((64, 3, 3, 1), 64), ((64, 3, 3, 2), 32), ((3, 3, 3, 64), 1)):
        w = numbers(shape)
        assert laid_out.lay_out(lambda w=w: w, groups) is None, shape
    assert laid_out.lay_out(lambda: numbers((64, 3, 3, 8)).astype(mx.float64), 1) is None


@pytest.mark.parametrize("neuron", [None, "relu", "gelu", "sigmoid"])
def test_derivatives_take_the_weights(neuron: str | None) -> None:
    x, w, b, _, call = made("Winograd", mx.float32, mx.float32)
    laid = laid_out.lay_out(lambda: w, 1)
    dy, tx, tb = numbers((1, 28, 28, 48), seed=5), numbers(x.shape, seed=6), numbers(b.shape, seed=7)

    def run(given: LaidOut | None) -> Callable[..., mx.array]:
        return lambda x, b: call(x, w, b, given, neuron)

    def all_of(run: Callable[..., mx.array]) -> list[mx.array]:
        found = [*mx.vjp(run, [x, b], [dy])[1], *mx.jvp(run, [x, b], [tx, tb])[1]]
        found.append(mx.vmap(run, in_axes=(0, None))(mx.stack([x, tx]), b))
        found.append(mx.vmap(run, in_axes=(None, 0))(x, mx.stack([b, tb])))
        found.append(mx.vmap(run)(mx.stack([x, tx]), mx.stack([b, tb])))
        found.append(mx.grad(lambda x: mx.grad(lambda x: (run(x, b) * dy).sum())(x).square().sum())(x))
        return [*found, mx.compile(run)(x, b), mx.checkpoint(run)(x, b)]

    for one, other in zip(all_of(run(laid)), all_of(run(None)), strict=True):
        assert mx.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_an_activation_whose_result_does_not_tell_its_slope_has_derivatives() -> None:
    x, w, b, _, _ = made("Winograd", mx.float32, mx.float32)
    laid = laid_out.lay_out(lambda: w, 1)
    assert laid is not None
    stream = launch.resolve(None)
    spec = states.placed("conv", "w", tuple(x.shape), tuple(w.shape), 1, stream, stride=1, padding=1)
    spec = spec._replace(biased=True, neuron=Activation(TANH, 0.7, 1.3))
    more, dy = numbers((1, 28, 28, 48), seed=8), numbers((1, 28, 28, 48), seed=5)

    def run(x: mx.array, b: mx.array, more: mx.array) -> mx.array:
        known = LaidOutSpec(laid, spec, stream)
        return conv_laid_out(x, b, known) + laid_out.conv_laid_out_add(x, b, more, known)

    def plain(x: mx.array, b: mx.array, more: mx.array) -> mx.array:
        z = convolution.forward("conv", x, w, b, None, None, 1, keeping=False, stride=1, padding=1)[0]
        return 0.7 * mx.tanh(1.3 * z) + 0.7 * mx.tanh(1.3 * (z + more))

    arrays = [x, b, more]
    for one, other in zip(
        [*mx.vjp(run, arrays, [dy])[1], *mx.jvp(run, arrays, arrays)[1], run(*arrays)],
        [*mx.vjp(plain, arrays, [dy])[1], *mx.jvp(plain, arrays, arrays)[1], plain(*arrays)],
        strict=True,
    ):
        assert mx.allclose(one, other, rtol=1e-4, atol=1e-4)


def raw(x: mx.array, words: mx.array, outs: int, kernel: int) -> mx.array:
    w_shape, stream = (outs, kernel, kernel, x.shape[3]), launch.resolve(None)
    spec = states.placed("conv", "w", tuple(x.shape), w_shape, 1, stream, stride=1)
    params = for_cpu(routes.params(routes.form(spec.rows, spec.cols, 1, False)[1], spec))
    shape = (x.shape[0], spec.rows.n_out, spec.cols.n_out, outs)
    return _primitives.conv_laid_out([x, words, mx.zeros(outs)], params, [shape], [x.dtype], mx.cpu)[0]


@each_isa
def test_other_weights_are_refused(isa: str) -> None:
    x, w = numbers((1, 5, 5, 8)), numbers((64, 3, 3, 8))
    laid = laid_out.lay_out(lambda: w, 1)
    assert laid is not None and raw(x, laid.words, 64, 3).shape == (1, 3, 3, 64)
    expected = "^conv_laid_out: expected "
    hostile = {
        "another window": (x, laid.words, 64, 2),
        "other channels": (numbers((1, 5, 5, 16)), laid.words, 64, 3),
        "other outputs": (x, laid.words, 32, 3),
        "cut": (x, laid.words[:-1], 64, 3),
        "zeros": (x, mx.zeros_like(laid.words), 64, 3),
        "another set": (x, mx.array([*laid.words[:1].tolist(), 99, *laid.words[2:].tolist()], mx.uint32), 64, 3),
        "to be computed": (x, laid.words + 0, 64, 3),
        "of two axes": (x, laid.words[None], 64, 3),
    }
    for name, (x_, words, outs, kernel) in hostile.items():
        if name != "to be computed":
            mx.eval(words)
        with pytest.raises(ValueError, match=expected):
            raw(x_, words, outs, kernel)
            pytest.fail(name)
    pairs = laid_out.lay_out(lambda: w.astype(mx.bfloat16), 1)
    assert pairs is not None
    if int(pairs.words[2].item()):  # only bfloat16 is multiplied in pairs
        with pytest.raises(ValueError, match=expected):
            raw(x, pairs.words, 64, 3)


def test_a_layout_is_computed_by_the_set_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b, groups, call = made("Winograd", mx.float32, mx.float32)
    before = _primitives.isa()
    known = {}
    for name in _primitives.isas():
        _primitives.set_isa(name)
        known[name] = laid_out.lay_out(lambda: w, groups), call(x, w, b, None)
        mx.eval(known[name][1])
    try:
        for name in _primitives.isas():
            _primitives.set_isa(name)
            for laid, want in known.values():
                assert same_bits(call(x, w, b, laid), want)
    finally:
        _primitives.set_isa(before)
