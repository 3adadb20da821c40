"""Convolutions, poolings and norms of sequences (n, l, c): those of images of one row, whose files have the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, OpInfo, Sample, Wrong, call
from generic.ops import conv as conv_records
from generic.ops import conv_transpose as transposed_records
from support import numbers
from support.benchmarks import FLOAT32, LEVEL, Benchmark, Measured
from support.oracle import pooling as oracle

import mpsfunc as mf
from mpsfunc.windows.axis import MAX_EDGE_MODES
from mpsfunc.windows.placement import place

X, W, B = Array((2, 7, 4)), Array((6, 3, 4)), Array((6,))
GIVEN, WEIGHTS = numbers((2, 7, 4)), numbers((6, 3, 4))
NO_NODE = "MPS has images only, whose node takes them with one row"
HOW: dict[str, Any] = {"stride": 2, "padding": (2, 1), "dilation": 2}


def _pairs(how: dict[str, Any]) -> dict[str, Any]:
    """The arguments along the columns of one row."""
    given = dict(how)
    for name, of_rows in (("stride", 1), ("dilation", 1), ("kernel_size", 1), ("output_padding", 0), ("out_size", 1)):
        if isinstance(given.get(name), int):
            given[name] = of_rows, given[name]
    for name in ("padding", "zero_pad"):
        sides = given.get(name)
        if sides is not None and not isinstance(sides, str):
            given[name] = (0, 0), (sides, sides) if isinstance(sides, int) else sides
    return given


def _of_images(made: Callable[..., Any], x: np.ndarray, w: np.ndarray, *b: np.ndarray, **how: Any) -> np.ndarray:
    """What a definition makes of images and weights of one row."""
    return np.asarray(made(x[:, None], w[:, None], *b, **_pairs(how)))[:, 0]


def _windows(x: np.ndarray, size: Any, how: dict[str, Any], default: str) -> Any:
    modes: Any = MAX_EDGE_MODES
    given = {"edge_mode": default} | _pairs(how | {"kernel_size": size})
    return place("avg_pool1d", (1, x.shape[1]), given.pop("kernel_size"), edge_modes=modes, **given)


def _averages(x: np.ndarray, size: Any, *, divisor_override: int = 0, **how: Any) -> np.ndarray:
    rows, cols = _windows(x, size, how, "zero")
    if divisor_override:
        whole = [axis._replace(edge=0) for axis in (rows, cols)]
        return oracle.avg_pool(x[:, None], *whole)[:, 0] * (cols.size / divisor_override)
    return oracle.avg_pool(x[:, None], rows, cols)[:, 0]


def _maxima(x: np.ndarray, size: Any, **how: Any) -> np.ndarray:
    return oracle.max_pool(x[:, None], *_windows(x, size, how, "exclude"))[0][:, 0]


def _norms(x: np.ndarray, size: Any, **how: Any) -> np.ndarray:
    return oracle.l2_pool(x[:, None], *_windows(x, size, how, "zero"))[:, 0]


def _normalized(
    axes: tuple[int, ...], x: np.ndarray, gamma: Any = 1.0, beta: Any = 0.0, *, eps: float = 1e-5
) -> np.ndarray:
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * gamma + beta


def _in_groups(x: np.ndarray, groups: int, gamma: Any = 1.0, beta: Any = 0.0, *, eps: float = 1e-5) -> np.ndarray:
    split = x.reshape(*x.shape[:2], groups, -1)
    return _normalized((1, 3), split, eps=eps).reshape(x.shape) * gamma + beta


def _wrong_values(name: str, *more: Any) -> Iterator[Wrong]:
    function = getattr(mf, name)
    yield "not a batch of sequences", partial(function, numbers((2, 1, 7, 4)), *more)
    yield "not a batch of sequences", partial(function, numbers((7, 4)), *more)
    yield "a sequence has no elements", partial(function, mx.zeros((2, 0, 4)), *more)
    huge = mx.broadcast_to(mx.zeros((1, 1, 1)), (1, 2**20, 2**11))
    yield "a sequence is too large", partial(function, huge, *more)


def _wrong_steps(name: str, *more: Any, names: str = "stride dilation") -> Iterator[Wrong]:
    function = partial(getattr(mf, name), GIVEN, *more)
    for each in names.split():
        yield f"{each} is too small", partial(function, **{each: 0})
    yield "padding is negative", partial(function, padding=-1)
    yield "padding is negative", partial(function, padding=(0, -1))
    yield "padding is not a pair", partial(function, padding=(1, 1, 1))
    yield "unknown padding", partial(function, padding="most")


def _wrong_types(name: str, *more: Any, names: str = "stride dilation padding") -> Iterator[Wrong]:
    function = getattr(mf, name)
    yield "x is not an array", partial(function, [1.0], *more)
    if not name.startswith("max_pool"):
        yield "x has no floating dtype", partial(function, GIVEN.astype(mx.int32), *more)
    for each in names.split():
        yield f"{each} is not an int", partial(function, GIVEN, *more, **{each: 1.5})


# What is measured; gradients of what is not linear come with the result, which `mx.vjp` makes for them.


def _row(of_x: int, of_y: int, given: tuple[str, ...] = (), title: str = "", **how: Any) -> Benchmark:
    measured = Measured(how, LEVEL, FLOAT32, shape=(8, 56 * 56, 64))
    return Benchmark("sequences", of_x, of_y, given, title=title, cpu=(measured,))


def _conv_rows(name: str, how: dict[str, Any]) -> dict[str, Benchmark]:
    names = (name, f"{name}_grad_input", f"{name}_grad_weights")
    return {each: _row(1, 1, ("w",), **how) for each in names}


def _pool_rows(name: str) -> dict[str, Benchmark]:
    how = {"kernel_size": 3, "stride": 2, "padding": 1}
    if name == "avg_pool1d":
        return {each: _row(1, 1, **how) for each in (name, f"{name}_grad")}
    passes = 2 if name == "max_pool1d" else 3
    return {name: _row(1, 1, **how), f"{name}_grad": _row(passes, 2, title=f"{name} and its gradient", **how)}


def _norm_rows(name: str) -> dict[str, Benchmark]:
    how = {"groups": 8} if name == "group_norm1d" else {}
    both = _row(5, 3, ("gamma", "beta"), f"{name} and its gradient", **how)
    return {name: _row(2, 1, ("gamma", "beta"), **how), f"{name}_grad": both}


def _pool(name: str, reference: Any, more: dict[str, Any], *wrong: Wrong) -> OpInfo:
    function = getattr(mf, name)
    return OpInfo(
        name=name,
        samples={
            "": call(name, X, 3, **HOW),
            "of the same length": call(name, X, 2, stride=2, padding="same_lower"),
            "clamped": call(name, X, 3, stride=3, padding=1, edge_mode="clamp", ceil_mode=True, **more),
            "adaptively": call(name, X, "adaptive", out_size=3),
            "globally": call(name, X, "global"),
            "of eight channels": Sample(call(name, Array((3, 20, 8)), 3, stride=2), in_matrix=False),
        },
        reference=reference,
        linear=(0,) if name == "avg_pool1d" else (),
        takes_integers=name == "max_pool1d",
        slack=2 if name == "l2_pool1d" else 1,
        wrong_values=(
            *_wrong_values(name, 2),
            *_wrong_steps(name, 2),
            ("kernel_size is too small", lambda: function(GIVEN, 0)),
            ("window does not fit", lambda: function(GIVEN, 8)),
            ("unknown edge_mode", lambda: function(GIVEN, 2, edge_mode="mirror")),
            ("unknown kernel_size", lambda: function(GIVEN, "all")),
            ("out_size goes with adaptive windows", lambda: function(GIVEN, 2, out_size=3)),
            ("kernel_size='adaptive' needs out_size", lambda: function(GIVEN, "adaptive")),
            ("kernel_size='global' places the windows alone", lambda: function(GIVEN, "global", stride=2)),
            ("kernel_size='global' has one window", lambda: function(GIVEN, "global", out_size=2)),
            *wrong,
        ),
        wrong_types=(
            *_wrong_types(name, 2),
            ("kernel_size is not an int", lambda: function(GIVEN, (2, 2))),
            ("out_size is not an int", lambda: function(GIVEN, "adaptive", out_size=(1, 2))),
            ("ceil_mode is not a bool", lambda: function(GIVEN, 2, ceil_mode=1)),
        ),
        benchmarks=_pool_rows(name),
        no_node=NO_NODE,
    )


def _norm(name: str, reference: Any, *more: Any) -> OpInfo:
    function = getattr(mf, name)
    scale, shift = Array((4,)), Array((4,))
    return OpInfo(
        name=name,
        samples={
            "": call(name, Array((3, 5, 4)), *more, scale, shift, eps=0.1),
            "of eight channels": Sample(call(name, Array((3, 20, 8)), *more), in_matrix=False),
        },
        reference=reference,
        slack=4,
        wrong_values=(
            *_wrong_values(name, *more),
            *((("no elements to take statistics of", lambda: function(GIVEN[:0])),) if name[0] == "b" else ()),
            ("gamma does not fit the channels", lambda: function(GIVEN, *more, mx.ones(3))),
            ("eps is out of range", lambda: function(GIVEN, *more, eps=-1.0)),
            ("unknown neuron", lambda: function(GIVEN, *more, neuron="maxout")),
            *((("groups do not divide the channels", lambda: function(GIVEN, 3)),) if more else ()),
        ),
        wrong_types=(
            *_wrong_types(name, *more, names=""),
            ("eps is not a number", lambda: function(GIVEN, *more, eps="1")),
            *((("groups is not an int", lambda: function(GIVEN, None)),) if more else ()),
        ),
        benchmarks=_norm_rows(name),
        no_node=NO_NODE,
    )


OPS = (
    OpInfo(
        name="conv1d",
        samples={
            "": call("conv1d", X, W, B, **HOW),
            "reflected in groups": call(
                "conv1d", X, Array((6, 4, 2)), padding=(3, 2), groups=2, padding_mode="reflect"
            ),
            "going round": call("conv1d", X, W, padding="same_lower", dilation=3, padding_mode="circular"),
            "with a tanh": call("conv1d", X, W, B, padding="full", neuron="tanh"),
            "of eight channels": Sample(
                call("conv1d", Array((3, 20, 8)), Array((16, 3, 8)), padding=1, neuron="relu"), in_matrix=False
            ),
        },
        reference=partial(_of_images, conv_records.convolved),
        slack=2,
        wrong_values=(
            *_wrong_values("conv1d", WEIGHTS),
            *_wrong_steps("conv1d", WEIGHTS),
            ("the weights do not fit the sequences", lambda: mf.conv1d(GIVEN, WEIGHTS[..., :3])),
            ("the weights do not fit the sequences", lambda: mf.conv1d(GIVEN, WEIGHTS[:, None])),
            ("the weights do not fit the sequences", lambda: mf.conv1d(GIVEN, WEIGHTS[:0])),
            ("the weights do not fit the sequences", lambda: mf.conv1d(GIVEN, WEIGHTS, groups=2)),
            ("the bias does not fit the weights", lambda: mf.conv1d(GIVEN, WEIGHTS, mx.ones(5))),
            ("window does not fit", lambda: mf.conv1d(GIVEN, WEIGHTS, dilation=4)),
            ("groups do not divide the channels", lambda: mf.conv1d(GIVEN, WEIGHTS, groups=3)),
            ("groups do not divide the output channels", lambda: mf.conv1d(GIVEN, WEIGHTS[:5, :, :2], groups=2)),
            ("unknown padding_mode", lambda: mf.conv1d(GIVEN, WEIGHTS, padding_mode="mirror")),
            (
                "the margin is wider than the image",
                lambda: mf.conv1d(GIVEN, WEIGHTS, padding=7, padding_mode="reflect"),
            ),
            ("unknown neuron", lambda: mf.conv1d(GIVEN, WEIGHTS, neuron="maxout")),
        ),
        wrong_types=(
            *_wrong_types("conv1d", WEIGHTS),
            ("w is not an array", lambda: mf.conv1d(GIVEN, 3)),
            ("groups is not an int", lambda: mf.conv1d(GIVEN, WEIGHTS, groups=2.0)),
        ),
        benchmarks=_conv_rows("conv1d", {"kernel_size": 3, "padding": 1}),
        no_node=NO_NODE,
    ),
    OpInfo(
        name="conv_transpose1d",
        samples={
            "": call("conv_transpose1d", X, W, B, stride=2, padding=(1, 0), output_padding=1),
            "in groups": call("conv_transpose1d", X, Array((6, 3, 2)), dilation=2, groups=2, neuron="tanh"),
            "of eight channels": Sample(
                call("conv_transpose1d", Array((3, 20, 8)), Array((16, 3, 8)), stride=2), in_matrix=False
            ),
        },
        reference=partial(_of_images, transposed_records.transposed),
        slack=2,
        wrong_values=(
            *_wrong_values("conv_transpose1d", WEIGHTS),
            *_wrong_steps("conv_transpose1d", WEIGHTS),
            ("the weights do not fit the sequences", lambda: mf.conv_transpose1d(GIVEN, WEIGHTS[..., :3])),
            ("nothing is left of the output", lambda: mf.conv_transpose1d(GIVEN, WEIGHTS, padding=5)),
            ("output_padding is too large", lambda: mf.conv_transpose1d(GIVEN, WEIGHTS, output_padding=1)),
            ("output_padding is too small", lambda: mf.conv_transpose1d(GIVEN, WEIGHTS, output_padding=-1)),
            (
                "output_padding is for padding in pixels",
                lambda: mf.conv_transpose1d(GIVEN, WEIGHTS, stride=2, padding="same", output_padding=1),
            ),
        ),
        wrong_types=tuple(_wrong_types("conv_transpose1d", WEIGHTS, names="stride dilation padding output_padding")),
        benchmarks=_conv_rows("conv_transpose1d", {"kernel_size": 4, "stride": 2, "padding": 1}),
        no_node=NO_NODE,
    ),
    _pool(
        "avg_pool1d",
        _averages,
        {"zero_pad": (1, 0)},
        ("zero_pad is negative", lambda: mf.avg_pool1d(GIVEN, 2, zero_pad=-1)),
        ("divisor_override is out of range", lambda: mf.avg_pool1d(GIVEN, 2, divisor_override=0)),
    ),
    _pool("max_pool1d", _maxima, {}, ("a window contains no pixel", lambda: mf.max_pool1d(GIVEN, 2, padding=2))),
    _pool("l2_pool1d", _norms, {}),
    _norm("batch_norm1d", partial(_normalized, (0, 1))),
    _norm("instance_norm1d", partial(_normalized, (1,))),
    _norm("group_norm1d", _in_groups, 2),
)
