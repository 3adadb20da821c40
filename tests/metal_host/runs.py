"""The launches of cases, each case run once a test run, whichever of xdist's processes asks first.

With MPSFUNC_KERNEL_SAMPLE, one in so many cases is run besides those that reach every body. The texts of the bodies
decide which, so that a change has others drawn.
"""

from __future__ import annotations

import copyreg
import fcntl
import functools
import os
import pickle
import zlib
from pathlib import Path

import mlx.core as mx

from metal_host.cases import CASES
from metal_host.host import Run, metal_host
from mpsfunc.core import texts

METAL = Path(__file__).parents[2] / "metal"
BODIES = sorted(path.stem for path in METAL.glob("*/*.metal"))

SAMPLE = int(os.environ.get("MPSFUNC_KERNEL_SAMPLE") or 1)


def _drawn(name: str, bodies: tuple[str, ...]) -> bool:
    return zlib.crc32("".join((name, *map(texts.body, bodies))).encode()) % SAMPLE == 0


def _first_of_each_body() -> set[str]:
    names, reached = set(), set[str]()
    for case in CASES.values():
        if not reached.issuperset(case.bodies):
            names.add(case.name)
            reached.update(case.bodies)
    return names


FIRST = _first_of_each_body()  # cases that reach every body
CHOSEN = [name for name, case in CASES.items() if name in FIRST or _drawn(name, case.bodies)]
folder: Path | None = None  # what the processes have in common; none: there is one process


def _dtype(name: str) -> mx.Dtype:
    return getattr(mx, name)


copyreg.pickle(mx.Dtype, lambda dtype: (_dtype, (str(dtype).rpartition(".")[2],)))


@functools.cache
def runs(name: str) -> tuple[Run, ...]:
    """The launches of a case, checked against the oracle."""
    if folder is None:
        return _made(name)
    place = folder / f"{zlib.crc32(name.encode()):08x}-{list(CASES).index(name)}"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        if place.exists():
            return pickle.loads(zlib.decompress(place.read_bytes()))
        made = _made(name)
        place.write_bytes(zlib.compress(pickle.dumps(made), 1))
        return made


def _made(name: str) -> tuple[Run, ...]:
    with metal_host() as host:
        CASES[name].run()
    return tuple(host.runs)


@functools.cache
def launches(body: str) -> tuple[Run, ...]:
    """The launches of a body in the chosen cases."""
    cases = [name for name in CHOSEN if body in CASES[name].bodies]
    return tuple(run for name in cases for run in runs(name) if run.stage.body == body)
