"""The pictures of windows are those that the code draws now, and show what the definitions say."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
GRAPH = "graph.svg"  # by docs/draw_graph.py
PICTURES = {
    path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("pictures/*.svg")) if path.name != GRAPH
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


def test_pictures_are_not_stale() -> None:
    spec = importlib.util.spec_from_file_location("draw_windows", DOCS / "draw_windows.py")
    assert spec and spec.loader
    draw_windows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw_windows)
    drawn = draw_windows.pictures()
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
    assert f"](pictures/{name})" in (DOCS / "pooling.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "divisors", "averages"),
    [
        ('edge_mode="zero"', [3, 3, 3], ["1", "3", "1.33"]),
        ('edge_mode="clamp", zero_pad=0', [2, 3, 1], ["1.5", "3", "4"]),
        ('edge_mode="clamp", zero_pad=1', [3, 3, 2], ["1", "3", "2"]),
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
