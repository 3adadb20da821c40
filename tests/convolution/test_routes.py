"""What is asked of a GPU's library, asked of MLX's CPU: that the question is the right one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, geometries, nodes, numbers
from support.oracle import convolution as oracle

import mpsfunc as mf
from mpsfunc.channels.activation_spec import ELU, NO_ACTIVATION, RELU, SIGMOID, TANH, Activation
from mpsfunc.convolution import launches, library, routes, rules
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch

GEOMETRIES = geometries(mf.PaddingPolicy) | {
    "3x3 p1": ((6, 7), (3, 3), {"stride": 1, "padding": 1}),
    "7x7 s2 p3": ((12, 14), (7, 7), {"stride": 2, "padding": 3}),
    "7x7 s2 p2": ((12, 14), (7, 7), {"stride": 2, "padding": 2}),
    "11x11 s4 p2": ((24, 16), (11, 11), {"stride": 4, "padding": 2}),
    "8x9 s3 asymmetric": ((15, 18), (8, 9), {"stride": 3, "padding": ((1, 4), (6, 0))}),
    "1x1 s2": ((7, 8), (1, 1), {"stride": 2}),
    "1x1 s3 one way": ((7, 5), (1, 1), {"stride": (3, 1)}),
    "one pixel": ((1, 1), (1, 1), {"stride": 1}),
}
pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture(params=["cuda, float32", "cuda, TF32", "metal"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The choices of another backend, carried out on this one."""
    backend = str(request.param).split(",")[0]
    monkeypatch.setattr(launch, "backend", lambda stream: backend)
    monkeypatch.setenv("MLX_ENABLE_TF32", "0" if "float32" in request.param else "1")
    return str(request.param)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (4, 1), (4, 2), (64, 1)])
def test_routes_compute_the_definition(gpu: str, name: str, channels: int, groups: int) -> None:
    image, kernel, placement = GEOMETRIES[name]
    state = mf.conv_state((2, *image, channels), (6, *kernel, channels // groups), groups=groups, **placement)
    spec = Spec(state.rows, state.cols, groups, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    if not library.ordinary(spec):
        return  # our kernels' business
    x, w = numbers((2, *image, channels)), numbers(tuple(state.dw.shape), seed=1)
    dy = numbers((2, state.rows.n_out, state.cols.n_out, 6), seed=2)
    where: Any = (state.rows, state.cols, groups)
    values, sizes = ([f(exact(a)) for a in (x, w, dy)] for f in (np.asarray, np.abs))
    zero = np.zeros(6)
    close(library.conv(x, w, spec), *(oracle.conv(v[0], v[1], zero, *where) for v in (values, sizes)))
    close(library.grad_input(dy, w, spec), *(oracle.conv_grad_input(v[2], v[1], *where) for v in (values, sizes)))
    if groups == 1:
        close(
            library.grad_weights(dy, x, spec),
            *(oracle.conv_grad_weights(v[2], v[0], *where) for v in (values, sizes)),
        )


def test_a_fused_bias_and_neuron(gpu: str) -> None:
    spec = Spec(*mf.conv_state((1, 4, 4, 2), (3, 1, 1, 2))[-2:], 1, True, NO_ACTIVATION, mx.default_stream(mx.cpu))
    y, b = numbers((1, 4, 4, 3)), numbers((3,), seed=1)
    z = exact(y) + exact(b)
    for act, expected in (
        (Activation(RELU), np.maximum(z, 0)),
        (Activation(RELU, 0.3), np.where(z < 0, 0.3 * z, z)),
        (Activation(SIGMOID), 1 / (1 + np.exp(-z))),
        (Activation(TANH, -1.3, 0.7), -1.3 * np.tanh(0.7 * z)),
        (Activation(ELU, 0.6), np.where(z < 0, 0.6 * np.expm1(z), z)),
        (NO_ACTIVATION, z),
    ):
        close(library.finished(y, b, spec._replace(neuron=act)), expected, 4)
        half = library.finished(y.astype(mx.float16), b, spec._replace(neuron=act))
        assert half.dtype == mx.float16
        np.testing.assert_allclose(exact(half), expected, atol=5e-3)
    assert library.finished(y, b, spec._replace(biased=False)) is y


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride", "dtype", "body"),
    [
        (16, 16, 3, 1, mx.float32, "registers"),
        (16, 32, 3, 1, mx.float16, "tensor_core"),
        (64, 64, 3, 1, mx.float16, "tensor_core"),
        (32, 64, 3, 2, mx.float16, "tensor_core"),
        (8, 64, 3, 1, mx.bfloat16, "tensor_core"),
        (32, 24, 2, 2, mx.bfloat16, "tensor_core"),
        (12, 32, 3, 1, mx.float16, "registers"),
        (4, 8, 3, 1, mx.bfloat16, "registers"),
        (32, 32, 3, 2, mx.float32, "registers"),
        (3, 64, 3, 1, mx.bfloat16, "registers"),
        (32, 64, 1, 2, mx.float16, "registers"),
        (32, 64, 3, 1, mx.float32, ""),
        (16, 64, 3, 1, mx.float32, ""),
        (16, 16, 1, 1, mx.float32, ""),
        (32, 64, 3, 2, mx.float32, ""),
        (20, 32, 3, 1, mx.float16, ""),
        (64, 16, 3, 1, mx.bfloat16, ""),
        (32, 64, 3, 2, mx.bfloat16, ""),
        (16, 12, 3, 1, mx.bfloat16, ""),
        (32, 64, 1, 2, mx.bfloat16, ""),
        (64, 32, 1, 2, mx.float32, ""),
        (1, 16, 3, 1, mx.float32, "registers"),
        (3, 64, 3, 2, mx.float32, ""),
        (5, 16, 3, 1, mx.float32, ""),
        (128, 3, 3, 1, mx.float32, ""),
        (3, 64, 7, 1, mx.float32, ""),
    ],
)
@pytest.mark.parametrize("deterministic", ["0", "1"])
def test_who_makes_a_weight_gradient_on_cuda(
    channels: int,
    out: int,
    kernel: int,
    stride: int,
    dtype: mx.Dtype,
    body: str,
    deterministic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our kernel for few channels where it beats cuDNN, and wherever cuDNN must not be asked."""
    launched = []

    def run_kernel(of: KernelLaunch, arrays: Sequence[mx.array], stream: Any) -> list[mx.array]:
        launched.append(of.body)
        return [mx.zeros(shape, dtype) for shape, dtype in of.results]

    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    monkeypatch.setattr(launch, "run_kernel", run_kernel)
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", deterministic)
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    state = mf.conv_state((2, 17, 17, channels), (out, kernel, kernel, channels), stride=stride, padding=kernel // 2)
    x, dy = mx.zeros((2, 17, 17, channels), dtype), mx.zeros((2, state.rows.n_out, state.cols.n_out, out), dtype)
    spec = Spec(state.rows, state.cols, 1, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    rules.grad_weights(dy, x, spec)
    fits = kernel <= 3 and max(channels, out) <= 64
    halves = dtype != mx.float32 and channels % 8 == out % 8 == 0 and kernel > 1
    ours = body or (
        "" if deterministic == "0" else "tensor_core" if fits and halves else "registers" if fits else "simt"
    )
    assert launched == ([f"conv_grad_weights_{ours}", "sum_partials"] if ours else [])


def test_on_a_gpu_one_gradient_of_parameters_does_not_make_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the C++ module, too, where every call is wrapped for a transformation that may look on."""

    def run_kernel(of: KernelLaunch, arrays: Sequence[mx.array], stream: Any) -> list[mx.array]:
        return [mx.sin(mx.zeros(shape, dtype)) for shape, dtype in of.results]

    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    monkeypatch.setattr(launch, "run_kernel", run_kernel)
    monkeypatch.setattr(launch, "_primitives", None)
    x = numbers((2, 5, 5, 64), mx.bfloat16)
    state = mf.conv_grad_weights(x, x, mf.conv_state((2, 5, 5, 64), (64, 3, 3, 64), padding=1))
    assert "Sin" not in nodes(state.dw) and "Sin" in nodes(state.db)


@pytest.mark.parametrize(
    ("shape", "kernel", "how", "dtype", "tf32", "apart"),
    [
        ((2, 14, 14, 3), 7, {"stride": 2, "padding": 3}, mx.bfloat16, "1", True),
        ((2, 14, 14, 3), 7, {"stride": 2, "padding": 3}, mx.bfloat16, "0", True),
        ((2, 14, 14, 4), 7, {"stride": 2, "padding": 3}, mx.float32, "1", True),
        ((2, 16, 16, 3), 11, {"stride": 4, "padding": 2}, mx.float32, "1", True),
        ((2, 14, 14, 3), 7, {"stride": 2, "padding": 3}, mx.float32, "0", False),
        ((2, 14, 14, 3), 7, {"stride": 2, "padding": 3}, mx.float16, "1", False),
        ((2, 14, 14, 8), 7, {"stride": 2, "padding": 3}, mx.bfloat16, "1", False),
        ((2, 14, 15, 3), 7, {"stride": 2, "padding": 3}, mx.bfloat16, "1", False),  # half a block
        ((2, 14, 14, 3), 5, {"stride": 2, "padding": 2}, mx.bfloat16, "1", False),
        ((2, 14, 14, 3), 7, {"stride": (2, 1), "padding": 3}, mx.bfloat16, "1", False),
        ((2, 14, 14, 3), 7, {"padding": 3}, mx.bfloat16, "1", False),
        ((2, 28, 28, 3), 7, {"stride": 2, "dilation": 2}, mx.bfloat16, "1", False),
        ((2, 14, 14, 3), 7, {"stride": 2, "padding": 3, "groups": 3}, mx.bfloat16, "1", False),
    ],
)
def test_photographs_go_where_they_are_faster(
    shape: tuple[int, int, int, int],
    kernel: int,
    how: dict[str, Any],
    dtype: mx.Dtype,
    tf32: str,
    apart: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    monkeypatch.setenv("MLX_ENABLE_TF32", tf32)
    groups, channels = how.get("groups", 1), shape[3]
    state = mf.conv_state(shape, (6, kernel, kernel, channels // groups), **how)
    spec = Spec(state.rows, state.cols, groups, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    assert library._photographs(spec, channels, dtype) == apart
    x, w = numbers(shape), numbers(tuple(state.dw.shape), seed=1)
    dy = numbers((2, state.rows.n_out, state.cols.n_out, 6), seed=2)
    narrow = [a.astype(dtype) for a in (x, w, dy)]
    values, sizes = ([f(exact(a)) for a in narrow] for f in (np.asarray, np.abs))
    where: Any = (state.rows, state.cols, groups)
    for made, right, size in (
        (
            library.conv(narrow[0], narrow[1], spec),
            *(oracle.conv(v[0], v[1], np.zeros(6), *where) for v in (values, sizes)),
        ),
        (
            library.grad_input(narrow[2], narrow[1], spec),
            *(oracle.conv_grad_input(v[2], v[1], *where) for v in (values, sizes)),
        ),
    ):
        assert made.dtype == dtype and made.shape == right.shape
        np.testing.assert_allclose(exact(made), right, atol=2**-7 * size.max(), rtol=2**-7)


def test_what_windows_see_may_be_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then cuDNN makes the weight gradient after all, which needs no memory for it."""
    seen: list[str] = []
    real = library._by_patches
    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    monkeypatch.setattr(library, "_by_patches", lambda *told: seen.append("patches") or real(*told))
    state = mf.conv_state((2, 9, 9, 64), (6, 3, 3, 64), stride=2)
    spec = Spec(state.rows, state.cols, 1, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    x, dy = numbers((2, 9, 9, 64)), numbers((2, 4, 4, 6), seed=1)
    by_patches = library.grad_weights(dy, x, spec)
    assert seen == ["patches"]
    monkeypatch.setattr(library, "_MOST_SEEN", 4 * 2 * 4 * 4 * 9 * 64 - 1)
    np.testing.assert_allclose(exact(library.grad_weights(dy, x, spec)), exact(by_patches), atol=1e-4)
    assert seen == ["patches"]


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "ours"),
    [(64, 3, 1, True), (32, 3, 1, True), (32, 3, 2, True), (64, 3, 2, False), (64, 1, 1, False), (65, 3, 1, False)],
)
def test_more_channels_are_faster_where_nothing_is_rounded_to_tf32(
    channels: int, kernel: int, stride: int, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    state = mf.conv_state((2, 9, 9, channels), (64, kernel, kernel, channels), padding=kernel // 2, stride=stride)
    spec = Spec(state.rows, state.cols, 1, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    assert routes.slow_in_cudnn(spec, 64, mx.zeros((2, 9, 9, channels))) == ours
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    assert not routes.slow_in_cudnn(spec, 64, mx.zeros((2, 9, 9, channels)))


def test_tensor_cores_are_asked_for_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    state = mf.conv_state((2, 9, 9, 16), (16, 3, 3, 16), padding=1)
    spec = Spec(state.rows, state.cols, 1, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    for capability, rows in (("7", 0), ("8", 9)):
        monkeypatch.setattr(
            mx, "device_info", lambda _, capability=capability: {"compute_capability_major": capability}
        )
        launches._tensor_cores.cache_clear()
        assert launches.strip(spec, 16, 16, mx.float16) == rows
    monkeypatch.undo()
    launches._tensor_cores.cache_clear()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "out"), [(8, 8), (16, 48), (64, 64), (24, 40), (64, 8)])
def test_strips_fit_into_shared_memory(channels: int, out: int, stride: int) -> None:
    """The two arrays of the kernel, whatever the length of a row."""
    sizes = []
    for width in range(8, 257):
        shape = 1, 32, width * stride, channels
        state = mf.conv_state(shape, (out, 3, 3, channels), stride=stride, padding=1)
        spec = Spec(state.rows, state.cols, 1, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
        if launches.strip(spec, out, channels, mx.float16):
            dy_shape = 1, state.rows.n_out, state.cols.n_out, out
            first, _ = launches.grad_weights(spec, dy_shape, shape, mx.float16, matrices=False)
            t: dict[str, Any] = dict(first.template)
            of_dy, of_x = (2 * -(-t[name] // 16) + 1 for name in "OI")
            seen = ((t["R"] - 1) * t["SY"] + t["KY"]) * -(-((t["N"] - 1) * t["SX"] + t["KX"]) // t["SX"]) * t["SX"]
            sizes.append(16 * ((t["R"] * -(-t["N"] // 8) + 1) * 8 * of_dy + seen * of_x))
    assert 40 * 2**10 < max(sizes) <= 48 * 2**10


def test_a_data_gradient_goes_forward_for_64_channels(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_MANY_PIXELS", 2 * 5 * 4)
    state = mf.conv_state((2, 5, 4, 64), (64, 3, 3, 64), padding=1)
    spec = Spec(state.rows, state.cols, 1, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    dy, w = numbers((2, 5, 4, 64)).astype(mx.bfloat16), numbers((64, 3, 3, 64), seed=1).astype(mx.bfloat16)
    assert library._of_64(dy, 64, spec) and not library._of_64(dy[:1], 64, spec)
    assert not library._of_64(dy.astype(mx.float32), 64, spec)
    where: Any = (state.rows, state.cols, 1)
    right, size = (oracle.conv_grad_input(f(exact(dy)), f(exact(w)), *where) for f in (np.asarray, np.abs))
    made = exact(library.grad_input(dy, w, spec))
    np.testing.assert_allclose(made, right, atol=2**-7 * size.max(), rtol=2**-7)


@pytest.mark.parametrize(
    ("shape", "kernel", "how", "ours"),
    [
        ((2, 9, 256, 16), (3, 3), {"padding": 1}, True),
        ((2, 9, 257, 16), (3, 3), {"padding": 1}, False),  # rows that keep a thread for long
        ((2, 9, 9, 16), (1, 9), {"padding": (0, 4)}, True),
        ((2, 9, 9, 16), (2, 5), {"padding": (1, 2)}, False),  # ten taps
        ((2, 9, 9, 16), (3, 3), {"padding": 1, "stride": (1, 2)}, True),
        ((2, 9, 9, 16), (3, 3), {"padding": 1, "stride": (3, 1)}, False),
        ((2, 9, 9, 16), (3, 3), {"padding": (2, 1), "dilation": (2, 1)}, False),
        ((2, 9, 9, 16), (3, 3), {"padding": (1, 2), "dilation": (1, 2)}, False),
        ((2, 9, 2, 16), (3, 2), {"padding": (1, 0)}, False),  # one window a row
        ((2, 9, 9, 16), (3, 3), {"padding": 1, "groups": 2}, False),
    ],
)
def test_few_channels_go_where_they_are_faster(
    shape: tuple[int, int, int, int], kernel: tuple[int, int], how: dict[str, Any], ours: bool
) -> None:
    groups = how.get("groups", 1)
    state = mf.conv_state(shape, (16, *kernel, 16 // groups), **how)
    spec = Spec(state.rows, state.cols, groups, False, NO_ACTIVATION, mx.default_stream(mx.cpu))
    assert routes.slow_in_cudnn(spec, 16, mx.zeros(shape)) == ours
