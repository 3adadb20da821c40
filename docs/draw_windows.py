"""Draws where windows sit along one axis, as `mpsfunc.windows.placement.place` puts them: docs/pictures/*.svg.

    python docs/draw_windows.py

A panel is one call of `place`: the image as a strip of pixels, below it every window with its taps, and beside them
what matters. The few formulas here are those of metal/shared/geometry.h.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpsfunc.windows.axis import MAX_EDGE_MODES, Axis, is_uniform, starts
from mpsfunc.windows.placement import place
from mpsfunc.windows.policy import PaddingPolicy

Arguments = dict[str, Any]  # of `place`

FOLDER = Path(__file__).parent / "pictures"

CELL, TAP, WINDOW = 22, 16, 26  # the sides of a pixel's square and of a tap's, the height of a window
STRIP, WIDTH, GAP = 40, 440, 22  # where a panel's strip begins, a panel's width, the space below panels and around all
FONT, SMALL, HALF = 14, 12, 5  # sizes of text, and how far its baseline is below its middle

INK, FAINT, BLUE, PALE, MARK, BAR = "#1f2328", "#656d76", "#2a6f97", "#d8e8f2", "#d62828", "#c8ced4"
# What a square can be: its side, fill, border, the border's dashes, and what the key says.
KINDS = {
    "pixel": (CELL - 2, PALE, BLUE, "none", "pixel"),
    "unread": (CELL - 2, "white", BLUE, "none", "pixel that no window reads"),
    "beside": (CELL - 2, "#f0f2f4", "#8c959f", "3 3", "outside the image"),
    "image": (TAP, BLUE, BLUE, "none", "tap on the image"),
    "outside": (TAP, "white", BLUE, "3 2", "tap outside"),
    "zero": (TAP, "white", BLUE, "none", "tap outside that reads 0"),
    "edge": (TAP, PALE, BLUE, "none", "tap outside that reads the nearest pixel"),
    "none": (TAP, "white", FAINT, "none", "tap outside that does not count"),
    "cut": (TAP, "white", MARK, "2 3", "no window: it would start behind the image"),
}


class Panel(NamedTuple):
    """One call of `place`: what it said, the columns that it returned, and what to draw of them."""

    said: str
    axis: Axis
    operation: str  # "average", "maximum" or "any": what taps outside do
    texts: Sequence[str]  # what the pixels hold; empty strings where that does not matter
    beside: tuple[int, int]  # the padding that was asked for, whether windows reach it or not
    cut: int  # windows that rounding up would add, did they not start behind the image


class Tap(NamedTuple):
    """Where a tap is, which of `KINDS`, the pixel nearest to it, and what it reads."""

    position: int
    kind: str
    nearest: int
    text: str


def new_panel(operation: str, texts: Sequence[str], said: str, how: Arguments) -> Panel:
    """The panel of ``place(..., **how)``."""
    axis = place("draw_windows", (len(texts), len(texts)), edge_modes=MAX_EDGE_MODES, **how)[1]
    padding = how.get("padding")
    beside = (padding, padding) if type(padding) is int else padding[1] if type(padding) is tuple else (0, 0)
    rounded_up = -(-(axis.n_in + sum(beside) - (axis.size - 1) * axis.dilation - 1) // axis.stride) + 1
    return Panel(said, axis, operation, texts, beside, rounded_up - axis.n_out if how.get("ceil_mode") else 0)


def positions(axis: Axis, o: int) -> range:
    """The positions of an output's taps."""
    if not is_uniform(axis):
        return range(starts(axis)[o], -(-(o + 1) * axis.n_in // axis.n_out))
    first = o * axis.stride - axis.pad
    return range(first, first + axis.size * axis.dilation, axis.dilation)


def window(panel: Panel, o: int) -> list[Tap]:
    """The taps of output o. An average's divisor is the number of those that are not "none"."""
    axis, taps = panel.axis, []
    for position in positions(axis, o):
        nearest = max(0, min(position, axis.n_in - 1))
        kind = "outside"
        if o >= axis.n_out:
            kind = "cut"
        elif position == nearest:
            kind = "image"
        elif panel.operation == "average":
            zeros = axis.zero_pad if position < 0 else axis.zero_pad_after
            kind = "zero" if axis.edge == 0 or abs(position - nearest) <= zeros else "none"
        elif panel.operation == "maximum":
            kind = ("zero", "edge", "none")[axis.edge]
        taps.append(Tap(position, kind, nearest, {"zero": "0", "none": ""}.get(kind, panel.texts[nearest])))
    return taps


def centre(taps: Sequence[Tap]) -> int:
    """The position K // 2 after the first tap of a window that spans K pixels."""
    return (taps[0].position + taps[-1].position + 1) // 2


def span(panel: Panel) -> range:
    """The positions of the strip: the image, its padding, and whatever windows reach."""
    last = window(panel, panel.axis.n_out + panel.cut - 1)[-1].position
    return range(min(-panel.beside[0], -panel.axis.pad), max(panel.axis.n_in + panel.beside[1], last + 1))


def notes(panel: Panel) -> list[str]:
    """The words beside the strip, then those beside each window."""
    axis = panel.axis
    spread = f", K = {(axis.size - 1) * axis.dilation + 1}" if axis.dilation > 1 else ""
    lines = [f"n_out = {axis.n_out}, pad = {axis.pad}{spread}"]
    for taps in (window(panel, o) for o in range(axis.n_out)):
        kinds, read = [tap.kind for tap in taps], [tap.text for tap in taps if tap.text]
        if panel.operation == "average":
            n = sum(kind != "none" for kind in kinds)
            lines.append(f"N = {n}: ({' + '.join(read)}) / {n} = {sum(map(int, read)) / n:.3g}")
        elif panel.operation == "maximum":
            lines.append(f"max({', '.join(read)}) = {max(map(int, read))}")
        else:
            lines.append(f"centre {centre(taps)}" + ("" if "image" in kinds else ", no pixel"))
    return lines


def written(value: object) -> str:
    """A value as one would type it: a policy without its defaults, a dict as keyword arguments."""
    if isinstance(value, PaddingPolicy):
        fields = zip(value._fields, value, PaddingPolicy(), strict=True)
        return f"PaddingPolicy({written({name: said for name, said, default in fields if said != default})})"
    if isinstance(value, dict):
        return ", ".join(f"{name}={written(said)}" for name, said in value.items())
    return f'"{value}"' if isinstance(value, str) else repr(value)


def add(parent: ET.Element, tag: str, words: str = "", /, **attributes: object) -> ET.Element:
    """A new element; underscores in the names of attributes become hyphens."""
    element = ET.SubElement(parent, tag, {name.replace("_", "-"): str(value) for name, value in attributes.items()})
    element.text = words or None
    return element


def add_square(parent: ET.Element, x: int, y: int, kind: str, text: str = "", **data: object) -> None:
    """A pixel or a tap around (x, y)."""
    side, fill, stroke, dashes, _ = KINDS[kind]
    left, top = x - side // 2, y - side // 2
    box = add(parent, "rect", x=left, y=top, width=side, height=side, data_kind=kind, **data)
    box.attrib |= {"fill": fill, "stroke": stroke, "stroke-dasharray": dashes}
    if kind == "none":
        add(parent, "path", d=f"M{left} {top} l{side} {side} m0 {-side} l{-side} {side}", stroke=stroke)
    if text:
        add_number(parent, x, y + 4, text, "white" if kind == "image" else INK)


def add_number(parent: ET.Element, x: int, y: int, text: str, fill: str) -> None:
    """Small text around x."""
    add(parent, "text", text, x=x, y=y, font_size=SMALL, text_anchor="middle", fill=fill)


def add_triangle(parent: ET.Element, x: int, y: int, fill: str) -> None:
    """A mark that points up at (x, y)."""
    add(parent, "path", d=f"M{x} {y} l4 7 h-8 z", fill=fill)


def add_window(parent: ET.Element, taps: Sequence[Tap], column: Callable[[int], int], y: int) -> None:
    """Taps around the height y, with arrows to the pixels that clamped ones read."""
    ends = column(taps[0].position), column(taps[-1].position)
    add(parent, "path", d=f"M{ends[0]} {y} H{ends[1]}", stroke=BAR, stroke_width=6)
    for tap in taps:
        x, to = column(tap.position), column(tap.nearest)
        if tap.kind == "edge":
            add(parent, "path", d=f"M{x} {y} H{to} V{STRIP + CELL + 6}", stroke=BLUE, stroke_width=2, fill="none")
            add_triangle(parent, to, STRIP + CELL, BLUE)
        add_square(parent, x, y, tap.kind, tap.text, data_position=tap.position)
    add_triangle(parent, column(centre(taps)), y + TAP // 2 + 1, MARK)


def add_panel(parent: ET.Element, panel: Panel, start: int, beside: int) -> int:
    """A panel whose strip would have position ``start`` at its left, with its notes at ``beside``; its height."""

    def column(position: int) -> int:
        return (position - start) * CELL + CELL // 2

    axis, strip = panel.axis, STRIP + CELL // 2
    rows = [strip + (CELL + WINDOW) // 2 + WINDOW * o for o in range(axis.n_out + panel.cut)]
    read = {tap.nearest for o in range(axis.n_out) for tap in window(panel, o) if tap.kind in ("image", "edge")}
    add(parent, "text", panel.said, y=FONT, font_family="monospace", font_size=FONT - 1, font_weight="bold")
    for i in span(panel):
        kind = "beside" if not 0 <= i < axis.n_in else "pixel" if i in read else "unread"
        add_number(parent, column(i), STRIP - 4, str(i), FAINT)
        add_square(parent, column(i), strip, kind, "" if kind == "beside" else panel.texts[i], data_position=i)
    for o, y in enumerate(rows):
        add_window(add(parent, "g", data_output=o), window(panel, o), column, y)
    for line, y in zip(notes(panel), [strip, *rows], strict=False):
        add(parent, "text", line, x=beside, y=y + HALF)
    return rows[-1] + WINDOW // 2


def add_key(parent: ET.Element, kinds: Sequence[str]) -> int:
    """What the squares and the mark mean; its height."""
    words, middle = [KINDS[kind][-1] for kind in kinds], WINDOW // 2
    for row, kind in enumerate(kinds):
        add_square(parent, CELL // 2, row * WINDOW + middle, kind)
    add_triangle(parent, CELL // 2, len(kinds) * WINDOW + middle - HALF, MARK)
    for row, line in enumerate([*words, "centre of a window, K // 2 after its first tap"]):
        add(parent, "text", line, x=CELL + 8, y=row * WINDOW + middle + HALF)
    return (len(kinds) + 1) * WINDOW


def draw(words: str, operation: str, texts: Sequence[str], shared: Arguments, own: Sequence[Arguments]) -> str:
    """The SVG of calls with ``shared`` arguments and ``own`` ones each: two columns of panels, then the key."""
    heading = f"{words}: {', '.join([written(shared)] * bool(shared) + [f'{len(texts)} pixels'])}"
    panels = [new_panel(operation, texts, written(how), {**shared, **how}) for how in own]
    root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    add(root, "title", heading)
    add(root, "desc", " ".join(f"{panel.said}: {'; '.join(notes(panel))}." for panel in panels))
    page = add(root, "g", font_family="Helvetica, Arial, sans-serif", font_size=FONT, fill=INK)
    add(page, "rect", width="100%", height="100%", fill="white")
    add(page, "text", heading, x=GAP, y=GAP + FONT, font_size=FONT + 2, font_weight="bold")

    reach = [i for panel in panels for i in span(panel)]
    start, beside = min(reach), (max(reach) - min(reach) + 1) * CELL + 8
    top, bottom = 0, 3 * GAP
    for i, panel in enumerate([*panels, None]):
        top = top if i % 2 else bottom
        box = add(page, "g", transform=f"translate({GAP + i % 2 * WIDTH} {top})")
        used = {square.get("data-kind") for square in root.iter("rect")}
        key = [kind for kind in KINDS if kind in used]
        bottom = max(bottom, top + GAP + (add_panel(box, panel, start, beside) if panel else add_key(box, key)))
    width, height = 2 * (WIDTH + GAP), bottom
    root.attrib |= {"width": f"{width}", "height": f"{height}", "viewBox": f"0 0 {width} {height}"}
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def pictures() -> dict[str, str]:
    """The text of every file."""
    padding: list[Arguments] = [{"padding": p} for p in (0, "valid", 1, ((0, 0), (0, 1)), "same", "full")]
    padding += [{"padding": p, "ceil_mode": True} for p in (0, 1)]
    policies = PaddingPolicy(), PaddingPolicy(remainder="bottom_right"), PaddingPolicy("top_left", size="valid")
    padding += [{"padding": policy} for policy in policies]
    offset = [{"kernel_size": k, "offset": o} for o in (0, 1, -1, 4) for k in (3, 4)]
    dilation = [{"kernel_size": k, "dilation": d} for d in (1, 2, 3) for k in (3, 2)]
    whole: list[Arguments] = [{"kernel_size": "global"}]
    whole += [{"kernel_size": "adaptive", "out_size": m} for m in (2, 3, 4)]
    zero, clamp, exclude = ({"edge_mode": mode} for mode in MAX_EDGE_MODES)
    average: list[Arguments] = [zero, *({**clamp, "zero_pad": zeros} for zeros in (0, 1, ((0, 0), (1, 0))))]
    hung = {"kernel_size": 3, "stride": 2, "offset": 0, "out_size": 3}
    spread = {"kernel_size": 3, "dilation": 3, "stride": 1, "offset": 2, "out_size": 1}
    return {
        "padding.svg": draw("Padding", "any", [""] * 8, {"kernel_size": 3, "stride": 3}, padding),
        "offset.svg": draw("Offset", "any", [""] * 6, {"stride": 2, "out_size": 3}, offset),
        "dilation.svg": draw("Dilation", "any", [""] * 8, {"stride": 2}, dilation),
        "whole.svg": draw("Whole image", "average", [str(i) for i in range(1, 6)], {}, whole),
        "average_edge.svg": draw("Edges of an average", "average", ["1", "2", "3", "4"], hung, average),
        "maximum_edge.svg": draw("Edges of a maximum", "maximum", ["9", "1", "2", "7"], spread, [zero, clamp, exclude]),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
