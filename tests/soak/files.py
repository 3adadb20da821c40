"""Mutated files: `mf.load` gives a tree, or a ValueError in the form of the house, soon and in little memory.

A file that was changed without its checksum loads as what it was or not at all; a tree that comes out of any file can
be saved, and comes back the same. Where atheris is installed a second process goes on with what reaches new lines.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import os
import random
import re
import select
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from support import mutations
from support.trees import same_tree

import mpsfunc as mf

NAME = "mutated files"
_MUTANTS = 20  # of a round
_SECONDS = 2.0  # of computing; a file here takes a few milliseconds
_FIXTURE = Path(__file__).parent.parent / "fixtures" / "states.safetensors"
_FORM = r"load: (?s:.+); got path='[^']+', expected (?s:.+)"
_UNKNOWN = object()
_WATCHED = [
    "mpsfunc.saving",
    "mpsfunc.saving.safetensors",
    "mpsfunc.saving.trees",
    "mpsfunc.saving.places",
    "mpsfunc.saving.earlier_files",
]


def rounds(seed: int) -> Iterator[Counter[str]]:
    """For ever; each round counts by what was changed and whether the file was loaded."""
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        chance, path = random.Random(seed), Path(folder, "mutant")
        whole = samples(path)
        guided = _guided(seed, Path(folder), whole) if importlib.util.find_spec("atheris") else itertools.repeat({})
        for at in itertools.count():
            done = _round(chance, path, whole, f"seed {seed}, round {at}")
            done.update(next(guided))
            yield done


def _fast() -> str | None:
    """A folder in memory, since `save` waits for the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def samples(path: Path) -> list[tuple[bytes, Any]]:
    """Small files with every record and kind of number, of each version, and their trees."""
    families = mf.load(_FIXTURE).values()
    trees = [part for family in families for part in family.values()]
    trees += [{"step": 3, "w": mx.ones((2, 3)), "again": [mx.zeros((0, 2), mx.bfloat16), (mx.array(True), -0.0)]}, 7]
    whole = []
    for tree in trees:
        mf.save(path, tree)
        contents = path.read_bytes()
        earlier = mutations.of_version_1(contents)
        path.write_bytes(earlier)
        whole += [(contents, tree), (earlier, mf.load(path))]
    return whole


def _round(chance: random.Random, path: Path, whole: list[tuple[bytes, Any]], where: str) -> Counter[str]:
    done: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for at in range(_MUTANTS):
            contents, tree = chance.choice(whole)
            if chance.random() < 0.3:
                kind, known = "bytes", tree
                other, _ = chance.choice(whole)
                contents = mutations.changed(chance, contents, other)
                if contents == other:
                    continue
            else:
                known = _UNKNOWN
                kind, contents = mutations.inside(chance, contents)
            done[f"{kind}: {ended(path, contents, known, f'{where}, mutant {at}, {kind}')}"] += 1
    finally:
        tracemalloc.stop()
    return done


def ended(path: Path, contents: bytes, known: Any, where: str) -> str:
    """How loading a file ends, or an AssertionError with the file."""
    path.write_bytes(contents)
    try:
        return _ended(path, len(contents), known)
    except Exception as error:
        packed = base64.b64encode(zlib.compress(contents, 9)).decode()
        raise AssertionError(
            f"{NAME}: {where}: {type(error).__name__}: {error}\nthe file: zlib.decompress(base64.b64decode({packed!r}))"
        ) from error


def _ended(path: Path, length: int, known: Any) -> str:
    tracemalloc.reset_peak()
    mx.reset_peak_memory()
    before, active, began = tracemalloc.get_traced_memory()[0], mx.get_active_memory(), time.process_time()
    tree, refused = None, ""
    try:
        tree = mf.load(path)
    except ValueError as error:
        refused = str(error)
    seconds = time.process_time() - began
    peak, arrays = tracemalloc.get_traced_memory()[1] - before, mx.get_peak_memory() - active
    assert seconds < _SECONDS, f"{seconds} s"
    assert peak < 2**20 + 40 * length, f"{peak} bytes of Python's for a file of {length}"
    assert arrays < 2**20 + 4 * length, f"{arrays} bytes of MLX's for a file of {length}"
    if refused:
        assert re.fullmatch(_FORM, refused), f"not in the form: {refused[:2000]}"
        assert len(refused) < 1000 + len(str(path)), f"{len(refused)} characters: {refused[:2000]}"
        return "refused"
    if known is not _UNKNOWN:
        assert same_tree(tree, known), f"another tree: {tree}"
        return "the same"
    again = path.with_name("again")
    mf.save(again, tree)
    assert same_tree(mf.load(again), tree), f"saved again it is another tree: {tree}"
    return "loaded"


# Guided by coverage -------------------------------------------------------------------------------------


def _guided(seed: int, folder: Path, whole: list[tuple[bytes, Any]]) -> Iterator[dict[str, int]]:
    """What the second process has done since the last time; an AssertionError with its words where it ended."""
    corpus, errors = folder / "corpus", folder / "errors"
    corpus.mkdir()
    for i, (contents, _) in enumerate(whole):
        (corpus / str(i)).write_bytes(contents)
    start = (
        "import atheris, runpy",
        f"with atheris.instrument_imports(include={_WATCHED}, enable_loader_override=False):",
        "    import mpsfunc",
        f"runpy.run_path({__file__!r}, run_name='__main__')",
    )
    command = [sys.executable, "-c", "\n".join(start), str(folder), str(seed)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=stderr, bufsize=0) as process,
    ):
        try:
            assert process.stdout is not None
            words = ""
            while True:
                done: Counter[str] = Counter()
                while select.select([process.stdout], [], [], 0)[0]:
                    line = process.stdout.readline()
                    if not line:
                        code, said = process.wait(), words + errors.read_text(errors="replace")
                        raise AssertionError(f"{NAME}, guided, seed {seed}: ended with {code}\n{said[-50_000:]}")
                    if line.startswith(b"{"):
                        done.update(json.loads(line))
                    else:
                        words += line.decode(errors="replace")  # how atheris shows an error
                yield done
        finally:
            process.kill()


def _fuzz(folder: str, seed: str) -> None:
    """The second process; never comes back."""
    import atheris

    path, done = Path(folder, "guided", "mutant"), Counter[str]()
    path.parent.mkdir()
    tracemalloc.start()

    def try_one(contents: bytes) -> None:
        done[f"guided: {ended(path, contents, _UNKNOWN, f'guided, seed {seed}')}"] += 1
        if sum(done.values()) >= 50:
            print(json.dumps(done), flush=True)
            done.clear()

    def mutate(contents: bytes, most: int, chosen: int) -> bytes:
        chance = random.Random(chosen)
        if chance.random() < 0.2 or not mutations.parts(contents):
            return bytes(atheris.Mutate(contents, most))
        return mutations.inside(chance, contents)[1][:most]

    options = ("-max_len=100000", "-timeout=60", "-rss_limit_mb=0", "-verbosity=0", f"-seed={int(seed) % 2**31 + 1}")
    corpus = str(Path(folder, "corpus"))
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}/", corpus], try_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    _fuzz(*sys.argv[1:])
