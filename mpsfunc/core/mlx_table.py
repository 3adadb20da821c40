"""The versions of MLX that mpsfunc works with: what ``import mpsfunc`` accepts, and what builds and CI go through.

A new MLX is a row; a new minor version also moves `END`, and what ``pyproject.toml`` asks for, which a test compares.
The build reads this too, where there is no MLX yet: it imports nothing but the standard library.
"""

import re
from typing import NamedTuple


class Row(NamedTuple):
    """A version of MLX.

    Fields:
        mlx: The version.
        nanobind: What its ``mlx.core`` was built with; a module has to be built with the same to take MLX's arrays.
        differs: What of it concerns mpsfunc, in which it differs from the row above.
    """

    mlx: str
    nanobind: str
    differs: str


TABLE = (
    Row("0.32.3", "3.1.0", "mx.get_memory_limit; nanobind shares types under a new key"),
    Row("0.32.4", "3.1.0", "allocator::malloc gives a Data that frees itself, where it gave a Buffer"),
)
END = "0.33"  # the first that nobody tried

# What mpsfunc needs of ``mlx.core``: 0.31.2 and 0.32.2 lack the former, 0.30.0 both.
FEATURES = ("get_memory_limit", "ThreadLocalStream")


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it by: ``"0.32.4.dev1"`` and ``"0.32.4rc1"`` are (0, 32, 4)."""
    numbers = re.split(r"[^\d.]", version)[0]
    return tuple(int(number) for number in numbers.split(".") if number)


def row_for(version: str) -> Row | None:
    """How to build for this MLX: as for the last row that is not newer, or nothing where it is out of reach."""
    before = [row for row in TABLE if release(row.mlx) <= release(version) < release(END)]
    return before[-1]._replace(mlx=version) if before else None
