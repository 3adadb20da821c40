"""Every body, with every fault that the rules of faults.py put into it, must fail: the gates are worth their trust."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kernels import conformance
from kernels.cases import CASES
from kernels.faults import KINDS, Fault, faults, spaces
from kernels.job import Job, KernelFault, values
from kernels.metal_host import Run, needs_clang
from kernels.test_bodies import BODIES, METAL, runs

pytestmark = needs_clang

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


@functools.cache
def launches(body: str) -> tuple[Run, ...]:
    """Right launches of a body, the quickest first."""
    found = [r for c in CASES.values() if body in c.bodies for r in runs(c.name) if r.stage.body == body]
    return tuple(sorted(found, key=lambda run: np.prod(run.job.threads) * (1 + sum(b.bytes for b in run.job.buffers))))


def arrays(run: Run) -> tuple[str, ...]:
    return (*run.stage.inputs, *run.stage.outputs)


def caught_by(run: Run, old: str, new: str) -> str | None:
    """Who finds the fault in this launch."""
    kernel = run.job.kernel.replaced(old, new)
    if conformance.faults(kernel):
        return "conformance"
    faulty: Job = run.job._replace(kernel=kernel)
    try:
        for rounded in (False, True):
            outcome = faulty.run(rounded=rounded)
            for buffer in run.job.buffers:
                if buffer.name in outcome.results:
                    right, wrong = (values(buffer.dtype, o.results[buffer.name]) for o in (run.outcome, outcome))
                    size = abs(right[np.isfinite(right)]).max(initial=1)
                    if not np.allclose(wrong, right, TOLERANCE[buffer.dtype], TOLERANCE[buffer.dtype] * size, True):
                        return "oracle"
            if any(outcome.traffic[name] != run.outcome.traffic[name] for name in run.stage.outputs):
                return "traffic"
    except KernelFault as fault:
        return fault.by
    return None


def finder(body: str, fault: Fault) -> str | None:
    text = (METAL / f"{body}.metal").read_text()
    return next((by for run in launches(body) if (by := caught_by(run, text, fault.text))), None)


@pytest.mark.parametrize("body", BODIES)
def test_every_fault_is_caught(body: str, record_property: pytest.RecordProperty) -> None:
    seeded = faults((METAL / f"{body}.metal").read_text(), arrays(launches(body)[0]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda fault: finder(body, fault), seeded))
    for fault, by in zip(seeded, found, strict=True):
        print(f"{body}: {fault.kind}, caught by {by}: {fault.what}")
    assert [fault.what for fault, by in zip(seeded, found, strict=True) if by in (None, "compiler")] == []


@pytest.mark.parametrize("body", BODIES)
def test_every_kind_of_fault_has_a_place(body: str) -> None:
    """A rule that finds nothing in a body would prove nothing about it."""
    text = (METAL / f"{body}.metal").read_text()
    kinds = {fault.kind for fault in faults(text, arrays(launches(body)[0]))}
    if "threadgroup_barrier" in text:
        assert "barrier" in kinds
    missing = set(KINDS) - kinds
    assert missing <= {"space"}  # a body without declarations of its own takes them from the headers


@pytest.mark.parametrize("header", sorted(path.stem for path in METAL.glob("*.h") if path.stem != "cuda"))
def test_every_lost_address_space_in_a_header_is_caught(header: str) -> None:
    text = (METAL / f"{header}.h").read_text()
    small = next(run for run in launches("avg_pool") if "constant" in run.job.kernel.parameters[0].type)
    for fault in spaces(text):
        by = conformance.faults(small.job.kernel.replaced(text, fault.text))
        assert by, fault.what
