"""Every sample of every public function beside the definition in NumPy, and what the records say of derivatives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from generic.ops import OPS
from support import SMALLEST, TOLERANCE, accumulator, exact, numbers
from support.matrix import MATRIX, OP_OF, SAMPLES

import mpsfunc as mf
from mpsfunc.selftest.expressions import Call

pytestmark = pytest.mark.smoke

FUNCTIONS = {name for name in mf.__all__ if inspect.isfunction(getattr(mf, name))}
COMPARED = [name for name, op in OP_OF.items() if op.reference]


def test_every_public_function_has_a_record() -> None:
    assert set(OPS) == FUNCTIONS


def test_every_operation_has_samples_and_a_reference() -> None:
    for op in OPS.values():
        assert bool(op.reference) != bool(op.compared), f"{op.name} has no reference, or two comparisons"
        assert op.samples or not op.differentiable, f"{op.name} has no samples"


def called(value: Any) -> Iterator[str]:
    """The functions that a call calls on the way to its arguments."""
    if isinstance(value, Call):
        for each in (*value.args, *value.how.values()):
            yield from ([each.function, *called(each)] if isinstance(each, Call) else ())


def test_what_has_no_reference_is_compared_where_the_record_says() -> None:
    """In a test module, or here, as an argument of a function that has a reference."""
    inside = {name for label in COMPARED for name in called(SAMPLES[label].call)}
    for op in OPS.values():
        if op.compared == "generic/test_references.py":
            assert op.name in inside, op.name
        elif op.compared:
            assert re.search(rf"\b{op.name}\b", (Path(__file__).parents[1] / op.compared).read_text()), op.name


WITHOUT_DERIVATIVES = {  # they take shapes or ints, return zeros, or are no operations
    "avg_pool_state", "bn_reset", "checkpoint", "conv_state", "crop_and_resize_state", "deform_conv_state",
    "dropout_mask", "export", "exported", "get_num_threads", "grid_sample_state", "load", "max_pool_indices",
    "nms", "pad_state",
    "reduce_argmax", "reduce_argmin", "resize_area_state", "resize_bicubic_state", "resize_bilinear_state",
    "resize_nearest_state", "roi_align_state", "save", "set_num_threads", "upsample_bilinear_state",
    "upsample_nearest_state",
}  # fmt: skip


def test_every_other_function_is_in_the_matrix_of_transformations() -> None:
    assert {op.name for op in OPS.values() if not op.differentiable} == WITHOUT_DERIVATIVES
    assert {name.split()[0] for name in MATRIX} == set(OPS) - WITHOUT_DERIVATIVES


@pytest.mark.parametrize("name", COMPARED)
def test_the_definition(name: str, dtype: mx.Dtype) -> None:
    """To a few roundings of the largest value; tests of the families know the size of each sum."""
    op, sample = OP_OF[name], SAMPLES[name]
    inputs = sample.inputs(dtype)
    with mx.stream(mx.cpu):
        expected = op.expected(sample, inputs)
    found = sample.outs(inputs, dtype)
    assert len(found) == len(expected)
    for a, right in zip(found, expected, strict=True):
        right = np.asarray(right, np.float64)
        assert tuple(a.shape) == right.shape
        size = np.abs(right).max(initial=0.0)
        limit = TOLERANCE[a.dtype] * np.abs(right) + TOLERANCE[accumulator(a.dtype)] * max(size, 1.0)
        wrong = ~(np.abs(exact(a) - right) <= 4 * op.slack * (limit + SMALLEST * (a.dtype == mx.float16)))
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size} values differ, first at {np.argwhere(wrong)[0]}"


@pytest.mark.parametrize("name", [f"{name} argument {i}" for name, op in OP_OF.items() for i in op.linear])
def test_linear_in_what_it_says(name: str, on_cpu: mx.Device) -> None:
    name, _, at = name.rpartition(" argument ")
    sample, i = SAMPLES[name], int(at)
    inputs = list(sample.inputs(mx.float64))
    one, other = inputs[i], numbers(tuple(inputs[i].shape), mx.float64, 17)

    def at_value(value: mx.array) -> tuple[mx.array, ...]:
        return sample.outs((*inputs[:i], value, *inputs[i + 1 :]), mx.float64)

    parts = at_value(one), at_value(other), at_value(2 * one - 3 * other)
    for a, b, both in zip(*parts, strict=True):
        np.testing.assert_allclose(
            exact(both), 2 * exact(a) - 3 * exact(b), rtol=0, atol=1e-11 * (1 + abs(exact(a)).max())
        )
