"""The training graph of a network: gradient nodes, found by walking back from its end."""

from __future__ import annotations

from collections.abc import Callable

from mpsfunc.graph.filters import add
from mpsfunc.graph.nodes import FilterNode, GradientFilterNode, ImageNode, LossNode, as_image, in_order

Handler = Callable[[GradientFilterNode, FilterNode, ImageNode, ImageNode], object]


def training_graph(
    node: FilterNode, source_gradient: ImageNode | FilterNode | None = None, handler: Handler | None = None
) -> list[FilterNode]:
    """Makes the gradient nodes of all filters that lead to a node.

    Where several filters read an image, addition nodes sum its gradients. The walk ends at inputs and at images with
    ``stop_gradient``; a filter with parameters behind such an image still gets its gradient node.

    Source: ``trainingGraphWithSourceGradient:nodeHandler:``.

    Args:
        node: Usually the loss node, which is its own gradient node.
        source_gradient: The gradient of another node's result. Default: that result itself, as in MPS.
        handler: Called as ``handler(gradient_node, filter_node, source_image, gradient_image)`` for every gradient node
            made, which it may configure. Default: none.

    Returns:
        The nodes at the end of the walk, whose results no other gradient node reads, for ``gradients`` of `compile`.

    Raises:
        TypeError: A node has no gradient, or an argument is not a node.
        ValueError: There is a second loss node, a cycle, or a source gradient for a loss.

    Example:
        >>> from mpsfunc import graph
        >>> x = graph.ImageNode("x")
        >>> y = graph.add(graph.relu(x), x)
        >>> made = []
        >>> ends = graph.training_graph(y, graph.ImageNode("dy"), handler=lambda node, *_: made.append(node.name))
        >>> made, ends
        (['add gradient 0', 'add gradient 1', 'relu gradient'], [FilterNode('x gradients')])
    """
    if not isinstance(node, FilterNode):
        raise TypeError(f"training_graph: node is not a filter; got node={node!r}, expected a FilterNode")
    if isinstance(node, LossNode):
        if source_gradient is not None:
            raise ValueError(
                f"training_graph: a loss starts the chain; got source_gradient={source_gradient!r}, expected None"
            )
        gradients = {node.sources[0]: [node.result_image]}
    else:
        given = node if source_gradient is None else source_gradient
        gradients = {node.result_image: [as_image("training_graph: source_gradient", given)]}

    order = in_order([node])
    for each in order:
        if isinstance(each, LossNode) and each is not node:
            raise ValueError(f"training_graph: a second loss node leads to {node.name!r}; got {each.name!r}")
    made: list[FilterNode] = []

    def total(image: ImageNode) -> ImageNode:
        first, *others = gradients.pop(image)
        for other in others:
            node = add(first, other, name=f"{image.name} gradients")
            node.gradient_of = image
            made.append(node)
            first = node.result_image
        return first

    for each in reversed(order):
        if isinstance(each, LossNode) or each.result_image not in gradients:
            continue
        gradient = total(each.result_image)
        for filter in each.gradient_filters(gradient):
            source = filter.gradient_of
            if source.stop_gradient and not filter.parameters:
                continue
            if handler is not None:
                handler(filter, each, source, gradient)
            made.append(filter)
            if not source.stop_gradient:
                gradients.setdefault(source, []).append(filter.result_image)
    for image in list(gradients):
        total(image)
    read = {source for each in made for source in each.sources}
    return [each for each in made if each.result_image not in read]
