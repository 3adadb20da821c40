"""The site: a table of all functions, the sidebar, the landing page, the width of code, and the picture of states."""

from __future__ import annotations

import inspect
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import draw_state
import mlx.core as mx
import pytest
import reference

import mpsfunc as mf

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS).with_suffix("")): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
SVG = "{http://www.w3.org/2000/svg}"


def public(module: Any) -> dict[str, Any]:
    """Functions and classes by their paths."""
    names = getattr(module, "__all__", [name for name in vars(module) if name[0] != "_"])
    found = {f"{module.__name__}.{name}": getattr(module, name) for name in names}
    return {path: value for path, value in found.items() if inspect.isfunction(value) or inspect.isclass(value)}


EVERY = {path: value for module in (mf, mf.nn, mf.graph) for path, value in public(module).items()}


def rows() -> dict[str, str]:
    """What the table of all functions says, by the path of each."""
    found = re.findall(
        r"^\| \{py:obj\}`(\w+) <([\w.]+)>` \| (.*) \|$", reference.filled(PAGES["functions"]), re.MULTILINE
    )
    assert all(path.rpartition(".")[2] == name for name, path, _ in found)
    assert len({path for _, path, _ in found}) == len(found), "one is there twice"
    return {path: said for _, path, said in found}


def test_the_table_has_every_function_and_class() -> None:
    assert rows().keys() == EVERY.keys()


def test_the_table_has_a_sentence_for_each() -> None:
    for path, said in rows().items():
        assert len(said) > 8 and said.endswith("."), path
        assert "``" not in said and not re.search(r"(?<!\\)\|", said), path
    assert rows()["mpsfunc.avg_pool"] == "Mean over sliding windows."
    assert rows()["mpsfunc.nn.Conv2d"] == "`mlx.nn.Conv2d` by `mpsfunc.conv`."


def test_the_table_leads_to_entries() -> None:
    filled = "".join(reference.filled(text) for page, text in PAGES.items() if page.startswith("api/"))
    entries = set(re.findall(r"^\.\. auto(?:function|class):: ([\w.]+)$", filled, re.MULTILINE))
    assert ".. automodule:: mpsfunc.graph\n   :members:" in PAGES["api/graph"]  # which are entries as well
    assert {path for path in rows() if not path.startswith("mpsfunc.graph.")} <= entries


def in_the_sidebar(page: str) -> list[str]:
    """The pages that a page's tables of contents name, in order."""
    found: list[str] = []
    for inside in re.findall(r"^```\{toctree\}\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE):
        for line in inside.splitlines():
            if line and line[0] != ":":
                here = [str(each.relative_to(DOCS).with_suffix("")) for each in (DOCS / page).parent.glob(f"{line}.md")]
                assert here, f"{page}: {line} is no page"
                found += here
    return found


def test_each_page_is_in_the_sidebar_once() -> None:
    named = [each for page in PAGES for each in in_the_sidebar(page)]
    assert sorted(named) == sorted(set(PAGES) - {"index"})


def test_the_landing_page_has_four_links_and_a_picture() -> None:
    text = PAGES["index"].partition("## ")[0]
    links = re.findall(r"^:::\{grid-item-card\} .*\n:link: (.*)$", text, re.MULTILINE)
    assert len(links) == 4 and set(links) <= PAGES.keys()
    assert len(re.findall(r"^!\[.+\]\(pictures/\w+\.svg\)$", text, re.MULTILINE)) == 1


@pytest.mark.parametrize("words", ["edge_mode", "silu", "learning rate", "mixed precision", "loss scaling", "ema"])
def test_what_people_search_for_is_there(words: str) -> None:
    """A search finds pages that have all of the words."""
    assert any(re.search(rf"\b{words}\b", text, re.IGNORECASE) for text in PAGES.values())


# The width of code ------------------------------------------------------------------------------------------

WIDEST = 85  # characters of a line of code; results and commands are wrapped (docs/_static/site.css)


def code_of_page(text: str) -> list[str]:
    """The lines of doctests and of notebooks' cells."""
    cells = re.findall(r"^```\{code-cell\}.*?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for cell in cells for line in cell.splitlines()] + doctests(text)


def doctests(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith((">>> ", "... "))]


@pytest.mark.parametrize("page", PAGES)
def test_code_of_pages_is_not_too_wide(page: str) -> None:
    assert not [line for line in code_of_page(PAGES[page]) if len(line) > WIDEST]


def test_code_is_seen() -> None:
    assert code_of_page("```{code-cell}\na\n```\n>>> b\n... c\nd\n") == ["a", ">>> b", "... c"]
    assert len(code_of_page(PAGES["recipes/adopt"])) > 50 < len(code_of_page(PAGES["nn"]))


@pytest.mark.parametrize("path", EVERY)
def test_code_of_docstrings_is_not_too_wide(path: str) -> None:
    members = vars(EVERY[path]).values() if inspect.isclass(EVERY[path]) else ()
    texts = [inspect.getdoc(each) or "" for each in (EVERY[path], *filter(inspect.isfunction, members))]
    assert not [line for text in texts for line in doctests(text) if len(line) > WIDEST]


# Pictures ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def picture() -> str:
    with mx.stream(mx.cpu):
        return draw_state.drawn()


def test_the_picture_of_states_is_that_of_the_code(picture: str) -> None:
    assert draw_state.FILE.read_text("utf-8") == picture, "python docs/draw_state.py draws it again"


def test_the_picture_shows_what_each_pass_fills(picture: str) -> None:
    root = ET.fromstring(picture)
    said = {text.text: text.attrib["fill"] for text in root.iter(f"{SVG}text")}
    filled = {str(text).partition(":")[0] for text, fill in said.items() if fill == draw_state.MARK and text}
    assert filled >= {"dw", "db", "dgamma", "dbeta"} and not filled & {"mean", "var", "rows", "gradient"}
    assert said["mean: 8"] == said["gradient: 8x1x1x8"] == draw_state.BLUE
    assert root.findtext(f"{SVG}title") and root.findtext(f"{SVG}desc")


def test_nothing_in_the_picture_of_states_lies_outside(picture: str) -> None:
    root = ET.fromstring(picture)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for text in root.iter(f"{SVG}text"):
        wide = 8 if text.get("font-family") == "monospace" else 7
        assert float(text.attrib["x"]) + wide * len(text.text or "") <= width and float(text.attrib["y"]) < height
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert x + float(box.attrib["width"]) <= width and y + float(box.attrib["height"]) <= height
