"""What filters compute: forward by a function of mpsfunc, backward by its gradient function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from mpsfunc import _check
from mpsfunc._bn_state import BatchNormState, bn_frozen, bn_running
from mpsfunc.arithmetic import arithmetic, arithmetic_grad
from mpsfunc.batch_norm import batch_norm_fwd, bn_grad, bn_normalize, bn_stats_grad
from mpsfunc.dropout import dropout_fwd, dropout_grad
from mpsfunc.graph.nodes import Call, Kind, Made, Pulled, Shape
from mpsfunc.images import concatenate as concatenated
from mpsfunc.images import concatenate_grad, slice_channels_grad, spatial_mean_grad
from mpsfunc.images import slice_channels as sliced
from mpsfunc.images import spatial_mean as averaged
from mpsfunc.loss import loss_fwd, loss_grad
from mpsfunc.neuron import neuron_grad, prelu_grad
from mpsfunc.neuron import prelu as bent
from mpsfunc.pooling import avg_pool_fwd, avg_pool_grad, avg_pool_state

Options = dict[str, Any]
Function = Callable[..., Any]


# Kinds that differ in what their gradient reads ---------------------------------------------------------------


def by_state(name: str, fwd: Function, grad: Function) -> Kind:
    """Whose gradient reads a state."""
    return Kind(
        name,
        lambda call: Made(*_first(fwd(*call.images, *call.states, **call.options))),
        lambda call, made, dy, at: Pulled(grad(dy, made.state)),
    )


def by_state_and_source(name: str, fwd: Function, grad: Function) -> Kind:
    """Whose gradient reads a state and the images."""
    return Kind(
        name,
        lambda call: Made(*_first(fwd(*call.images, **call.options))),
        lambda call, made, dy, at: Pulled(grad(dy, *call.images, made.state)),
    )


def by_result(name: str, function: Function, grad: Function) -> Kind:
    """Whose gradient reads what the filter made."""
    return Kind(
        name,
        lambda call: Made((function(*call.images, **call.options),)),
        lambda call, made, dy, at: Pulled(grad(dy, *made.images, **call.options)),
    )


def by_adjoint(name: str, function: Function, adjoint: Function) -> Kind:
    """Whose gradient is another function with the same arguments."""
    return Kind(
        name,
        lambda call: Made((function(*call.images, **call.options),)),
        lambda call, made, dy, at: Pulled(adjoint(dy, **call.options)),
    )


def without_gradient(name: str, function: Function) -> Kind:
    """Which has none."""
    return Kind(name, lambda call: Made((function(*call.images, **call.options),)))


def neuron(name: str, function: Function) -> Kind:
    """An activation."""
    return Kind(
        name,
        lambda call: Made((function(*call.images, **call.options),)),
        lambda call, made, dy, at: Pulled(neuron_grad(dy, call.x, name, **call.options)),
    )


def of_two(name: str) -> Kind:
    """Arithmetic."""

    def forward(call: Call) -> Made:
        return Made((arithmetic(call.x, call.images[1], name, **_but(call.options, "clamp")),))

    def backward(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
        operand = ("primary", "secondary")[at]
        return Pulled(arithmetic_grad(dy, call.x, call.images[1], name, operand=operand, **call.options))

    return Kind(name, forward, backward)


def by_weights(name: str, fwd: Function, grad: Function, shape: Callable[[Shape, Options], Shape]) -> Kind:
    """Convolutions, whose state collects the gradients of weights of that shape."""
    own = ("out_channels", "kernel_size", "multiplier", "bias")

    def parameters(sources: Sequence[Shape], options: Options) -> dict[str, Shape]:
        of_weights = shape(sources[0], options)
        return {"w": of_weights} | ({"b": of_weights[:1]} if options["bias"] else {})

    def forward(call: Call) -> Made:
        given = call.parameters
        how = _but(call.options, *own)
        if "multiplier" in call.options:
            how["groups"] = call.images[0].shape[-1]
        if call.states:
            how["state"] = call.states[0]
        return Made(*_first(fwd(*call.images, given["w"], given.get("b"), **how)))

    def backward(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
        dx, state = grad(dy, *call.images, call.parameters["w"], made.state)
        grads = {"w": state.dw} | ({"b": state.db} if call.options["bias"] else {})
        return Pulled(dx, grads, state)

    return Kind(name, forward, backward, sources=1, parameters=parameters)


def by_image(name: str, fwd: Function, grad: Function) -> Kind:
    """Normalizations of each image by itself."""

    def forward(call: Call) -> Made:
        given, how = call.parameters, _but(call.options, "gamma", "beta")
        return Made(*_first(fwd(*call.images, gamma=given.get("gamma"), beta=given.get("beta"), **how)))

    def backward(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
        dx, state = grad(dy, *call.images, made.state, call.parameters.get("gamma"))
        sums = {"gamma": state.dgamma.sum(axis=0), "beta": state.dbeta.sum(axis=0)}
        return Pulled(dx, {name: sums[name] for name in call.parameters}, state)

    return Kind(name, forward, backward, parameters=_scales)


# Kinds of their own -------------------------------------------------------------------------------------------


def _batch_norm(call: Call) -> Made:
    options, given, running = call.options, call.parameters, call.memory
    gamma, beta = given.get("gamma"), given.get("beta")
    if not isinstance(running, BatchNormState):
        raise TypeError(f"batch_norm: the state is not a BatchNormState; got {running!r}, expected one of bn_frozen")
    if running.eps != options["eps"]:
        raise ValueError(f"batch_norm: the state has another eps; got {running.eps}, expected {options['eps']}")
    when = _check.choice("batch_norm", "statistics", options["statistics"], ("automatic", "always", "never"))
    if when == "never" or (when == "automatic" and not call.training):
        y = bn_normalize(call.x, running, gamma, beta, neuron=options["neuron"])
        return Made((y,), running, running)
    how = _but(options, "gamma", "beta", "momentum", "statistics")
    y, state = batch_norm_fwd(call.x, gamma, beta, **how)
    return Made((y,), state, bn_running(running, state, options["momentum"]))


def _batch_norm_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    options, given = call.options, call.parameters
    gamma, beta, neuron = given.get("gamma"), given.get("beta"), options["neuron"]
    state = bn_stats_grad(dy, call.x, made.state, gamma, beta, neuron=neuron, group=options["group"])
    dx = bn_grad(dy, call.x, state, gamma, beta, neuron=neuron)
    return Pulled(dx, {name: getattr(state, f"d{name}") for name in given}, state)


def _scales(sources: Sequence[Shape], options: Options) -> dict[str, Shape]:
    return {name: sources[0][-1:] for name in ("gamma", "beta") if options[name]}


batch_norm = Kind(
    "batch_norm",
    _batch_norm,
    _batch_norm_grad,
    parameters=_scales,
    memory=lambda channels, options: bn_frozen(mx.zeros(channels), mx.ones(channels), options["eps"]),
)


def _dropout(call: Call) -> Made:
    key, following = mx.random.split(call.memory)
    y, state = dropout_fwd(call.x, key=key, **_but(call.options, "seed"))
    return Made((y,), state, following)


dropout = Kind(
    "dropout",
    _dropout,
    lambda call, made, dy, at: Pulled(dropout_grad(dy, made.state)),
    memory=lambda channels, options: mx.random.key(options["seed"]),
)


def _prelu_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    dx, dslopes = prelu_grad(dy, call.x, call.parameters["slopes"])
    return Pulled(dx, {"slopes": dslopes})


prelu = Kind(
    "prelu",
    lambda call: Made((bent(call.x, call.parameters["slopes"]),)),
    _prelu_grad,
    parameters=lambda sources, options: {"slopes": sources[0][-1:]},
)
# Its gradient has arguments of its own, so that it can have another zero_pad than the filter.
avg_pool = Kind(
    "avg_pool",
    lambda call: Made(*_first(avg_pool_fwd(call.x, **call.options))),
    lambda call, made, dy, at: Pulled(avg_pool_grad(dy, avg_pool_state(call.x.shape, **call.options))),
)
spatial_mean = Kind(
    "spatial_mean",
    lambda call: Made((averaged(call.x),)),
    lambda call, made, dy, at: Pulled(spatial_mean_grad(dy, call.x.shape)),
)
slice_channels = Kind(
    "slice_channels",
    lambda call: Made((sliced(call.x, **call.options),)),
    lambda call, made, dy, at: Pulled(
        slice_channels_grad(dy, call.options["start"], call.x.shape[-1]),
    ),
)


def _reshape(call: Call) -> Made:
    x = call.x
    shape = (len(x), *call.options["shape"])
    _check.image_shape("reshape", "shape", shape)
    if x.size != mx.zeros(shape).size:
        raise ValueError(f"reshape: sizes differ; got shape={shape[1:]}, expected {x.size // len(x)} elements")
    return Made((x.reshape(shape),))


reshape = Kind("reshape", _reshape, lambda call, made, dy, at: Pulled(dy.reshape(call.x.shape)))


def _concatenate_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    return Pulled(concatenate_grad(dy, [image.shape[-1] for image in call.images], **call.options)[at])


concatenate = Kind(
    "concatenate",
    lambda call: Made((concatenated(call.images, **call.options),)),
    _concatenate_grad,
)


def _loss(call: Call) -> Made:
    y, target, *weights = call.images
    how = _but(call.options, "divided")
    if weights:
        how["weights"] = weights[0]
    value, state = loss_fwd(y, target, **how)
    gradient = loss_grad(y, target, **how, divided=True) if call.options["divided"] else state.gradient
    return Made((gradient, value), state)


loss = Kind("loss", _loss)


def _first(result: tuple[mx.array, Any]) -> tuple[tuple[mx.array, ...], Any]:
    image, state = result
    return (image,), state


def _but(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}
