"""Losses: the value, and the gradient that a backward pass starts with.

``MPSCNNLoss`` with ``MPSCNNLossDescriptor`` and ``MPSCNNLossLabels``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.losses import arguments, rules
from mpsfunc.losses.arguments import Counting, ReductionName
from mpsfunc.losses.formulas import LossName


@printing.printed
class LossState(NamedTuple):
    """The gradient of a loss, with which a backward pass starts.

    Fields:
        gradient: The gradient of y that `loss` returns, of y's shape and dtype.
        op: "loss".
        type: The type of the loss.
        reduction: Its reduction.
    """

    gradient: mx.array
    op: str
    type: str
    reduction: str

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The gradient."""
        return (self.gradient,)

    def with_arrays(self, arrays: Sequence[mx.array]) -> LossState:
        """This state with another gradient."""
        (gradient,) = checks.arrays_of("LossState", arrays, 1)
        return self._replace(gradient=gradient)


def loss(
    y: mx.array,
    target: mx.array,
    type: LossName,
    reduction: ReductionName,
    *,
    weights: mx.array | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
    ignore_index: int | None = None,
    class_weights: mx.array | None = None,
    pos_weight: mx.array | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, mx.array]:
    """The value of a loss and MPS's gradient, computed together.

    With w the weight of an element, t its target and p the softmax of y over the last axis:

    ========================= =============================================== =============================
    type                      loss of an element, times w                     gradient, times w
    ========================= =============================================== =============================
    mean_absolute_error       ``|y - t|``                                     ``sign(y - t)``
    mean_squared_error        ``(y - t)^2``                                   ``2 * (y - t)``
    softmax_cross_entropy     ``-t * log(p)``                                 ``p - t``
    sigmoid_cross_entropy     ``max(y, 0) - y * t + log(1 + exp(-|y|))``      ``sigmoid(y) - t``
    categorical_cross_entropy ``-t * log(y)``                                 ``-t / y``
    hinge (t is 0 or 1)       ``max(0, 1 - (2t - 1) * y)``                    ``1 - 2t``, 0 where loss is 0
    huber, d = y - t          ``d^2 / 2``, or ``delta * (|d| - delta / 2)``   ``d``, or ``delta * sign(d)``
                              where ``|d| > delta``
    cosine_distance           ``1 - sum of y * t`` of an image                ``-t``
    log                       ``-t log(y + eps) - (1 - t) log(1 - y + eps)``  its derivative
    kullback_leibler          ``t * (log(t) - y)``, y is a log-probability    ``-t``
    ========================= =============================================== =============================

    A target of 0 times a logarithm is 0. Each image is reduced by itself: "none" returns the loss of every element,
    "sum" adds them up, and "mean" divides that sum by ``h * w * c``, in softmax cross-entropy by ``h * w``.
    "sum_by_non_zero_weights" divides it by the number of elements whose weight is not 0 (in softmax cross-entropy of
    pixels, if a pixel has one weight); without weights it is "mean". With ignore_index or class_weights, "mean" divides
    the sum of every image by the average weight of an image in the batch (by 1 if that is 0), so that the mean over
    images is the weighted mean over the batch.

    The gradient is MPS's: it is not divided, whatever the reduction. Under autodiff the value's derivative is exact,
    and so is the gradient's own.

    Source: ``MPSCNNLoss``. Its header prints ``y - t`` for softmax cross-entropy, ``max(1 - t * y, 0)`` for hinge, a
    gradient of ``delta`` without sign for huber, and ``-t / y`` for Kullback-Leibler; none is the derivative.

    Args:
        y: Predictions (n, ..., c), images along the first axis and classes along the last; logits for the first two
            cross-entropies. float32, float16, bfloat16, or float64 on the CPU.
        target: Labels of y's shape and dtype. For softmax and categorical cross-entropy also integers of shape
            ``y.shape[:-1]``, the classes, or (n,) where images have one pixel; a label below 0 or above the last class
            is not a class: its target is zeros. With MPSFUNC_CHECK_LABELS=1 in the environment labels are evaluated,
            and such a label is an error.
        type: One of the names above.
        reduction: "none", "sum", "mean" or "sum_by_non_zero_weights"; cosine_distance has "sum" only.
        weights: A weight for every element, of any shape that broadcasts to y's, instead of ``weight``; one per pixel
            has a last axis of 1. Not for cosine_distance. Default: none.
        weight: The weight of all elements. Default 1.
        label_smoothing: Softmax cross-entropy takes ``t * (1 - label_smoothing) + label_smoothing /
            number_of_classes`` for t, sigmoid cross-entropy the same with 2. Default 0.
        number_of_classes: See label_smoothing; MPS does not infer it from y. Softmax cross-entropy only. Default 1.
        epsilon: See log, the only type that takes one. Default 1e-7.
        delta: See huber, the only type that takes one. Default 1.
        ignore_index: Pixels with this label, which may be that of a class, are ignored: they have no loss and no
            gradient, and are not counted in a mean. If the logits of such a pixel contain NaN or positive infinity, the
            gradient of softmax cross-entropy is still NaN there. For integer labels. Default: none.
        class_weights: Weights (c,) of the classes, for softmax and categorical cross-entropy: of each class's target.
            In addition to ``weight`` or ``weights``. With integer labels "mean" divides by the class weights of the
            labels instead of the number of pixels, and a label that is not a class has a weight of 0. Default: none.
        pos_weight: Weights (c,) of the first of the two terms of sigmoid cross-entropy, ``-t * log(sigmoid(y))``; of
            shape () or (1,) the weight of all classes. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The value, float32 (float64 for float64) of shape (n, 1, ..., 1), or of y's shape and dtype for "none"; and the
        gradient of y's shape and dtype.

    Raises:
        TypeError: An argument has a type or a dtype that is not allowed.
        ValueError: Shapes do not fit, a name is unknown, a number is out of range, or an argument has no meaning for
            this type.

    Example:
        >>> y, target = mx.array([[1.0, 2.0, 0.0]]), mx.array([[0.0, 1.0, 0.0]])
        >>> value, gradient = loss(y, target, "mean_squared_error", "mean")
        >>> round(value.item(), 6), gradient
        (0.666667, array([[2, 2, 0]], dtype=float32))
    """
    given = arguments.check_arguments(
        *("loss", y, target, type, reduction, weights, weight, label_smoothing),
        *(number_of_classes, epsilon, delta, stream, Counting(ignore_index, class_weights, pos_weight)),
    )
    with mx.stream(given.spec.stream):
        value, gradient = rules.both(given.arrays, given.spec)
        return given.value(value), given.image(gradient)


def loss_value(
    y: mx.array,
    target: mx.array,
    type: LossName,
    reduction: ReductionName,
    *,
    weights: mx.array | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
    ignore_index: int | None = None,
    class_weights: mx.array | None = None,
    pos_weight: mx.array | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Only the value of `loss`, for autodiff. Arguments and errors are those of `loss`.

    Its derivative is exact: that of softmax cross-entropy with respect to y does not assume that targets add up to 1,
    the divisor of a reduction divides the derivative too, and targets and weights have derivatives as well.

    Returns:
        The value.

    Example:
        >>> y, labels = mx.log(mx.array([[0.25, 0.5, 0.25]])), mx.array([1])
        >>> def value(y):
        ...     return loss_value(y, labels, "softmax_cross_entropy", "mean").sum()
        >>> mx.round(mx.grad(value)(y), 6)
        array([[0.25, -0.5, 0.25]], dtype=float32)
    """
    given = arguments.check_arguments(
        *("loss_value", y, target, type, reduction, weights, weight, label_smoothing),
        *(number_of_classes, epsilon, delta, stream, Counting(ignore_index, class_weights, pos_weight)),
        passed=False,
    )
    with mx.stream(given.spec.stream):
        return given.value(rules.value(*given.arrays, given.spec))


def loss_grad(
    y: mx.array,
    target: mx.array,
    type: LossName,
    reduction: ReductionName = "sum",
    *,
    divided: bool = False,
    weights: mx.array | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
    ignore_index: int | None = None,
    class_weights: mx.array | None = None,
    pos_weight: mx.array | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Only the gradient of `loss`. Arguments and errors are those of `loss`, except for these.

    Args:
        y: As for `loss`.
        target: As for `loss`.
        type: As for `loss`.
        reduction: As for `loss`; counts only if the gradient is divided. Default "sum".
        divided: True gives the exact derivative of the value, summed over images: with the divisor of the reduction,
            and for softmax cross-entropy ``p * (sum of w * t) - w * t``. False, the default, gives MPS's gradient,
            there ``w * (p - t)``, which is the same without a reduction if targets add up to 1 and a pixel has one
            weight.
        weights: As for `loss`.
        weight: As for `loss`.
        label_smoothing: As for `loss`.
        number_of_classes: As for `loss`.
        epsilon: As for `loss`.
        delta: As for `loss`.
        ignore_index: As for `loss`.
        class_weights: As for `loss`.
        pos_weight: As for `loss`.
        stream: As for `loss`.

    Returns:
        The gradient, of y's shape and dtype.

    Example:
        >>> y, target = mx.array([[1.0, 2.0, 0.0, 4.0]]), mx.array([[0.0, 1.0, 0.0, 1.0]])
        >>> (
        ...     loss_grad(y, target, "huber", "mean"),
        ...     loss_grad(y, target, "huber", "mean", divided=True),
        ... )
        (array([[1, 1, 0, 1]], dtype=float32), array([[0.25, 0.25, 0, 0.25]], dtype=float32))
    """
    given = arguments.check_arguments(
        *("loss_grad", y, target, type, reduction, weights, weight, label_smoothing),
        *(number_of_classes, epsilon, delta, stream, Counting(ignore_index, class_weights, pos_weight)),
        passed=divided is not True,
    )
    checks.switch("loss_grad", "divided", divided)
    with mx.stream(given.spec.stream):
        return given.derivative() if divided else given.image(rules.gradient(*given.arrays, given.spec))


def loss_fwd(
    y: mx.array,
    target: mx.array,
    type: LossName,
    reduction: ReductionName,
    *,
    weights: mx.array | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
    ignore_index: int | None = None,
    class_weights: mx.array | None = None,
    pos_weight: mx.array | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, LossState]:
    """`loss`, with the gradient in a state, with which a backward pass starts. Arguments and errors are the same.

    Source: ``MPSCNNLoss`` writes the gradient into its destination, and the first gradient kernel reads it there.

    Returns:
        The value, and the state, whose ``gradient`` is the `dy` of the layer that made y.

    Example:
        >>> value, state = loss_fwd(
        ...     mx.array([[0.5, 2.0]]), mx.array([[1.0, 0.0]]), "mean_squared_error", "sum"
        ... )
        >>> value, state.gradient
        (array([[4.25]], dtype=float32), array([[-1, 4]], dtype=float32))
    """
    options: dict[str, Any] = {"label_smoothing": label_smoothing, "number_of_classes": number_of_classes}
    given = arguments.check_arguments(
        *("loss_fwd", y, target, type, reduction, weights, weight),
        *(*options.values(), epsilon, delta, stream, Counting(ignore_index, class_weights, pos_weight)),
    )
    with mx.stream(given.spec.stream):
        value, gradient = rules.both(given.arrays, given.spec)
        return given.value(value), LossState(given.image(gradient), "loss", type, reduction)
