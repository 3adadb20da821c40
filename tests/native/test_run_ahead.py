"""Launches that run ahead of a GPU by bytes, over a GPU that a thread plays."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from native.cxx import HERE, PRIMITIVES, SANITIZED, compile_, drive, needs_compiler

pytestmark = [pytest.mark.kernels, needs_compiler]

ARRAY, LEAST = 32, 64  # megabytes, of run_ahead_driver.cpp and batches.h
STEPS, LAUNCHES = 6, 300
CASES = ((100, 1), (140, 1), (100, 10))  # results of a step that stay until its end; every which launch is ours


class Told(NamedTuple):
    most: int  # megabytes in use
    needed: int  # megabytes that the steps were found to need
    batches: int


def driver(to: Path, *flags: str) -> Path:
    return compile_(HERE / "run_ahead_driver.cpp", to, "-pthread", *flags)


def told(program: Path, share: float, kept: int, each: int, *, steps: int = STEPS, launches: int = LAUNCHES) -> Told:
    done = drive(program, *map(str, (share, steps, launches, kept, each)))
    assert (done.returncode, done.stderr) == (0, "")
    return Told(*map(int, done.stdout.split()))


def needs(kept: int) -> int:
    """What is kept, what the last launch reads and what it writes."""
    return (kept + 2) * ARRAY


def well(found: Told, share: float, kept: int, each: int) -> bool:
    slack = max(LEAST, share * needs(kept))
    others = (each - 1) * ARRAY  # of MLX's launches, which do not wait
    if found.most > needs(kept) + slack + others or not needs(kept) - slack - others - ARRAY <= found.needed <= needs(
        kept
    ):
        return False
    # What is far from filling memory is not cut into small batches, as the results that are kept show.
    return found.batches < STEPS * (LAUNCHES - kept / 2)


def of_one_wait(program: Path) -> int:
    """What the work is found to need by the last of fifty launches, with what 48 others wrote waiting to be let go."""
    return told(program, 0.1, 1, 50, steps=1, launches=50).needed


def test_only_a_share_of_what_the_work_needs_waits(tmp_path: Path) -> None:
    program = driver(tmp_path / "run_ahead", "-O2")
    for kept, each in CASES:
        free = told(program, 0, kept, each)
        assert free.most > 2 * needs(kept)  # it would not be bounded by itself
        for share in (0.05, 0.1, 0.3):
            found = told(program, share, kept, each)
            assert well(found, share, kept, each), found
    assert of_one_wait(program) == needs(1)


def test_where_much_may_wait_batches_are_few(tmp_path: Path) -> None:
    program, case = driver(tmp_path / "run_ahead", "-O2"), CASES[0]
    little, much = (told(program, share, *case) for share in (0.05, 1))
    assert well(much, 1, *case) and 2 * much.batches < little.batches, (little, much)


def test_there_are_no_races(tmp_path: Path) -> None:
    program = driver(tmp_path / "run_ahead", *SANITIZED)
    assert well(told(program, 0.1, *CASES[0]), 0.1, *CASES[0])


@pytest.mark.parametrize(
    ("right", "wrong"),
    (
        ("    stream_->commit();  // what follows", "    // what follows"),
        ("    wait_for(committed_);\n", ""),
        ("if (in_use(writes) > needed_ + slack) wait(writes, slack);", ""),
        ("if (bytes_ >= batch && in_use(writes) + slack > needed_) commit();", "commit();"),
    ),
    ids=("arrays still held", "no wait", "never", "a batch for each launch"),
)
def test_a_fault_shows(tmp_path: Path, right: str, wrong: str) -> None:
    source = (PRIMITIVES / "binding" / "batches.h").read_text()
    assert source.count(right) == 1
    (tmp_path / "binding").mkdir()
    (tmp_path / "binding" / "batches.h").write_text(source.replace(right, wrong))
    program = driver(tmp_path / "run_ahead", "-O2", f"-I{tmp_path}")
    assert of_one_wait(program) != needs(1) or not all(well(told(program, 0.1, *case), 0.1, *case) for case in CASES)
