"""The nodes where a backward pass starts: losses, and the initial gradient."""

from __future__ import annotations

from typing import Any

from mpsfunc.core import checks
from mpsfunc.graph.nodes import FilterNode, Gradient, GradientFilterNode, ImageNode


class LossNode(FilterNode):
    """The node of a loss, which is its own gradient node, so that a backward pass starts at it.

    Source: ``MPSCNNLossNode``, ``MPSCNNYOLOLossNode``.

    Attributes:
        result_image: The gradient of the first source. Targets and weights count as constants.
        loss_image: The loss.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_image = self._made(f"{self.name} value")

    @property
    def result_images(self) -> tuple[ImageNode, ...]:
        """The gradient and the loss."""
        return (self.result_image, self.loss_image)

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The first source."""
        return (0,)

    def gradient_filters(self, gradient: Gradient) -> list[GradientFilterNode]:
        """Refused with a TypeError: ``result_image`` is the gradient."""
        raise TypeError(f"{self.name}: a loss node is its own gradient node; got {gradient}, expected its result_image")


class ForwardLossNode(FilterNode):
    """The node of a loss that makes the value alone, an image like any other.

    Its gradient node is the exact derivative times the gradient of the value; so other nodes may read the value, and
    losses be combined.

    Source: ``MPSNNForwardLossNode``; its gradient node is ``MPSNNLossGradientNode``.

    Attributes:
        result_image: The loss.
    """

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The predictions, and the labels if ``label_gradients`` asks for that."""
        return (0, 1) if checks.switch(self.name, "label_gradients", self.options["label_gradients"]) else (0,)


class InitialGradientNode(FilterNode):
    """The node of the gradient of an image by itself, which is one everywhere.

    Source: ``MPSNNInitialGradientNode``.

    Attributes:
        result_image: Ones.
        gradient_of: The image.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gradient_of = self.sources[0]
