"""Networks as text and as pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpsfunc.core.printing import describe
from mpsfunc.graph.loss_nodes import InitialGradientNode
from mpsfunc.graph.nodes import FilterNode, GradientFilterNode, ImageNode, Shape

_ACROSS, _DOWN = 2.4, 0.9  # inches from node to node
_INK = {"image": "#333333", "gradient": "#c0392b", "state": "#888888", "filter": "#888888"}
_FILL = {False: "#eef3fb", True: "#fdeaea"}

Drawn = FilterNode | ImageNode  # a filter, or an input


class Box(NamedTuple):
    """Where a node is drawn. The network goes down on the left, and its gradients come up on the right."""

    column: float
    row: float
    backward: bool


class Edge(NamedTuple):
    """From what makes an image to a filter.

    What it carries is an "image", a "gradient" or a "state". A gradient node has two more: "source", an image of the
    network that it reads, and "filter", from the filter whose gradient it is, where that has no state.
    """

    image: ImageNode
    target: FilterNode
    carries: str


class Drawing:
    """A drawing of a network; `Graph.draw` makes it.

    It prints a line for each node, in the order in which they run, with its shape and what it reads. A notebook shows
    it as a picture, if matplotlib is installed.

    Example:
        >>> from mpsfunc import graph
        >>> pooled = graph.avg_pool(graph.ImageNode("x"), 2)
        >>> loss = graph.loss(
        ...     graph.relu(pooled), graph.ImageNode("t"), "mean_squared_error", "sum"
        ... )
        >>> f = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
        >>> print(f.draw({"x": (1, 4, 4, 3), "t": (1, 2, 2, 3)}))
        x                  (1, 4, 4, 3)
        avg_pool           (1, 2, 2, 3)  <- x
        relu               (1, 2, 2, 3)  <- avg_pool
        t                  (1, 2, 2, 3)
        loss               (1, 2, 2, 3)  <- relu, t
        relu gradient      (1, 2, 2, 3)  <- loss, avg_pool
        avg_pool gradient  (1, 4, 4, 3)  <- relu gradient, x, state of avg_pool
    """

    def __init__(
        self,
        nodes: Sequence[FilterNode],
        inputs: Iterable[ImageNode],
        called: Callable[[ImageNode], str],
        shapes: dict[str, Shape],
    ) -> None:
        self._called, self._shapes = called, shapes
        self._edges = [edge for node in nodes for edge in _edges(node)]
        self._boxes = _placed(nodes, list(inputs))

    def __str__(self) -> str:
        names = {drawn: self._name(drawn) for drawn in self._boxes}
        wide = max(map(len, names.values()), default=0)
        far = max((len(self._shape(drawn)) for drawn in names), default=0)
        return "\n".join(
            f"{name:{wide}}  {self._shape(drawn):{far}}{self._read(drawn)}".rstrip() for drawn, name in names.items()
        )

    def save(self, path: str | Path) -> None:
        """Writes a picture: black edges are images and red ones gradients, with shapes; dashed ones are states.

        Args:
            path: A file ending in .svg, .png or .pdf.

        Raises:
            ImportError: matplotlib, which draws, is not installed.
            ValueError: The file has another ending.
        """
        if Path(path).suffix not in (".svg", ".png", ".pdf"):
            raise ValueError(
                f"Drawing.save: unknown format; got path={describe(str(path))}, expected .svg, .png or .pdf"
            )
        self._figure().savefig(path, bbox_inches="tight", dpi=120)

    def _repr_svg_(self) -> str | None:
        try:
            figure = self._figure()
        except ImportError:
            return None
        written = io.StringIO()
        figure.savefig(written, format="svg", bbox_inches="tight")
        return written.getvalue()

    def _name(self, drawn: Drawn) -> str:
        return self._called(drawn.result_image if isinstance(drawn, FilterNode) else drawn)

    def _shape(self, drawn: Drawn) -> str:
        return str(self._shapes.get(self._name(drawn), ""))

    def _read(self, drawn: Drawn) -> str:
        edges = [edge for edge in self._edges if edge.target is drawn and edge.carries != "filter"]
        told = ["state of " * (edge.carries == "state") + self._called(edge.image) for edge in edges]
        return f"  <- {', '.join(told)}" if told else ""

    def _figure(self) -> Any:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError("Drawing: pictures need matplotlib; print it, or pip install matplotlib") from None
        columns = 1 + max((box.column for box in self._boxes.values() if not box.backward), default=0)
        places = {
            drawn: ((box.column + columns * box.backward) * _ACROSS, -box.row * _DOWN)
            for drawn, box in self._boxes.items()
        }
        right, low = max(x for x, _ in places.values()), min(y for _, y in places.values())
        figure = Figure(figsize=(right + _ACROSS, _DOWN - low))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-_ACROSS / 2, right + _ACROSS / 2), ylim=(low - _DOWN / 2, _DOWN / 2))
        axes.axis("off")
        for edge in self._edges:
            if edge.carries != "source":  # the edge from its filter stands for them
                self._line(axes, edge, places[_maker(edge.image)], places[edge.target])
        read = {_maker(edge.image) for edge in self._edges if edge.carries in ("image", "gradient")}
        for drawn, place in places.items():
            frame = {"boxstyle": "round,pad=0.4", "facecolor": _FILL[self._boxes[drawn].backward], "edgecolor": "#555"}
            # The shape stands on edges, or here where there are none.
            text = self._name(drawn) if drawn in read else f"{self._name(drawn)}\n{self._shape(drawn)}".rstrip()
            axes.text(*place, text, ha="center", va="center", fontsize=8, bbox=frame, zorder=3)
        return figure

    def _line(self, axes: Any, edge: Edge, source: tuple[float, float], target: tuple[float, float]) -> None:
        level, straight = source[1] == target[1], source[0] == target[0]
        bend = 0.3 if straight and abs(source[1] - target[1]) > 1.5 * _DOWN else 0.0
        arrow = {
            "arrowstyle": "-|>",
            "color": _INK[edge.carries],
            "linestyle": "-" if edge.carries in ("image", "gradient") else "--",
            "shrinkA": 30 if level else 10,
            "shrinkB": 60 if level else 10 if straight else 30,
            "connectionstyle": f"arc3,rad={bend}",
        }
        axes.annotate("", target, source, arrowprops=arrow, zorder=1)
        if edge.carries in ("image", "gradient"):
            # Beside the middle of the line, which a bend moves to the side.
            x, y = (source[0] + target[0]) / 2, (source[1] + target[1]) / 2
            x += bend / 2 * (target[1] - source[1]) + 0.08
            shape = str(self._shapes.get(self._called(edge.image), ""))
            axes.text(x, y, shape, ha="left", va="center", fontsize=6, color=_INK[edge.carries], zorder=2)


def _maker(image: ImageNode) -> Drawn:
    return image if image.producer is None else image.producer


def _edges(node: FilterNode) -> Iterator[Edge]:
    if not isinstance(node, GradientFilterNode):
        carries = "image" if node.gradient_of is None or isinstance(node, InitialGradientNode) else "gradient"
        yield from (Edge(source, node, carries) for source in node.sources)
    else:
        yield Edge(node.sources[0], node, "gradient")
        yield from (Edge(source, node, "source") for source in node.sources[1:])
        if not node.states:
            yield Edge(node.of.result_image, node, "filter")
    yield from (Edge(state.producer.result_image, node, "state") for state in node.states)


def _placed(nodes: Sequence[FilterNode], inputs: list[ImageNode]) -> dict[Drawn, Box]:
    """A place for each, in the order of text: an input just before what reads it first."""
    boxes: dict[Drawn, Box] = {}

    def place(drawn: Drawn, column: float, row: float, backward: bool) -> None:
        taken = set(boxes.values())
        while Box(column, row, backward) in taken:
            column += 1
        boxes[drawn] = Box(column, row, backward)

    for node in nodes:
        new = [image for image in dict.fromkeys(node.sources) if image in inputs and image not in boxes]
        before = [boxes[_maker(source)] for source in node.sources if source not in new]
        if isinstance(node, GradientFilterNode):
            # Beside its filter; of several, each beside the source that it belongs to.
            own = boxes[node.of]
            column = own.column if len(node.of.differentiable) == 1 else boxes[_maker(node.gradient_of)].column
            for image in new:
                place(image, column, own.row + 1, True)
            place(node, column, own.row, True)
        elif before and isinstance(node, InitialGradientNode):
            place(node, before[0].column, before[0].row + 1, True)
        elif before and node.gradient_of is not None:
            row = min(box.row for box in before)
            for image in new:
                place(image, before[0].column, row, True)
            place(node, before[0].column, row - 0.5, True)
        else:
            row = max((box.row for box in before), default=0) + 1
            for image in new:
                place(image, 0, row - 1, False)
            place(node, 0, row, False)
    for image in inputs:
        if image not in boxes:
            place(image, 0, 0, False)
    return boxes
