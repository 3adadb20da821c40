"""The pages say what is true: their examples run, their links lead somewhere, and the names they use exist."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import mlx.core as mx
import pytest

import mpsfunc as mf

ROOT = Path(__file__).parent.parent
TEXTS = {
    str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
}


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if ">>> " in text])
def test_examples_run(page: str) -> None:
    text = re.sub(r"^```.*$", "", TEXTS[page], flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    report: list[str] = []
    with mx.stream(mx.cpu):
        result = doctest.DocTestRunner().run(examples, out=report.append)
    assert result.attempted > 0
    assert not result.failed, "".join(report)


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXTS[page]):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", TEXTS)
def test_names_exist(page: str) -> None:
    for name in re.findall(r"\bmf\.([A-Za-z_]\w*)", TEXTS[page]):
        assert hasattr(mf, name), f"mf.{name}"


@pytest.mark.parametrize("page", TEXTS)
def test_files_exist(page: str) -> None:
    for name in re.findall(r"`((?:mpsfunc|metal|primitives|tests|docs|\.ci)/[\w./-]+)`", TEXTS[page]):
        assert (ROOT / name).exists(), name


def test_every_public_function_is_in_the_readme() -> None:
    public = {name for name, value in vars(mf).items() if callable(value) and not name.startswith("_")}
    states = {name for name in public if name.endswith("State")}
    threads = {"set_num_threads", "get_num_threads"}
    for name in public - states - threads:
        assert f"`{name}`" in TEXTS["README.md"], name


def test_make_knows_the_commands_of_the_pages() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    used = {
        command for text in TEXTS.values() for command in re.findall(r"(?:`|^    )make ([a-z]+)", text, re.MULTILINE)
    }
    assert used >= {"demo", "test"}
    for command in used:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command
