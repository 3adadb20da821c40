"""The pictures of windows and benchmarks are those that the code draws now.

Those of windows show what the definitions say, and those of benchmarks what the tables do.
"""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import benchmark_pages
import pytest

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
OTHERS = "graph.svg", "state.svg"  # by docs/draw_graph.py and docs/draw_state.py
PICTURES = {
    path.name: path.read_text(encoding="utf-8")
    for path in sorted(DOCS.glob("pictures/*.svg"))
    if path.name not in OTHERS
}


def panels(name: str) -> dict[str, ET.Element]:
    """The panels of a picture by their titles; the key comes last and has none."""
    groups = [g for g in ET.fromstring(PICTURES[name]).iter(f"{SVG}g") if "transform" in g.attrib]
    return {g.findtext(f"{SVG}text", ""): g for g in groups[:-1]}


def windows(panel: ET.Element, attribute: str = "data-position") -> list[list[str]]:
    """That attribute of the taps of each window."""
    return [[tap.attrib[attribute] for tap in g.findall(f"{SVG}rect")] for g in panel.findall(f"{SVG}g")]


def positions(panel: ET.Element) -> list[list[int]]:
    return [[int(position) for position in window] for window in windows(panel)]


def notes(panel: ET.Element) -> list[str]:
    """What stands beside the windows."""
    lines = [str(text.text) for text in panel.findall(f"{SVG}text") if "text-anchor" not in text.attrib]
    return lines[2:]  # after the title and the line beside the image


def middle(square: ET.Element) -> float:
    return float(square.attrib["x"]) + float(square.attrib["width"]) / 2


def script(name: str) -> ModuleType:
    """A program of docs."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_not_stale() -> None:
    drawn = script("draw_windows").pictures()
    assert set(drawn) == set(PICTURES)
    for name, text in drawn.items():
        assert text == PICTURES[name], f"{name}: python docs/draw_windows.py draws it again"


@pytest.mark.parametrize("name", PICTURES)
def test_a_tap_stands_below_its_pixel(name: str) -> None:
    for said, panel in panels(name).items():
        columns = {square.attrib["data-position"]: middle(square) for square in panel.findall(f"{SVG}rect")}
        taps = panel.findall(f"{SVG}g/{SVG}rect")
        assert taps, said
        for tap in taps:
            assert columns[tap.attrib["data-position"]] == middle(tap), said


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_says_what_it_shows_and_is_on_a_page(name: str) -> None:
    root = ET.fromstring(PICTURES[name])
    assert root.findtext(f"{SVG}title") and root.findtext(f"{SVG}desc")
    assert f"](../pictures/{name})" in (DOCS / "families" / "pooling.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "divisors", "averages"),
    [
        ('edge_mode="zero"', [3, 3, 3], ["1", "3", "1.33"]),
        ('edge_mode="clamp", zero_pad=0', [2, 3, 1], ["1.5", "3", "4"]),
        ('edge_mode="clamp", zero_pad=1', [3, 3, 2], ["1", "3", "2"]),
        ('edge_mode="clamp", zero_pad=((0, 0), (1, 0))', [3, 3, 1], ["1", "3", "4"]),
    ],
)
def test_averages(said: str, divisors: list[int], averages: list[str]) -> None:
    panel = panels("average_edge.svg")[said]
    assert positions(panel) == [[-1, 0, 1], [1, 2, 3], [3, 4, 5]]
    assert [sum(kind != "none" for kind in window) for window in windows(panel, "data-kind")] == divisors
    for note, divisor, average in zip(notes(panel), divisors, averages, strict=True):
        assert note.startswith(f"N = {divisor}: ") and note.endswith(f" / {divisor} = {average}")


@pytest.mark.parametrize(
    ("mode", "kinds", "note"),
    [
        ("zero", ["zero", "image", "zero"], "max(0, 2, 0) = 2"),
        ("clamp", ["edge", "image", "edge"], "max(9, 2, 7) = 9"),
        ("exclude", ["none", "image", "none"], "max(2) = 2"),
    ],
)
def test_maxima(mode: str, kinds: list[str], note: str) -> None:
    panel = panels("maximum_edge.svg")[f'edge_mode="{mode}"']
    assert positions(panel) == [[-1, 2, 5]]
    assert windows(panel, "data-kind") == [kinds]
    assert notes(panel) == [note]


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("padding.svg", "padding=0", [[0, 1, 2], [3, 4, 5]]),
        ("padding.svg", 'padding="same"', [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        ("padding.svg", 'padding="full"', [[-2, -1, 0], [1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        ("padding.svg", "padding=1, ceil_mode=True", [[-1, 0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]),
        ("padding.svg", 'padding=PaddingPolicy(align="top_left", size="valid")', [[2, 3, 4], [5, 6, 7]]),
        ("offset.svg", "kernel_size=4, offset=0", [[-2, -1, 0, 1], [0, 1, 2, 3], [2, 3, 4, 5]]),
        ("offset.svg", "kernel_size=3, offset=-1", [[-2, -1, 0], [0, 1, 2], [2, 3, 4]]),
        ("dilation.svg", "kernel_size=3, dilation=3", [[0, 3, 6]]),
        ("dilation.svg", "kernel_size=2, dilation=3", [[0, 3], [2, 5], [4, 7]]),
    ],
)
def test_positions(name: str, said: str, expected: list[list[int]]) -> None:
    assert positions(panels(name)[said]) == expected


def test_only_a_window_that_would_start_behind_the_image_is_cut() -> None:
    cut = {
        said: [
            window[0]
            for window, kinds in zip(positions(panel), windows(panel, "data-kind"), strict=True)
            if "cut" in kinds
        ]
        for said, panel in panels("padding.svg").items()
    }
    assert {said: starts for said, starts in cut.items() if starts} == {"padding=1, ceil_mode=True": [8]}


BENCHMARKS = DOCS / "benchmarks"
draw_benchmarks = script("draw_benchmarks")
# Those whose page has a picture; what `--compare` keeps has none.
TABLES = {
    str(file.relative_to(BENCHMARKS)): file
    for file in sorted(BENCHMARKS.glob("**/*.csv"))
    if file.parent.name != "compare" and file.name not in draw_benchmarks.NOT_DRAWN
}


def marks(picture: ET.Element, verdict: str) -> int:
    """How many points or words of a picture say that of a target."""
    return sum(element.get("data-verdict") == verdict for element in picture.iter())


def test_every_table_has_a_picture_and_no_picture_lacks_a_table() -> None:
    pictures = {file.with_suffix(".csv") for file in BENCHMARKS.glob("**/*.svg")}
    assert pictures == set(TABLES.values())


@pytest.mark.parametrize("name", TABLES)
def test_a_picture_of_a_benchmark_is_not_stale(name: str) -> None:
    file = TABLES[name]
    picture, page = file.with_suffix(".svg").read_text(encoding="utf-8"), benchmark_pages.read(file)
    again = f"{name}: python docs/draw_benchmarks.py draws it again"
    assert ET.fromstring(picture).get("data-tables") == page.digest, f"the tables have changed since: {again}"
    assert picture == draw_benchmarks.draw(page), again
    assert len(picture.encode()) < 150_000


@pytest.mark.parametrize("name", TABLES)
def test_a_picture_of_a_benchmark_hides_no_target(name: str) -> None:
    file = TABLES[name]
    root, page = ET.parse(file.with_suffix(".svg")).getroot(), file.with_suffix(".md").read_text(encoding="utf-8")
    tables = page.partition("## Milliseconds")[0]
    for verdict, cell in (("met", r"\bmet \|"), ("missed", r"\bmissed(\*\*)? \|")):
        assert marks(root, verdict) == len(re.findall(cell, tables)), verdict


@pytest.mark.parametrize("name", TABLES)
def test_a_picture_of_a_benchmark_says_where_its_figures_come_from(name: str) -> None:
    file = TABLES[name]
    root, page = ET.parse(file.with_suffix(".svg")).getroot(), file.with_suffix(".md").read_text(encoding="utf-8")
    shown = " ".join(str(text.text) for text in root.iter(f"{SVG}text"))
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page.partition("\n## ")[0], flags=re.MULTILINE)
    facts = dict(rows) if rows else {}
    assert {"packages", "commit", "date"} <= facts.keys()
    for what, value in facts.items():
        assert what == "---" or value in shown, what
    command = re.search(r"Written by\s+`([^`]+)`", page)
    assert command and " ".join(command[1].split()) in shown


@pytest.mark.parametrize("name", TABLES)
def test_a_page_of_a_benchmark_begins_with_its_picture_and_the_result(name: str) -> None:
    file = TABLES[name]
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    found = re.match(rf"# .+\n\n!\[(.+)\]\({file.stem}\.svg\)\n", page)
    assert found, "tests/bench/report.py writes it"
    counted = re.search(r"(\d+) of (\d+) (?:targets|limits) are met, (\d+) missed", found[1])
    met, missed = len(re.findall(r"\bmet \|", page)), len(re.findall(r"\bmissed(?:\*\*)? \|", page))
    assert counted and tuple(map(int, counted.groups())) == (met, met + missed, missed)
    rows = re.search(r"in (\d+) of (\d+) rows", found[1])
    ratios = [float(ratio) for ratio in re.findall(r"\| ([\d.]+) \([\d.]+ to [\d.]+\) \| [\d.]+ \| ", page)]
    assert not rows or int(rows[2]) == len(ratios)
    assert not rows or sum(r > 1 for r in ratios) <= int(rows[1]) <= sum(r >= 1 for r in ratios)


def test_the_shares_of_a_picture_are_those_of_its_page() -> None:
    for file in TABLES.values():
        page = benchmark_pages.read(file)
        if "Milliseconds a call" not in page.tables:
            continue
        points = {
            (row.title, row.shape, point.dtype, panel): point
            for row in benchmark_pages.rows(page)
            for panel, points in row.points.items()
            for point in points
        }
        for line in page.tables["Milliseconds a call"]:
            point = points[line["operation"], line["x"], line["dtype"], benchmark_pages.COPY]
            share = [float(number) for number in re.findall(r"(\d+)%", line["of copy"])]
            assert [100 * value for value in point[1:4]] == pytest.approx(share, abs=0.51)
        for line in page.tables["Targets"]:
            panel = benchmark_pages.panel_of(line["at least"])
            point = points[line["operation"], line["x"], line["dtype"], panel]
            measured = [float(number) for number in re.findall(r"[\d.]+", line["measured (95 %)"])]
            scale = 100 if panel == benchmark_pages.COPY else 1
            assert [scale * value for value in point[1:4]] == pytest.approx(measured, abs=0.51 if scale > 1 else 0.0051)


def test_whole_networks_on_a_gpu_have_a_dtype_too() -> None:
    root = ET.parse(BENCHMARKS / "networks_gpu.svg").getroot()
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert "small, 512 images, float32" in shown and "small, 512 images, bfloat16" in shown
