"""The nodes of a network and how they are connected. Nothing here computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core.arguments import entries, is_a, text
from mpsfunc.core.printing import describe

Shape = tuple[int, ...]
Options = dict[str, Any]

_DEEPEST = 8  # lists in lists


class Call(NamedTuple):
    """What a filter is called with."""

    images: tuple[mx.array, ...]
    states: tuple[Any, ...]  # of other filters
    params: dict[str, mx.array]
    memory: Any  # what goes from step to step: running statistics, or a key
    training: bool  # whether a gradient node reads its state
    options: Options

    @property
    def x(self) -> mx.array:
        """The first image."""
        return self.images[0]


class Made(NamedTuple):
    """What a filter made of a call."""

    images: tuple[mx.array, ...]
    state: Any = None
    memory: Any = None


class Pulled(NamedTuple):
    """What a gradient filter made: the gradient of an image, those of parameters, and the state that keeps them."""

    image: mx.array
    grads: dict[str, mx.array] = {}
    state: Any = None


class Kind(NamedTuple):
    """What the filters of a kind do.

    Fields:
        name: The function in mpsfunc.
        forward: From a call to what it makes.
        backward: From a call, what it made, the gradient of its first image and the position of a source, to what it
            made of that; None if there is no gradient.
        keeps: Whether it makes a state.
        tunable: Options that the gradient may have otherwise than the filter.
        weights: The shapes of parameters, from the shape of the first image and options.
        memory: What goes into the first step, from the number of channels, options and a key.
    """

    name: str
    forward: Callable[[Call], Made]
    backward: Callable[[Call, Made, mx.array, int], Pulled] | None = None
    keeps: bool = False
    tunable: tuple[str, ...] = ()
    weights: Callable[[Shape, Options], dict[str, Shape]] | None = None
    memory: Callable[[int, Options, mx.array], Any] | None = None


class ImageNode:
    """Images of an input, or the result of a filter.

    Source: ``MPSNNImageNode``.

    Attributes:
        name: Of an input, under which `Graph` takes its array; else that of the filter.
        producer: The filter that makes it; None for an input.
        stop_gradient: If True, `training_graph` stops here. Default False.

    Raises:
        TypeError: The name is not a string, or empty.

    Example:
        >>> x = ImageNode("x")
        >>> x.stop_gradient = True
        >>> x
        ImageNode('x')
    """

    def __init__(self, name: str) -> None:
        given = text(name)
        if not given:
            raise TypeError(f"ImageNode: name is not a name; got name={shown(name)}, expected a string")
        self.name = given
        self.stop_gradient = False
        self.producer: FilterNode | None = None

    def __repr__(self) -> str:
        return f"ImageNode({describe(self.name)})"


class StateNode:
    """The state that a filter passes to its gradient filter, such as a `ConvState`.

    Source: ``MPSNNStateNode``.

    Attributes:
        producer: The filter that makes it.
    """

    def __init__(self, producer: FilterNode) -> None:
        self.producer = producer

    def __repr__(self) -> str:
        return f"StateNode({describe(self.producer.name)})"


class FilterNode:
    """One operation, between images. The functions of `mpsfunc.graph` make them.

    Source: ``MPSNNFilterNode``.

    Attributes:
        kind: What it does.
        name: As given, else that of its kind; used in errors, drawings and parameters.
        params: The name of its parameters in the ``params`` of `Graph`; empty if it has none.
        shares: Whether other nodes may have the same parameters.
        sources: The images that it reads.
        states: The states of other filters that it reads.
        options: The arguments of its function; see `configure`.
        result_image: What it makes; for a loss the gradient with which the backward pass starts.
        gradient_of: The image whose gradient it makes; None in the forward network.

    Example:
        >>> from mpsfunc import graph
        >>> node = graph.avg_pool(graph.ImageNode("x"), 2)
        >>> node.options["edge_mode"], node.options["zero_pad"]
        ('clamp', 0)
    """

    def __init__(
        self,
        kind: Kind,
        sources: Sequence[ImageNode],
        options: Options,
        *,
        name: str,
        params: str = "",
        shares: bool = False,
        states: Sequence[StateNode] = (),
    ) -> None:
        self.kind, self.name, self.params, self.shares = kind, name, params, shares
        self.sources, self.states, self.options = tuple(sources), tuple(states), options
        self.result_image = self._made(name)
        self.gradient_of: ImageNode | None = None

    def _made(self, name: str) -> ImageNode:
        image = ImageNode(name)
        image.producer = self
        return image

    @property
    def result_images(self) -> tuple[ImageNode, ...]:
        """All images that it makes."""
        return (self.result_image,)

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The positions of the sources that have a gradient; all others count as constants."""
        return tuple(range(len(self.sources)))

    @property
    def before(self) -> list[FilterNode]:
        """The filters that it reads from."""
        producers = [image.producer for image in self.sources] + [state.producer for state in self.states]
        return [node for node in producers if node is not None]

    @property
    def result_state(self) -> StateNode:
        """What its gradient needs in addition to images.

        Raises:
            TypeError: Operations of this kind keep no state.
        """
        if not self.kind.keeps:
            raise TypeError(f"{self.name}: {self.kind.name} keeps no state; got result_state, expected result_image")
        return StateNode(self)

    @property
    def configurable(self) -> tuple[str, ...]:
        """The arguments that `configure` takes."""
        return tuple(self.options)

    def configure(self, **options: Any) -> None:
        """Changes arguments. Graphs that are compiled already do not change.

        A gradient node has the arguments of its filter, except those that may differ: ``zero_pad`` and ``edge_mode`` of
        an average, and whether arithmetic applies the mask of its limits (``clamp``).

        Raises:
            TypeError: The node has no such argument.

        Example:
            >>> from mpsfunc import graph
            >>> node = graph.avg_pool(graph.ImageNode("x"), 3)
            >>> node.configure(zero_pad=1)
        """
        for option in options:
            if option not in self.configurable:
                known = ", ".join(self.configurable) or "none"
                raise TypeError(f"{self.name}: no such argument; got {option}, expected one of: {known}")
        self.options.update(frozen(options))

    def gradient_filter(self, gradient: Gradient) -> GradientFilterNode:
        """The node that makes the gradient of the source of this one.

        Source: ``gradientFilterWithSource:``, ``gradientFilterWithSources:``.

        Args:
            gradient: The gradient of ``result_image``; or a list of the gradients of all results, which are one.

        Raises:
            TypeError: The operation has no gradient, or gradient is not an image node.
            ValueError: It has several sources: use `gradient_filters`; or the list does not have exactly one gradient.

        Example:
            >>> from mpsfunc import graph
            >>> node = graph.softmax(graph.ImageNode("x"))
            >>> node.gradient_filter(graph.ImageNode("dy"))
            GradientFilterNode('softmax gradient')
        """
        made = self.gradient_filters(gradient)
        if len(made) != 1:
            raise ValueError(
                f"{self.name}: {len(made)} sources have a gradient each; got gradient_filter, expected gradient_filters"
            )
        return made[0]

    def gradient_filters(self, gradient: Gradient) -> list[GradientFilterNode]:
        """The nodes that make the gradients of the sources of this one, one each.

        Source: ``gradientFiltersWithSource:``, ``gradientFiltersWithSources:``. Arguments and errors are those of
        `gradient_filter`.

        Example:
            >>> from mpsfunc import graph
            >>> node = graph.add(graph.ImageNode("x"), graph.ImageNode("y"))
            >>> node.gradient_filters(graph.ImageNode("dy"))
            [GradientFilterNode('add gradient 0'), GradientFilterNode('add gradient 1')]
        """
        if self.kind.backward is None:
            why = "expected stop_gradient on its image"
            raise TypeError(f"{self.name}: an operation without a gradient; got {self.kind.name}, {why}")
        listed, argument = entries(gradient), f"{self.name}: gradient"
        if listed is None:
            image = as_image(argument, gradient)
        elif len(listed) == 1:
            image = as_image(f"{argument}[0]", listed[0])
        else:
            raise ValueError(f"{argument}: its results are one; got {len(listed)} gradients, expected 1")
        return [GradientFilterNode(self, image, at) for at in self.differentiable]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe(self.name)})"


class GradientFilterNode(FilterNode):
    """The gradient of a filter with respect to one of its sources, and to its parameters if it has any.

    Source: ``MPSNNGradientFilterNode``. It has no gradient of its own; the functions have, to any order.

    Attributes:
        of: The filter.
        position: Which source of it.
        trainable: If False, gradients of its parameters are not computed (``MPSNNTrainingStyle``). Default True.
        options: Where its arguments are not those of the filter.
        result_image: The gradient of that source.
        result_state: The filter's state with the gradients of parameters, such as ``dw``.
    """

    gradient_of: ImageNode

    def __init__(self, of: FilterNode, gradient: ImageNode, position: int) -> None:
        name = f"{of.name} gradient" + f" {position}" * (len(of.differentiable) > 1)
        states = [of.result_state] if of.kind.keeps else []
        super().__init__(of.kind, (gradient, *of.sources), {}, name=name, params=of.params, states=states)
        self.of, self.position, self.trainable = of, position, True
        self.gradient_of = of.sources[position]

    @property
    def before(self) -> list[FilterNode]:
        """The filters that it reads from, its own among them."""
        return [*super().before, self.of]

    @property
    def configurable(self) -> tuple[str, ...]:
        """The arguments that may differ from those of its filter."""
        return self.kind.tunable

    def gradient_filters(self, gradient: Gradient) -> list[GradientFilterNode]:
        """Refused with a TypeError, as in MPS; take the second order from the functions."""
        raise TypeError(
            f"{self.name}: a gradient node has no gradient node; got {gradient}, expected mx.grad on the functions"
        )


# The gradient of what a filter makes, also as a list of one.
Gradient = ImageNode | FilterNode | Sequence[ImageNode | FilterNode]


def in_order(ends: Iterable[FilterNode]) -> list[FilterNode]:
    """All filters that lead to some, each behind those that it reads from.

    Raises:
        ValueError: There is a cycle.
    """
    order: list[FilterNode] = []
    open_: dict[FilterNode, None] = {}
    done: set[FilterNode] = set()
    stack = [(end, False) for end in reversed(list(ends))]
    while stack:
        node, left = stack.pop()
        if left:
            del open_[node]
            done.add(node)
            order.append(node)
        elif node in open_:
            names = " -> ".join(each.name for each in [*open_, node][list(open_).index(node) :])
            raise ValueError(f"graph: there is a cycle; got {names}, expected none")
        elif node not in done:
            open_[node] = None
            stack.append((node, True))
            stack += [(before, False) for before in reversed(node.before)]
    return order


def as_image(argument: str, node: Any) -> ImageNode:
    """An image node, or what a filter makes."""
    if is_a(node, FilterNode):
        return node.result_image
    if not is_a(node, ImageNode):
        raise TypeError(f"{argument} is not a node; got {shown(node)}, expected an ImageNode or a FilterNode")
    return node


def frozen(value: Any, depth: int = 0) -> Any:
    """A value that nobody else can change: lists as tuples, dicts copied, as deep as any argument goes."""
    if depth > _DEEPEST:
        return value
    if is_a(value, dict):
        return {name: frozen(each, depth + 1) for name, each in dict.items(value)}
    return tuple(frozen(each, depth + 1) for each in list.__iter__(value)) if is_a(value, list) else value


def shown(value: Any) -> str:
    """A value for an error; nodes by their names."""
    if is_a(value, mx.array):
        return f"an mx.array of shape {tuple(value.shape)}"
    ours = type(value) is ImageNode or type(value) is StateNode or is_a(value, FilterNode)
    return repr(value) if ours else describe(value)
