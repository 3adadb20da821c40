"""The C++ entry points refuse what no kernel could survive; a few hundred of the calls that `make soak` makes."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

from soak import entry_points

LIST = Path(__file__).parents[2] / "primitives" / "runtime" / "operations.h"


def test_every_entry_point_has_valid_calls() -> None:
    operations = set(re.findall(r"^  X\((\w+)\)", LIST.read_text(), re.MULTILINE))
    valid = entry_points.templates()
    assert set(valid) == operations
    for op, calls in valid.items():
        assert {entry_points.tried(entry, "as the package calls it") for entry in calls[:3]} == {"evaluated"}, op


@pytest.mark.programs
@pytest.mark.parametrize("seed", range(4))
def test_hostile_calls_do_no_harm(isa: str, seed: int) -> None:
    counts: Counter[str] = sum(islice(entry_points.rounds(seed), 12), Counter())
    assert counts.total() == 300
    assert counts["refused"] > 100 and counts["evaluated"] > 60  # neither all too wild nor all too tame
