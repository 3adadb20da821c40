"""The training graph of a network: gradient nodes, made from its end backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpsfunc.core.arguments import entries, is_a
from mpsfunc.core.printing import describe
from mpsfunc.graph import kinds
from mpsfunc.graph.filters import initial_gradient
from mpsfunc.graph.loss_nodes import ForwardLossNode, LossNode
from mpsfunc.graph.nodes import FilterNode, GradientFilterNode, ImageNode, as_image, in_order, shown

Handler = Callable[[GradientFilterNode, FilterNode, ImageNode, ImageNode], object]
Given = ImageNode | FilterNode | None  # the gradient of a result, if it is not the one that is made


def training_graph(
    node: FilterNode | Sequence[FilterNode],
    source_gradient: Given | Sequence[Given] = None,
    handler: Handler | None = None,
) -> list[FilterNode]:
    """Makes the gradient nodes of all filters that lead to a node, or to several.

    Where several filters read an image, addition nodes sum its gradients. It stops at inputs and at images with
    ``stop_gradient``; a filter with parameters that reads such an image still gets its gradient node. For several nodes
    it trains the sum of their results.

    Source: ``trainingGraphWithSourceGradient:nodeHandler:``.

    Args:
        node: Usually the loss node, which is its own gradient node; or forward losses, or what combines them. A list of
            nodes trains the sum of their results.
        source_gradient: The gradient of another node's result; of a list of nodes a list, with None where the default
            is meant. Default: ones where a forward loss leads to the node, and else that result itself, as in MPS.
        handler: Called as ``handler(gradient_node, filter_node, source_image, gradient_image)`` for every gradient node
            made, which it may configure. Default: none.

    Returns:
        The last gradient nodes, whose results no other gradient node reads: pass them as ``gradients`` of `compile`.

    Raises:
        TypeError: A node has no gradient, or an argument is not a node or not a function.
        ValueError: A loss node leads to another node, a node is given twice, there is a cycle, a source gradient for a
            loss node, or a target or weights of a loss that depend on parameters, which get no gradient: set
            ``stop_gradient`` on it, or ask a forward loss for ``label_gradients``.

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
    nodes, given = _paired(node, source_gradient)
    order = _checked(nodes, handler)
    gradients: dict[ImageNode, list[ImageNode]] = {}
    made: list[FilterNode] = []
    for each, source in zip(nodes, given, strict=True):
        first, start = each.sources[0] if is_a(each, LossNode) else each.result_image, _start(each, source)
        if not first.stop_gradient:
            gradients.setdefault(first, []).append(start)
            made += [each] if is_a(each, LossNode) else []
        if is_a(each, LossNode):
            _check_constants(each)

    def total(image: ImageNode) -> ImageNode:
        one, *others = gradients.pop(image)
        for other in others:
            both = FilterNode(kinds.sum_of_gradients, (one, other), {}, name=f"{image.name} gradients")
            both.gradient_of = image
            made.append(both)
            one = both.result_image
        return one

    for each in reversed(order):
        if is_a(each, LossNode) and any(image in gradients for image in each.result_images):
            raise ValueError(
                f"training_graph: a loss node starts the backward pass; got {describe(each.name)}, which leads to "
                "another, expected a forward_loss, or stop_gradient on its image"
            )
        if each.result_image not in gradients:
            continue
        gradient = total(each.result_image)
        if is_a(each, ForwardLossNode):
            _check_constants(each)
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


def _paired(node: Any, source_gradient: Any) -> tuple[list[FilterNode], list[Any]]:
    """The nodes to begin at, and what is given for each of them."""
    several = entries(node)
    if several is None:
        nodes, given = [node], [source_gradient]
    else:
        nodes, listed = list(several), entries(source_gradient)
        given = [None] * len(nodes) if source_gradient is None else list(listed or ())
        if not nodes or len(given) != len(nodes):
            raise ValueError(
                f"training_graph: nodes and gradients differ in number; got {len(nodes)} nodes and "
                f"source_gradient={shown(source_gradient)}, expected a node or more, and None or a gradient for each"
            )
    for at, each in enumerate(nodes):
        if not is_a(each, FilterNode):
            raise TypeError(f"training_graph: node is not a filter; got node={shown(each)}, expected a FilterNode")
        if each in nodes[:at]:
            raise ValueError(f"training_graph: a node counts twice; got {describe(each.name)} twice, expected it once")
    return nodes, given


def _start(node: FilterNode, given: Any) -> ImageNode:
    """The gradient that the walk begins with."""
    if given is not None:
        start = as_image("training_graph: source_gradient", given)
        if is_a(node, LossNode):
            raise ValueError(
                f"training_graph: a loss starts the backward pass; got source_gradient={describe(start)}, expected None"
            )
        return start
    if is_a(node, LossNode) or not any(is_a(each, ForwardLossNode) for each in in_order([node])):
        return node.result_image
    image = node.result_image
    ones: FilterNode = initial_gradient(image, name=f"{image.name} initial gradient")
    return ones.result_image


def _checked(nodes: Sequence[FilterNode], handler: Handler | None) -> list[FilterNode]:
    """The filters that lead to some nodes, if one can walk back from them."""
    if handler is not None and not callable(handler):
        raise TypeError(f"training_graph: handler is not a function; got handler={shown(handler)}, expected one")
    order = in_order(nodes)
    for each in order:
        if is_a(each, GradientFilterNode):
            each.gradient_filters(each)  # refuses
    return order


def _check_constants(loss: FilterNode) -> None:
    """Refuses parameters behind what has no gradient."""
    for at, constant in enumerate(loss.sources):
        if at in loss.differentiable or constant.stop_gradient or constant.producer is None:
            continue
        if any(each.params for each in in_order([constant.producer])):
            forward = at == 1 and is_a(loss, ForwardLossNode)
            raise ValueError(
                f"{loss.name}: targets and weights have no gradient; got {describe(constant.name)} with parameters "
                f"behind it, expected stop_gradient on it{' or label_gradients=True' * forward}"
            )
