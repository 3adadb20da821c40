"""Every kernel body on the Metal host: right answers, nothing for the sanitizers to find, known traffic, legal MSL."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from kernels import conformance
from kernels.cases import CASES, Case
from kernels.metal_host import Run, metal_host, needs_clang

pytestmark = needs_clang

METAL = Path(__file__).parents[2] / "metal"
BODIES = sorted(path.stem for path in METAL.glob("*.metal"))


@functools.cache
def runs(name: str) -> tuple[Run, ...]:
    """The launches of a case, checked against the oracle."""
    with metal_host() as host:
        CASES[name].run()
    return tuple(host.runs)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_metal(case: Case) -> None:
    assert {run.stage.body for run in runs(case.name)} == set(case.bodies)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_a_grid_of_whole_threadgroups(case: Case) -> None:
    """CUDA rounds the grid up, so every body must leave the threads past the end alone."""
    with metal_host(rounded=True) as host:
        case.run()
    assert len(host.runs) == len(runs(case.name))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_conformance(case: Case) -> None:
    for run in runs(case.name):
        assert conformance.faults(run.kernel) == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_result_is_stored_once(case: Case) -> None:
    for run in runs(case.name):
        for name, result in zip(run.stage.outputs, run.stage.results, strict=True):
            elements = 1
            for length in result[0]:
                elements *= length
            assert run.stored[name] == elements * result[1].size, name
            assert run.loaded[name] == 0, name


@pytest.mark.parametrize("body", BODIES)
def test_the_text_is_what_launch_hands_over(body: str) -> None:
    """The header files and the body, each whole and in order, with MLX's signature between them."""
    name = next(case.name for case in CASES.values() if body in case.bodies)
    run = next(run for run in runs(name) if run.stage.body == body)
    parts = [(METAL / f"{header}.h").read_text() for header in ("geometry", "pack", "moments")]
    parts += [f"[[kernel]] void custom_kernel_mpsfunc_{body}_", (METAL / f"{body}.metal").read_text()]
    at = [run.kernel.text.find(part) for part in parts]
    assert -1 not in at and at == sorted(at)
    declared = [parameter.name for parameter in run.kernel.parameters]
    assert [name for name in declared if name in (*run.stage.inputs, *run.stage.outputs, "params")] == [
        *run.stage.inputs,
        "params",
        *run.stage.outputs,
    ]


def test_every_body_has_cases_of_every_kind() -> None:
    for body in BODIES:
        texts = [run.kernel for case in CASES.values() if body in case.bodies for run in runs(case.name)
                 if run.stage.body == body]
        instances = " ".join(text.instance for text in texts)
        small = [p for text in texts for p in text.parameters if p.type.startswith("const constant") and "_" not in p.name]
        assert small, f"{body}: no input of fewer than eight elements"
        if body not in ("bn_stats_merge", "sum_partials"):  # these only see float32
            assert all(f"<{t}" in instances for t in ("float,", "float16_t", "bfloat16_t")), f"{body}: {instances}"
