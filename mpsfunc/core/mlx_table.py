"""The versions of MLX that mpsfunc works with: what ``import mpsfunc`` accepts, and what builds and CI go through.

A new MLX is a row; a new minor version also moves `END`, and what ``pyproject.toml`` asks for, which a test compares.
The build reads this too, where there is no MLX yet: it imports nothing but the standard library.
"""

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

# What mpsfunc needs of ``mlx.core``, and MLX's versions before the first row lack.
FEATURES = ("get_memory_limit", "ThreadLocalStream")


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it by: ``"0.32.4.dev1"`` is (0, 32, 4)."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def row_for(version: str) -> Row | None:
    """How to build for this MLX: its row, that of the newest if it is newer and in reach, or nothing."""
    known = next((row for row in TABLE if row.mlx == version), None)
    newer = release(TABLE[-1].mlx) < release(version) < release(END)
    return known or (TABLE[-1]._replace(mlx=version) if newer else None)
