"""Instance and group normalization and their gradients.

``MPSCNNInstanceNormalization``, ``...Gradient`` and ``...GradientState``, and ``MPSCNNGroupNormalization`` of later
systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from mpsfunc.activation import fused, prelu_rules
from mpsfunc.activation.fused import FusedActivation, Neuron
from mpsfunc.channels import accumulation
from mpsfunc.channels.activation_spec import NO_ACTIVATION, Activation, NeuronName
from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.normalization.composed import (
    Spec,
    check_parameters,
    check_statistics,
    checked_eps,
    gradients,
    normalized,
    normalized_by,
    parameters,
)


@printing.printed
class InstanceNormState(NamedTuple):
    """Statistics of each image and the gradients of its scale and shift, as they accumulate.

    Fields:
        mean: Mean of each channel of each image (n, c), float32 (float64 for float64 images).
        var: Population variance, likewise (n, c).
        dgamma: Gradient of the scale for each image (n, c); sum over n for that of the scale.
        dbeta: Gradient of the shift for each image (n, c).
        op: "instance_norm".
        eps: Added to the variance under the root.
    """

    mean: mx.array
    var: mx.array
    dgamma: mx.array
    dbeta: mx.array
    op: str
    eps: float

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(mean, var, dgamma, dbeta), for transformations that only take arrays."""
        return self[:4]

    def with_arrays(self, arrays: Sequence[mx.array]) -> InstanceNormState:
        """This state with other arrays, in the order of `arrays`."""
        return _with_arrays(self, arrays)


@printing.printed
class GroupNormState(NamedTuple):
    """Statistics of each image's groups of channels and the gradients of scale and shift, as they accumulate.

    Fields:
        mean: Mean of each group of each image (n, groups), float32 (float64 for float64 images).
        var: Population variance, likewise (n, groups).
        dgamma: Gradient of the scale for each image (n, c); sum over n for that of the scale.
        dbeta: Gradient of the shift for each image (n, c).
        op: "group_norm".
        eps: Added to the variance under the root.
    """

    mean: mx.array
    var: mx.array
    dgamma: mx.array
    dbeta: mx.array
    op: str
    eps: float

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(mean, var, dgamma, dbeta), for transformations that only take arrays."""
        return self[:4]

    def with_arrays(self, arrays: Sequence[mx.array]) -> GroupNormState:
        """This state with other arrays, in the order of `arrays`."""
        return _with_arrays(self, arrays)


def instance_norm(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes each channel of each image by its own statistics, then scales and shifts it.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` with the mean and population variance over height and width.
    Differentiable through the statistics.

    Source: ``MPSCNNInstanceNormalization``, whose default of eps is 1.17549435e-38.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        neuron: The activation that follows in the same pass ("prelu" in a separate pass): the name of one, such as
            "silu", with the defaults of `neuron`, or a `Neuron` with parameters. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, or neuron is not an activation.
        ValueError: x is not NHWC, lengths differ, eps is negative or not finite, or neuron's name or parameters are
            not those of an activation.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1)
        >>> instance_norm(x, eps=0.0).reshape(-1)
        array([-1, 1, -1, 1], dtype=float32)
    """
    return normalized_images("instance_norm", x, gamma, beta, None, eps, neuron, stream)[0]


def instance_norm_fwd(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, InstanceNormState]:
    """`instance_norm`, and the state that `instance_norm_grad` needs. Arguments and errors are the same.

    Returns:
        The normalized images and the state.

    Example:
        >>> _, state = instance_norm_fwd(mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1))
        >>> state.mean.reshape(-1), state.var.reshape(-1)
        (array([2, 4], dtype=float32), array([1, 4], dtype=float32))
    """
    y, *state = _forward("instance_norm", x, gamma, beta, None, eps, neuron, stream)
    return y, InstanceNormState(*state)


def instance_norm_grad(
    dy: mx.array,
    x: mx.array,
    state: InstanceNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, InstanceNormState]:
    """Gradients of `instance_norm`: of its images, and of scale and shift for each image, added to the state's.

    With ``xhat = (x - mean) / sqrt(var + eps)`` and means over height and width:
    ``dx = gamma / sqrt(var + eps) * (dy - mean(dy) - xhat * mean(dy * xhat))``, ``dbeta[n, c] += sum dy`` and
    ``dgamma[n, c] += sum dy * xhat``.

    Source: ``MPSCNNInstanceNormalizationGradient``, which has one state for each image; sum over images yourself.

    Args:
        dy: Gradient of the normalized images (n, h, w, c).
        x: The images that were normalized.
        state: From `instance_norm_fwd`.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,), which only an activation needs. Default: zeros.
        neuron: What the forward function was given. With an activation, dy is multiplied by its slope in all formulas
            above.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The gradient of x's shape and dtype, and the state with the sums added.

    Raises:
        TypeError: An argument is not a floating array, dy and x differ in dtype, state is not an InstanceNormState, or
            neuron is not an activation.
        ValueError: dy, x, gamma, beta or the state differ in shape, or neuron is not one of the activations.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1)
        >>> dy = mx.array([1.0, -2.0, 3.0, 2.0]).reshape(2, 1, 2, 1)
        >>> _, state = instance_norm_fwd(x, eps=1.0)
        >>> dx, state = instance_norm_grad(dy, x, state)
        >>> state.dbeta.reshape(-1)
        array([-1, 5], dtype=float32)
    """
    return _backward("instance_norm_grad", dy, x, state, InstanceNormState, gamma, beta, neuron, stream)


def group_norm(
    x: mx.array,
    groups: int,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes groups of neighbouring channels of each image by their own statistics, then scales and shifts them.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` with the mean and population variance over height, width and
    the ``c / groups`` channels of a group; scale and shift are each channel's. Differentiable through the statistics.

    Source: ``MPSCNNGroupNormalization``; PyTorch's ``group_norm``. (mlx.nn's groups take every ``groups``-th channel
    unless ``pytorch_compatible``.)

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        groups: Groups of c / groups channels each; 1 takes an image as a whole.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        neuron: The activation that follows in the same pass ("prelu" in a separate pass): the name of one, such as
            "silu", with the defaults of `neuron`, or a `Neuron` with parameters. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, groups is not an int, or neuron is not an activation.
        ValueError: x is not NHWC, groups do not divide the channels, lengths differ, eps is negative or not finite, or
            neuron's name or parameters are not those of an activation.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(1, 1, 1, 4)
        >>> group_norm(x, 2, eps=0.0).reshape(-1)
        array([-1, 1, -1, 1], dtype=float32)
    """
    return normalized_images("group_norm", x, gamma, beta, groups, eps, neuron, stream)[0]


def group_norm_fwd(
    x: mx.array,
    groups: int,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, GroupNormState]:
    """`group_norm`, and the state that `group_norm_grad` needs. Arguments and errors are the same.

    Returns:
        The normalized images and the state.

    Example:
        >>> _, state = group_norm_fwd(mx.array([1.0, 3.0, 2.0, 6.0]).reshape(1, 1, 1, 4), 2)
        >>> state.mean
        array([[2, 4]], dtype=float32)
    """
    y, *state = _forward("group_norm", x, gamma, beta, groups, eps, neuron, stream)
    return y, GroupNormState(*state)


def group_norm_grad(
    dy: mx.array,
    x: mx.array,
    state: GroupNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, GroupNormState]:
    """Gradients of `group_norm`: of its images, and of scale and shift for each image, added to the state's.

    With ``xhat = (x - mean) / sqrt(var + eps)`` and means over a group:
    ``dx = (gamma * dy - mean(gamma * dy) - xhat * mean(gamma * dy * xhat)) / sqrt(var + eps)``; ``dbeta[n, c]`` and
    ``dgamma[n, c]`` grow by the sums of ``dy`` and ``dy * xhat`` over height and width.

    Source: ``MPSCNNGroupNormalizationGradient``.

    Args:
        dy: Gradient of the normalized images (n, h, w, c).
        x: The images that were normalized.
        state: From `group_norm_fwd`.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,), which only an activation needs. Default: zeros.
        neuron: What the forward function was given. With an activation, dy is multiplied by its slope in all formulas
            above.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The gradient of x's shape and dtype, and the state with the sums added.

    Raises:
        TypeError: An argument is not a floating array, dy and x differ in dtype, state is not a GroupNormState, or
            neuron is not an activation.
        ValueError: dy, x, gamma, beta or the state differ in shape, or neuron is not one of the activations.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(1, 1, 1, 4)
        >>> _, state = group_norm_fwd(x, 2, eps=0.0)
        >>> dx, state = group_norm_grad(x, x, state)
        >>> dx.reshape(-1), state.dgamma
        (array([0, 0, 0, 0], dtype=float32), array([[-1, 3, -2, 6]], dtype=float32))
    """
    return _backward("group_norm_grad", dy, x, state, GroupNormState, gamma, beta, neuron, stream)


# Both ---------------------------------------------------------------------------------------------------

_State = TypeVar("_State", InstanceNormState, GroupNormState)


def _with_arrays(state: _State, arrays: Sequence[mx.array]) -> _State:
    mean, var, dgamma, dbeta = checks.arrays_of(type(state).__name__, arrays, 4)
    return state._replace(mean=mean, var=var, dgamma=dgamma, dbeta=dbeta)


def normalized_images(
    op: str,
    x: mx.array,
    gamma: mx.array | None,
    beta: mx.array | None,
    groups: int | None,
    eps: float,
    neuron: NeuronName | Neuron | None,
    stream: StreamLike,
) -> tuple[mx.array, mx.array, mx.array, Spec]:
    """The images, mean and variance of each channel's group, and what was done; for instance norm of each channel."""
    stream = launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    together = 0 if op.startswith("instance_norm") else checks.whole(op, "groups", groups)
    check_parameters(op, stream, x, gamma, beta)  # ahead of groups, as it tells turned images
    if together and x.shape[3] % together:
        rule = f"a divisor of {x.shape[3]}"
        raise ValueError(f"{op}: groups do not divide the channels; got groups={describe(groups)}, expected {rule}")
    how = fused.chosen(op, neuron, x.shape[3], stream, of=x.shape)
    spec = Spec(True, together, checked_eps(op, eps), _inside(how), None, stream)
    y, mean, var, _ = normalized(x, gamma, beta, spec)
    if how.slopes is not None:
        y = prelu_rules.prelu(y, how.slopes, stream)
    return y, mean, var, spec


def _inside(how: FusedActivation) -> Activation:
    """What a normalization applies itself: any activation without slopes for channels."""
    return how.act if how.slopes is None else NO_ACTIVATION


def _forward(op: str, x: mx.array, *how: Any) -> tuple[Any, ...]:
    """The images and the fields of the state; arguments are those of `normalized_images`."""
    y, mean, var, spec = normalized_images(op, x, *how)
    with mx.stream(spec.stream):
        dgamma, dbeta = (mx.zeros((x.shape[0], x.shape[3]), mean.dtype) for _ in range(2))
        if spec.groups:  # all channels of a group have the same
            first = slice(None), slice(None, None, x.shape[3] // spec.groups)
            mean, var = (launch.cut(a, first) for a in (mean, var))
            if launch.backend(spec.stream) == "cpu":  # whose gradient reads them as they are
                mean, var = mx.contiguous(mean), mx.contiguous(var)
    return y, mean, var, dgamma, dbeta, op, spec.eps


def _backward(
    op: str,
    dy: mx.array,
    x: mx.array,
    state: Any,
    kind: type[_State],
    gamma: mx.array | None,
    beta: mx.array | None,
    neuron: NeuronName | Neuron | None,
    stream: StreamLike,
) -> tuple[mx.array, _State]:
    stream = launch.resolve(stream)
    checks.gradient(op, dy, x, stream=stream)
    check_parameters(op, stream, x, gamma, beta)
    checks.state(op, state, kind, stream=stream)
    check_statistics(op, state)
    n, channels = x.shape[0], x.shape[3]
    groups = state.mean.shape[-1] if kind is GroupNormState and state.mean.ndim else 0
    of = x.shape
    checks.shape(op, "state.mean", state.mean, (n, groups or channels), "x does not belong to this state", of=of)
    checks.shape(op, "state.var", state.var, (n, groups or channels), "the state does not fit together")
    for name in ("dgamma", "dbeta"):
        checks.shape(op, f"state.{name}", getattr(state, name), (n, channels), "x does not belong to this state", of=of)
    if groups and channels % groups:
        rule = f"groups that divide {channels} channels"
        raise ValueError(
            f"{op}: x does not belong to this state; got state.mean.shape={state.mean.shape}, expected {rule}"
        )
    how = fused.chosen(op, neuron, channels, stream, of=x.shape)
    with mx.stream(stream):
        given = parameters(x, gamma, beta)
        mean, var, *held = (a.astype(given[0].dtype) for a in state.arrays)
        spec = Spec(True, groups, state.eps, _inside(how), None, stream)
        if how.slopes is not None:
            dy = prelu_rules.prelu_grad_input(dy, normalized_by(x, mean, var, given, spec), how.slopes, stream)
        dx, *grown = gradients(dy, x, mean, var, given, spec)
        dgamma, dbeta = (accumulation.accumulate(a, b) for a, b in zip(held, grown, strict=True))
        return dx, state._replace(dgamma=dgamma, dbeta=dbeta)
