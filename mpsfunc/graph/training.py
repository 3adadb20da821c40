"""The training graph of a network: gradient nodes, found by walking back from its end."""

from __future__ import annotations

from collections.abc import Callable

from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import describe
from mpsfunc.graph.filters import add
from mpsfunc.graph.nodes import FilterNode, GradientFilterNode, ImageNode, LossNode, as_image, in_order, shown

Handler = Callable[[GradientFilterNode, FilterNode, ImageNode, ImageNode], object]


def training_graph(
    node: FilterNode, source_gradient: ImageNode | FilterNode | None = None, handler: Handler | None = None
) -> list[FilterNode]:
    """Makes the gradient nodes of all filters that lead to a node.

    Where several filters read an image, addition nodes sum its gradients. It stops at inputs and at images with
    ``stop_gradient``; a filter with parameters that reads such an image still gets its gradient node.

    Source: ``trainingGraphWithSourceGradient:nodeHandler:``.

    Args:
        node: Usually the loss node, which is its own gradient node.
        source_gradient: The gradient of another node's result. Default: that result itself, as in MPS.
        handler: Called as ``handler(gradient_node, filter_node, source_image, gradient_image)`` for every gradient node
            made, which it may configure. Default: none.

    Returns:
        The last gradient nodes, whose results no other gradient node reads, for ``gradients`` of `compile`.

    Raises:
        TypeError: A node has no gradient, or an argument is not a node or not a function.
        ValueError: There is a second loss node, a cycle, a source gradient for a loss, or a target or weights of a loss
            that depend on parameters, which get no gradient: set ``stop_gradient`` on it.

    Example:
        >>> from mpsfunc import graph
        >>> x = graph.ImageNode("x")
        >>> y = graph.add(graph.relu(x), x)
        >>> made = []
        >>> ends = graph.training_graph(
        ...     y, graph.ImageNode("dy"), handler=lambda node, *_: made.append(node.name)
        ... )
        >>> made, ends
        (['add gradient 0', 'add gradient 1', 'relu gradient'], [FilterNode('x gradients')])
    """
    order = _checked(node, handler)
    gradients: dict[ImageNode, list[ImageNode]] = {}
    if source_gradient is not None:
        start = as_image("training_graph: source_gradient", source_gradient)
        if is_a(node, LossNode):
            raise ValueError(
                f"training_graph: a loss starts the backward pass; got source_gradient={describe(start)}, expected None"
            )
    else:
        start = node.result_image
    first = node.sources[0] if is_a(node, LossNode) else node.result_image
    if not first.stop_gradient:
        gradients[first] = [start]

    made: list[FilterNode] = [node] if is_a(node, LossNode) and gradients else []

    def total(image: ImageNode) -> ImageNode:
        one, *others = gradients.pop(image)
        for other in others:
            both = add(one, other, name=f"{image.name} gradients")
            both.gradient_of = image
            made.append(both)
            one = both.result_image
        return one

    for each in reversed(order):
        if is_a(each, LossNode) or each.result_image not in gradients:
            continue
        gradient = total(each.result_image)
        for pulling in each.gradient_filters(gradient):
            source = pulling.gradient_of
            if source.stop_gradient and not pulling.params:
                continue
            if handler is not None:
                handler(pulling, each, source, gradient)
            made.append(pulling)
            if not source.stop_gradient:
                gradients.setdefault(source, []).append(pulling.result_image)
    for image in list(gradients):
        total(image)
    read = {source for each in made for source in each.sources}
    return [each for each in made if each.result_image not in read]


def _checked(node: FilterNode, handler: Handler | None) -> list[FilterNode]:
    """The filters that lead to a node, if one can walk back from it."""
    if not is_a(node, FilterNode):
        raise TypeError(f"training_graph: node is not a filter; got node={shown(node)}, expected a FilterNode")
    if handler is not None and not callable(handler):
        raise TypeError(f"training_graph: handler is not a function; got handler={shown(handler)}, expected one")
    order = in_order([node])
    for each in order:
        if is_a(each, GradientFilterNode):
            each.gradient_filters(each)  # refuses
        if is_a(each, LossNode) and each is not node:
            raise ValueError(
                f"training_graph: a second loss node; got {describe(each.name)}, which leads to {describe(node.name)}, "
                "expected one"
            )
    if is_a(node, LossNode):
        for constant in node.sources[1:]:
            behind = [] if constant.stop_gradient or constant.producer is None else in_order([constant.producer])
            if any(each.params for each in behind):
                why = "with parameters behind it, expected stop_gradient on it"
                raise ValueError(
                    f"{node.name}: targets and weights have no gradient; got {describe(constant.name)} {why}"
                )
    return order
