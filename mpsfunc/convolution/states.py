"""The state of a convolution, what a convolution's arguments must fulfil, and how its gradients enter the state."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import mlx.core as mx

from mpsfunc.activation import fused
from mpsfunc.activation.fused import FusedActivation
from mpsfunc.channels import accumulation, activation_rules
from mpsfunc.channels.activation_spec import NAMES, NO_ACTIVATION, PRELU, fusable, slope_from_output
from mpsfunc.convolution import margins
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import arguments, checks, launch, operation, printing
from mpsfunc.core.arguments import cacheable, is_a, refuse
from mpsfunc.core.printing import describe
from mpsfunc.windows.axis import CIRCULAR, CONVOLUTION_EDGES, EDGE_MODES, REFLECT, Axis, check_axes, check_windows
from mpsfunc.windows.placement import place

State = TypeVar("State")
OptionName = Literal["all", "data", "weights_and_bias"]
OPTIONS: tuple[OptionName, ...] = get_args(OptionName)
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)


@printing.printed
class ConvState(NamedTuple):
    """Where the windows of a convolution lie, what its activation's slope is computed from, and its gradients so far.

    `conv_fwd` and `fully_connected_fwd` make one, `conv_state` makes one from shapes.

    Fields:
        dw: Gradient of the weights (o, kh, kw, i / groups), float32 (float64 for float64 images).
        db: Gradient of the bias (o,).
        y: What the slope of the activation is computed from (n, out_h, out_w, o): the pre-activation or, for "relu"
            with a >= 0, the result, the same array that `conv_fwd` returns. Without an activation it has length 0.
        slopes: Those of "prelu" (o,); of length 0 for others.
        op: "conv".
        neuron: Name of the activation, "" for none.
        a: Its first parameter, 0 where it has none.
        b: Its second parameter.
        c: Its third parameter.
        groups: Channel groups.
        rows: Windows along y; ``rows.n_in`` is the height of the source image.
        cols: Windows along x.
    """

    dw: mx.array
    db: mx.array
    y: mx.array
    slopes: mx.array
    op: str
    neuron: str
    a: float
    b: float
    c: float
    groups: int
    rows: Axis
    cols: Axis

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(dw, db, y, slopes), for transformations that only take arrays."""
        return self[:4]

    def with_arrays(self, arrays: Sequence[mx.array]) -> ConvState:
        """This state with other arrays, in the order of `arrays`."""
        dw, db, y, slopes = checks.arrays_of("ConvState", arrays, 4)
        return self._replace(dw=dw, db=db, y=y, slopes=slopes)

    @property
    def source_height(self) -> int:
        """Height of the images that were convolved (``sourceHeight`` of ``MPSImageSizeEncodingState``)."""
        return self.rows.n_in

    @property
    def source_width(self) -> int:
        """Width of the images that were convolved."""
        return self.cols.n_in


def zero_state(
    w_shape: tuple[int, ...],
    dtype: mx.Dtype,
    spec: Spec,
    how: FusedActivation = FusedActivation(NO_ACTIVATION),  # noqa: B008  # a constant
    kept: mx.array | None = None,
) -> dict[str, Any]:
    """The fields of a state with zero gradients; ``kept`` is what tells the slope of a neuron."""
    act = how.act
    with mx.stream(spec.stream):
        dw, db = mx.zeros(w_shape, dtype), mx.zeros(w_shape[:1], dtype)
        y = mx.zeros((0,), dtype) if kept is None or not act.kind else kept
        slopes = mx.zeros((0,), dtype) if how.slopes is None else how.slopes
    neuron = {"neuron": NAMES[act.kind] if act.kind else "", "a": act.a, "b": act.b, "c": act.c}
    where = {"groups": spec.groups, "rows": spec.rows, "cols": spec.cols}
    return {"dw": dw, "db": db, "y": y, "slopes": slopes, **neuron, **where}


def activated(
    function: Any,
    x: mx.array,
    w: mx.array,
    b: mx.array | None,
    spec: Spec,
    how: FusedActivation,
    *,
    keeping: bool,
    inference: bool = False,
) -> tuple[mx.array, mx.array]:
    """``function`` of these, a convolution or its adjoint, and the neuron behind it; and what tells its slope.

    A neuron whose slope follows from its result is part of the same kernel. So is any that the kernel knows where
    nobody is ``keeping`` what tells the slope nor is likely to take derivatives, unless bits would depend on that: in
    16 bits the neuron is applied to what the convolution was rounded to. For ``inference`` neither matters:
    derivatives, which are still right, compute that again.
    """
    on_cpu = launch.backend(spec.stream) == "cpu"
    needed = keeping or (operation.keeps_for_gradients() if on_cpu else launch.tracing())
    free = inference or (not needed and x.dtype == launch.accumulator(x.dtype))
    if (free and fusable(how.act, on_cpu)) or slope_from_output(how.act):
        y = function(x, w, b, spec._replace(neuron=how.act) if how.act.kind else spec)
        return y, y
    z = function(x, w, b, spec)
    with mx.stream(spec.stream):
        return fused.apply_activation(z, how, spec.stream), z


def arrays(op: str, x: mx.array, w: mx.array, b: mx.array | None, neuron: Any, stream: mx.Stream) -> FusedActivation:
    """Checks the arrays of a forward call, and returns its neuron."""
    checks.image(op, "x", x, stream=stream)
    checks.array(op, "w", w, stream=stream)
    if b is not None:
        checks.array(op, "b", b, stream=stream)
        if w.ndim:
            checks.shape(op, "b", b, (w.shape[0],), "the bias does not fit the weights")
    return fused.chosen(op, neuron, w.shape[0] if w.ndim else 0, stream)


def gradients_dtype(op: str, dtype: mx.Dtype, stream: mx.Stream) -> None:
    """Refuses what a state's gradients cannot be made of."""
    if not is_a(dtype, mx.Dtype) or dtype not in (mx.float32, mx.float64):
        raise TypeError(f"{op}: no dtype of gradients; got dtype={describe(dtype)}, expected float32 or float64")
    checks.on_device(op, "dw", dtype, stream)


def weights(op: str, name: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], groups: Any) -> int:
    """Refuses weights that do not fit images of this shape, and groups that do not fit either; returns the groups."""
    plain = arguments.whole(groups)
    if plain is None:
        raise TypeError(f"{op}: groups is not an int; got groups={describe(groups)}, expected an int >= 1")
    channels = x_shape[3]
    sizes = len(w_shape) == 4 and all(d >= 1 for d in w_shape)
    turned = checks.turned(sizes and w_shape[3] * plain == x_shape[1] != channels)
    if plain < 1 or channels % plain != 0:
        rule = f"a divisor of {channels}{turned}"
        raise ValueError(f"{op}: groups do not divide the channels; got groups={describe(groups)}, expected {rule}")
    fits = sizes and w_shape[3] == channels // plain
    if not fits:
        raise ValueError(
            f"{op}: the weights do not fit the images; got {name}={describe(w_shape)}, "
            f"expected (o, kh, kw, {channels // plain}), none of them 0"
            f"{turned or (turned_weights(op, w_shape, channels, plain) if sizes else '')}"
        )
    if math.prod(w_shape) >= 2**31:  # kernels count them in int32
        raise ValueError(
            f"{op}: the weights are too large; got {name}={describe(w_shape)}, expected less than 2**31 elements"
        )
    if w_shape[0] % plain != 0:
        raise ValueError(
            f"{op}: groups do not divide the output channels; got groups={describe(groups)}, "
            f"expected a divisor of {w_shape[0]}"
        )
    return plain


def turned_weights(op: str, w_shape: tuple[int, ...], channels: int, groups: int) -> str:
    """What an error ends with where weights, of which the last axis does not fit, have PyTorch's order of axes."""
    tensorflow = len(w_shape) == 4 and w_shape[2] * groups == channels  # (kh, kw, i, o)
    if w_shape[-1] * groups == channels or tensorflow:
        return ""
    taps = ("k", "kh, kw")[len(w_shape) - 3]
    theirs = "(i, o / groups, " if "conv_transpose" in op else "(o, i / groups, "
    fits = w_shape[0] == channels if "conv_transpose" in op else w_shape[1] * groups == channels
    return f"; weights are (o, {taps}, i / groups), and these look like {theirs}{taps})" if fits else ""


def placed(
    op: str,
    name: str,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    groups: int,
    stream: mx.Stream,
    biased: bool = False,
    **placement: Any,
) -> Spec:
    """The windows of a convolution with weights of a shape that fits; ``name`` is what errors call that."""
    said = x_shape, w_shape, groups, *placement.values()
    rows, cols, apart = (_known if cacheable(said) else _place)(op, name, x_shape, w_shape, groups, **placement)
    return Spec(rows, cols, apart, biased, NO_ACTIVATION, stream)


def _place(
    op: str, name: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], groups: int, **placement: Any
) -> tuple[Axis, Axis, int]:
    apart = weights(op, name, x_shape, w_shape, groups)
    if placement["stride"] is None:  # to place, that would be the window's size
        raise TypeError(f"{op}: stride is not an int or a pair; got stride=None, expected ints >= 1")
    (_, h, w, _), (_, kh, kw, _) = x_shape, w_shape
    mode = checks.choice(op, "padding_mode", placement.pop("padding_mode", "zeros"), PADDING_MODES)
    rows, cols = place(op, (h, w), (kh, kw), edge_modes=EDGE_MODES, **placement)
    if mode != "zeros":
        rows, cols = _with_margin(op, mode, rows, cols, **placement)
    checks.image_shape(op, "output shape", (x_shape[0], rows.n_out, cols.n_out, w_shape[0]))
    margins.check_reach(op, x_shape, rows, cols)
    return rows, cols, apart


def _with_margin(
    op: str,
    mode: PaddingMode,
    rows: Axis,
    cols: Axis,
    *,
    padding: Any,
    edge_mode: Any = "zero",
    offset: Any = None,
    **_: Any,
) -> tuple[Axis, Axis]:
    """The windows, of which taps outside the image read what PyTorch's ``padding_mode`` says."""
    if edge_mode != "zero":
        refuse(op, "edge_mode excludes padding_mode", "edge_mode", edge_mode, "'zero' with padding_mode")
    edge = {"replicate": EDGE_MODES.index("clamp"), "reflect": REFLECT, "circular": CIRCULAR}[mode]
    rows, cols = rows._replace(edge=edge), cols._replace(edge=edge)
    if not (margins.fits(rows) and margins.fits(cols)):
        most = margins.widest(rows), margins.widest(cols)
        said = ("padding", padding) if offset is None else ("offset", offset)
        rule = f"at most {most} read outside with padding_mode={describe(mode)}"
        refuse(op, "the margin is wider than the image", *said, rule)
    return rows, cols


_known = functools.lru_cache(maxsize=1024, typed=True)(_place)


def gradient(
    op: str, dy: mx.array, state: Any, kind: type[Any], length: str, stream: mx.Stream
) -> tuple[mx.array, Spec]:
    """Checks dy and its state; ``length`` is the field of an Axis with the height or width of dy.

    Returns:
        The gradient before the neuron, and where the windows sit.
    """
    gradient_of_windows(op, dy, state, kind, length, stream)
    spec = Spec(state.rows, state.cols, state.groups, False, NO_ACTIVATION, stream)
    how = _neuron_of(op, state, stream)
    if not how.act.kind:
        return dy, spec
    checks.array(op, "state.y", state.y, stream=stream)
    checks.shape(op, "state.y", state.y, tuple(dy.shape), "dy does not belong to this state")
    checks.same_dtype(op, "dy", dy, "state.y", state.y.dtype)
    with mx.stream(stream):
        if slope_from_output(how.act):
            return activation_rules.grad_from_output(
                dy, state.y, activation_rules.ActivationSpec(how.act, stream)
            ), spec
        return fused.grad_from_input(dy, state.y, how, stream), spec


def gradient_of_windows(op: str, dy: mx.array, state: Any, kind: type[Any], length: str, stream: mx.Stream) -> None:
    """`gradient`, but for what a state says of a neuron."""
    checks.array(op, "dy", dy, stream=stream)
    checks.state(op, state, kind, stream=stream)
    _whole(op, state)
    size = ("o", state.rows.size, state.cols.size, "i")
    checks.shape(op, "state.dw", state.dw, size, "the state does not fit together")
    checks.shape(op, "state.db", state.db, (state.dw.shape[0],), "the state does not fit together")
    out = [getattr(axis, length) for axis in (state.rows, state.cols)]
    checks.shape(op, "dy", dy, ("n", *out, state.dw.shape[0]), "dy does not belong to this state")


def _neuron_of(op: str, state: Any, stream: mx.Stream) -> FusedActivation:
    """The neuron that a state names."""
    name = arguments.text(state.neuron)
    if name == "":
        return FusedActivation(NO_ACTIVATION)
    for letter in "abc":
        checks.number(op, f"state.{letter}", getattr(state, letter))
    parameters = activation_rules.PARAMETERS
    known = len(parameters[name]) if name is not None and arguments.is_among(name, parameters) else 0
    given = [*(state.a, state.b, state.c)[:known], None, None, None][:3]
    if name == NAMES[PRELU]:
        given[0] = state.slopes
    return fused.parsed(op, "state.neuron", state.neuron, given, state.db.shape[0], stream)


def _whole(op: str, state: Any) -> None:
    """Refuses a state with fields that no forward function makes."""
    check_axes(op, state)
    checks.switch(op, "state.unrotated", getattr(state, "unrotated", False))
    for name in ("dw", "db"):
        checks.array(op, f"state.{name}", getattr(state, name))
    groups, shape = state.groups, state.dw.shape
    if type(groups) is not int or groups < 1 or len(shape) != 4 or shape[0] % groups != 0:
        rule = f"a divisor of {shape[0] if shape else 0}"
        raise ValueError(f"{op}: the state does not fit together; got state.groups={describe(groups)}, expected {rule}")
    _check_windows(op, state.rows, state.cols)


@functools.lru_cache(maxsize=1024)
def _check_windows(op: str, rows: Axis, cols: Axis) -> None:
    checks.image_shape(op, "image of the state", (1, rows.n_in, cols.n_in, 1))
    checks.image_shape(op, "output of the state", (1, rows.n_out, cols.n_out, 1))
    check_windows(op, (rows, cols), CONVOLUTION_EDGES)
    for name, axis in (("rows", rows), ("cols", cols)):
        if not margins.fits(axis):
            refuse(op, "the state's windows cannot be", f"state.{name}", axis, "what a forward function makes")
    margins.check_reach(op, (1, 1, 1, 1), rows, cols)


def source(op: str, x: mx.array, dy: mx.array, state: Any, length: str, stream: mx.Stream) -> None:
    """Refuses images that are not those of the forward call; ``length`` is the field of an Axis with their size."""
    checks.image(op, "x", x, stream=stream)
    size = [getattr(axis, length) for axis in (state.rows, state.cols)]
    expected = (dy.shape[0], *size, state.dw.shape[3] * state.groups)
    checks.shape(op, "x", x, expected, "x does not belong to this state")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)


def of_state(op: str, w: mx.array, state: Any, stream: mx.Stream) -> None:
    """Refuses weights that are not those of the forward call."""
    checks.array(op, "w", w, stream=stream)
    checks.shape(op, "w", w, tuple(state.dw.shape), "w does not belong to this state")


def option(op: str, name: object) -> tuple[bool, bool]:
    """Whether a gradient option asks for the images' gradient, and whether for the parameters'."""
    chosen = checks.choice(op, "option", name, OPTIONS)
    return chosen != "weights_and_bias", chosen != "data"


def accumulated(state: State, dw: mx.array, db: mx.array, stream: mx.Stream) -> State:
    """The state with gradients added."""
    old: Any = state
    with mx.stream(stream):
        more: State = old._replace(dw=accumulation.accumulate(old.dw, dw), db=accumulation.accumulate(old.db, db))
    return more
