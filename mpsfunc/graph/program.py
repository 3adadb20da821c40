"""A network as one pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import describe
from mpsfunc.graph.dependency import Spec, after
from mpsfunc.graph.drawing import Drawing
from mpsfunc.graph.nodes import (
    Call,
    FilterNode,
    GradientFilterNode,
    ImageNode,
    Made,
    Options,
    Shape,
    StateNode,
    in_order,
    shown,
)
from mpsfunc.graph.placeholders import first_value, fitting, placeholders
from mpsfunc.graph.plan import Outputs, Step, count_once, ends, leaves, named_inputs, names, step

Tree = dict[str, Any]
Gradients = dict[str, dict[str, mx.array]]  # of the parameters of each node


class Run(NamedTuple):
    """What all nodes made."""

    images: dict[ImageNode, mx.array]
    states: dict[FilterNode, Any]
    gradients: Gradients
    memories: Tree


def compile(
    outputs: Outputs,
    *,
    gradients: Sequence[FilterNode] = (),
    format: mx.Dtype | None = None,
    stream: mx.Stream | mx.Device | None = None,
) -> Graph:
    """Compiles the nodes that lead to some outputs to a pure function.

    Source: ``MPSNNGraph``.

    Args:
        outputs: What it returns first: an image node, a state node or a filter node (of which its result image), or a
            list, tuple or dict of such.
        gradients: Gradient nodes, as `training_graph` returns them, that run for the gradients of parameters, without
            returning their images. Default: none.
        format: Dtype that floating inputs are cast to, and with them all images, such as ``mx.float16``, which is MPS's
            default. Default: images keep the inputs' dtype.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A `Graph`.

    Raises:
        TypeError: Something is not a node.
        ValueError: There is a cycle, a gradient counts twice, or two inputs, or two nodes with parameters or states,
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

    Batch normalization uses the statistics of the batch in a training graph, and otherwise running ones, unless its
    argument ``statistics`` is "always" or "never", as MPS's flags. Dropout always drops; leave it out of a network for
    inference.

    Attributes:
        inputs: Names of the inputs.
        nodes: All filters, in the order in which they run.
    """

    def __init__(
        self,
        outputs: Outputs,
        gradients: Sequence[FilterNode],
        format: mx.Dtype | None,
        stream: mx.Stream | mx.Device | None,
    ) -> None:
        if format is not None and not (is_a(format, mx.Dtype) and format in checks.FLOATING):
            raise TypeError(f"compile: format is no floating dtype; got format={shown(format)}, expected None or one")
        self._format, self._stream = format, None if stream is None else launch.resolve(stream)
        self._outputs = outputs
        shown_nodes, last = leaves(outputs), ends(gradients)
        if not shown_nodes and not last:
            raise ValueError(f"compile: there is nothing to make; got outputs={describe(outputs)}, expected nodes")
        producers = [node.producer for node in shown_nodes if node.producer is not None]
        self.nodes = tuple(in_order([*producers, *last]))
        training = set(in_order(last))
        self._steps = [step(node, node in training) for node in self.nodes]
        images = [image for image in shown_nodes if is_a(image, ImageNode)]
        self._images = named_inputs([*images, *(image for step in self._steps for image in step.sources)])
        self.inputs = tuple(self._images)
        count_once(self._steps)
        self._names = names(self.nodes, self.inputs)
        self._trained = {node.of for node in self.nodes if is_a(node, GradientFilterNode)}

    def __call__(
        self, params: Mapping[str, Any], inputs: Mapping[str, mx.array], states: Tree | None = None
    ) -> tuple[Any, Gradients, Tree]:
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
        for argument, tree in (("params", params), ("inputs", inputs), ("states", {} if states is None else states)):
            if not is_a(tree, Mapping):
                raise TypeError(f"graph: {argument} is not a dict; got {shown(tree)}, expected names and values")
        known = dict(states or {})

        def parameters(node: FilterNode, shapes: dict[str, Shape]) -> dict[str, mx.array]:
            if node.params not in params:
                raise ValueError(
                    f"there are no parameters; got {describe(list(params))}, expected {describe(node.params)}"
                )
            return fitting(params[node.params], shapes)

        def memory(node: FilterNode, channels: int, options: Options) -> Any:
            if node.name not in known:
                raise ValueError(
                    f"there is no state; got {describe(list(known))}, expected {describe(node.name)}, as init makes it"
                )
            return known[node.name]

        run = self._run(inputs, parameters, memory)
        return _like(self._outputs, run), run.gradients, known | run.memories

    def init(self, key: mx.array, inputs: Mapping[str, Any]) -> tuple[Tree, Tree]:
        """Parameters and states for the first step.

        Weights are normal with a standard deviation of ``sqrt(2 / fan_in)`` (He), scales one, slopes of a prelu 0.25,
        biases and shifts zero. Running statistics are a mean of 0 and a variance of 1, and the keys of dropouts come
        from ``key`` or their ``seed``.

        Args:
            key: As ``mx.random.key`` makes it.
            inputs: For each input its shape, which means float32, its (shape, dtype), or an array.

        Returns:
            (params, states)

        Raises:
            TypeError: key is not a key, or an input is of the wrong type.
            ValueError: Shapes do not fit. The message names the node.

        Example:
            >>> from mpsfunc import graph
            >>> f = graph.compile(graph.conv(graph.ImageNode("x"), 8, 3, name="conv1"))
            >>> params, states = f.init(mx.random.key(0), {"x": (1, 4, 4, 2)})
            >>> params["conv1"]["w"].shape, states
            ((8, 3, 3, 2), {})
        """
        if not (is_a(key, mx.array) and key.dtype == mx.uint32 and key.shape == (2,)):
            raise TypeError(f"init: not a key; got key={shown(key)}, expected mx.random.key(seed)")
        params: Tree = {}
        states: Tree = {}
        keys = iter(mx.random.split(key, 4 * len(self.nodes) + 1))

        def parameters(node: FilterNode, shapes: dict[str, Shape]) -> dict[str, mx.array]:
            if node.params not in params:
                params[node.params] = {name: first_value(name, shape, next(keys)) for name, shape in shapes.items()}
            return fitting(params[node.params], shapes)

        def memory(node: FilterNode, channels: int, options: Options) -> Any:
            assert node.kind.memory is not None
            states[node.name] = node.kind.memory(channels, options, next(keys))
            return states[node.name]

        self._run(placeholders(inputs), parameters, memory)
        return params, states

    def shapes(self, inputs: Mapping[str, Any]) -> dict[str, Shape]:
        """The shape of every image, by the name of its node, before anything runs.

        Args:
            inputs: As for `init`.

        Raises:
            TypeError: An input is of the wrong type.
            ValueError: Shapes do not fit. The message names the node.

        Example:
            >>> from mpsfunc import graph
            >>> network = graph.compile(graph.avg_pool(graph.ImageNode("x"), 2))
            >>> network.shapes({"x": (1, 4, 4, 2)})
            {'x': (1, 4, 4, 2), 'avg_pool': (1, 2, 2, 2)}
        """
        run = self._run(
            placeholders(inputs),
            lambda node, shapes: {name: mx.zeros(shape) for name, shape in shapes.items()},
            lambda node, channels, options: (
                node.kind.memory(channels, options, mx.random.key(0)) if node.kind.memory else None
            ),
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
            >>> network = graph.compile(graph.avg_pool(graph.ImageNode("x"), 2))
            >>> print(network.draw({"x": (1, 4, 4, 2)}))
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
        parameters: Callable[[FilterNode, dict[str, Shape]], dict[str, mx.array]],
        memory: Callable[[FilterNode, int, Options], Any],
    ) -> Run:
        unknown = [name for name in inputs if name not in self._images]
        if unknown:
            raise ValueError(f"graph: unknown input; got {describe(unknown[0])}, expected {list(self.inputs)}")
        run = Run({image: self._input(image, inputs) for image in self._images.values()}, {}, {}, {})
        calls: dict[FilterNode, tuple[Call, Made]] = {}
        stream = self._stream or mx.default_stream(mx.default_device())
        with mx.stream(stream):
            for step in self._steps:
                try:
                    if is_a(step.node, GradientFilterNode):
                        self._backward(step, *calls[step.node.of], run, stream)
                    else:
                        calls[step.node] = self._apply(step, run, parameters, memory)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"{self._names[step.node]}: {error}") from error
        return run

    def _apply(self, step: Step, run: Run, parameters: Any, memory: Any) -> tuple[Call, Made]:
        node, options = step.node, dict(step.options)
        kind, params, remembered = node.kind, {}, None
        images = tuple(run.images[source] for source in step.sources)
        states = tuple(run.states[producer] for producer in step.states)
        if images[0].ndim == 0:
            raise ValueError(f"no image; got an array of shape (), expected one with channels from {step.sources[0]}")
        if kind.weights is not None:
            params = parameters(node, kind.weights(tuple(images[0].shape), options))
        if kind.memory is not None:
            remembered = memory(node, images[0].shape[-1], options)
        call = Call(images, states, params, remembered, node in self._trained, options)
        made = kind.forward(call)
        run.images.update(zip(node.result_images, made.images, strict=True))
        run.states[node] = made.state
        if kind.memory is not None:
            run.memories[node.name] = made.memory
        return call, made

    def _backward(self, step: Step, call: Call, made: Made, run: Run, stream: mx.Stream) -> None:
        node = step.node
        assert is_a(node, GradientFilterNode) and node.kind.backward is not None
        dy, y = run.images[step.sources[0]], made.images[0]
        if dy.shape != y.shape or dy.dtype != y.dtype:
            got, expected = (f"{tuple(a.shape)} of {a.dtype}" for a in (dy, y))
            raise ValueError(
                f"the gradient does not belong to {describe(node.of.name)}; got {got}, expected {expected}"
            )
        pulled = node.kind.backward(call._replace(options=call.options | step.options), made, dy, node.position)
        run.states[node], image = pulled.state, pulled.image
        if step.trainable and pulled.grads:
            known = run.gradients.setdefault(node.params, {})
            mine = {name: g.astype(call.params[name].dtype) for name, g in pulled.grads.items()}
            known.update({name: known[name] + g if name in known else g for name, g in mine.items()})
            # So that dy and what else they read is let go before the walk goes on, and not kept until the end.
            image = after(image, *mine.values(), Spec(stream))
        run.images[node.result_image] = image

    def _input(self, image: ImageNode, inputs: Mapping[str, mx.array]) -> mx.array:
        if image.name not in inputs:
            readers = [self._names[step.node] for step in self._steps if image in step.sources]
            raise ValueError(
                f"graph: an input is missing; got {describe(list(inputs))}, "
                f"expected {describe(image.name)}, which {readers} read"
            )
        given = inputs[image.name]
        if not is_a(given, mx.array):
            raise TypeError(
                f"graph: input {describe(image.name)} is not an array; got {shown(given)}, expected an mx.array"
            )
        if self._format is not None and mx.issubdtype(given.dtype, mx.floating):
            return given.astype(self._format)
        return given


def _like(outputs: Any, run: Run) -> Any:
    """What was made of a tree of nodes."""
    if isinstance(outputs, dict):
        return {name: _like(each, run) for name, each in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        each = [_like(output, run) for output in outputs]
        return type(outputs)(*each) if hasattr(outputs, "_fields") else type(outputs)(each)
    if isinstance(outputs, StateNode):
        return run.states[outputs.producer]
    return run.images[outputs.result_image if isinstance(outputs, FilterNode) else outputs]
