"""What is read of ``python -X importtime``."""

from __future__ import annotations

from pathlib import Path

import pytest

import mpsfunc as mf
from mpsfunc.core import launch
from tests.bench.import_time import NAMES, Module, after_mlx, facts, rows, seconds

TOLD = """import time: self [us] | cumulative | imported package
import time:       900 |        900 |   sys
import time:       700 |       1600 | mlx.core
import time:        20 |         20 |   mpsfunc.core
import time:        50 |         70 | mpsfunc
"""


def test_what_mlx_brought_is_left_out_and_the_longest_is_first() -> None:
    assert after_mlx(TOLD) == [Module("mpsfunc", 50), Module("mpsfunc.core", 20)]


def test_a_row_has_the_median_the_least_and_the_most() -> None:
    assert rows(["a", "b"], [[1.0, 4.0, 2.0], [0.25] * 3]) == [["a", "2.0", "1.0", "4.0"], ["b", "0.2", "0.2", "0.2"]]


def test_what_comes_before_takes_no_time() -> None:
    assert 0 < seconds("pass", "time.sleep(0.5)") < 0.5


def test_each_name_is_public() -> None:
    assert {*NAMES} < {*mf.__all__}


@pytest.mark.needs_cpu_module
def test_the_facts_are_those_of_a_process_that_imports() -> None:
    """One that has not used any of the threads yet."""
    told = facts()
    assert told["C++ module"] == f"loaded, for {Path(launch.optional_module().__file__).parent.name}"
    assert told["instruction set used"] == launch.instruction_sets()[0]
    assert told["processor"].endswith(" 1 threads used")
