"""Networks as text and as pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpsfunc.graph.nodes import FilterNode, GradientFilterNode, ImageNode, Shape

_ACROSS, _DOWN = 2.4, 0.9  # inches from node to node
_INK = {"image": "#333", "gradient": "#c0392b", "state": "#888"}


class Box(NamedTuple):
    """Where a node is drawn. The network goes down on the left, and its gradients come up on the right."""

    column: float
    row: float
    backward: bool


class Edge(NamedTuple):
    """From node to node."""

    source: str
    target: str
    carries: str  # "image", "gradient", "state", or "source", an image of the network that a gradient node reads


class Drawing:
    """A drawing of a network; `Graph.draw` makes it.

    Printed, it is a line for each node in the order in which they run: its shape and what it reads. In a notebook it
    shows itself as a picture, if matplotlib is there.

    Example:
        >>> from mpsfunc import graph
        >>> loss = graph.loss(graph.relu(graph.ImageNode("x")), graph.ImageNode("t"), "mean_squared_error", "sum")
        >>> f = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
        >>> print(f.draw({"x": (1, 2), "t": (1, 2)}))
        x              (1, 2)
        relu           (1, 2)  <- x
        t              (1, 2)
        loss           (1, 2)  <- relu, t
        relu gradient  (1, 2)  <- loss, x, state of relu
    """

    def __init__(
        self,
        nodes: Sequence[FilterNode],
        inputs: Iterable[ImageNode],
        called: Callable[[ImageNode], str],
        shapes: dict[str, Shape],
    ) -> None:
        self._shapes = shapes
        self._edges: list[Edge] = []
        self._boxes: dict[str, Box] = {}
        waiting = [called(image) for image in inputs]

        def place(name: str, column: float, row: float, backward: bool) -> None:
            taken = {(box.column, box.row) for box in self._boxes.values() if box.backward == backward}
            while (column, row) in taken:
                column += 1
            self._boxes[name] = Box(column, row, backward)

        for node in nodes:
            name, read = called(node.result_image), [called(source) for source in node.sources]
            back = isinstance(node, GradientFilterNode)
            carried = ["image" if node.gradient_of is None else "gradient"] * len(read)
            carried[1:] = ["source"] * (len(read) - 1) if back else carried[1:]
            self._edges += map(Edge, read, [name] * len(read), carried)
            self._edges += [Edge(called(state.producer.result_image), name, "state") for state in node.states]
            before = [self._boxes[source] for source in map(_owner, read) if source in self._boxes]
            new = [image for image in read if image in waiting]
            waiting = [image for image in waiting if image not in new]
            if isinstance(node, GradientFilterNode):
                # Beside its filter; of several, each beside the source that it belongs to.
                own = self._boxes[called(node.of.result_image)]
                beside = own if len(node.of.sources) == 1 else self._boxes[_owner(called(node.gradient_of))]
                for image in new:
                    place(image, beside.column, own.row + 1, True)
                place(name, beside.column, own.row, True)
            elif node.gradient_of is not None:
                place(name, before[0].column, min(box.row for box in before) - 0.5, True)
            else:
                row = max((box.row for box in before), default=0) + 1
                for image in new:
                    place(image, 0, row - 1, False)
                place(name, 0, row, False)
        for image in waiting:
            place(image, 0, 0, False)
        self._columns = 1 + max((box.column for box in self._boxes.values() if not box.backward), default=0)

    def __str__(self) -> str:
        widths = max(map(len, self._boxes), default=0), max((len(self._shape(name)) for name in self._boxes), default=0)
        lines = []
        for name in self._boxes:
            read = [
                "state of " * (edge.carries == "state") + edge.source for edge in self._edges if edge.target == name
            ]
            after = f"  <- {', '.join(read)}" if read else ""
            lines.append(f"{name:{widths[0]}}  {self._shape(name):{widths[1]}}{after}".rstrip())
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Writes a picture: black edges are images, red ones gradients, dashed ones states with what else is read.

        Args:
            path: A file ending in .svg, .png or .pdf.

        Raises:
            ImportError: matplotlib, which draws, is not installed.
            ValueError: The file has another ending.
        """
        if Path(path).suffix not in (".svg", ".png", ".pdf"):
            raise ValueError(f"Drawing.save: unknown format; got path={str(path)!r}, expected .svg, .png or .pdf")
        self._figure().savefig(path, bbox_inches="tight", dpi=120)

    def _repr_svg_(self) -> str | None:
        try:
            figure = self._figure()
        except ImportError:
            return None
        written = io.StringIO()
        figure.savefig(written, format="svg", bbox_inches="tight")
        return written.getvalue()

    def _shape(self, name: str) -> str:
        return str(self._shapes.get(name, ""))

    def _at(self, name: str) -> tuple[float, float]:
        box = self._boxes[name]
        return (box.column + self._columns * box.backward) * _ACROSS, -box.row * _DOWN

    def _figure(self) -> Any:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError(
                "Drawing: pictures need matplotlib; expected pip install matplotlib, or print it"
            ) from None
        places = {name: self._at(name) for name in self._boxes}
        right, low = (max(x for x, _ in places.values()), min(y for _, y in places.values())) if places else (0, 0)
        figure = Figure(figsize=(right + _ACROSS, _DOWN - low))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-_ACROSS / 2, right + _ACROSS / 2), ylim=(low - _DOWN / 2, _DOWN / 2))
        axes.axis("off")
        for edge in self._edges:
            if edge.carries == "source":
                continue  # the state's edge stands for them
            source, target = places[_owner(edge.source)], places[edge.target]
            level, far = source[1] == target[1], abs(source[1] - target[1]) > 1.5 * _DOWN
            arrow = {
                "arrowstyle": "-|>",
                "color": _INK[edge.carries],
                "linestyle": "--" if edge.carries == "state" else "-",
                "shrinkA": 30 if level else 14,
                "shrinkB": 60 if level else 14 if source[0] == target[0] else 30,
                "connectionstyle": f"arc3,rad={0.3 * (far and source[0] == target[0])}",
            }
            axes.annotate("", target, source, arrowprops=arrow, zorder=1)
        for name, (x, y) in places.items():
            shape = self._shape(name)
            colour = "#fdeaea" if self._boxes[name].backward else "#eef3fb"
            frame = {"boxstyle": "round,pad=0.4", "facecolor": colour, "edgecolor": "#555"}
            text = f"{name}\n{shape}" if shape else name
            axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox=frame, zorder=2)
        return figure


def _owner(image: str) -> str:
    """The name of the filter that makes an image of a loss."""
    return image.removesuffix(" value")
