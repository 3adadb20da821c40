"""The nodes, parameters and states of a network, collected once when it is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mpsfunc.core.arguments import entries, is_a
from mpsfunc.core.printing import describe
from mpsfunc.graph.loss_nodes import InitialGradientNode, LossNode
from mpsfunc.graph.nodes import (
    FilterNode,
    GradientFilterNode,
    ImageNode,
    Options,
    StateNode,
    frozen,
    shown,
)

# What a network returns: nodes in lists, tuples and dicts.
Outputs = ImageNode | StateNode | FilterNode | Sequence["Outputs"] | Mapping[str, "Outputs"]

_DEEPEST = 100  # trees in trees


class Step(NamedTuple):
    """A node as it was when it was compiled."""

    node: FilterNode
    sources: tuple[ImageNode, ...]
    states: tuple[FilterNode, ...]
    options: Options
    trainable: bool  # whether the gradients of parameters are asked for


def leaves(outputs: Any, depth: int = 0) -> list[ImageNode | StateNode]:
    """The images and states of a tree of nodes."""
    if depth > _DEEPEST:
        raise ValueError(f"compile: outputs is too deep; got {shown(outputs)}, expected at most {_DEEPEST} levels")
    held = tuple(dict.values(outputs)) if is_a(outputs, dict) else entries(outputs)
    if held is not None:
        return [leaf for each in held for leaf in leaves(each, depth + 1)]
    if is_a(outputs, FilterNode):
        return [outputs.result_image]
    if not (is_a(outputs, ImageNode) or is_a(outputs, StateNode)):
        raise TypeError(
            f"compile: outputs is not made of nodes; got {shown(outputs)}, expected images, states or filters"
        )
    return [outputs]


def ends(gradients: Any) -> list[FilterNode]:
    """Gradient nodes that run for the gradients of parameters."""
    expected = "expected what training_graph returns"
    given = entries(gradients)
    if given is None:
        raise TypeError(f"compile: gradients is not a list; got {shown(gradients)}, {expected}")
    for end in given:
        if not is_a(end, FilterNode) or (end.gradient_of is None and not is_a(end, LossNode)):
            raise TypeError(f"compile: gradients holds no gradient node; got {shown(end)}, {expected}")
    return list(given)


def step(node: FilterNode, training: bool) -> Step:
    """A node as it is now; ``training`` says whether it leads to `ends`."""
    trainable = training and is_a(node, GradientFilterNode) and node.trainable
    states = tuple(state.producer for state in node.states)
    return Step(node, tuple(node.sources), states, frozen(node.options), trainable)


def count_once(steps: Sequence[Step]) -> None:
    """Refuses two gradient nodes of one filter that read the same gradient, which would count it twice."""
    seen: set[tuple[FilterNode, int, ImageNode, bool]] = set()
    for step in steps:
        if is_a(step.node, GradientFilterNode):
            for image, ones in _terms(step.sources[0]):
                this = step.node.of, step.node.position, image, ones
                if this in seen:
                    raise ValueError(
                        f"compile: one gradient counts twice; got two of {describe(step.node.name)}, expected one"
                    )
                seen.add(this)


def _terms(gradient: ImageNode) -> list[tuple[ImageNode, bool]]:
    """The images that addition nodes of a walk sum to a gradient; of one that is ones, the image that it belongs to."""
    found: list[tuple[ImageNode, bool]] = []
    left = [gradient]
    while left:
        image = left.pop()
        maker = image.producer
        if is_a(maker, InitialGradientNode):
            found.append((maker.sources[0], True))
        elif maker is None or maker.gradient_of is None or is_a(maker, GradientFilterNode):
            found.append((image, False))
        else:
            left += maker.sources
    return found


def named_inputs(images: Iterable[ImageNode]) -> dict[str, ImageNode]:
    """Images that nothing makes, by name."""
    found: dict[str, ImageNode] = {}
    for image in images:
        if image.producer is None and found.setdefault(image.name, image) is not image:
            raise ValueError(
                f"compile: two inputs share a name; got {describe(image.name)} twice, expected one ImageNode"
            )
    return found


def names(nodes: Sequence[FilterNode], inputs: Sequence[str]) -> dict[FilterNode, str]:
    """A name for each node, numbered where several have one."""
    names: dict[FilterNode, str] = {}
    taken = set(inputs)
    stored: dict[str, FilterNode] = {}
    for node in nodes:
        name = node.name
        if is_a(node, GradientFilterNode):
            name = names[node.of] + name.removeprefix(node.of.name)
        elif (of := node.gradient_of) is not None and of.producer is not None and name.startswith(of.name):
            name = names[of.producer] + name.removeprefix(of.name)
        else:
            _own_names(node, stored)
        numbered, count = name, 1
        while numbered in taken:
            count += 1
            numbered = f"{name} {count}"
        taken.add(numbered)
        names[node] = numbered
    return names


def _own_names(node: FilterNode, stored: dict[str, FilterNode]) -> None:
    """Refuses that a node has parameters or a state under the name of another's, unless both share parameters."""
    keys = {node.params} if node.params else set()
    keys |= {node.name} if node.kind.memory is not None else set()
    for key in keys:
        other = stored.setdefault(key, node)
        if other is not node and not (node.shares and other.shares and key == node.params == other.params):
            why = "expected another name, or params= of both to share parameters"
            raise ValueError(
                f"compile: two nodes have parameters or states of one name; got {describe(key)} twice, {why}"
            )
