"""Draws the tables of the benchmarks: an SVG beside every CSV of docs/benchmarks that has a page.

    python docs/draw_benchmarks.py [FOLDER]

What a picture shows is in the CSV and in the tables of its page, which `tests/bench/report.py` wrote: the page names
operations as the picture does, has the targets and says whether they were met, and what was measured where.
"""

import math
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmark_pages import COPY, OURS, Block, Page, Point, Row, matrix, memory, networks, panel_of, read, rows, verdict

FOLDER = Path(__file__).parent / "benchmarks"
NOT_DRAWN = ("commits.csv", "distributed_2.csv")  # compare settings or numbers of GPUs; tables of their pages show them

# A picture's width, the space around it, and the sizes of text. In pixels: 13 are 9 on a telephone.
WIDTH, MARGIN, FONT, SMALL, PRINT = 540, 14, 14, 13, 12
NARROW, GLYPH = 0.53, 0.58  # of a letter's size are its width in sentences and in names with many digits
GAP, LINE, DODGE = 16, 15, 8  # between panels, from line to line, and from dtype to dtype in a row
TICK, WIDE_TICK = 26, 44  # from number to number of an axis, at least; where numbers have up to five digits
INDENT, WRAP = 10, 32  # of a row whose operation has several, and the letters in a line of its name
# Where an axis ends; a number stands for a point beyond. And what an axis shows at least.
FARTHEST = {"PyTorch": 16, "MLX": math.inf, "copy": 1.25}
SHOWN = {"PyTorch": (0.5, 2.0), "MLX": (0.5, 2.0), "copy": (0.0, 1.0)}

INK, FAINT, GRID, STRIPE = "#1f2328", "#59636e", "#d9dee3", "#f6f8fa"
# Of Okabe and Ito's colours, which the colour-blind tell apart.
MET, MISSED, BAND = "#0072b2", "#c04f00", "#fbdfcc"
DTYPES = ("float32", "float16", "bfloat16")
RIGHT = "Further right is faster."
BEYOND = "A number stands for a point beyond the axis, where intervals end too."
MISS = "Missed: a median below the target, or an interval that begins below 97 % of it."
LOG = "The axis is logarithmic."
RANGE = "Marks are medians, lines go from the fastest turn to the slowest, and the axis is logarithmic. Left is faster."


# Drawing


class Axis(NamedTuple):
    """Where values are, from the pixel ``left`` to ``right``."""

    least: float
    most: float
    left: float
    right: float
    log: bool = True

    def at(self, value: float) -> float:
        """The pixel of a value; those beyond an end are at it."""
        turn = math.log if self.log else float
        value = max(self.least, min(value, self.most))
        share = (turn(value) - turn(self.least)) / (turn(self.most) - turn(self.least))
        return round(self.left + share * (self.right - self.left), 1)

    def ticks(self, *, numbers: bool) -> list[float]:
        """Round values, of which 1 is one; those that have numbers leave space for them."""
        if not self.log:
            return [value / 100 for value in range(0, round(100 * self.most) + 1, 50)]
        base, apart = (2, TICK) if self.most / self.least < 200 else (10, WIDE_TICK)
        lowest, highest = (math.log(value, base) for value in (self.least, self.most))
        step = math.ceil(apart / ((self.right - self.left) / (highest - lowest))) if numbers else 1
        powers = range(math.ceil(lowest / step) * step, math.floor(highest) + 1, step)
        return [float(base) ** power for power in powers]


def axis(values: Sequence[float], left: float, right: float, *, log: bool = True) -> Axis:
    """The axis that holds values, with some space, and a round number below them if one is near."""
    least, most = min(values), max(values)
    if not log:
        return Axis(0.0, max(1.0, most) + 0.05, left, right, log)
    space = (most / least) ** 0.04
    round_number = 10.0 ** math.floor(math.log10(least))
    return Axis(round_number if least < 2.5 * round_number else least / space, most * space, left, right)


def add(parent: ET.Element, tag: str, words: str = "", /, **attributes: object) -> ET.Element:
    """A new element; underscores in the names of attributes become hyphens."""
    element = ET.SubElement(parent, tag, {name.replace("_", "-"): str(value) for name, value in attributes.items()})
    element.text = words or None
    return element


def add_text(parent: ET.Element, x: float, y: float, words: str, size: int = SMALL, **attributes: object) -> None:
    """Words whose baseline is at y."""
    add(parent, "text", words, x=round(x, 1), y=round(y, 1), font_size=size, **attributes)


def add_line(parent: ET.Element, x: float, y: float, path: str, stroke: str, width: float = 1) -> None:
    """A line from (x, y) on."""
    add(parent, "path", d=f"M{x} {y} {path}", stroke=stroke, stroke_width=width, fill="none")


def add_mark(parent: ET.Element, x: float, y: float, dtype: str, said: str, **data: object) -> None:
    """A point: its form is the dtype, and its colour what was said of its target."""
    fill, stroke = {"met": (MET, MET), "missed": (MISSED, MISSED), "": ("white", FAINT)}[said]
    r = 3.5
    forms = {
        "float32": f"M{x - r} {y} a{r} {r} 0 1 0 {2 * r} 0 a{r} {r} 0 1 0 {-2 * r} 0z",
        "float16": f"M{x - 4} {round(y + r, 1)} h8 l-4 -7z",
        "bfloat16": f"M{round(x - 3, 1)} {round(y - 3, 1)} h6 v6 h-6z",
    }
    add(parent, "path", d=forms[dtype], fill=fill, stroke=stroke, stroke_width=1.3, **data)


def add_grid(parent: ET.Element, along: Axis, top: float, bottom: float) -> None:
    """Lines from top to bottom."""
    for value in along.ticks(numbers=False):
        add_line(parent, along.at(value), top, f"V{bottom}", GRID)


def add_numbers(parent: ET.Element, along: Axis, top: float, bottom: float) -> None:
    """The numbers of an axis, above and below."""
    for value in along.ticks(numbers=True):
        words = f"{value:,.15g}" if along.log else f"{value:.0%}"
        for y in (top - 5, bottom + 14):
            add_text(parent, along.at(value), y, words, PRINT, text_anchor="middle", fill=FAINT)


def add_key(parent: ET.Element, top: float, dtypes: Sequence[str], said: set[str]) -> float:
    """What marks mean; where the next line goes."""
    items = [(dtype, "", dtype) for dtype in dtypes]
    names = {"met": "target met", "missed": "target missed", "": "no target"}
    items += [("float32", verdict, words) for verdict, words in names.items() if verdict in said]
    items += [("target", "", "target"), ("interval", "", "95 % interval")]
    x, y = float(MARGIN), top
    for form, told, words in items:
        wide = 18 + len(words) * PRINT * GLYPH + 8
        if x + wide > WIDTH - MARGIN:
            x, y = MARGIN, y + LINE
        if form == "target":
            add_line(parent, x + 6, y - 10, "v12", INK, 2)
        elif form == "interval":
            add_line(parent, x, y - 4, "h13", FAINT, 1.5)
        else:
            if told == "missed":
                add(parent, "rect", x=x - 2, y=y - 11, width=17, height=14, fill=BAND)
            add_mark(parent, x + 6, y - 4, form, told)
        add_text(parent, x + 18, y, words, PRINT)
        x += wide
    return y + LINE


def add_print(parent: ET.Element, top: float, lines: Iterable[str]) -> float:
    """Small print; where the next line would go."""
    letters = int((WIDTH - 2 * MARGIN) / (PRINT * NARROW))
    for paragraph in lines:
        for line in textwrap.wrap(paragraph, letters, break_on_hyphens=False):
            add_text(parent, MARGIN, top, line, PRINT, fill=FAINT)
            top += LINE
    return top


def provenance(page: Page) -> list[str]:
    """Where figures come from, in the words of the page."""
    told = {"processor", "GPU", "system", "packages", "date"}  # that say themselves what they are
    words = [value if name in told else f"{name} {value}" for name, value in page.facts.items()]
    return ["; ".join(words) + "." + f" Written by `{page.command}`." * bool(page.command)]


def started(page: Page, headline: str) -> tuple[ET.Element, ET.Element]:
    """The root of a picture, and the group that everything is drawn into, with the title in it."""
    root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    root.set("data-tables", page.digest)
    add(root, "title", page.title)
    add(root, "desc", page.alt)
    group = add(root, "g", font_family="Helvetica, Arial, sans-serif", fill=INK)
    add(group, "rect", width="100%", height="100%", rx=6, fill="white")
    add_text(group, MARGIN, MARGIN + 12, page.title, FONT + 2, font_weight="bold")
    add_text(group, MARGIN, MARGIN + 32, headline, FONT)
    return root, group


def finished(root: ET.Element, height: float) -> str:
    """The text of a picture."""
    root.attrib |= {"width": f"{WIDTH}", "height": f"{height:g}", "viewBox": f"0 0 {WIDTH} {height:g}"}
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode") + "\n"


def counted(said: Sequence[str]) -> str:
    """How many targets were met and missed."""
    met, missed = said.count("met"), said.count("missed")
    return f"{met} of {met + missed} targets met, {missed} missed" if met + missed else "no targets"


HEADS = {
    "PyTorch": ("times PyTorch,", "faster layout"),
    "MLX": ("times MLX,", "as it is"),
    COPY: ("share of copy", "bandwidth"),
}


def draw_speed(page: Page) -> str:
    """A row an operation and shape, and beside it what it is to PyTorch, MLX and a copy."""
    drawn = rows(page)
    on_gpu = "GPU" in page.facts
    about = {panel_of(line["at least"]) for line in page.tables.get("Targets", [])}
    panels = [panel for panel in HEADS if panel == "PyTorch" or panel in about or (panel == COPY and on_gpu)]
    said = [verdict(line) for line in page.tables.get("Targets", [])]
    shapes = [row.shape for row in drawn]
    usual = max(dict.fromkeys(shapes), key=shapes.count)
    lines = []
    if any("cuDNN" in line["at least"] for line in page.tables.get("Targets", [])):
        lines.append("Where a target names cuDNN too, PyTorch's fastest is of all that it names.")
    if "MLX" in panels and any(record["rival"] == "MLX swapped" for record in page.records):
        lines.append("MLX: the faster of its own and MLX swapped, the weight gradient by hand.")
    heads = {panel: HEADS[panel] for panel in panels}
    return draw_panels(page, drawn, heads, said, usual, [f"{RIGHT} x is {usual} where no shape is said.", *lines])


def draw_networks(page: Page) -> str:
    """A row a network, and beside it what it is in training and inference to the faster of PyTorch."""
    drawn, heads = matrix(page)
    said = [point.verdict for row in drawn for points in row.points.values() for point in points]
    lines = [f"{RIGHT} Beside PyTorch, eager or compiled, whichever is faster; memory is PyTorch eager's over ours."]
    return draw_panels(page, drawn, heads, said, "", lines)


def draw_panels(
    page: Page,
    drawn: Sequence[Row],
    heads: Mapping[str, Sequence[str]],
    said: Sequence[str],
    usual: str,
    notes: list[str],
) -> str:
    """A line a row, and a panel beside another with the row's points; an axis each, with what it is above it."""
    names = _names(drawn, usual)
    longest = max(len(line) for lines, _ in names for line in lines)
    left = MARGIN + INDENT + longest * SMALL * GLYPH
    wide = (WIDTH - MARGIN - left - GAP * (len(heads) - 1)) / len(heads)
    root, group = started(page, counted(said))
    top, y, axes = 108, 108.0, {}
    for i, panel in enumerate(heads):
        start = round(left + i * (wide + GAP), 1)
        points = [point for row in drawn for point in row.points.get(panel, [])]
        values = [v for p in points for v in (p.low, p.high, p.target or p.median)]
        farthest, shown = FARTHEST.get(panel, FARTHEST["PyTorch"]), SHOWN.get(panel, SHOWN["PyTorch"])
        values = [*shown, *(min(value, farthest) for value in values)]
        axes[panel] = axis(values, start, round(start + wide, 1), log=panel != COPY)

    below, above = add(group, "g"), add(group, "g")
    for i, (row, (lines, heading)) in enumerate(zip(drawn, names, strict=True)):
        if heading:
            add_text(above, MARGIN, y + 14, heading, SMALL, font_weight="bold")
            y += 19
        many = max(len(points) for points in row.points.values())
        high = max(LINE * len(lines) + 1, DODGE * many + 6)
        if i % 2:
            add(below, "rect", x=0, y=y, width=WIDTH, height=high, fill=STRIPE)
        margin = MARGIN + INDENT * sum(other.op == row.op for other in (*drawn[i - 1 : i], *drawn[i + 1 : i + 2]))
        margin = min(margin, MARGIN + INDENT)
        for j, line in enumerate(lines):
            add_text(above, margin, y + high / 2 + 5 + LINE * (j - (len(lines) - 1) / 2), line)
        for panel in heads:
            points = row.points.get(panel, [])
            for j, point in enumerate(points):
                middle = round(y + high / 2 + DODGE * (j - (len(points) - 1) / 2), 1)
                beyond = sum(other.median > axes[panel].most for other in points[:j])
                _add_point(below, above, axes[panel], middle, point, 18 * (beyond % 2))
        y += high
    for panel, along in axes.items():
        add_grid(below, along, top, y)
        add_numbers(below, along, top, y)
        add_line(below, along.at(1), top, f"V{y}", INK)
        for j, words in enumerate(heads[panel]):
            add_text(group, (along.left + along.right) / 2, 70 + 15 * j, words, SMALL, text_anchor="middle")
    every = [point for row in drawn for panel in heads for point in row.points.get(panel, [])]
    y = add_key(group, y + 38, [d for d in DTYPES if any(p.dtype == d for p in every)], {p.verdict for p in every})
    cut = any(p.high > axes[panel].most for row in drawn for panel in heads for p in row.points.get(panel, []))
    lines = [notes[0], *[BEYOND] * cut, *[MISS] * ("missed" in said), *notes[1:]]
    return finished(root, add_print(group, y + 4, [*lines, *provenance(page)]))


def _names(drawn: Sequence[Row], usual: str) -> list[tuple[list[str], str]]:
    """The lines that name each row, and the heading above it, if an operation begins that has several."""
    names = []
    for i, row in enumerate(drawn):
        of_op = [other for other in drawn if other.op == row.op]
        words, heading, shape = row.title.split(), "", "" if row.shape == usual else row.shape
        if len(of_op) > 1:
            titles = [other.title.split() for other in of_op]
            same = 0
            while all(len(title) > same and title[same] == words[same] for title in titles) and same < len(words):
                same += 1
                if same == len(words):
                    break
            heading = " ".join(words[:same]) if i == 0 or drawn[i - 1].op != row.op else ""
            words = words[same:]
            shape = shape if words else row.shape
        name = ", ".join(filter(None, (" ".join(words), shape)))
        names.append((textwrap.wrap(name, WRAP, break_long_words=False, break_on_hyphens=False), heading))
    return names


def _add_point(below: ET.Element, above: ET.Element, along: Axis, y: float, point: Point, aside: int) -> None:
    """A point with its interval and target; the number of one beyond the axis stands so far aside."""
    if point.verdict == "missed":
        left, right = along.left, along.right
        add(below, "rect", x=left, y=round(y - DODGE / 2, 1), width=round(right - left, 1), height=DODGE, fill=BAND)
    colour = {"met": MET, "missed": MISSED, "": FAINT}[point.verdict]
    add_line(above, along.at(point.low), y, f"H{along.at(point.high)}", colour, 1.5)
    if point.target is not None:
        add_line(above, along.at(point.target), y - 5, "v10", INK, 2)
    x = along.at(point.median)
    add_mark(above, x, y, point.dtype, point.verdict, data_verdict=point.verdict)
    if point.median > along.most:
        add_text(
            above,
            min(x, along.at(point.low)) - 7 - aside,
            y + 4,
            f"{point.median:.0f}" if along.log else f"{point.median:.0%}",
            11,
            text_anchor="end",
            fill=FAINT,
        )


def draw_blocks(
    page: Page, blocks: Sequence[Block], headline: str, heads: Sequence[str], beside: int, note: str
) -> str:
    """A block a network or operation, a line a side: its value, and ``beside`` pixels of words."""
    longest = max(len(bar.side) for block in blocks for bar in block.bars)
    left, right = MARGIN + longest * SMALL * GLYPH + 10, WIDTH - MARGIN - beside
    values = [v for block in blocks for bar in block.bars for v in (bar.low, bar.high, bar.target or bar.high)]
    along = axis([v for v in values if v > 0], round(left, 1), right)
    root, group = started(page, headline)
    below, above, top, y = add(group, "g"), add(group, "g"), 84, 86.0
    columns = [(right + 62, "end"), (right + 72, "start")]
    for (x, anchor), words in zip(columns, heads, strict=False):
        add_text(group, x, 68, words, PRINT, text_anchor=anchor, fill=FAINT)
    for block in blocks:
        add_text(above, MARGIN, y + 14, block.title, FONT, font_weight="bold")
        y += 20
        add_grid(below, along, y, y + 18 * len(block.bars))
        for bar in block.bars:
            middle, ours = y + 9, bar.side == OURS
            if bar.verdict == "missed":
                add(below, "rect", x=0, y=y, width=WIDTH, height=18, fill=BAND)
            weight = "bold" if ours else "normal"
            add_text(above, MARGIN, y + 14, bar.side, SMALL, font_weight=weight)
            colour = MISSED if bar.verdict == "missed" else MET if ours else FAINT
            add_line(below, along.left, middle, f"H{along.right}", GRID)
            add_line(above, along.at(bar.low), middle, f"H{along.at(bar.high)}", colour, 2)
            if bar.target is not None:
                add_line(above, along.at(bar.target), middle - 8, "v16", INK, 2)
            dot = add(above, "circle", cx=along.at(bar.value), cy=middle, r=4, fill=colour)
            dot.set("data-verdict", bar.verdict)
            for (x, anchor), words in zip(columns, bar.words, strict=False):
                add_text(above, x, y + 14, words, SMALL, text_anchor=anchor, font_weight=weight)
            y += 18
        for words, said in block.notes:
            if said == "missed":
                add(below, "rect", x=0, y=y, width=WIDTH, height=18, fill=BAND)
            add_text(above, MARGIN, y + 13, words, PRINT, data_verdict=said)
            y += LINE
        y += 8
    add_numbers(below, along, top, y)
    return finished(root, add_print(group, y + 38, [note, *provenance(page)]))


def draw(page: Page) -> str:
    """The picture of a page, whichever of the four it is."""
    columns = page.records[0].keys()
    if "times_ours" in columns:
        return draw_networks(page)
    if "seconds" in columns:
        said = [verdict(line) for line in page.tables.get("Targets", [])]
        headline = f"Milliseconds a training step, less is better; {counted(said)}"
        return draw_blocks(page, networks(page), headline, ("ms", "times ours (95 %), target"), 232, RANGE)
    if "beyond_bytes" in columns:
        headline = "Megabytes a call takes beyond its inputs and outputs, less is better"
        return draw_blocks(page, memory(page), headline, ("MB",), 180, LOG)
    return draw_speed(page)


def pictures(folder: Path = FOLDER) -> dict[Path, str]:
    """The text of every picture, by its file."""
    files = [file for file in sorted(folder.glob("**/*.csv")) if file.with_suffix(".md").exists()]
    return {file.with_suffix(".svg"): draw(read(file)) for file in files if file.name not in NOT_DRAWN}


if __name__ == "__main__":
    for file, text in pictures(*map(Path, sys.argv[1:2])).items():
        file.write_text(text, encoding="utf-8")
