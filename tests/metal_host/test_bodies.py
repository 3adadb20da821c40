"""Every kernel body on the Metal host: right answers, nothing for the sanitizers to find, known traffic, legal MSL."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import mlx.core as mx
import pytest
from generic.ops import OPS
from support import numbers, same_bits

import mpsfunc as mf
from metal_host import conformance
from metal_host.case import Case
from metal_host.cases import CASES
from metal_host.host import metal_host, needs_clang
from metal_host.job import OUTPUT, Traffic
from metal_host.runs import BODIES, CHOSEN, FIRST, METAL, SAMPLE, launches, runs
from mpsfunc.convolution import launches as convolution_launches
from mpsfunc.core import launch, texts
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.losses.params import LossLaunch, LossNumbers

pytestmark = needs_clang


# The first reach every body, and are for `make test`; the others are for `make kernels`.
# The scope lets tests of one case follow each other, so that one process of several has them all.
each_case = pytest.mark.parametrize(
    "case",
    [pytest.param(CASES[name], id=name, marks=() if name in FIRST else pytest.mark.kernels) for name in CHOSEN],
    scope="module",
)


@each_case
def test_on_metal(case: Case) -> None:
    assert {run.stage.body for run in runs(case.name)} == set(case.bodies)


@pytest.mark.kernels
@each_case
def test_on_a_grid_of_whole_threadgroups(case: Case) -> None:
    """CUDA rounds the grid up, so every body must leave the threads past the end alone."""
    if all(run.job.whole for run in runs(case.name)):
        pytest.skip("its grids are of whole threadgroups, and have run")
    with metal_host(rounded=True) as host:
        case.run()
    assert len(host.runs) == len(runs(case.name))


def test_pixels_are_counted_past_2_to_31() -> None:
    """Of no images, which read nothing but go round all the same."""
    y = mx.zeros((0, 2**31 - 1, 1))
    template = (("V", 1), ("L", 0), ("W", 0), ("R", 1))
    results = ((1, 0), mx.float32), (y.shape, mx.float32)
    stage = KernelLaunch(
        *("softmax_cross_entropy", ("y", "target", "weights"), ("partial", "gradient"), results),
        *((32, 1, 1), (32, 1, 1), LossLaunch(2**30, LossNumbers(*[0.0] * 6)), template),
    )
    with metal_host() as host:
        host.run_kernel(stage, [y, y, y], mx.default_stream(mx.cpu))


@pytest.mark.parametrize(
    "body", ["softmax_cross_entropy", "softmax_cross_entropy_grad", "softmax_strided", "softmax_grad_strided"]
)
def test_no_counter_wraps_below_2_to_31(body: str) -> None:
    """One of int that takes several steps at once would before it ends."""
    assert not re.search(r"for \(int (\w+) = [^;]*; \1 <[^;]*; \1 \+=", texts.body(body))


@pytest.mark.kernels
@each_case
def test_conformance(case: Case) -> None:
    for run in runs(case.name):
        assert conformance.faults(run.job.kernel) == ()


@each_case
def test_every_result_is_stored_once_and_never_loaded(case: Case) -> None:
    for run in runs(case.name):
        for buffer in run.job.buffers:
            if buffer.role == OUTPUT:
                assert run.outcome.traffic[buffer.name] == Traffic(0, buffer.bytes), buffer.name


@pytest.mark.kernels
@pytest.mark.parametrize("body", BODIES)
def test_the_text_is_what_launch_hands_over(body: str) -> None:
    """The header files and the body, each whole and in order, with MLX's signature between them."""
    run = launches(body)[0]
    parts = [texts.header(body, metal=True), f"[[kernel]] void custom_kernel_mpsfunc_{body}_", texts.body(body)]
    at = [run.job.kernel.text.find(part) for part in parts]
    assert -1 not in at and at == sorted(at)
    declared = [parameter.name for parameter in run.job.kernel.parameters]
    assert [name for name in declared if name in (*run.stage.inputs, *run.stage.outputs, "params")] == [
        *run.stage.inputs,
        *(["params"] if run.stage.params is not None else []),
        *run.stage.outputs,
    ]


@pytest.mark.kernels
def test_tensor_cores_do_not_multiply_what_no_window_sees() -> None:
    """Not by zeros either, which would make NaN of it, where the last strip of an image has fewer rows."""
    state = mf.conv_state((2, 9, 19, 8), (8, 3, 3, 8), offset=(1, 1), out_size=(5, 9))
    dy, x = numbers((2, 5, 9, 8), mx.float16), numbers((2, 9, 19, 8), mx.float16)
    seen = mx.arange(9)[:, None, None] < 7, mx.arange(19)[:, None] < 11
    with metal_host() as host, mock.patch.object(launch, "backend", lambda stream: "cuda"):
        with mock.patch.object(convolution_launches, "_STRIP", 4500):
            dw, right = (
                mf.conv_grad_weights(dy, mx.where(seen[0] & seen[1], x, other), state).dw for other in (mx.nan, 0)
            )
    template = dict(next(run.stage for run in host.runs if run.stage.body.endswith("tensor_core")).template)
    assert template["R"] == 2 and same_bits(dw, right)


def declared(text: str) -> set[str]:
    """Names of macros, structs and functions."""
    macros, structs = re.findall(r"#define (\w+)", text), re.findall(r"\bstruct (\w+)", text)
    return {*macros, *structs, *re.findall(r"\b(?:inline|METAL_FUNC|MPSF_FN)\b[^;{(]*\b(\w+)\(", text)}


def test_names_are_not_those_of_mlx() -> None:
    """On a Mac MLX puts helpers of its own before the text; what it prints on request lacks them."""
    folder, theirs, files = Path(mx.__file__).parent / "include", "", ["mlx/backend/metal/kernels/utils.h"]
    for name in files:  # which grows
        theirs += (folder / name).read_text()
        files += [each for each in re.findall(r'#include "(mlx/[^"]+)"', theirs) if each not in files]
    ours = "".join(
        re.sub("//.*", "", path.read_text()) for path in METAL.glob("*/*") if not path.stem.startswith("cuda")
    )
    assert {"elem_to_loc", "Limits"} <= declared(theirs) and {"tap_begin", "Pack"} <= declared(ours)
    assert declared(theirs) & declared(ours) == set()
    assert set(re.findall(r"#define (\w+)", theirs)) & set(re.findall(r"\w+", ours)) == set()


def test_cases_have_names_of_their_own() -> None:
    assert len(CASES) == sum(1 for op in OPS.values() for _ in op.cases())


@pytest.mark.kernels
@pytest.mark.skipif(SAMPLE > 1, reason="MPSFUNC_KERNEL_SAMPLE leaves cases out")
@pytest.mark.parametrize("body", BODIES)
def test_cases_of_every_kind(body: str) -> None:
    """Each dtype of images, and an input of fewer than eight elements."""
    kernels = [run.job.kernel for run in launches(body)]
    if body == "conv_grad_weights_tensor_core":  # of images in sixteen bits, whose rows are longer than eight elements
        assert {re.search(r"<(\w+)", kernel.instance)[1] for kernel in kernels} == {"float16_t", "bfloat16_t"}
        return
    inputs = [p for kernel in kernels for p in kernel.parameters if p.type.startswith("const")]
    assert any("constant" in p.type for p in inputs if "_" not in p.name)
    # These see accumulators or keys only.
    accumulators = (
        "bn_stats_merge",
        "bn_stats_grad_merge",
        "bn_stats_grad_factors",
        "bn_grad_coefficients",
        "bn_composed_factors",
        "bn_messages_merge",
        "group_moments",
        "bn_group_sums",
        "sum_partials",
        "grid_sample_bounds",
        "box_order",
        *("deform_columns", "deform_columns_bounds", "deform_columns_grad", "deform_places_grad"),
    )
    if body not in (*accumulators, "dropout_mask"):
        images = {word for kernel in kernels for word in re.findall(r"\w+", kernel.instance.partition("<")[2])}
        assert images >= {"float", "float16_t", "bfloat16_t"}
