"""Parameters of the kernels of losses and softmaxes, as ``metal/losses/params.h`` has them."""

from __future__ import annotations

from typing import NamedTuple


class LossNumbers(NamedTuple):
    """The numbers of a loss.

    Fields:
        kept: A target becomes kept * target + share, but for a label that is not a class, whose targets stay zeros.
        share: What all classes get of it.
        epsilon: Of the type "log"; of the focal loss its alpha.
        delta: Of the type "huber"; of the focal loss its gamma.
        weight: Of every element, unless there are weights.
        factor: Of a sum.
    """

    kept: float
    share: float
    epsilon: float
    delta: float
    weight: float
    factor: float


class LossParams(NamedTuple):
    """What a CPU's `loss` is told.

    Fields:
        type: As MPS numbers them; then the focal loss, and sigmoid cross-entropy whose two terms are multiplied with
            the target and the weights.
        elements: Whether the value has one number per element, else an image.
        labelled: Whether the target is a class a pixel.
        weighted: Whether there are weights.
        numbers: Those of the loss.
    """

    type: int
    elements: int
    labelled: int
    weighted: int
    numbers: LossNumbers


class LossGradParams(NamedTuple):
    """What a CPU's `loss_grad` is told.

    Fields:
        type: As `LossParams` has it.
        exact: Whether it is the derivative of the value, else MPS's gradient.
        labelled: Whether the target is a class a pixel.
        weighted: Whether there are weights.
        scaled: Whether there is a factor for each image.
        numbers: Those of the loss.
    """

    type: int
    exact: int
    labelled: int
    weighted: int
    scaled: int
    numbers: LossNumbers


class LossLaunch(NamedTuple):
    """Parts that an image is summed in on a GPU, and the numbers of the loss."""

    parts: int
    numbers: LossNumbers


class SoftmaxGradParams(NamedTuple):
    """Which derivative a CPU's kernel computes.

    Fields:
        derivative: 0 the gradient, 1 its own by y; 2 of a logarithm its own by dy, of softmax the gradient of softmin.
    """

    derivative: int


class DiceParams(NamedTuple):
    """What a CPU's kernels of the Dice loss are told.

    Fields:
        activation: What makes probabilities: 0 nothing, 1 a sigmoid, 2 softmax.
        squared: Whether the sums of predictions and of targets are of their squares.
        labelled: Whether the target is a class a pixel.
    """

    activation: int
    squared: int
    labelled: int


class DiceLossParams(NamedTuple):
    """What a CPU's gradient of the Dice loss is told.

    Fields:
        sums: What is summed.
        smooth: Added above and below.
        share: What the loss of a class counts.
    """

    sums: DiceParams
    smooth: float
    share: float


class NmsParams(NamedTuple):
    """What a CPU's `nms` is told.

    Fields:
        most: How many boxes are looked for in each image.
        threshold: The overlap that is allowed.
    """

    most: int
    threshold: float
