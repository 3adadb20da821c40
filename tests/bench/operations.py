"""The operations that the records measure, and the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from generic.ops import OPS
from support.benchmarks import Benchmark, Measured, Target

from . import FAMILIES
from .problems import Problem

_ALL = [(op, benchmark) for info in OPS.values() for op, benchmark in info.benchmarks.items()]
OF_FAMILY = {family: {op: each for op, each in _ALL if each.family == family} for family in FAMILIES}
OPERATIONS = {op: benchmark for family in OF_FAMILY.values() for op, benchmark in family.items()}
assert len(OPERATIONS) == len(_ALL), "two benchmarks have one name, or one has no family"

Planned = tuple[Problem, tuple[Target, ...]]


def rows(op: str, measured: Measured, shape: tuple[int, ...]) -> Iterator[Planned]:
    """A row for each dtype, of images of this shape or so many times as many."""
    images, *of_each = shape
    for dtype in measured.dtypes:
        problem = Problem(op, (measured.times * images, *of_each), dtype, **measured.how)
        yield problem, measured.targets if dtype in measured.targeted else ()


def chosen(only: Sequence[str]) -> dict[str, Benchmark]:
    """The operations that are asked for, all where none is."""
    return {op: benchmark for op, benchmark in OPERATIONS.items() if not only or op in only}


def named(names: list[str]) -> list[str]:
    """The operations that names of operations and families stand for.

    Raises:
        ValueError: A name is neither.
    """
    found: list[str] = []
    for name in names:
        if name not in OPERATIONS and name not in OF_FAMILY:
            raise ValueError(f"no operation or family {name}; families are {', '.join(FAMILIES)}")
        found += OF_FAMILY.get(name, (name,))
    return found
