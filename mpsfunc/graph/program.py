"""A network as one pure function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _check
from mpsfunc.graph.drawing import Drawing
from mpsfunc.graph.nodes import (
    Call,
    FilterNode,
    GradientFilterNode,
    ImageNode,
    LossNode,
    Made,
    Parameters,
    Shape,
    StateNode,
    in_order,
)

Tree = dict[str, Any]


class Run(NamedTuple):
    """What all nodes made."""

    images: dict[ImageNode, mx.array]
    states: dict[FilterNode, Any]
    gradients: dict[str, Parameters]
    memories: Tree


def compile(
    outputs: Any,
    *,
    gradients: Sequence[FilterNode] = (),
    format: mx.Dtype | None = None,
    stream: mx.Stream | mx.Device | None = None,
) -> Graph:
    """Makes a pure function of the nodes that lead to some.

    Source: ``MPSNNGraph``.

    Args:
        outputs: What it returns first: an image node, a state node or a filter node (of which its result image), or a
            list, tuple or dict of such.
        gradients: Gradient nodes, as `training_graph` returns them, that run for the gradients of parameters without
            their images being asked for. Default: none.
        format: Dtype that floating inputs are cast to, and with them all images, such as ``mx.float16``, which is MPS's
            default. Default: images keep the inputs' dtype.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A `Graph`.

    Raises:
        TypeError: Something is not a node.
        ValueError: There is a cycle, there are two loss nodes, or two inputs, or two nodes with parameters or states,
            share a name.

    Example:
        >>> from mpsfunc import graph
        >>> f = graph.compile(graph.relu(graph.ImageNode("x")))
        >>> f({}, {"x": mx.array([-1.0, 2.0])})
        (array([0, 2], dtype=float32), {}, {})
    """
    return Graph(outputs, gradients, format, stream)


class Graph:
    """A compiled network; `compile` makes it.

    Call it as ``outputs, gradients, states = graph(params, inputs, states)``; ``mx.compile`` takes it too. All of these
    are trees of arrays and states:

    - ``params["conv1"]["w"]`` is a parameter of the node with that name, or whose ``params`` is that name;
      ``gradients`` has the same form, for the parameters of gradient nodes, so that ``mlx.optimizers`` can apply them;
    - ``inputs["x"]`` is the array of an `ImageNode`;
    - ``states["bn1"]`` are the running statistics of a batch normalization, a frozen `BatchNormState`, or the key of a
      dropout. What is returned goes into the next call.

    Batch normalization takes the statistics of the batch where a gradient node reads them, and else the running ones;
    its argument ``statistics`` says "always" or "never" instead, as MPS's flags do. Dropout drops wherever it stands;
    a network for inference leaves it out.

    Attributes:
        inputs: Names of the inputs.
        nodes: All filters, in the order in which they run.
    """

    def __init__(
        self,
        outputs: Any,
        gradients: Sequence[FilterNode],
        format: mx.Dtype | None,
        stream: mx.Stream | mx.Device | None,
    ) -> None:
        for end in gradients:
            if not isinstance(end, FilterNode):
                raise TypeError(f"compile: gradients is not made of filters; got {end!r}, expected FilterNodes")
        if format is not None and not (isinstance(format, mx.Dtype) and format in _check.FLOATING):
            raise TypeError(f"compile: format is no floating dtype; got format={format!r}")
        self._outputs, self._ends, self._format, self._stream = outputs, tuple(gradients), format, stream
        producers = [node.producer for node in _leaves(outputs)]
        self.nodes = tuple(in_order([*(node for node in producers if node is not None), *gradients]))
        shown = [node for node in _leaves(outputs) if isinstance(node, ImageNode)]
        self._images = _named_inputs([*shown, *(source for node in self.nodes for source in node.sources)])
        self.inputs = tuple(self._images)
        losses = [node.name for node in self.nodes if isinstance(node, LossNode)]
        if len(losses) > 1:
            raise ValueError(f"compile: there are two loss nodes; got {losses}, expected one at most")
        self._names = _names(self.nodes)
        self._trained = {node.of for node in self.nodes if isinstance(node, GradientFilterNode)}

    def __call__(self, params: Mapping[str, Any], inputs: Mapping[str, mx.array], states: Tree | None = None) -> Any:
        """Runs the network.

        Args:
            params: Parameters of each node that has some. There may be more.
            inputs: An array for each of ``inputs``.
            states: From `init` or the last call. There may be more. Default: none.

        Returns:
            The outputs, in the form that `compile` was given; the gradients of parameters; and the new states.

        Raises:
            TypeError: An array is of a dtype, or something of a type, that it cannot be. The message names the node.
            ValueError: Something is missing, unknown or of a shape that does not fit. The message names the node.
        """
        known = dict(states or {})

        def parameters(node: FilterNode, shapes: dict[str, Shape]) -> Parameters:
            if node.parameters not in params:
                raise ValueError(f"there are no parameters; got {list(params)}, expected {node.parameters!r}")
            return _fitting(params[node.parameters], shapes)

        def memory(node: FilterNode, channels: int) -> Any:
            if node.name not in known:
                raise ValueError(f"there is no state; got {list(known)}, expected {node.name!r}, as init makes it")
            return known[node.name]

        run = self._run(inputs, parameters, memory)
        return _like(self._outputs, run), run.gradients, known | run.memories

    def init(self, key: mx.array, inputs: Mapping[str, Any]) -> tuple[Tree, Tree]:
        """Parameters and states for the first step.

        Weights are normal with a standard deviation of ``sqrt(2 / fan_in)`` (He), scales one, slopes of a prelu 0.25,
        biases and shifts zero. Running statistics are a mean of 0 and a variance of 1, and the key of a dropout is made
        from its ``seed``.

        Args:
            key: As ``mx.random.key`` makes it.
            inputs: Shapes of the inputs, or arrays.

        Returns:
            (params, states)

        Example:
            >>> from mpsfunc import graph
            >>> f = graph.compile(graph.conv(graph.ImageNode("x"), 8, 3, name="conv1"))
            >>> params, states = f.init(mx.random.key(0), {"x": (1, 4, 4, 2)})
            >>> params["conv1"]["w"].shape, states
            ((8, 3, 3, 2), {})
        """
        params: Tree = {}
        states: Tree = {}
        keys = iter(mx.random.split(key, 2 * len(self.nodes) + 1))

        def parameters(node: FilterNode, shapes: dict[str, Shape]) -> Parameters:
            if node.parameters not in params:
                params[node.parameters] = {name: _first(name, shape, next(keys)) for name, shape in shapes.items()}
            return _fitting(params[node.parameters], shapes)

        def memory(node: FilterNode, channels: int) -> Any:
            assert node.kind.memory is not None
            return states.setdefault(node.name, node.kind.memory(channels, node.options))

        self._run(_placeholders(inputs), parameters, memory)
        return params, states

    def shapes(self, inputs: Mapping[str, Any]) -> dict[str, Shape]:
        """The shape of every image, by the name of its node, before anything runs.

        Args:
            inputs: Shapes of the inputs, or arrays.

        Raises:
            TypeError: An input is of the wrong type.
            ValueError: Shapes do not fit. The message names the node.

        Example:
            >>> from mpsfunc import graph
            >>> graph.compile(graph.avg_pool(graph.ImageNode("x"), 2)).shapes({"x": (1, 4, 4, 2)})
            {'x': (1, 4, 4, 2), 'avg_pool': (1, 2, 2, 2)}
        """
        run = self._run(
            _placeholders(inputs),
            lambda node, shapes: {name: mx.zeros(shape) for name, shape in shapes.items()},
            lambda node, channels: node.kind.memory and node.kind.memory(channels, node.options),
        )
        return {self._called(image): tuple(array.shape) for image, array in run.images.items()}

    def draw(self, inputs: Mapping[str, Any] | None = None) -> Drawing:
        """The network as text and as a picture.

        Args:
            inputs: Shapes of the inputs, or arrays, to have shapes in the drawing. Default: none.

        Returns:
            A `Drawing`: print it, or save it.

        Example:
            >>> from mpsfunc import graph
            >>> print(graph.compile(graph.avg_pool(graph.ImageNode("x"), 2)).draw({"x": (1, 4, 4, 2)}))
            x         (1, 4, 4, 2)
            avg_pool  (1, 2, 2, 2)  <- x
        """
        shapes = {} if inputs is None else self.shapes(inputs)
        return Drawing(self.nodes, self._images.values(), self._called, shapes)

    def __repr__(self) -> str:
        return f"Graph({len(self.nodes)} nodes, inputs={list(self.inputs)})"

    def _called(self, image: ImageNode) -> str:
        """The name of an image: that of its filter, by which errors and drawings go."""
        node = image.producer
        if node is None:
            return image.name
        return self._names[node] + (" value" if image is not node.result_image else "")

    def _run(
        self,
        inputs: Mapping[str, mx.array],
        parameters: Callable[[FilterNode, dict[str, Shape]], Parameters],
        memory: Callable[[FilterNode, int], Any],
    ) -> Run:
        run = Run({image: self._input(image, inputs) for image in self._images.values()}, {}, {}, {})
        unknown = [name for name in inputs if name not in self._images]
        if unknown:
            raise ValueError(f"graph: unknown input; got {unknown[0]!r}, expected {list(self.inputs)}")
        calls: dict[FilterNode, tuple[Call, Made]] = {}
        with mx.stream(self._stream) if self._stream is not None else nullcontext():
            for node in self.nodes:
                try:
                    if isinstance(node, GradientFilterNode):
                        self._pull(node, *calls[node.of], run)
                    else:
                        calls[node] = self._apply(node, run, parameters, memory)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"{self._names[node]}: {error}") from error
        return run

    def _apply(self, node: FilterNode, run: Run, parameters: Any, memory: Any) -> tuple[Call, Made]:
        images = tuple(run.images[source] for source in node.sources)
        states = tuple(run.states[state.producer] for state in node.states)
        kind, given, remembered = node.kind, {}, None
        if kind.parameters is not None:
            given = parameters(node, kind.parameters([tuple(image.shape) for image in images], node.options))
        if kind.memory is not None:
            remembered = memory(node, images[0].shape[-1])
        call = Call(images, states, given, remembered, node in self._trained, node.options)
        made = kind.forward(call)
        run.images.update(zip(node.result_images, made.images, strict=True))
        run.states[node] = made.state
        if kind.memory is not None:
            run.memories[node.name] = made.memory
        return call, made

    def _pull(self, node: GradientFilterNode, call: Call, made: Made, run: Run) -> None:
        assert node.kind.backward is not None
        dy = run.images[node.sources[0]]
        pulled = node.kind.backward(call._replace(options=node.options), made, dy, node.position)
        run.states[node], image = pulled.state, pulled.image
        if node.trainable and pulled.parameters:
            known = run.gradients.setdefault(node.parameters, {})
            mine = {name: g.astype(call.parameters[name].dtype) for name, g in pulled.parameters.items()}
            known.update({name: known[name] + g if name in known else g for name, g in mine.items()})
            # So that dy and the images are let go before the walk goes on, and not kept until all else is done.
            (image,) = mx.depends([image], list(mine.values()))
        run.images[node.result_image] = image

    def _input(self, image: ImageNode, inputs: Mapping[str, mx.array]) -> mx.array:
        if image.name not in inputs:
            readers = [self._names[node] for node in self.nodes if image in node.sources]
            raise ValueError(f"graph: input {image.name!r} is missing, which {readers} read; got {list(inputs)}")
        given = inputs[image.name]
        if not isinstance(given, mx.array):
            raise TypeError(f"graph: input {image.name!r} is not an array; got {given!r}, expected an mx.array")
        cast = self._format is not None and mx.issubdtype(given.dtype, mx.floating)
        return given.astype(self._format) if cast and self._format is not None else given


def _leaves(outputs: Any) -> list[ImageNode | StateNode]:
    """The images and states of a tree of nodes."""
    if isinstance(outputs, dict):
        return [leaf for each in outputs.values() for leaf in _leaves(each)]
    if isinstance(outputs, (list, tuple)):
        return [leaf for each in outputs for leaf in _leaves(each)]
    if isinstance(outputs, FilterNode):
        return [outputs.result_image]
    if not isinstance(outputs, (ImageNode, StateNode)):
        raise TypeError(f"compile: outputs is not made of nodes; got {outputs!r}, expected images, states or filters")
    return [outputs]


def _like(outputs: Any, run: Run) -> Any:
    """What was made of a tree of nodes."""
    if isinstance(outputs, dict):
        return {name: _like(each, run) for name, each in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        return type(outputs)(_like(each, run) for each in outputs)
    if isinstance(outputs, StateNode):
        return run.states[outputs.producer]
    return run.images[outputs.result_image if isinstance(outputs, FilterNode) else outputs]


def _named_inputs(images: Iterable[ImageNode]) -> dict[str, ImageNode]:
    """Images that nothing makes, by name."""
    found: dict[str, ImageNode] = {}
    for image in images:
        if image.producer is None and found.setdefault(image.name, image) is not image:
            raise ValueError(f"compile: two inputs share a name; got {image.name!r} twice, expected one ImageNode")
    return found


def _names(nodes: Sequence[FilterNode]) -> dict[FilterNode, str]:
    """A name for each node, numbered where several have one."""
    names: dict[FilterNode, str] = {}
    owners: dict[str, FilterNode] = {}
    for node in nodes:
        name = node.name
        if isinstance(node, GradientFilterNode):
            name = names[node.of] + name.removeprefix(node.of.name)
        elif node.gradient_of is not None and node.gradient_of.producer is not None:
            name = names[node.gradient_of.producer] + name.removeprefix(node.gradient_of.name)
        elif name in owners and (node.parameters or node.kind.memory or owners[name].parameters):
            why = "expected another name, and params= to share parameters"
            raise ValueError(f"compile: two nodes with parameters or states share a name; got {name!r} twice, {why}")
        numbered, count = name, 1
        while numbered in owners:
            count += 1
            numbered = f"{name} {count}"
        owners[numbered] = node
        names[node] = numbered
    return names


def _placeholders(inputs: Mapping[str, Any]) -> dict[str, mx.array]:
    """Arrays that nobody evaluates, of given shapes."""
    made = {}
    for name, given in inputs.items():
        if isinstance(given, (list, tuple)) and all(isinstance(d, int) and d >= 0 for d in given):
            given = mx.zeros(given)
        made[name] = given
    return made


def _first(name: str, shape: Shape, key: mx.array) -> mx.array:
    """A parameter before the first step."""
    if name == "w":
        return mx.random.normal(shape, scale=math.sqrt(2 / math.prod(shape[1:])), key=key)
    return mx.full(shape, {"gamma": 1.0, "slopes": 0.25}.get(name, 0.0))


def _fitting(given: Any, shapes: dict[str, Shape]) -> Parameters:
    """Parameters of a node, if they are what it needs."""
    for name, shape in shapes.items():
        if not isinstance(given, Mapping) or name not in given:
            known = list(given) if isinstance(given, Mapping) else given
            raise ValueError(f"a parameter is missing; got {known}, expected {list(shapes)}")
        if not isinstance(given[name], mx.array):
            raise TypeError(f"{name} is not an array; got {name}={given[name]!r}, expected an mx.array")
        if tuple(given[name].shape) != shape:
            raise ValueError(f"{name} does not fit; got {name}.shape={tuple(given[name].shape)}, expected {shape}")
    return {name: given[name] for name in shapes}
