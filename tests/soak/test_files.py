"""The program of mutated files reaches what it is to reach, repeats itself, and tells faults that are put there."""

from __future__ import annotations

import base64
import importlib.util
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from support import mutations
from support.trees import same_tree

import mpsfunc as mf
from mpsfunc.saving import files as saving_files
from mpsfunc.saving import safetensors, trees
from soak import files


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second process."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, Any]]:
    return files.samples(Path(tmp_path_factory.mktemp("samples"), "file"))


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few mutants in this process, which looks on while the second one works."""
    monkeypatch.setattr(files, "_MUTANTS", 1)


def run(seed: int, rounds: int) -> Counter[str]:
    running = files.rounds(seed)
    done: Counter[str] = Counter()
    for _ in range(rounds):
        done.update(next(running))
    running.close()
    return done


def sealed(contents: bytes) -> bytes:
    """A file with its checksum made anew."""
    file = mutations.File(contents)
    file.metadata[mutations.CRC] = ""
    file.seal()
    return file.contents()


@pytest.mark.programs
@pytest.mark.usefixtures("plain")
def test_it_reaches_good_files_and_bad_ones_and_repeats_itself() -> None:
    done = run(3, 30)
    loaded = {f"{kind}: loaded" for kind in ("tree", "entries", "arrays", "metadata")}
    assert loaded | {f"{kind}: refused" for kind in (*mutations.INSIDE, "bytes")} <= set(done)
    assert run(3, 30) == done != run(4, 30)


def test_its_files_are_those_of_save_and_of_version_1(samples: list[tuple[bytes, Any]], tmp_path: Path) -> None:
    for contents, tree in samples:
        (tmp_path / "again").write_bytes(sealed(contents))
        assert same_tree(mf.load(tmp_path / "again"), tree)


def keyed(*_: Any) -> Any:
    raise KeyError("a")


def slow(whole: Any) -> Any:
    def call(*given: Any) -> Any:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        return whole(*given)

    return call


def greedy(whole: Any) -> Any:
    def call(*given: Any) -> Any:
        assert bytearray(2**24)
        return whole(*given)

    return call


def greedy_for_arrays(whole: Any) -> Any:
    def call(*given: Any) -> Any:
        mx.eval(mx.zeros(2**22))
        return whole(*given)

    return call


def deeper(whole: Any) -> Any:
    def call(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trees, "DEEPEST", 101)
            return whole(*given)

    return call


def nothing_of_it(*_: Any) -> int:
    return 0


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "another error": (safetensors, "_tensor", lambda _: keyed, "KeyError: 'a'"),
    "not in the form": (
        saving_files,
        "_read",
        lambda _: lambda file: int("a"),
        "not in the form: invalid literal for int",
    ),
    "another tree": (saving_files, "_read", lambda _: lambda file: 0, "another tree"),
    "deeper than is saved": (trees, "decode", deeper, "save: nested too deep"),
    "slow": (saving_files, "_read", slow, "[0-9.]+ s\n"),
    "much memory": (saving_files, "_read", greedy, "[0-9]+ bytes of Python's for a file of [0-9]+"),
    "many arrays": (saving_files, "_read", greedy_for_arrays, "[0-9]+ bytes of MLX's for a file of [0-9]+"),
    "no checksum": (zlib, "crc32", lambda _: nothing_of_it, "another tree"),
}


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("fault", FAULTS)
def test_it_tells_a_fault_with_its_file(
    fault: str, monkeypatch: pytest.MonkeyPatch, samples: list[tuple[bytes, Any]]
) -> None:
    of, name, made, words = FAULTS[fault]
    whole = samples[::5]
    monkeypatch.setattr(files, "samples", lambda path: whole)
    monkeypatch.setattr(files, "_SECONDS", 0.02 if fault == "slow" else 60.0)
    monkeypatch.setattr(of, name, made(getattr(of, name)))
    whole = [(sealed(contents), tree) for contents, tree in whole]
    with pytest.raises(AssertionError, match=rf"mutated files: seed 5, round \d+, mutant \d+, .*({words})") as caught:
        run(5, 300)
    (packed,) = re.findall("b64decode\\('(.*)'\\)", str(caught.value))
    assert len(zlib.decompress(base64.b64decode(packed))) >= 0


@pytest.mark.skipif(not importlib.util.find_spec("atheris"), reason="atheris is not installed")
@pytest.mark.usefixtures("beside")
def test_the_guided_process_runs() -> None:
    running, done = files.rounds(6), Counter[str]()
    until = time.monotonic() + 60
    while not any(kind.startswith("guided") for kind in done) and time.monotonic() < until:
        done.update(next(running))
        time.sleep(0.1)
    running.close()
    assert {"guided: loaded", "guided: refused"} & set(done)


@pytest.mark.skipif(not importlib.util.find_spec("atheris"), reason="atheris is not installed")
@pytest.mark.usefixtures("beside")
def test_the_guided_process_tells_a_fault_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There nothing matches a pattern, so that no error has the form."""
    (tmp_path / "sitecustomize.py").write_text("import re\nre.fullmatch = lambda *given: None\n")
    monkeypatch.syspath_prepend(tmp_path)
    running, until = files.rounds(6), time.monotonic() + 60
    with pytest.raises(
        AssertionError, match="(?s)mutated files, guided, seed 6: ended with .*not in the form.*b64deco"
    ):
        while time.monotonic() < until:
            next(running)
            time.sleep(0.1)
