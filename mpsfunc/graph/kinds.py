"""What filters compute: forward by a function of mpsfunc, backward by its gradient function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import entries, is_a
from mpsfunc.core.printing import describe
from mpsfunc.graph import cropping, regions
from mpsfunc.graph.nodes import Call, Kind, Made, Options, Pulled, Shape
from mpsfunc.typing import NeuronName, OperandName, OperationName

Function = Callable[..., Any]
StatisticsName = Literal["automatic", "always", "never"]
STATISTICS: tuple[StatisticsName, ...] = get_args(StatisticsName)


# Kinds that differ in what their gradient reads ---------------------------------------------------------------


def by_state(name: str, fwd: Function, grad: Function) -> Kind:
    """Whose gradient reads a state."""
    return Kind(
        name,
        lambda call: Made(*_first(fwd(call.x, **call.options))),
        lambda call, made, dy, at: Pulled(grad(dy, made.state)),
        keeps=True,
    )


def bilinear(name: str, fwd: Function, grad: Function) -> Kind:
    """An image that is made larger or smaller, where aligned corners take the place of MPS's other coordinate."""

    def first(call: Call) -> Made:
        aligned = call.options["align_corners"] is True and call.options["coordinate"] == "asymmetric"
        return Made(*_first(fwd(call.x, **(_but(call.options, "coordinate") if aligned else call.options))))

    return Kind(name, first, lambda call, made, dy, at: Pulled(grad(dy, made.state)), keeps=True)


def by_state_and_source(name: str, fwd: Function, grad: Function) -> Kind:
    """Whose gradient reads a state and the images."""
    return Kind(
        name,
        lambda call: Made(*_first(fwd(call.x, **call.options))),
        lambda call, made, dy, at: Pulled(grad(dy, call.x, made.state)),
        keeps=True,
    )


def by_result(name: str, function: Function, grad: Function) -> Kind:
    """Whose gradient reads what the filter made."""
    return Kind(
        name,
        lambda call: Made((function(call.x, **call.options),)),
        lambda call, made, dy, at: Pulled(grad(dy, *made.images, **call.options)),
    )


def by_adjoint(name: str, function: Function, adjoint: Function) -> Kind:
    """Whose gradient is another function with the same arguments."""
    return Kind(
        name,
        lambda call: Made((function(call.x, **call.options),)),
        lambda call, made, dy, at: Pulled(adjoint(dy, **call.options)),
    )


def without_gradient(name: str, function: Function) -> Kind:
    """Which has none."""
    return Kind(name, lambda call: Made((function(*call.images, **call.options),)))


def neuron(name: NeuronName, function: Function) -> Kind:
    """An activation."""
    return Kind(
        name,
        lambda call: Made((function(call.x, **call.options),)),
        lambda call, made, dy, at: Pulled(mf.neuron_grad(dy, call.x, name, **call.options)),
    )


def of_two(name: OperationName) -> Kind:
    """Arithmetic."""

    def forward(call: Call) -> Made:
        return Made((mf.arithmetic(call.x, call.images[1], name, **_but(call.options, "clamp")),))

    def backward(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
        operands: tuple[OperandName, OperandName] = ("primary", "secondary")
        return Pulled(mf.arithmetic_grad(dy, call.x, call.images[1], name, operand=operands[at], **call.options))

    return Kind(name, forward, backward, tunable=("clamp",))


def _grid_sample_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    x, grid = call.images
    return Pulled(
        mf.grid_sample_grad(dy, grid, made.state) if at == 0 else mf.grid_sample_grad_grid(dy, x, grid, made.state)
    )


grid_sample = Kind(
    "grid_sample",
    lambda call: Made(*_first(mf.grid_sample_fwd(call.x, call.images[1], **call.options))),
    _grid_sample_grad,
    keeps=True,
)


def _local_correlation_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    operands: tuple[OperandName, OperandName] = ("primary", "secondary")
    x, y = call.images
    return Pulled(mf.local_correlation_grad(dy, x, y, operand=operands[at], **call.options))


local_correlation = Kind(
    "local_correlation",
    lambda call: Made((mf.local_correlation(call.x, call.images[1], **call.options),)),
    _local_correlation_grad,
)
gram_matrix = Kind(
    "gram_matrix",
    lambda call: Made((mf.gram_matrix(call.x, **call.options),)),
    lambda call, made, dy, at: Pulled(mf.gram_matrix_grad(dy, call.x, **call.options)),
)
crop_and_resize = Kind(
    "crop_and_resize",
    lambda call: Made(*_first(regions.cropped(call.x, **call.options))),
    lambda call, made, dy, at: Pulled(
        mf.crop_and_resize_grad(dy, *regions.boxes_of(call.x, call.options["regions"]), made.state)
    ),
    keeps=True,
)


def by_weights(name: str, fwd: Function, grad: Function, shape: Callable[[Shape, Options], Shape]) -> Kind:
    """Convolutions, whose state collects the gradients of weights of that shape."""
    own = ("out_channels", "kernel_size", "multiplier", "bias")

    def weights(x: Shape, options: Options) -> dict[str, Shape]:
        checks.image_shape(name, "x.shape", x)
        of_weights = shape(x, options)
        return {"w": of_weights} | ({"b": of_weights[:1]} if checks.switch(name, "bias", options["bias"]) else {})

    def forward(call: Call) -> Made:
        how = _but(call.options, *own)
        if "multiplier" in call.options:
            how["groups"] = call.x.shape[-1]
        if call.states:
            how["state"] = call.states[0]
        return Made(*_first(fwd(call.x, call.params["w"], call.params.get("b"), **how)))

    def backward(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
        dx, state = grad(dy, call.x, call.params["w"], made.state)
        return Pulled(dx, {letter: getattr(state, f"d{letter}") for letter in call.params}, state)

    return Kind(name, forward, backward, keeps=True, weights=weights)


def by_image(name: str, fwd: Function, grad: Function) -> Kind:
    """Normalizations of each image by itself."""

    def forward(call: Call) -> Made:
        given, how = call.params, _but(call.options, "gamma", "beta")
        return Made(*_first(fwd(call.x, gamma=given.get("gamma"), beta=given.get("beta"), **how)))

    def backward(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
        given = call.params.get("gamma"), call.params.get("beta")
        dx, state = grad(dy, call.x, made.state, *given, neuron=call.options["neuron"])
        return Pulled(dx, {letter: getattr(state, f"d{letter}").sum(axis=0) for letter in call.params}, state)

    return Kind(name, forward, backward, keeps=True, weights=_scales)


def _scales(x: Shape, options: Options) -> dict[str, Shape]:
    return {name: x[-1:] for name in ("gamma", "beta") if checks.switch("normalization", name, options[name])}


# Kinds of their own -------------------------------------------------------------------------------------------


def _batch_norm(call: Call) -> Made:
    options, running = call.options, call.memory
    gamma, beta = call.params.get("gamma"), call.params.get("beta")
    if not is_a(running, mf.BatchNormState):
        raise TypeError(
            f"batch_norm: the state is not a BatchNormState; got {describe(running)}, expected one of bn_frozen"
        )
    if running.eps != options["eps"]:
        raise ValueError(
            f"batch_norm: the state has another eps; got {describe(running.eps)}, expected {describe(options['eps'])}"
        )
    when = checks.choice("batch_norm", "statistics", options["statistics"], STATISTICS)
    if when == "never" or (when == "automatic" and not call.training):
        y = mf.bn_normalize(call.x, running, gamma, beta, neuron=options["neuron"])
        return Made((y,), running, running)
    how = _but(options, "gamma", "beta", "momentum", "statistics")
    y, state = mf.batch_norm_fwd(call.x, gamma, beta, **how)
    return Made((y,), state, mf.bn_running(running, state, options["momentum"]))


def _batch_norm_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    gamma, beta, neuron = call.params.get("gamma"), call.params.get("beta"), call.options["neuron"]
    state = mf.bn_stats_grad(dy, call.x, made.state, gamma, beta, neuron=neuron, group=call.options["group"])
    dx = mf.bn_grad(dy, call.x, state, gamma, beta, neuron=neuron)
    return Pulled(dx, {letter: getattr(state, f"d{letter}") for letter in call.params}, state)


batch_norm = Kind(
    "batch_norm",
    _batch_norm,
    _batch_norm_grad,
    keeps=True,
    weights=_scales,
    memory=lambda channels, options, key: mf.bn_frozen(mx.zeros(channels), mx.ones(channels), options["eps"]),
)


def _dropout(call: Call) -> Made:
    y, state = mf.dropout_fwd(call.x, key=call.memory, **_but(call.options, "seed"))
    return Made((y,), state, mx.random.split(call.memory)[0])


def _dropout_key(channels: int, options: Options, key: mx.array) -> mx.array:
    if options["seed"] is None:
        return key
    return mx.random.key(checks.whole("dropout", "seed", options["seed"], 0, 2**64 - 1))


dropout = Kind(
    "dropout",
    _dropout,
    lambda call, made, dy, at: Pulled(mf.dropout_grad(dy, made.state)),
    keeps=True,
    memory=_dropout_key,
)


def _prelu_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    dx, dslopes = mf.prelu_grad(dy, call.x, call.params["slopes"])
    return Pulled(dx, {"slopes": dslopes})


prelu = Kind(
    "prelu",
    lambda call: Made((mf.prelu(call.x, call.params["slopes"]),)),
    _prelu_grad,
    weights=lambda x, options: {"slopes": x[-1:]},
)
avg_pool = Kind(
    "avg_pool",
    lambda call: Made(*_first(mf.avg_pool_fwd(call.x, **call.options))),
    lambda call, made, dy, at: Pulled(mf.avg_pool_grad(dy, mf.avg_pool_state(call.x.shape, **call.options))),
    keeps=True,
    tunable=("zero_pad", "edge_mode"),
)
spatial_mean = Kind(
    "spatial_mean",
    lambda call: Made((mf.spatial_mean(call.x),)),
    lambda call, made, dy, at: Pulled(mf.spatial_mean_grad(dy, call.x.shape)),
)
slice_channels = Kind(
    "slice_channels",
    lambda call: Made((mf.slice_channels(call.x, **call.options),)),
    lambda call, made, dy, at: Pulled(mf.slice_channels_grad(dy, call.options["start"], call.x.shape[-1])),
)


def reshaped(x: mx.array, shape: tuple[int, int, int]) -> mx.array:
    """Images of another (h, w, c) with the same elements, in the order height, width, channel."""
    checks.moved_image("reshape", "x", x, stream=mx.default_stream(mx.default_device()))
    given = entries(shape)
    whole = checks.shape_of_images("reshape", "shape", (len(x), *((shape,) if given is None else given)))
    if x.size != math.prod(whole):
        raise ValueError(
            f"reshape: sizes differ; got shape={describe(whole[1:])}, expected {math.prod(x.shape[1:])} elements"
        )
    return x.reshape(whole)


reshape = Kind(
    "reshape",
    lambda call: Made((reshaped(call.x, **call.options),)),
    lambda call, made, dy, at: Pulled(dy.reshape(call.x.shape)),
)


def of_part(name: str, function: Function, parts: Callable[..., tuple[cropping.Part, cropping.Part]]) -> Kind:
    """A part of images."""
    return Kind(
        name,
        lambda call: Made((function(call.x, **call.options),)),
        lambda call, made, dy, at: Pulled(cropping.among_zeros(dy, call.x, *parts(call.x, **call.options))),
    )


def _concatenate_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    return Pulled(mf.concatenate_grad(dy, [image.shape[-1] for image in call.images], **call.options)[at])


concatenate = Kind(
    "concatenate",
    lambda call: Made((mf.concatenate(call.images, **call.options),)),
    _concatenate_grad,
)


def _vector(name: str, given: Any, dtype: mx.Dtype) -> mx.array | None:
    """The array of a tuple of numbers."""
    if given is None:
        return None
    parts = entries(given)
    if parts is None:
        raise TypeError(f"loss: {name} is not a list; got {name}={describe(given)}, expected a list of floats or None")
    return mx.array([checks.number("loss", name, part) for part in parts], dtype)


def _how(call: Call, own: str) -> Options:
    """What the function of a loss takes besides predictions and labels."""
    how = _but(call.options, own)
    for name in ("class_weights", "pos_weight"):
        how[name] = _vector(name, how[name], launch.accumulator(call.x.dtype))
    if len(call.images) > 2:
        how["weights"] = call.images[2]
    return how


def _loss(call: Call) -> Made:
    (y, target), how = call.images[:2], _how(call, "divided")
    if checks.switch("loss", "divided", call.options["divided"]):
        value, gradient = mf.loss_value(y, target, **how), mf.loss_grad(y, target, **how, divided=True)
        return Made((gradient, value), mf.LossState(gradient, "loss", how["type"], how["reduction"]))
    value, state = mf.loss_fwd(y, target, **how)
    return Made((state.gradient, value), state)


loss = Kind("loss", _loss, keeps=True)


def _yolo_loss(call: Call) -> Made:
    value, state = mf.yolo_loss_fwd(call.x, call.images[1], **_but(call.options, "divided"))
    exact = checks.switch("yolo_loss", "divided", call.options["divided"])
    return Made((mf.yolo_loss_grad(call.x, state, divided=exact), value), state)


yolo_loss = Kind("yolo_loss", _yolo_loss, keeps=True)


def _forward_loss(call: Call) -> Made:
    wanted = checks.switch("forward_loss", "label_gradients", call.options["label_gradients"])
    target = call.images[1]
    if wanted and not mx.issubdtype(target.dtype, mx.floating):
        raise TypeError(
            f"forward_loss: such labels have no gradient; got label_gradients=True and a target of {target.dtype}, "
            "expected label_gradients=False or a floating dtype"
        )
    return Made((mf.loss_value(call.x, target, **_how(call, "label_gradients")),))


def _forward_loss_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    """The rule that `loss_value` has, whose kernels take a gradient of the value; the value is not made again."""
    how = _how(call, "label_gradients")

    def value(image: mx.array) -> mx.array:
        y, target = (image, call.images[1]) if at == 0 else (call.x, image)
        return mf.loss_value(y, target, **how)

    return Pulled(mx.vjp(value, [call.images[at]], [dy])[1][0])


forward_loss = Kind("forward_loss", _forward_loss, _forward_loss_grad)


# MLX's own sum takes the memory of an image that nothing else reads, as autodiff's does.
sum_of_gradients = Kind("add", lambda call: Made((call.x + call.images[1],)))


def ones_of(x: mx.array) -> mx.array:
    """Ones of the shape and dtype of images: the gradient of an image by itself, with which a backward pass starts."""
    return mx.ones_like(x)


initial_gradient = Kind("initial_gradient", lambda call: Made((ones_of(call.x),)))


def _first(result: tuple[mx.array, Any]) -> tuple[tuple[mx.array, ...], Any]:
    image, state = result
    return (image,), state


def _but(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}
