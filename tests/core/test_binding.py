"""What the binding of the CPU's kernels refuses, and what MLX may do with its primitives."""

from __future__ import annotations

import io
import re
from pathlib import Path

import mlx.core as mx
import pytest
from core.test_cpu import AXES, PLAIN, pool, run
from support import numbers, same_bits

from mpsfunc.channels.activation_spec import RELU, Activation
from mpsfunc.core.params import for_cpu

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

LIST = Path(__file__).parents[2] / "primitives" / "runtime" / "operations.h"
OPERATIONS = re.findall(r"^  X\((\w+)\)", LIST.read_text(), re.MULTILINE)

IMAGE, VECTOR = ((2, 7, 8, 3), mx.float32), ((3,), mx.float32)
POOLED = ((2, 4, 4, 3), mx.float32)
CONVOLVED, WEIGHTS = ((2, 4, 4, 5), mx.float32), ((5, 3, 3, 3), mx.float32)
NUMBERS = PLAIN[1:]  # parameters of an activation
GOOD = (*AXES["3x3 s2 p1"][0], *AXES["3x3 s2 p1"][1])


def _params(**changes: int) -> tuple[int, ...]:
    return (*AXES["3x3 s2 p1"][0]._replace(**changes), *AXES["3x3 s2 p1"][1])


# 7 * 8 * 3 entries of two images, in one line of each; behind that, operands alike and the operations' own params.
LINES, ALIKE, ROW = (2, 1, 56, 3), (2, 1, 1, 56, 3), (1, 2, 1, 1, 3)
KEYS, MASK = ((2, 2), mx.uint32), ((2, 7, 8, 3), mx.uint8)
DROP, NUMBERS = (*LINES, *ALIKE, *ALIKE), (0,) * 10
ELEMENTS: list[tuple[str, list, tuple[int, ...], list]] = [
    ("dropout", [IMAGE], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((2, 3), mx.uint32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((2, 2), mx.int32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((5, 2), mx.uint32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((0, 2), mx.uint32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [MASK, KEYS], (*DROP, 5, 0, 0), [MASK]),
    ("dropout", [IMAGE, KEYS], (*DROP, 5, 0), [IMAGE]),
    ("dropout", [IMAGE, KEYS], (*LINES, *ALIKE, *ROW, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, KEYS], (2, 1, 55, 3, *ALIKE, *ALIKE, 5, 0, 0), [IMAGE]),
    ("dropout", [POOLED, KEYS], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, IMAGE], (*DROP, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, ((3,), mx.uint8)], (*DROP, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, MASK], (*LINES, *ALIKE, 3, 1, 1, 56, 3, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, MASK], (*LINES, *ALIKE, 2, 0, 1, 56, 3, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, MASK], (*LINES, *ALIKE, 2, 1, 1, 28, 3, 0, 0), [IMAGE]),
    ("dropout_mask", [((3, 2), mx.uint32)], (5,), [((4,), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((4,), mx.bool_)]),
    ("dropout_mask", [KEYS], (5,), [((4, *[1] * 8), mx.uint8)]),
    ("dropout_mask", [KEYS], (), [((4,), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((2**20, 2**20), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((2**31 - 1, 2**30, 2**30, 2**30), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((2**16,) * 4, mx.uint8)]),  # 2^64, which wraps to 0
    ("arithmetic", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, 4, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, 0, 4, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (*LINES, *ALIKE, *ROW, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, ((2, 7, 8, 3), mx.float16)], (*LINES, *ALIKE, *ALIKE, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (0, 1, 56, 3, *ALIKE, *ALIKE, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (2, 2**16, 2**15, 3, *ALIKE, *ALIKE, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 0, 0, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 0, 0, 1, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 2, 0, 0, 0, 1, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE, VECTOR], (*LINES, *ALIKE, *ALIKE, *ALIKE, 2, 0, 0, 0, 1, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 0, 1, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 2, 0, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ROW, *ALIKE, *ALIKE, 0, 0, 0, 0, 0, *NUMBERS), [IMAGE]),
    ("compare", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, 6, 0, 0), [IMAGE]),
    ("compare", [MASK, MASK], (*LINES, *ALIKE, *ALIKE, 0, 0, 0), [MASK]),
    ("compare", [IMAGE, POOLED], (*LINES, *ALIKE, *ALIKE, 0, 0, 0), [IMAGE]),
]


@pytest.mark.parametrize(
    ("op", "inputs", "params", "outputs"),
    [
        ("avg_pool", [], GOOD, [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE, IMAGE], GOOD, [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD[1:], [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, []),
        ("avg_pool", [IMAGE], GOOD, [((2, 4, 4, 4), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, [((3, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, [((2, 4, 5, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, [((2, 4, 4, 3), mx.float16)]),
        ("avg_pool", [((2, 7, 8), mx.float32)], GOOD, [((2, 4, 4), mx.float32)]),
        ("avg_pool", [((2, 7, 8, 3), mx.int32)], GOOD, [((2, 4, 4, 3), mx.int32)]),
        ("avg_pool", [IMAGE], _params(n_in=8), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(stride=0), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(dilation=-1), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(size=0), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=2), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(end=5), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(pad=-(2**31)), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(stride=2**29), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=4), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad=-1), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad_after=-1), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad=2**30 - 7), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad_after=2**30 - 7), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=3, size=2), [((2, 4, 4, 3), mx.float32)]),  # a window has three pixels
        ("avg_pool", [IMAGE], _params(edge=3, size=3, dilation=2), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool_grad", [IMAGE], GOOD, [((2, 4, 4, 3), mx.float32)]),
        ("max_pool", [IMAGE], _params(edge=3, size=2), [POOLED, ((2, 4, 4, 3), mx.uint8)]),
        ("l2_pool", [IMAGE], _params(edge=2), [POOLED]),
        ("l2_pool", [((2, 7, 8, 3), mx.float16)], GOOD, [((2, 4, 4, 3), mx.float16)]),
        ("l2_pool", [((2, 0, 8, 3), mx.float32)], _params(n_in=0, edge=1), [POOLED]),
        ("l2_pool_grad", [POOLED, IMAGE], GOOD, [IMAGE]),
        ("l2_pool_grad", [POOLED, IMAGE, IMAGE], GOOD, [IMAGE]),
        ("l2_pool_grad", [POOLED, IMAGE, ((2, 4, 4, 3), mx.float16)], GOOD, [IMAGE]),
        ("l2_pool_jvp", [IMAGE, POOLED, POOLED], GOOD, [POOLED]),
        ("conv", [IMAGE, WEIGHTS, ((4,), mx.float32)], (*GOOD, 1, 0, 1, 0, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 0, 0, 1, 0, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 2, 1, 0, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, -1, 0, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, 1, 0), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 15, 1, 0, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, 1, 2, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, 1, 1, *NUMBERS), [CONVOLVED]),
        (
            "conv",
            [IMAGE, ((1, 3, 3, 3), mx.float32), VECTOR],
            (*GOOD, 3, 0, 1, 1, *NUMBERS),
            [((2, 4, 4, 3), mx.float32)],
        ),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1), [CONVOLVED]),
        ("conv_layout", [WEIGHTS], (0, 1), [((17,), mx.uint32)]),  # of another length
        ("conv_layout", [((64, 3, 3, 4), mx.float32)], (-1, 1), [((2320,), mx.uint32)]),
        ("conv_layout", [((64, 3, 3, 4), mx.float32)], (99, 1), [((2320,), mx.uint32)]),
        ("conv_layout", [((64, 3, 3, 4), mx.float32)], (0, 3), [((2320,), mx.uint32)]),
        ("conv_layout", [((64, 3, 3, 1), mx.float32)], (0, 64), [((16,), mx.uint32)]),  # kernels read them as they are
        ("conv_layout", [((64, 3, 3, 4), mx.float64)], (0, 1), [((2320,), mx.uint32)]),
        ("conv_layout", [((2**16, 3, 3, 2**13), mx.float32)], (0, 1), [((2**30,), mx.uint32)]),
        ("conv_laid_out", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, 1, 0, *NUMBERS), [CONVOLVED]),
        ("conv_laid_out", [IMAGE, ((443,), mx.uint32), ((5,), mx.float32)], (*GOOD, 1, 0, 1, 0, *NUMBERS), [CONVOLVED]),
        ("conv_laid_out", [IMAGE, ((8,), mx.uint32), ((5,), mx.float32)], (*GOOD, 1, 0, 1, 0, *NUMBERS), [CONVOLVED]),
        ("conv_laid_out", [IMAGE, ((443,), mx.uint32), ((5,), mx.float32)], (*GOOD, 1, 0, 1, 1, *NUMBERS), [CONVOLVED]),
        ("conv_grad_input", [CONVOLVED, ((5, 3, 2, 3), mx.float32), VECTOR], (*GOOD, 1, 0, 1, 0, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS], (*GOOD, 1, 0, 1, 0, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, 1, 0, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS, ((3,), mx.float16)], (*GOOD, 1, 0, 1, 0, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS, VECTOR], (*GOOD, 1, 2, 1, 0, *NUMBERS), [IMAGE]),
        ("conv_grad_weights", [((2, 4, 4, 4), mx.float32), IMAGE], (*GOOD, 3, 1, 0), [((4, 3, 3, 1), mx.float32)]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 2, 0), [WEIGHTS]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 1, 1), [WEIGHTS]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 1, 0), [WEIGHTS, VECTOR]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 1, 0), [WEIGHTS, ((5,), mx.float16)]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 1, 0), []),
        ("neuron_grad_from_output", [IMAGE], (1, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, POOLED], (1, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, ((2, 7, 8, 3), mx.float16)], (1, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (1, *NUMBERS), [((2, 7, 8, 3), mx.float16)]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (1, *NUMBERS), [POOLED]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (0, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (1,), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (), [IMAGE]),
        (
            "neuron_grad_from_output",
            [IMAGE, IMAGE],
            for_cpu(Activation(RELU, -1.0)),
            [IMAGE],
        ),  # both signs come out the same
        ("neuron_grad_from_output", [IMAGE, IMAGE], (15, *NUMBERS), [IMAGE]),  # a gelu's result does not tell
        (
            "neuron_grad_from_output",
            [IMAGE, IMAGE],
            (3, *NUMBERS),
            [IMAGE],
        ),  # nor does that of a sigmoid, once it is rounded
        ("neuron", [IMAGE], (16, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE], (-1, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE], (1,), [IMAGE]),
        ("neuron", [IMAGE, VECTOR], (1, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE], (10, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE, ((4,), mx.float32)], (10, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE, ((3,), mx.float16)], (10, *NUMBERS), [IMAGE]),
        ("neuron", [((), mx.float32), ((1,), mx.float32)], (10, *NUMBERS), [((), mx.float32)]),
        ("neuron_grad", [IMAGE, POOLED], (3, *NUMBERS), [IMAGE]),
        ("neuron_grad", [IMAGE, IMAGE], (10, *NUMBERS), [IMAGE]),
        ("neuron_grad_grad", [IMAGE, IMAGE], (3, *NUMBERS), [IMAGE]),
        ("neuron_grad_grad", [IMAGE, IMAGE, IMAGE], (10, *NUMBERS), [IMAGE]),
        ("bn_normalize", [IMAGE, *[((1, 3), mx.float32)] * 3], (0,), [IMAGE]),
        ("bn_normalize", [IMAGE, *[((1, 3), mx.float32)] * 3], (10, *NUMBERS), [IMAGE]),
        ("bn_grad", [IMAGE, IMAGE, *[((1, 3), mx.float32)] * 4], (3, *NUMBERS), [IMAGE]),
        ("conv_grad_bias", [IMAGE], (), [((4,), mx.float32)]),
        *ELEMENTS,
    ],
)
def test_malformed_calls_are_refused(op: str, inputs: list, params: tuple[int, ...], outputs: list) -> None:
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [mx.zeros(shape, dtype) for shape, dtype in inputs], params, *outputs)


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_every_operation_says_what_it_takes(op: str) -> None:
    """One without a case in check.cpp takes anything."""
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [], ())


@pytest.mark.parametrize("bad", ("x", [1.5], [2**40], None))
def test_wrong_types_are_refused(bad: object) -> None:
    with pytest.raises(TypeError):
        _primitives.avg_pool([mx.zeros((1, 1, 1, 1))], bad, [[1, 1, 1, 1]], [mx.float32], mx.cpu)


def test_equal_calls_are_merged_by_the_compiler() -> None:
    axes = AXES["3x3 s2 p1"]

    def twice(x: mx.array) -> mx.array:
        return pool(x, *axes) + pool(x, *axes) + pool(x, axes[0]._replace(edge=1), axes[1])

    graph = io.StringIO()
    mx.export_to_dot(graph, mx.compile(twice)(numbers((2, 7, 8, 3))))
    assert graph.getvalue().count('label ="avg_pool"') == 2


def test_a_shapeless_trace_refuses_other_shapes() -> None:
    axes = AXES["3x3 s2 p1"]
    pooled = mx.compile(lambda x: pool(x, *axes), shapeless=True)
    x = numbers((2, 7, 8, 3))
    assert same_bits(pooled(x), pool(x, *axes))
    with pytest.raises(ValueError, match="avg_pool: traced for other shapes"):
        mx.eval(pooled(numbers((3, 7, 8, 3))))
