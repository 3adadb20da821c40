"""Draws a residual block with its gradient nodes: docs/pictures/graph.svg.

python docs/draw_graph.py
"""

from pathlib import Path

from mpsfunc import graph

FILE = Path(__file__).parent / "pictures" / "graph.svg"


def drawing() -> graph.Drawing:
    """The block, for images of 32x32x16."""
    x, dy = graph.ImageNode("x"), graph.ImageNode("dy")
    body = graph.relu(graph.batch_norm(graph.conv(x, 16, 3, name="conv1"), name="norm1"))
    body = graph.batch_norm(graph.conv(body, 16, 3, name="conv2"), name="norm2")
    block = graph.relu(graph.add(body, x), name="out")
    network = graph.compile(block, gradients=graph.training_graph(block, dy))
    return network.draw({"x": (8, 32, 32, 16), "dy": (8, 32, 32, 16)})


if __name__ == "__main__":
    drawing().save(FILE)
