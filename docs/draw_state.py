"""Draws what states carry from a forward pass to its backward pass: docs/pictures/state.svg.

    python docs/draw_state.py

A small network runs, and each line of a card is a field of the state as it is then; those that the backward pass has
changed have another colour.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

import mpsfunc as mf

FILE = Path(__file__).parent / "pictures" / "state.svg"
INK, FAINT, BLUE, PALE, MARK, BAR = "#1f2328", "#656d76", "#2a6f97", "#eef5fa", "#b42318", "#8c959f"
FORWARD, CARD, BACKWARD = (10, 230), (280, 280), (600, 260)  # where columns begin, and how wide they are
WIDTH, LINE, GAP, TOP = 870, 17, 30, 62
HIDDEN = ("op", "neuron", "a", "b", "c", "groups", "channels", "type", "reduction", "frozen", "eps", "summed")


class Step(NamedTuple):
    """An operation: its calls, what goes in between to the next, and its state before and after the backward pass."""

    forward: str
    result: str
    before: Any
    after: Any
    backward: str
    gradient: str


def steps() -> list[Step]:
    """A convolution, a batch normalization, a pooling and a loss, forward and backward."""
    x, w, labels = mx.random.normal((8, 16, 16, 3)), mx.random.normal((8, 3, 3, 3)), mx.zeros((8, 1, 1), mx.int32)
    y, conv = mf.conv_fwd(x, w)
    norm = mf.bn_stats(y)
    z = mf.bn_normalize(y, norm, neuron="relu")
    p, pool = mf.avg_pool_fwd(z, 14)
    _, loss = mf.loss_fwd(p, labels, "softmax_cross_entropy", "sum")
    dz = mf.avg_pool_grad(loss.gradient, pool)
    after = mf.bn_stats_grad(dz, y, norm, neuron="relu")
    dy = mf.bn_grad(dz, y, after, neuron="relu")
    weights = mf.conv_grad_weights(dy, x, conv)
    return [
        Step("y, s = conv_fwd(x, w)", shown(y), conv, weights, "s = conv_grad_weights(dy, x, s)", ""),
        Step("s = bn_stats(y)", shown(z), norm, after, "s = bn_stats_grad(dz, y, s)", shown(dy)),
        Step("p, s = avg_pool_fwd(z, 14)", shown(p), pool, pool, "avg_pool_grad(dp, s)", shown(dz)),
        Step("_, s = loss_fwd(p, labels)", "", loss, loss, "dp = s.gradient", shown(loss.gradient)),
    ]  # fmt: skip


def shown(a: mx.array) -> str:
    """An array's shape."""
    return "x".join(map(str, a.shape))


def lines(step: Step) -> list[tuple[str, bool]]:
    """The fields of a state that say something, and whether the backward pass has changed them."""
    found = []
    for name, before, after in zip(step.before._fields, step.before, step.after, strict=True):
        if isinstance(after, mx.array):
            changed = not mx.array_equal(before, after).item()
            found += [(f"{name}: {shown(after) or 'a number'}", changed)] * bool(after.size)
        elif name not in HIDDEN:
            words = repr(after)
            words = words[words.find("(") + 1 : -1].replace(": ", ":\n    ", 1) if "(" in words else words
            found += [(line, False) for line in f"{name}: {words}".split("\n")]
    return found


def add(parent: ET.Element, tag: str, words: str = "", /, **attributes: object) -> ET.Element:
    """A new element; underscores in the names of attributes become hyphens."""
    element = ET.SubElement(parent, tag, {name.replace("_", "-"): str(value) for name, value in attributes.items()})
    element.text = words or None
    return element


def box(parent: ET.Element, column: tuple[int, int], y: int, height: int, text: str) -> None:
    """A call."""
    add(parent, "rect", x=column[0], y=y, width=column[1], height=height, rx=4, fill="white", stroke=INK)
    add(parent, "text", text, x=column[0] + 10, y=y + height // 2 + 4, font_family="monospace", fill=INK)


def arrow(parent: ET.Element, start: tuple[int, int], end: tuple[int, int], colour: str, text: str = "") -> None:
    """From one point to another, straight up, down or right; beside it what it carries."""
    add(parent, "path", d=f"M{start[0]} {start[1]} L{end[0]} {end[1]}", stroke=colour, marker_end=f"url(#{colour[1:]})")
    if text:
        add(parent, "text", text, x=start[0] + 8, y=(start[1] + end[1]) // 2 + 4, fill=colour, font_size=12)


def drawn() -> str:
    """The picture."""
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif", "font-size": "13"})
    add(root, "title", "What states carry from the forward to the backward pass")
    said = "Forward functions on the left go down, backward functions on the right go up; between them lie the states."
    add(root, "desc", said)
    back = add(root, "rect", width="100%", height="100%", fill="white")
    defs = add(root, "defs")
    for colour in (INK, BLUE, MARK):
        shape = {"refX": 7, "refY": 4, "markerWidth": 8, "markerHeight": 8, "markerUnits": "userSpaceOnUse"}
        marker = add(defs, "marker", id=colour[1:], orient="auto", **shape)
        add(marker, "path", d="M0 0 L8 4 L0 8 z", fill=colour)
    for column, title in ((FORWARD, "forward"), (CARD, "state: a value, printed in part"), (BACKWARD, "backward")):
        add(root, "text", title, x=column[0], y=28, font_weight="bold", fill=INK)
    add(root, "text", "of the forward function", x=CARD[0], y=48, fill=BLUE, font_size=12)
    add(root, "text", "of the backward one", x=CARD[0] + 180, y=48, fill=MARK, font_size=12)
    y, made = TOP, steps()
    for i, step in enumerate(made):
        fields = lines(step)
        height = LINE * (len(fields) + 1) + 14
        middle = y + height // 2
        box(root, FORWARD, middle - 18, 36, step.forward)
        box(root, BACKWARD, middle - 18, 36, step.backward)
        add(root, "rect", x=CARD[0], y=y, width=CARD[1], height=height, rx=4, fill=PALE, stroke=BLUE)
        name = type(step.after).__name__
        add(root, "text", name, x=CARD[0] + 10, y=y + LINE, font_weight="bold", fill=INK, font_size=12)
        for row, (text, changed) in enumerate(fields, 2):
            at = {"x": CARD[0] + 10 + 12 * (text[0] == " "), "y": y + LINE * row, "font_size": 12}
            add(root, "text", text.strip(), fill=MARK if changed else BLUE, **at)
        arrow(root, (sum(FORWARD), middle), (CARD[0] - 1, middle), BLUE)
        arrow(root, (sum(CARD), middle), (BACKWARD[0] - 1, middle), BLUE)
        if i + 1 < len(made):
            below = y + height + GAP + (LINE * (len(lines(made[i + 1])) + 1) + 14) // 2
            arrow(
                root, (FORWARD[0] + 40, middle + 18), (FORWARD[0] + 40, below - 19), INK, f"{'yzp'[i]}: {step.result}"
            )
            into = (BACKWARD[0] + 40, below - 18), (BACKWARD[0] + 40, middle + 19)
            arrow(root, *into, MARK, f"{('dy', 'dz', 'dp')[i]}: {made[i + 1].gradient}")
        y += height + GAP
    size = WIDTH, y - GAP + 10
    root.attrib |= {"viewBox": f"0 0 {size[0]} {size[1]}", "width": str(size[0]), "height": str(size[1])}
    back.attrib |= {"width": str(size[0]), "height": str(size[1])}
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    FILE.write_text(drawn(), encoding="utf-8")
