"""Convolution, `conv`, and what the records of its gradients share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, READS, SHAPE, VECTOR, WEIGHTS
from support import close, exact, numbers
from support.benchmarks import BOTH, DTYPES, FLOAT32, LEVEL, PYTORCH, Benchmark, Measured, Target
from support.oracle import activation as oracle_activation
from support.oracle import convolution as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.channels.activation_spec import ELU, NAMES, NO_ACTIVATION, RELU, SIGMOID, TANH, Activation
from mpsfunc.convolution import rules
from mpsfunc.convolution.spec import Spec

# Samples, and what they should give ----------------------------------------------------------------------

SMALL, OUT = (2, 5, 4, 4), 6
CONV: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (1, 2)), "dilation": (1, 2)}
NOTHING = Fixed(())  # what a state without a neuron has of one


class Kind(NamedTuple):
    """Shapes of images and weights, and where the windows sit."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    how: dict[str, Any]

    @property
    def y(self) -> tuple[int, ...]:
        rows, cols = mf.conv_state(self.x, self.w, **self.how)[-2:]
        return self.x[0], rows.n_out, cols.n_out, self.w[0]

    @property
    def state(self) -> Call:
        return call("conv_state", self.x, self.w, **self.how)

    def arrays(self, *names: str, of: Any = "numbers", wide: bool = False) -> tuple[Array, ...]:
        shapes = {"x": self.x, "w": self.w, "b": self.w[:1], "dy": self.y, "y": self.y}
        return tuple(Array(shapes[name], of, wide) for name in names)

    def state_of(
        self, neuron: str = "", *more: float, y: Any = NOTHING, slopes: Any = NOTHING, moves: bool = True
    ) -> Call:
        """A state whose arrays are arguments: what tells the neuron's slope, and gradients that do as ``moves`` says.

        Gradients are added to them, except where only images are asked for.
        """
        grown = Array(self.w, wide=True, moves=moves), Array(self.w[:1], wide=True, moves=moves)
        axes = (call("conv_state", self.x, self.w, take=take, **self.how) for take in (10, 11))
        a, b, c = (*more, 0.0, 0.0, 0.0)[:3]
        groups = self.how.get("groups", 1)
        return call("ConvState", *grown, y, slopes, "conv", neuron, a, b, c, groups, *axes)


KINDS = {
    "": Kind(SMALL, (OUT, 3, 2, 4), CONV),
    "in 2 groups": Kind(SMALL, (OUT, 3, 2, 2), {**CONV, "groups": 2}),
    "clamped": Kind(SMALL, (OUT, 3, 2, 4), {**CONV, "edge_mode": "clamp"}),
    "reflected": Kind(SMALL, (OUT, 3, 2, 4), {**CONV, "padding_mode": "reflect"}),
    "going round": Kind((2, 3, 4, 4), (OUT, 3, 2, 2), {"padding": (3, 1), "padding_mode": "circular", "groups": 2}),
}
# Kernels of every kind.
LARGER = {
    "of 16 channels": Kind((2, 7, 8, 16), (16, 3, 3, 16), {"padding": 1}),
    "of odd sizes": Kind((2, 9, 8, 5), (6, 3, 2, 5), {"stride": 2, "dilation": (1, 2)}),
    "in 4 groups": Kind((2, 6, 6, 8), (12, 3, 3, 2), {"groups": 4, "padding": 1}),
    "of each channel": Kind((2, 8, 8, 8), (8, 3, 3, 1), {"groups": 8, "padding": 1}),
    "of each channel twice": Kind((2, 5, 6, 3), (6, 2, 3, 1), {"groups": 3, "stride": (1, 2)}),
    "of pixels": Kind((2, 6, 6, 32), (24, 1, 1, 32), {}),
    "of three channels": Kind((2, 8, 8, 3), (8, 3, 3, 3), {"padding": 1}),
}
PLAIN, POOLING = KINDS[""], Kind(SMALL, (4, 3, 3, 4), {"stride": 2, "padding": 1})
# What has neurons behind it.
ACTIVE = Kind((2, 3, 4, 3), (4, 2, 2, 3), {})
# One that no kernel of a convolution applies, and those that they do; only a relu's result tells its slope.
NEURONS: dict[str, tuple[Any, ...]] = {
    "a gelu": ("gelu",),
    "a sigmoid": ("sigmoid",),
    "a leaky relu": ("relu", 0.3),
    "a tanh": ("tanh", -1.3, 0.7),
    "an elu": ("elu", 0.6),
}


def labelled(*parts: str) -> str:
    return " ".join(filter(None, parts))


def active(function: str, *args: Any) -> dict[str, Call]:
    """A forward call with each neuron."""
    return {f"with {label}": call(function, *args, neuron=call("Neuron", *how)) for label, how in NEURONS.items()}


def larger(made: Callable[[Kind], Call], outputs: tuple[int, ...] | None = None) -> dict[str, Sample]:
    return {label: Sample(made(kind), outputs, in_matrix=False) for label, kind in LARGER.items()}


def axes(shape: tuple[int, ...], w_shape: tuple[int, ...], **how: Any) -> Any:
    """Where windows sit, which tests/windows compares with MPS's rules."""
    return mf.conv_state(shape, w_shape, **how)[-2:]


def named_neuron(neuron: Any) -> tuple[str, dict[str, Any]]:
    """The type and the parameters of what a call names."""
    if neuron is None:
        return "none", {}
    given = (neuron,) if isinstance(neuron, str) else neuron.args
    return given[0], dict(zip("abc", given[1:], strict=False))


def activated(z: np.ndarray, neuron: Any) -> np.ndarray:
    kind, parameters = named_neuron(neuron)
    return oracle_activation.neuron(z, kind, **parameters)


def with_kept(z: np.ndarray, neuron: str) -> tuple[np.ndarray, ...]:
    """A forward call's images, and what else its state keeps for the neuron's slope: of a relu nothing else."""
    y = activated(z, neuron)
    return (y,) if neuron == "relu" else (y, z)


def summed(x: np.ndarray, w: np.ndarray, b: Any = 0.0, *, groups: int = 1, neuron: Any = None, **how: Any) -> Any:
    return oracle.conv(x, w, b, *axes(x.shape, w.shape, groups=groups, **how), groups)


def convolved(*args: Any, neuron: Any = None, **how: Any) -> np.ndarray:
    return activated(summed(*args, **how), neuron)


def before_neuron(dy: np.ndarray, state: Call, before: Callable[..., np.ndarray] = summed) -> np.ndarray:
    """dy times the slope of a state's neuron; ``before`` is what such a state's forward call activates."""
    if state.function == "conv_state":
        return dy
    if state.function in ("ConvState", "ConvTransposeState"):
        _, _, z, slopes, _, kind, *parameters = state.args
        if kind == "prelu":
            return dy * oracle_activation.slope(z, kind, a=slopes)
        given = dict(zip("abc", parameters, strict=False))
        if kind == "relu":  # its state has its results, of which 0 has the slope of those below
            return dy * np.where(z > 0, 1, given["a"])
        return dy * (oracle_activation.slope(z, kind, **given) if kind else 1)
    kind, given = named_neuron(state.how.get("neuron"))
    return dy * oracle_activation.slope(before(*state.args, **state.how), kind, **given)


def so_far(state: Call) -> Any:
    """The gradients of the weights and the bias that a state holds."""
    return state.args[:2] if state.function in ("ConvState", "ConvTransposeState") else (0, 0)


def windows(state: Call) -> tuple[Any, Any, int]:
    """Where a convolution's windows sit by its state, and the groups."""
    if state.function == "ConvState":
        *_, groups, rows, cols = state.args
        return (*(axes(*each.args, **each.how)[each.take - 10] for each in (rows, cols)), groups)
    (shape, w_shape), how = state.args[:2], {key: value for key, value in state.how.items() if key != "neuron"}
    if state.function == "conv_fwd":
        shape, w_shape = shape.shape, w_shape.shape
    return *axes(shape, w_shape, **how), how.get("groups", 1)


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
_ACTIVATIONS = (
    Activation(RELU),
    Activation(RELU, 0.25),
    Activation(SIGMOID),
    Activation(TANH, 1.5, 0.75),
    Activation(ELU, 1.25),
)
# Shape and dtype of images, output channels and window; options.
GEOMETRIES: tuple[tuple[tuple[int, ...], mx.Dtype, int, tuple[int, int], dict[str, Any]], ...] = (
    ((2, 5, 6, 3), F32, 5, (3, 2), {"stride": 2, "padding": 1}),
    ((1, 6, 5, 8), F16, 4, (2, 3), {"groups": 2, "dilation": (2, 1), "padding": (1, 2)}),
    ((2, 4, 3, 4), BF16, 8, (3, 3), {"groups": 2, "padding": "same"}),
    ((1, 2, 3, 1), F32, 1, (1, 2), {}),
    ((1, 2, 2, 1), F16, 2, (2, 1), {"stride": 2, "offset": (-2, 3), "out_size": (3, 1)}),
    ((3, 14, 13, 2), F32, 70, (2, 1), {}),  # more than a tile of pixels, of outputs and of partial sums
    ((2, 7, 5, 70), F32, 3, (1, 2), {"padding": (0, 1)}),  # and of inputs
    # Whole matrices, and four channels a load.
    ((2, 4, 5, 12), F32, 20, (3, 3), {"padding": 1, "stride": (1, 2)}),
    ((1, 23, 23, 1), F32, 100, (1, 1), {"crowded": True}),
    # A group for every channel.
    ((2, 5, 6, 8), F32, 8, (3, 3), {"groups": 8, "padding": 1}),  # four channels a load
    ((2, 7, 9, 3), F32, 6, (2, 3), {"groups": 3, "stride": (2, 3), "padding": (1, 2), "dilation": (2, 1)}),
    ((1, 6, 5, 12), F16, 12, (3, 2), {"groups": 12, "stride": 2, "padding": "same"}),
    ((1, 4, 3, 4), BF16, 8, (3, 3), {"groups": 4, "padding": "same"}),
    ((1, 1, 3, 2), F32, 2, (1, 2), {"groups": 2}),  # in constant memory
    # Windows outside.
    ((2, 4, 6, 2), F16, 2, (2, 2), {"groups": 2, "stride": 2, "offset": (-3, 4), "out_size": (4, 3)}),
    ((3, 6, 9, 64), F32, 128, (2, 1), {"groups": 64, "crowded": True}),
)


def prepared(
    shape: tuple[int, ...], dtype: mx.Dtype, out: int, kernel: tuple[int, int], groups: int = 1, **placement: Any
) -> tuple[Spec, mx.array, mx.array, mx.array]:
    """Where the windows sit, x, w and dy."""
    w_shape = (out, *kernel, shape[3] // groups)
    rows, cols = axes(shape, w_shape, groups=groups, **placement)
    dy = numbers((shape[0], rows.n_out, cols.n_out, out), dtype, 2)
    spec = Spec(rows, cols, groups, True, NO_ACTIVATION, mx.default_stream(mx.cpu))
    return spec, numbers(shape, dtype), numbers(w_shape), dy


def compare(run: Callable[[Activation], mx.array], definition: Callable[..., np.ndarray], *arrays: mx.array) -> None:
    """Without a neuron, and with each that a convolution applies itself."""
    values = [exact(a) for a in arrays]
    right, size = definition(*values), definition(*map(abs, values))
    for act in (NO_ACTIVATION, *_ACTIVATIONS):
        kind, a, b, _ = act
        close(run(act), oracle_activation.neuron(right, NAMES[kind], a=a, b=b), 4 * size)


def body_case(ending: str, check: Callable[..., None], geometry: Any, *more: str) -> Case:
    """A case of the body for whole groups, or of that for a group of every channel."""
    shape, dtype, out, kernel, options = geometry
    how = {key: value for key, value in options.items() if key != "crowded"}
    body = ("conv_depthwise" if how.get("groups", 1) == shape[3] > 1 else "conv") + ending
    name = named(body, shape, dtype, out=out, k=kernel, **{"groups": 1, **how})
    return Case(name, (body, *more), lambda: check(shape, dtype, out, kernel, **how), options.get("crowded", False))


def _check(*geometry: Any, **how: Any) -> None:
    spec, x, w, _ = prepared(*geometry, **how)
    b = numbers(w.shape[:1], seed=3)
    where = spec.rows, spec.cols, spec.groups
    compare(lambda act: rules.conv(x, w, b, spec._replace(neuron=act)), lambda *a: oracle.conv(*a, *where), x, w, b)


def _cases() -> Iterator[Case]:
    yield from (body_case("", _check, geometry) for geometry in GEOMETRIES)


# What bodies load ---------------------------------------------------------------------------------------

# A thread loads a channel's weights and bias for four pixels, and the taps of its rows that hit the image.
CHANNEL_BY_CHANNEL = {"w": (9 * VECTOR, (3 * 12 - 2) / 12 * 3 * IMAGE / 4), "bias": (VECTOR, IMAGE)}
# 288 pixels are five tiles.
WHOLE_GROUPS = {"w": (WEIGHTS, 5 * WEIGHTS), "bias": (VECTOR, 288 * VECTOR)}
ALL = (IMAGE, READS * IMAGE)


def _conv() -> None:
    mf.conv(numbers(SHAPE), numbers((16, 3, 3, 16)), padding=1)


def _depthwise() -> None:
    mf.conv(numbers(SHAPE), numbers((16, 3, 3, 1)), padding=1, groups=16)


# What is measured ---------------------------------------------------------------------------------------


def _window(size: int, stride: int, padding: int, **more: int) -> dict[str, int]:
    return {"kernel_size": size, "stride": stride, "padding": padding, **more}


ON_CPU = (
    Measured(_window(3, 1, 1), (*LEVEL, Target(("MLX",), 40)), DTYPES),
    Measured(_window(3, 1, 1), LEVEL, FLOAT32, shape=(8, 28, 28, 128)),
    Measured(_window(3, 1, 1), LEVEL, FLOAT32, shape=(8, 14, 14, 256)),
    Measured(_window(3, 1, 1), LEVEL, FLOAT32, shape=(8, 7, 7, 512)),
    Measured(_window(1, 1, 0, outs=256), LEVEL, FLOAT32),
    Measured(_window(3, 2, 1, outs=512), LEVEL, FLOAT32, shape=(8, 28, 28, 256)),
    Measured(_window(7, 2, 3, outs=64), LEVEL, FLOAT32, shape=(8, 224, 224, 3)),
    Measured(_window(3, 1, 1, groups=128), LEVEL, FLOAT32, shape=(8, 56, 56, 128)),
    Measured(_window(3, 1, 2, dilation=2), LEVEL, FLOAT32, shape=(8, 28, 28, 64)),
    Measured(_window(3, 1, 1, outs=64), LEVEL, FLOAT32, shape=(32, 8, 8, 32)),
)


def on_gpu(
    layers: tuple[tuple[tuple[int, int, int, int] | None, dict[str, int]], ...], dtypes: tuple[str, ...] = BOTH
) -> tuple[Measured, ...]:
    """Rows that all have the same targets, in each dtype."""
    targets = Target(("MLX", "MLX swapped"), 1), Target(PYTORCH, 0.9)
    return tuple(Measured(how, targets, dtypes, dtypes, shape) for shape, how in layers)


LAYERS = (
    (None, _window(3, 1, 1)),
    ((128, 28, 28, 128), _window(3, 1, 1)),
    ((128, 28, 28, 128), _window(3, 2, 1, outs=256)),
    ((128, 14, 14, 256), _window(1, 1, 0)),
    ((64, 112, 112, 3), _window(7, 2, 3, outs=64)),
)
# Of few channels, for which weight gradients have a kernel of their own.
NARROW = (
    ((512, 32, 32, 3), _window(3, 1, 1, outs=16)),
    ((512, 32, 32, 16), _window(3, 1, 1)),
    ((512, 16, 16, 32), _window(3, 1, 1)),
    ((512, 32, 32, 16), _window(3, 2, 1, outs=32)),
    ((512, 16, 16, 32), _window(3, 2, 1, outs=64)),
    ((512, 32, 32, 16), _window(1, 2, 0, outs=32)),
)
MEASURED = Benchmark("convolution", 1, 1, ("w",), cpu=ON_CPU, gpu=on_gpu(LAYERS))

# Wrong calls, and the records ---------------------------------------------------------------------------

X, W = numbers((2, 6, 5, 4)), numbers((6, 3, 3, 4))
SAME = mf.PaddingPolicy()


def huge_zeros(*shape: int) -> mx.array:
    return mx.broadcast_to(mx.zeros((1,) * len(shape)), shape)


_WRONG_VALUES = (
    ("the weights do not fit the images", lambda: mf.conv(X, W[..., :3])),
    ("the weights do not fit the images", lambda: mf.conv(X, W[0])),
    ("the weights do not fit the images", lambda: mf.conv(X, W[:0])),
    ("window does not fit", lambda: mf.conv(X, mx.ones((1, 7, 3, 4)))),
    ("groups do not divide the channels", lambda: mf.conv(X, W, groups=3)),
    ("groups do not divide the channels", lambda: mf.conv(X, W, groups=0)),
    ("groups do not divide the channels", lambda: mf.conv(X, W, groups=-2)),
    ("the weights do not fit the images", lambda: mf.conv(X, W, groups=2)),
    ("groups do not divide the output channels", lambda: mf.conv(X, W[:5, ..., :2], groups=2)),
    ("the bias does not fit the weights", lambda: mf.conv(X, W, mx.ones(5))),
    ("the bias does not fit the weights", lambda: mf.conv(X, W, mx.ones((1, 6)))),
    ("unknown edge_mode", lambda: mf.conv(X, W, edge_mode="exclude")),
    ("unknown padding_mode", lambda: mf.conv(X, W, padding_mode="mirror")),
    ("edge_mode excludes padding_mode", lambda: mf.conv(X, W, edge_mode="clamp", padding_mode="reflect")),
    ("the margin is wider than the image", lambda: mf.conv(X, W, padding=(0, 5), padding_mode="reflect")),
    ("the margin is wider than the image", lambda: mf.conv(X, W, padding=(7, 0), padding_mode="circular")),
    ("unknown neuron", lambda: mf.conv(X, W, neuron="swish")),
    ("unknown neuron", lambda: mf.conv(X, W, neuron=mf.Neuron("swish"))),
    ("gelu has no parameter a", lambda: mf.conv(X, W, neuron=mf.Neuron("gelu", 1.0))),
    ("c is not a possible base", lambda: mf.conv(X, W, neuron=mf.Neuron("exponential", c=0.0))),
    ("the slopes do not fit the channels", lambda: mf.conv(X, W, neuron=mf.Neuron("prelu", mx.ones(4)))),
    ("an image is too large", lambda: mf.conv(X, W, offset=0, out_size=2, stride=2**29, edge_mode="clamp")),
    ("exclude_edges is for averages", lambda: mf.conv(X, W, padding=mf.PaddingPolicy(exclude_edges=True))),
    ("an image is too large", lambda: mf.conv(huge_zeros(1, 2**10, 2**10, 1), huge_zeros(2**11, 1, 1, 1))),
    (
        "the weights are too large",
        lambda: mf.conv(huge_zeros(1, 8, 8, 1), huge_zeros(1, 2**16, 2**15, 1), offset=0, out_size=1),
    ),
)
OPS = (
    OpInfo(
        name="conv",
        samples={
            **{label: call("conv", *kind.arrays("x", "w", "b"), **kind.how) for label, kind in KINDS.items()},
            **larger(lambda kind: call("conv", *kind.arrays("x", "w", "b"), **kind.how)),
            **active("conv", *ACTIVE.arrays("x", "w", "b")),
            "with a prelu": call(
                "conv", *ACTIVE.arrays("x", "w", "b"), neuron=call("Neuron", "prelu", *ACTIVE.arrays("b"))
            ),
            "with a relu": Sample(call("conv", *PLAIN.arrays("x", "w", "b"), neuron="relu"), in_matrix=False),
        },
        image="x",
        reference=convolved,
        slack=2,  # a neuron's
        wrong_values=_WRONG_VALUES,
        wrong_types=(
            ("groups is not an int", lambda: mf.conv(X, W, groups=2.0)),
            ("groups is not an int", lambda: mf.conv(X, W, groups=True)),
            ("w is not an array", lambda: mf.conv(X, 3)),
            ("w has no floating dtype", lambda: mf.conv(X, W.astype(mx.int32))),
            ("padding_mode is not a name", lambda: mf.conv(X, W, padding_mode=None)),
            ("neuron is not an activation", lambda: mf.conv(X, W, neuron=1)),
            ("neuron is not an activation", lambda: mf.conv(X, W, neuron=("relu", 0.1, None, None))),
            ("neuron.type is not a name", lambda: mf.conv(X, W, neuron=mf.Neuron(None))),
            ("the slopes of prelu are not an array", lambda: mf.conv(X, W, neuron="prelu")),
        ),
        cases=_cases,
        loads={
            "conv": Loads(_conv, WHOLE_GROUPS | {"x": ALL}),
            "conv_depthwise": Loads(_depthwise, CHANNEL_BY_CHANNEL | {"x": ALL}),
        },
        benchmarks={"conv": MEASURED},
        nodes={
            "": Node(
                lambda x: graph.conv(x, 3, (3, 2), stride=2, neuron="relu", name="n"),
                lambda p, x: mf.conv(x, p["w"], p["b"], stride=2, padding=SAME, neuron="relu"),
            ),
            "in groups": Node(
                lambda x: graph.conv(x, 6, 3, groups=2, bias=False, edge_mode="clamp", name="n"),
                lambda p, x: mf.conv(x, p["w"], padding=SAME, groups=2, edge_mode="clamp"),
            ),
            "depthwise_conv": Node(
                lambda x: graph.depthwise_conv(x, 3, multiplier=2, bias=False, name="n"),
                lambda p, x: mf.conv(x, p["w"], padding=SAME, groups=4),
            ),
        },
    ),
)
