"""Every body, with every fault that mutations.py puts into it by rule, must fail: the gates are worth their trust."""

from __future__ import annotations

import functools
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from metal_host import conformance
from metal_host.host import Run, needs_clang
from metal_host.job import OUTPUT, Buffer, KernelFault, Outcome, values
from metal_host.mutations import Fault, faults, lost_spaces
from metal_host.runs import BODIES, METAL, SAMPLE
from metal_host.runs import launches as known_launches
from mpsfunc.core import texts

pytestmark = [needs_clang, pytest.mark.kernels]

# Roundings of results, those of 16 bits several times over.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}
# A right launch takes a fraction of a second; a fault that makes a loop endless would have each take a minute.
SECONDS = 8
_OUTPUTS = {"float32", "uint8", "uint16", "int32"}  # the integers number winners, and rows and columns


@functools.cache
def launches(body: str) -> tuple[Run, ...]:
    """Right launches of a body on float32, the largest first, which faults disturb most.

    Behind them those of 16 bits, if the body goes another way there.
    """
    kinds: tuple[set[str], ...] = (_OUTPUTS,)
    if "sizeof(T)" in texts.body(body):
        kinds = _OUTPUTS, set(TOLERANCE)
    known = sorted(known_launches(body), key=lambda run: -sum(b.bytes for b in run.job.buffers))
    return tuple(r for kind in kinds for r in known if {b.dtype for b in r.job.buffers if b.role == OUTPUT} <= kind)


def arrays(run: Run) -> tuple[str, ...]:
    return (*run.stage.inputs, *run.stage.outputs)


def alike(buffer: Buffer, one: Outcome, other: Outcome) -> bool:
    """Whether results differ by rounding at most. The first are known to agree with the oracle."""
    right, seen = (values(buffer.dtype, outcome.results[buffer.name]) for outcome in (one, other))
    size = abs(right[np.isfinite(right)]).max(initial=1)
    tolerance = TOLERANCE.get(buffer.dtype, 1e-5)
    return np.allclose(seen, right, rtol=tolerance, atol=tolerance * size, equal_nan=True)


def finder(body: str, fault: Fault) -> str | None:
    """Who finds the fault, looking at one launch of the body after the other."""
    text = texts.body(body)
    faulty = [(run, run.job._replace(kernel=run.job.kernel.replaced(text, fault.text))) for run in launches(body)]
    if fault.kind == "space" and conformance.faults(faulty[0][1].kernel):
        return "conformance"
    shares = faulty[0][1].kernel.shares
    sanitizers = ("quick address", "thread" if shares else "address")  # the latter counts what is stored
    if fault.kind == "barrier":
        sanitizers = sanitizers[::-1]
    try:
        for sanitizer, rounded, (run, job) in itertools.product(sanitizers, (False, True), faulty):
            outcome = job.once(sanitizer, rounded=rounded, seconds=SECONDS)
            if not all(alike(b, run.outcome, outcome) for b in job.buffers if b.role == OUTPUT):
                return "oracle"
            if sanitizer == "address" and job.not_stored_once(outcome):
                return "stores"
    except KernelFault as found:
        return found.by
    return None


@pytest.mark.skipif(SAMPLE > 1, reason="MPSFUNC_KERNEL_SAMPLE leaves out cases that find faults")
@pytest.mark.parametrize("body", BODIES)
def test_every_fault_is_caught(body: str) -> None:
    seeded = faults(texts.body(body), arrays(launches(body)[0]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda fault: finder(body, fault), seeded))
    for fault, by in zip(seeded, found, strict=True):
        print(f"{body}: {fault.kind}, caught by {by}: {fault.where}")
    # A text that does not compile is no fault that anybody would have to find.
    assert [f.where for f, by in zip(seeded, found, strict=True) if by in (None, "compiler")] == []


@pytest.mark.parametrize("body", BODIES)
def test_faults_have_places(body: str) -> None:
    """Rules that find nothing in a body would prove nothing about it."""
    text = texts.body(body)
    kinds = {fault.kind for fault in faults(text, arrays(known_launches(body)[0]))}
    assert {"index", "start"} <= kinds
    assert "guard" in kinds or not re.search(r"\bif \(|\? ", text)
    assert "threadgroup_barrier" not in text or {"barrier", "space"} <= kinds


@pytest.mark.parametrize(
    "header",
    sorted(
        f"{path.parent.name}/{path.name}" for path in METAL.glob("*/*.h") if path.stem not in ("cuda", "cuda_matrix")
    ),
)
def test_every_lost_address_space_in_a_header_is_caught(header: str) -> None:
    text = texts.text(header)
    small = next(run for body in BODIES for run in known_launches(body) if text in run.job.kernel.text)
    for fault in lost_spaces(text):
        assert conformance.faults(small.job.kernel.replaced(text, fault.text)), fault.where
