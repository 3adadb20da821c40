"""The page of the networks: what conversion makes of each, and how far each is from the right values."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import mpsfunc as mf
from mpsfunc.core import launch

from .checks import proves_nothing
from .comparison import DTYPES, FOLDED, Distance, converted, distances, made
from .registry import Network

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
KEPT = ROOT / "build" / "distances"
BEGIN, END = "<!-- the table: python -m tests.models --write -->", "<!-- end of the table -->"
HEAD = ("network", "layers", "replaced", "fused", "folded", "left, and why", *DTYPES, "dominated by rounding")
TOLD = ("converted", "fused", FOLDED)  # of which the page has the worst array


class Counts(NamedTuple):
    """What `convert` made of a network, in words."""

    layers: str
    replaced: str
    fused: str
    folded: str
    left: str


def counts(network: Network) -> Counts:
    """Converts a network, with its example."""
    model, x = made(network, 0, mx.float32)
    report = converted(model, x, fused=True)
    layers = len(report.replaced) + len(report.left)
    left = "; ".join(f"{many} {why}" for why, many in sorted(Counter(report.left.values()).items()))
    model, x = made(network, 0, mx.float32)
    norms = {path for path, module in model.named_modules() if isinstance(module, nn.BatchNorm)}
    fused = mf.nn.convert(model, example=x, inference=True).fused.values()
    folded = len(norms & {behind for behinds in fused for behind in behinds.split(" and ")})
    return Counts(str(layers), str(len(report.replaced)), str(len(report.fused)), str(folded), left or "none")


def row(network: Network) -> list[str]:
    """A line of the table; distances that `keep` has kept are not measured again."""
    told, nothing, arrays = [], [], 0
    for dtype in DTYPES:
        found = kept(network, dtype)
        if found is None:
            found = distances(network, dtype, TOLD)
            keep(network, dtype, found)
        told.append(_told([each for variant in TOLD for each in found[variant]]))
        nothing.append(len({each.name for variant in TOLD for each in found[variant] if proves_nothing(each, dtype)}))
        arrays = len(found["converted"])
    return [network.name, *counts(network), *told, f"{', '.join(map(str, nothing))} of {arrays}"]


def _told(found: list[Distance]) -> str:
    worst, lost = max(found, key=lambda each: each.ratio), sum(not np.isfinite(each.stock) for each in found)
    told = f"{worst.ratio:.2f} ({worst.ours:.1e}, {worst.stock:.1e})"
    return f"{told}; of {lost} of {len(found)} arrays MLX's overflow" if lost else told


# Distances that a test has found are not measured again for the page ---------------------------------------


@functools.cache
def sources() -> str:
    """What tells whether distances are those of the code as it is now, and of this MLX and instruction set."""
    told = hashlib.blake2b(versions().encode())
    of_tests = [
        path for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__main__", "checks", "report")
    ]
    for path in sorted([*(ROOT / "mpsfunc").rglob("*"), *of_tests]):
        if path.suffix in (".py", ".so") and not path.name.startswith("test_"):
            told.update(path.read_bytes())
    return told.hexdigest()


def _file(network: Network, dtype: str) -> Path:
    name = "".join(c if c.isalnum() else "_" for c in f"{network.name} {'x'.join(map(str, network.shape))} {dtype}")
    return KEPT / f"{name}.json"


def keep(network: Network, dtype: str, found: dict[str, list[Distance]]) -> None:
    """Keeps distances, for `row`."""
    KEPT.mkdir(parents=True, exist_ok=True)
    told = {"sources": sources(), "found": found}
    _file(network, dtype).write_text(json.dumps(told), encoding="utf-8")


def kept(network: Network, dtype: str) -> dict[str, list[Distance]] | None:
    """Distances that were kept of the code as it is now; None if there are none."""
    file = _file(network, dtype)
    told = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if told.get("sources") != sources():
        return None
    return {variant: [Distance(*each) for each in found] for variant, found in told["found"].items()}


def rows(page: str) -> dict[str, list[str]]:
    """The lines of the table of a page, by network."""
    lines = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {each[0]: each for each in cells if each[0] not in (HEAD[0], "---")}


def written(page: str, lines: dict[str, list[str]]) -> str:
    """A page with other lines, and what they were written with."""
    table = "\n".join(f"| {' | '.join(line)} |" for line in (HEAD, ["---"] * len(HEAD), *lines.values()))
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{versions()}\n\n{END}{rest.partition(END)[2]}"


def versions() -> str:
    """What the last run used."""
    isa = launch._primitives.isa() if launch._primitives else "no module of ours"
    machine = f"{platform.system()}, {platform.machine()}, {isa}"
    of = f"MLX {metadata.version('mlx')}, mpsfunc {mf.__version__} and Python {platform.python_version()}"
    return f"Last written with {of} on {machine}."
