"""The pages say what is true: their examples run, their links lead somewhere, and the names they use exist."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import mlx.core as mx
import pytest

import mpsfunc as mf

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("page", [p for p in PAGES if ">>> " in p.read_text(encoding="utf-8")], ids=str)
def test_examples_run(page: Path) -> None:
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report: list[str] = []
    with mx.stream(mx.cpu):
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert result.attempted > 0
    assert not result.failed, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_names_exist(page: Path) -> None:
    for name in set(re.findall(r"\bmf\.([A-Za-z_]\w*)", page.read_text(encoding="utf-8"))):
        assert hasattr(mf, name), f"mf.{name}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_exist(page: Path) -> None:
    folders = ("mpsfunc", "metal", "primitives", "tests", "docs", r"\.ci")
    for name in set(re.findall(rf"`((?:{'|'.join(folders)})/[\w./-]+)`", page.read_text(encoding="utf-8"))):
        assert (ROOT / name).exists(), name


def test_make_knows_the_commands_of_the_pages() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    used = {c for page in PAGES for c in re.findall(r"`?make ([a-z]+)`?", page.read_text(encoding="utf-8"))}
    assert used >= {"demo", "test"}
    for command in used:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command
