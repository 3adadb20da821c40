"""The launches of cases, each case run once a test run, whichever of xdist's processes asks first."""

from __future__ import annotations

import copyreg
import fcntl
import functools
import pickle
import zlib
from pathlib import Path

import mlx.core as mx

from metal_host.cases import CASES
from metal_host.host import Run, metal_host

METAL = Path(__file__).parents[2] / "metal"
BODIES = sorted(path.stem for path in METAL.glob("*/*.metal"))

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
    """The launches of a body."""
    cases = [case.name for case in CASES.values() if body in case.bodies]
    return tuple(run for name in cases for run in runs(name) if run.stage.body == body)
