"""Pages, docstrings and messages keep to plain words: the phrases of phrases.txt do not occur in them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpsfunc as mf

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "tests/generic/phrases.txt").read_text(encoding="utf-8").splitlines()
PHRASES = dict(line.split(" -> ", 1) for line in LINES if line and line[0] != "#")


def pattern(phrase: str) -> re.Pattern[str]:
    """The phrase as whole words, with any white space between them."""
    words = r"\s+".join(map(re.escape, phrase.split()))
    return re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE)


PATTERNS = {phrase: pattern(phrase) for phrase in PHRASES}
SOURCES = sorted((ROOT / "mpsfunc").rglob("*.py"))
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


def pages() -> Iterator[Path]:
    """All pages, those that scripts write included."""
    yield from ROOT.glob("*.md")
    yield from sorted(ROOT.glob("docs/**/*.md"))


PAGES = {str(path.relative_to(ROOT)): path for path in pages()}


def found_in(text: str) -> list[str]:
    return [f"{phrase!r}: write {PHRASES[phrase]}" for phrase, found in PATTERNS.items() if found.search(text)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_plain_words(page: str) -> None:
    assert not found_in(PAGES[page].read_text(encoding="utf-8"))


def test_docstrings_have_plain_words() -> None:
    public = [
        (module.__name__, name, value) for module in (mf, mf.nn, mf.graph) for name, value in vars(module).items()
    ]
    public += [("mpsfunc", name, getattr(mf, name)) for name in mf.__all__]
    docs = {f"{of}.{name}": inspect.getdoc(value) for of, name, value in public if name[0] != "_" and callable(value)}
    assert len(docs) > 300
    assert not {name: found for name, text in docs.items() if text and (found := found_in(text))}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_have_plain_words(path: Path) -> None:
    """Strings that are raised or warned of, in whole or in parts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = [
        part.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.Call)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    assert not found_in("\n".join(said))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_of_sources_have_plain_words(path: Path) -> None:
    """Those of modules, members of classes and private names too, which `test_docstrings_have_plain_words` lacks."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, DOCUMENTED)]
    assert not found_in("\n\n".join(texts))


def test_every_phrase_is_found() -> None:
    for phrase in PHRASES:
        broken = phrase.capitalize().replace(" ", "\n", 1)
        assert any(repr(phrase) in line for line in found_in(f"It is so: {broken}.")), phrase
        assert not PATTERNS[phrase].search(f"x{phrase}x")
