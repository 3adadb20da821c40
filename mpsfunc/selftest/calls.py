"""Calls of every public function on fixed numbers, and what came of them where every definition was tested.

The results are kept as a few sums each, in `sums.json`: of the float64 kernels of the C++ module, which the test
suite compares with definitions in NumPy. So a machine without the test suite, and a GPU that no developer has seen, can
be compared with them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

import mpsfunc as mf
from mpsfunc.core import launch
from mpsfunc.typing import NeuronName, OperandName, OperationName

Results = dict[str, Any]  # of arrays
KEPT = Path(__file__).with_name("sums.json")
TOLERANCE = 2e-5  # of the sum of magnitudes; one wrong entry of a thousand is a thousandth


class Values:
    """Numbers between -1 and 1 that every machine makes alike, and float32 holds exactly."""

    def __init__(self, dtype: mx.Dtype) -> None:
        self.dtype = dtype
        self._made = 0

    def __call__(self, *shape: int) -> mx.array:
        """The next numbers, in an array of this shape."""
        self._made += 1
        return mx.array(_numbers(int(np.prod(shape)), self._made).reshape(shape)).astype(self.dtype, stream=mx.cpu)

    def like(self, a: mx.array) -> mx.array:
        """As many numbers."""
        return self(*a.shape)

    def positive(self, *shape: int) -> mx.array:
        """Between a half and two and a half."""
        return self(*shape) + 1.5


def _numbers(count: int, seed: int) -> np.ndarray:
    bits = (np.arange(count, dtype=np.uint64) + np.uint64(1000003 * seed)) * np.uint64(2654435761) >> np.uint64(8)
    return np.asarray((bits % np.uint64(65521)).astype(np.float64) / 32768 - 1)


def _pooling(v: Values) -> Results:
    made: Results = {}
    ways: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("", 3, {"stride": 2, "padding": 1}),
        (" wide", (2, 3), {"dilation": (2, 1)}),
        (" by offset", 3, {"stride": 2, "offset": 0, "out_size": (5, 4)}),
    )
    zeros: dict[str, Any] = {"edge_mode": "clamp", "zero_pad": ((1, 0), (0, 2))}
    for label, size, how in ways:
        for name in ("avg_pool", "max_pool", "l2_pool"):
            for channels in (8, 3):
                x = v(2, 9, 8, channels)
                y, state = getattr(mf, f"{name}_fwd")(x, size, **how)
                dy, key = v.like(y), f"{label} of {channels}"
                made |= {f"{name}{key}": getattr(mf, name)(x, size, **how), f"{name}_fwd{key}": y}
                given = (dy, x, state) if name == "l2_pool" else (dy, state)
                made[f"{name}_grad{key}"] = getattr(mf, f"{name}_grad")(*given)
                if name == "avg_pool":
                    made[f"avg_pool with zeros{key}"] = mf.avg_pool(x, size, **how, **zeros)
                if name == "max_pool":
                    made[f"max_unpool{key}"] = mf.max_unpool(y, state)
                    made[f"max_pool_indices{key}"] = mf.max_pool_indices(state)
                    made[f"max_pool_grad_from_source{key}"] = mf.max_pool_grad_from_source(dy, x, size, **how)
    return made


def _convolutions(v: Values) -> Results:
    made: Results = {}
    for label, shape, w_shape, how in (
        ("", (2, 7, 8, 16), (16, 3, 3, 16), {"padding": 1}),
        (" strided", (2, 9, 8, 5), (6, 3, 2, 5), {"stride": 2, "dilation": (1, 2)}),
        (" in groups", (2, 6, 6, 8), (12, 3, 3, 2), {"groups": 4, "padding": 1}),
        (" of each channel", (2, 8, 8, 8), (8, 3, 3, 1), {"groups": 8, "padding": 1}),
        (" of pixels", (2, 6, 6, 32), (24, 1, 1, 32), {}),
        (" of three channels", (2, 8, 8, 3), (8, 3, 3, 3), {"padding": 1}),
    ):
        x, w, b = v(*shape), v(*w_shape), v(w_shape[0])
        y, state = mf.conv_fwd(x, w, b, neuron="relu", **how)
        dy, plain = v.like(y), mf.conv_state(x.shape, w.shape, **how)
        grown = mf.conv_grad_weights(dy, x, plain)
        dx, both = mf.conv_grad(dy, x, w, state)
        made |= {
            f"conv{label}": mf.conv(x, w, b, **how), f"conv_fwd{label}": y,
            f"conv_grad_input{label}": mf.conv_grad_input(dy, w, plain),
            f"conv_grad_weights{label}": grown.dw, f"conv_grad_weights{label}, bias": grown.db,
            f"conv_grad{label}": dx, f"conv_grad{label}, weights": both.dw,
        }  # fmt: skip
    x, w, b = v(2, 5, 4, 6), v(8, 3, 3, 6), v(8)
    y, back = mf.conv_transpose_fwd(x, w, b, stride=2, padding=1, output_padding=1)
    dy = v.like(y)
    grown_back = mf.conv_transpose_grad_weights(dy, x, back)
    dx, _ = mf.conv_transpose_grad(dy, x, w, back)
    x_flat, w_flat = v(3, 2, 2, 8), v(5, 2, 2, 8)
    z, flat = mf.fully_connected_fwd(x_flat, w_flat, v(5), neuron="sigmoid")
    dx_flat, grown_flat = mf.fully_connected_grad(v.like(z), x_flat, w_flat, flat)
    return made | {
        "conv_transpose": mf.conv_transpose(x, w, b, stride=2), "conv_transpose_fwd": y,
        "conv_transpose_grad_input": mf.conv_transpose_grad_input(dy, w, back),
        "conv_transpose_grad_weights": grown_back.dw, "conv_transpose_grad": dx,
        "fully_connected": mf.fully_connected(x_flat, w_flat), "fully_connected_fwd": z,
        "fully_connected_grad": dx_flat, "fully_connected_grad, weights": grown_flat.dw,
        "depth_to_space": mf.depth_to_space(v(1, 3, 2, 8), 2), "space_to_depth": mf.space_to_depth(v(1, 4, 6, 3), 2),
    }  # fmt: skip


def _batch_norm(v: Values) -> Results:
    made: Results = {}
    rows: tuple[tuple[str, NeuronName | None, tuple[int, ...]], ...]
    rows = (("", None, (3, 6, 5, 8)), (" and relu", "relu", (3, 6, 5, 7)))
    for label, neuron, shape in rows:
        x, gamma, beta = v(*shape), v.positive(shape[-1]), v(shape[-1])
        state = mf.bn_stats(x)
        y = mf.bn_normalize(x, state, gamma, beta, neuron=neuron)
        dy = v.like(y)
        done = mf.bn_stats_grad(dy, x, state, gamma, beta, neuron=neuron)
        z, after = mf.batch_norm_fwd(x, gamma, beta, neuron=neuron)
        made |= {
            f"bn_stats{label}, mean": state.mean, f"bn_stats{label}, var": state.var, f"bn_normalize{label}": y,
            f"bn_stats_grad{label}, gamma": done.dgamma, f"bn_stats_grad{label}, beta": done.dbeta,
            f"bn_grad{label}": mf.bn_grad(dy, x, done, gamma, beta, neuron=neuron), f"batch_norm_fwd{label}": z,
            f"batch_norm{label}": mf.batch_norm(x, gamma, beta, neuron=neuron),
            f"bn_running{label}": mf.bn_running(mf.bn_frozen(beta, gamma), after).var,
            f"bn_merge{label}": mf.bn_merge(state, mf.bn_stats(y)).var, f"bn_reset{label}": mf.bn_reset(done).dgamma,
        }  # fmt: skip
    return made


def _norms(v: Values) -> Results:
    x, gamma, beta = v(3, 7, 6, 8), v.positive(8), v(8)
    made: Results = {}
    for name, more in (("instance_norm", ()), ("group_norm", (2,))):
        y, state = getattr(mf, f"{name}_fwd")(x, *more, gamma, beta)
        dx, after = getattr(mf, f"{name}_grad")(v.like(y), x, state, gamma)
        made |= {f"{name}": getattr(mf, name)(x, *more, gamma, beta), f"{name}_fwd": y, f"{name}_grad": dx}
        made[f"{name}_grad, gamma"] = after.dgamma
    for name in ("cross_channel_norm", "spatial_norm", "local_contrast_norm"):
        for size, beta_of in ((3, 0.75), (4, 0.5)):
            how: dict[str, Any] = {"alpha": 0.5, "beta": beta_of, "delta": 1.25}
            y, window = getattr(mf, f"{name}_fwd")(x, size, **how)
            key = f" of {size}"
            made |= {f"{name}{key}": getattr(mf, name)(x, size, **how), f"{name}_fwd{key}": y}
            made[f"{name}_grad{key}"] = getattr(mf, f"{name}_grad")(v.like(y), x, window)
    return made


def _pointwise(v: Values) -> Results:
    x = v(2, 5, 4, 8) * 3
    dy = v.like(x)
    made: Results = {}
    rows: tuple[tuple[NeuronName, tuple[float, ...]], ...] = (
        ("relu", (0.1,)), ("linear", (2.0, 1.0)), ("sigmoid", ()), ("hard_sigmoid", (0.3, 0.4)), ("tanh", (1.5, 0.5)),
        ("absolute", ()), ("softplus", (1.0, 2.0)), ("softsign", ()), ("elu", (0.5,)), ("relun", (0.1, 2.0)),
        ("gelu", ()),
    )  # fmt: skip
    for name, more in rows:
        made[name] = getattr(mf, name)(x, *more)
        made[f"neuron_grad of {name}"] = mf.neuron_grad(dy, x, name, *more)
    above = v.positive(2, 5, 4, 8)
    rows = ("power", (1.5,)), ("exponential", ()), ("logarithm", ())
    for name, of in rows:
        made[name] = getattr(mf, name)(above, *of)
        made[f"neuron_grad of {name}"] = mf.neuron_grad(dy, above, name, *of)
    slopes = v(8)
    made["neuron"], made["prelu"] = mf.neuron(x, "prelu", slopes), mf.prelu(x, slopes)
    made["prelu_grad"], made["prelu_grad, slopes"] = mf.prelu_grad(dy, x, slopes)
    for softmax in ("softmax", "log_softmax"):
        for axis in (-1, 1):
            y = getattr(mf, softmax)(x, axis)
            made |= {
                f"{softmax} of axis {axis}": y,
                f"{softmax}_grad of axis {axis}": getattr(mf, f"{softmax}_grad")(dy, y, axis),
            }
    kept, state = mf.dropout_fwd(x, keep_probability=0.75, seed=7)
    mask = mf.dropout_mask(x.shape, keep_probability=0.5, seed=3)
    made |= {
        "dropout_fwd": kept, "dropout": mf.dropout(x, p=0.5, seed=9), "dropout_grad": mf.dropout_grad(dy, state),
        "dropout_mask": mask, "dropout by a mask": mf.dropout(x, p=0.5, mask=mask),
    }  # fmt: skip
    row = v.positive(1, 1, 1, 8)
    operations: tuple[OperationName, ...] = ("add", "subtract", "multiply", "divide")
    operands: tuple[OperandName, ...] = ("primary", "secondary")
    for operation in operations:
        made[operation] = getattr(mf, operation)(x, row)
        for operand in operands:
            dx = mf.arithmetic_grad(dy, x, row, operation, operand=operand)
            made[f"arithmetic_grad of {operation}, {operand}"] = dx
    made["arithmetic"] = mf.arithmetic(x, row, "multiply", primary_scale=2.0, bias=1.0, minimum=-1.0, maximum=2.0)
    made["compare"] = mf.compare(x, row, "less")
    return made


def _losses(v: Values) -> Results:
    made: Results = {}
    t, weights = v(3, 4, 6) * 0.5 + 0.5, v.positive(3, 4, 6)
    for type in (
        *("mean_absolute_error", "mean_squared_error", "softmax_cross_entropy", "sigmoid_cross_entropy"),
        *("categorical_cross_entropy", "hinge", "huber", "cosine_distance", "log", "kullback_leibler"),
    ):
        y = v(3, 4, 6)
        if type in ("categorical_cross_entropy", "log"):
            y = y * 0.25 + 0.5
        value, gradient = mf.loss(y, t, type, "sum")
        made |= {f"loss of {type}": value, f"loss of {type}, gradient": gradient}
        made[f"loss_value of {type}"] = mf.loss_value(y, t, type, "sum")
        made[f"loss_grad of {type}"] = mf.loss_grad(y, t, type, divided=True)
    y = v(3, 4, 6)
    made["loss of weighted elements"] = mf.loss(y, t, "mean_squared_error", "mean", weights=weights)[0]
    made["loss_fwd"] = mf.loss_fwd(y, t, "huber", "sum_by_non_zero_weights", weights=weights)[0]
    long, labels = v(2, 3, 700), mx.array([[5, 699, 3], [0, 1, 2]], mx.uint32)
    made["loss of labels"], made["loss of labels, gradient"] = mf.loss(long, labels, "softmax_cross_entropy", "sum")
    made["loss of each element"] = mf.loss(long, v.like(long), "huber", "none")[0]
    return made


def _images(v: Values) -> Results:
    made: Results = {}
    x = v(2, 5, 4, 8)
    for name, how in (
        ("upsample_nearest", {"scale": (2, 3)}), ("upsample_bilinear", {"scale": 2}),
        ("resize_nearest", {"out_size": (3, 7)}), ("resize_bilinear", {"out_size": (8, 3), "align_corners": True}),
    ):  # fmt: skip
        y, state = getattr(mf, f"{name}_fwd")(x, **how)
        made |= {name: getattr(mf, name)(x, **how), f"{name}_fwd": y}
        made[f"{name}_grad"] = getattr(mf, f"{name}_grad")(v.like(y), state)
    for mode in ("constant", "clamp", "mirror"):
        y, padded = mf.pad_fwd(x, (1, 2, 0), (0, 1, 3), mode)
        made |= {f"pad_fwd, {mode}": y, f"pad_grad, {mode}": mf.pad_grad(v.like(y), padded)}
    made["pad"] = mf.pad(x, 1, 1, value=0.5)
    made["concatenate"] = mf.concatenate([x, v(2, 5, 4, 3)], pad_to_multiple=4)
    for i, part in enumerate(mf.concatenate_grad(v(2, 5, 4, 12), (8, 3), pad_to_multiple=4)):
        made[f"concatenate_grad, {i}"] = part
    made |= {
        "slice_channels": mf.slice_channels(x, 2, 7),
        "slice_channels_grad": mf.slice_channels_grad(v(2, 5, 4, 3), 2, 9), "spatial_mean": mf.spatial_mean(x),
        "spatial_mean_grad": mf.spatial_mean_grad(v(2, 1, 1, 8), x.shape),
    }  # fmt: skip
    w, b = mf.fold_batch_norm(v(6, 3, 3, 4), v(6), v(6), v(6), v(6), v.positive(6))
    q = mx.array((_numbers(6 * 9 * 4, 99).reshape(6, 3, 3, 4) * 127 + 128).astype(np.uint8))
    low, high = v(6), v.positive(6)
    made |= {"fold_batch_norm": w, "fold_batch_norm, bias": b}
    made["dequantize_weights"] = mf.dequantize_weights(q, low=low, high=high, dtype=v.dtype)
    return made


def _derivatives(v: Values) -> Results:
    """Tangents, and derivatives of derivatives, which have kernels of their own."""
    made: Results = {}
    x = v(2, 6, 5, 8)
    for name in ("avg_pool", "max_pool", "l2_pool"):
        made[f"tangent of {name}"] = mx.jvp(lambda x, name=name: getattr(mf, name)(x, 2), [x], [v.like(x)])[1][0]
    for name in ("sigmoid", "tanh", "gelu", "softplus"):
        made[f"second derivative of {name}"] = _curvature(getattr(mf, name), x)
    made["second derivative of softmax"] = _curvature(lambda x: mf.softmax(x) * x, x)
    return made


def _curvature(function: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
    slope = mx.grad(lambda x: function(x).sum())
    curvature: mx.array = mx.grad(lambda x: (slope(x) * x).sum())(x)
    return curvature


FAMILIES: dict[str, Callable[[Values], Results]] = {
    "pooling": _pooling,
    "convolutions": _convolutions,
    "batch normalization": _batch_norm,
    "other normalizations": _norms,
    "activations, dropout and arithmetic": _pointwise,
    "losses": _losses,
    "images and weights": _images,
    "derivatives of derivatives": _derivatives,
}


class Family(NamedTuple):
    """What became of a family's calls."""

    name: str
    calls: int
    wrong: tuple[str, ...]  # by name, with what was found
    error: str = ""  # what ended it


def test(device: mx.Device) -> Iterator[Family]:
    """Runs every family on a device.

    Args:
        device: Where.

    Yields:
        What became of each.
    """
    kept = json.loads(KEPT.read_text())
    runs: list[tuple[str, Callable[[Values], Results], Any]] = [(*each, _ours) for each in FAMILIES.items()]
    if device == mx.Device(mx.gpu):
        _compile_ahead(device)
        runs.append(("convolutions, by the vendor's library", _convolutions, contextlib.nullcontext))
    for name, family, kernels in runs:
        try:
            with kernels(), _uncompiled(), mx.stream(device):
                results = family(Values(mx.float32))
                found = {call: _off(sums(a), kept[call]) for call, a in results.items()}
        except Exception as error:  # a stranger's machine may fail in any way, and shall say how
            yield Family(name, 0, (), f"{type(error).__name__}: {error}")
        else:
            wrong = (f"{call}: off by {off:.1e}" for call, off in found.items() if not off <= TOLERANCE)
            yield Family(name, len(found), tuple(wrong))


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Without kernels that MLX would make of its own operations, a second or so each: none of them is ours."""
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


def _compile_ahead(device: mx.Device) -> None:
    """Kernels for NVIDIA, which would take minutes one by one; what fails here is told by its family."""
    with contextlib.suppress(Exception), _ours(), _uncompiled(), mx.stream(device):
        if launch.backend(launch.resolve(None)) == "cuda":
            launch.compiled_ahead(lambda: [family(Values(mx.float32)) for family in FAMILIES.values()])


def sums(a: mx.array) -> list[float]:
    """The sum of magnitudes, and three sums with weights."""
    flat = np.array(a.astype(mx.float32) if a.dtype in (mx.bool_, mx.bfloat16) else a).astype(np.float64).ravel()
    return [float(abs(flat).sum()), *(float(flat @ _numbers(flat.size, -seed % 997)) for seed in (1, 2, 3))]


def _off(found: list[float], kept: list[float]) -> float:
    return max(abs(f - k) for f, k in zip(found, kept, strict=True)) / max(kept[0], 1e-3)


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Our own kernels, where the vendor's would be taken."""
    before = os.environ.get("MPSFUNC_DETERMINISTIC")
    os.environ["MPSFUNC_DETERMINISTIC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MPSFUNC_DETERMINISTIC"]
        else:
            os.environ["MPSFUNC_DETERMINISTIC"] = before


def keep() -> None:
    """Writes what the float64 kernels of this machine's CPU compute; for developers, whose tests check that first."""
    results: dict[str, list[float]] = {}
    with mx.stream(mx.cpu):
        for family in FAMILIES.values():
            results |= {call: sums(a) for call, a in family(Values(mx.float64)).items()}
    KEPT.write_text(json.dumps(results, indent=0) + "\n")
