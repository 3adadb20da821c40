"""The page of the networks: what conversion makes of each, and how far each is from the right values."""

from __future__ import annotations

import platform
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

import mpsfunc as mf
from mpsfunc.core import launch

from .comparison import DTYPES, Distance, converted, distances, made
from .registry import Network

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- the table: python -m tests.models --write -->", "<!-- end of the table -->"
HEAD = ("network", "layers", "replaced", "fused", "left, and why", *DTYPES)


class Counts(NamedTuple):
    """What `convert` made of a network, in words."""

    layers: str
    replaced: str
    fused: str
    left: str


def counts(network: Network) -> Counts:
    """Converts a network, with its example."""
    model, x = made(network, 0, mx.float32)
    report = converted(model, x, fused=True)
    layers = len(report.replaced) + len(report.left)
    left = "; ".join(f"{many} {why}" for why, many in sorted(Counter(report.left.values()).items()))
    return Counts(str(layers), str(len(report.replaced)), str(len(report.fused)), left or "none")


def row(network: Network) -> list[str]:
    """A line of the table."""
    told = [_told(distances(network, dtype, ["fused"])["fused"]) for dtype in DTYPES]
    return [network.name, *counts(network), *told]


def _told(found: list[Distance]) -> str:
    worst, lost = found[0], sum(not np.isfinite(each.stock) for each in found)
    told = f"{worst.ratio:.2f} ({worst.ours:.1e}, {worst.stock:.1e})"
    return f"{told}; of {lost} of {len(found)} arrays MLX's overflow" if lost else told


def rows(page: str) -> dict[str, list[str]]:
    """The lines of the table of a page, by network."""
    lines = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {each[0]: each for each in cells if each[0] not in (HEAD[0], "---")}


def written(page: str, new: dict[str, list[str]], order: list[str]) -> str:
    """A page with other lines, and what it says of versions."""
    held = rows(page) | new
    lines = [HEAD, ["---"] * len(HEAD), *(held[name] for name in order if name in held)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{versions()}\n\n{END}{rest.partition(END)[2]}"


def versions() -> str:
    """What the last run used."""
    isa = launch._primitives.isa() if launch._primitives else "no module of ours"
    machine = f"{platform.system()}, {platform.machine()}, {isa}"
    of = f"MLX {metadata.version('mlx')}, mpsfunc {mf.__version__} and Python {platform.python_version()}"
    return f"Last written with {of} on {machine}."
