"""The rest of the matrix: what MLX traces, compiles, exports and sends to streams, of every public function."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from generic.ops import OPS
from support.matrix import MATRIX, OP_OF, SAMPLES, SIZE, Arrays, grads, looped, same

import mpsfunc as mf
from mpsfunc.selftest.expressions import results

pytestmark = pytest.mark.usefixtures("on_cpu")
each = pytest.mark.parametrize("name", MATRIX)
HALF = {mx.float16: 4e-3, mx.bfloat16: 3e-2}


# Derivatives --------------------------------------------------------------------------------------------


@each
def test_value_and_grad_and_vjp(name: str) -> None:
    entry = MATRIX[name]
    arrays, count = entry.inputs(), len(entry.shapes)
    outs = entry.call(*arrays)
    expected = grads(entry.square, count)(*arrays)
    value, slopes = mx.value_and_grad(entry.square, argnums=tuple(range(count)))(*arrays)
    same([value, *([slopes] if count == 1 else slopes)], [entry.square(*arrays), *expected])
    values, pulled = mx.vjp(entry.call, list(arrays), [2 * y for y in outs])
    same([*values, *pulled], [*outs, *expected])


@pytest.mark.parametrize("dtype", HALF, ids=str)
@each
def test_half_widths_map_and_push(name: str, dtype: mx.Dtype) -> None:
    entry = MATRIX[name]
    arrays, many = entry.inputs(dtype), entry.inputs(dtype, batch=SIZE)
    outs = entry.call(*arrays)
    same(mx.vmap(entry.call)(*many), looped(entry.call, many, [True] * len(many)), HALF[dtype])
    values, pushed = mx.jvp(entry.call, list(arrays), list(arrays))
    same(values, outs, HALF[dtype])
    assert [t.dtype for t in pushed] == [y.dtype for y in outs]


@each
def test_transformations_nested_twice(name: str) -> None:
    entry = MATRIX[name]
    arrays, many, count = entry.inputs(), entry.inputs(batch=SIZE), len(entry.shapes)
    pull = grads(entry.square, count)
    expected = pull(*arrays)
    same(mx.compile(mx.compile(entry.call))(*arrays), entry.call(*arrays))
    same(grads(mx.checkpoint(mx.checkpoint(entry.square)), count)(*arrays), expected)
    others = [mx.stack([a, 2 * a]) for a in many]
    rows = [looped(pull, tuple(o[i] for o in others), [True] * count) for i in range(2)]
    same(mx.vmap(mx.vmap(pull))(*others), [mx.stack(y) for y in zip(*rows, strict=True)], 1e-9)


def launches(name: str) -> bool:
    op = OPS[name.split()[0]]
    return op.launches or op.pulls_by_kernels


CUSTOM = (
    "affine_grid",
    "affine_grid_grad",
    "box_iou_loss_grad",
)  # operations of MLX's that are a custom function together

SLICED = "box_iou", "box_iou_loss"  # of whose coordinates MLX does not infer the shape

# What MLX cannot do -------------------------------------------------------------------------------------


@each
def test_shapeless_compilation_fails_where_a_kernel_runs(name: str) -> None:
    """Else a trace would go on with the sizes it was made for. MLX's own operations mostly can do without shapes."""
    entry = MATRIX[name]
    if not launches(name) and name.split()[0] not in ("concatenate_grad", "slice_channels", *SLICED, *CUSTOM):
        same(mx.compile(entry.call, shapeless=True)(*entry.inputs()), entry.call(*entry.inputs()))
        return
    with pytest.raises(ValueError, match=r"(CustomTransforms|Slice|Split|View \w+) cannot infer output shapes"):
        mx.compile(entry.call, shapeless=True)(*entry.inputs())


@each
def test_export_fails_where_a_kernel_runs(name: str, tmp_path: Path) -> None:
    entry, path = MATRIX[name], str(tmp_path / "exported.mlxfn")
    if not launches(name) and name.split()[0] not in CUSTOM:
        mx.export_function(path, entry.call, *entry.inputs())
        same(mx.import_function(path)(*entry.inputs()), entry.call(*entry.inputs()))
        return
    with pytest.raises(ValueError, match="Unable to serialize primitive"):
        mx.export_function(path, entry.call, *entry.inputs())


# Streams ------------------------------------------------------------------------------------------------


def rows(name: str) -> list[Callable[[], Arrays]]:
    """Calls of one public function, by its name in the package."""

    def call(label: str) -> Arrays:
        return results(SAMPLES[label].run(SAMPLES[label].inputs(mx.float64), mx.float64))

    return [functools.partial(call, label) for label, op in OP_OF.items() if op.name == name]


STREAMED = [
    name
    for name in mf.__all__
    if inspect.isfunction(getattr(mf, name)) and "stream" in inspect.signature(getattr(mf, name)).parameters
]


def test_every_function_can_be_given_a_stream() -> None:
    public = {name for name in mf.__all__ if inspect.isfunction(getattr(mf, name))}
    without = public - set(STREAMED)
    assert not any(OPS[name].differentiable for name in without)
    rest = {name for name in without if not name.endswith("_state")}
    assert rest == {"get_num_threads", "set_num_threads", "load", "save", "checkpoint", "export", "exported"}


@pytest.fixture(scope="module")
def of_nobody() -> mx.Stream:
    """A stream on which nothing can be evaluated, since its thread has ended."""
    made: list[mx.Stream] = []
    thread = threading.Thread(target=lambda: made.append(mx.new_stream(mx.cpu)))
    thread.start()
    thread.join()
    with mx.stream(made[0]), pytest.raises(RuntimeError, match="There is no Stream"):
        mx.eval(mx.zeros(3) + 1)
    return made[0]


@pytest.mark.parametrize("name", STREAMED)
def test_a_function_runs_on_the_stream_that_it_is_given(
    name: str, of_nobody: mx.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, elsewhere = getattr(mf, name), mx.new_stream(mx.cpu)
    calls = rows(name)
    expected = [call() for call in calls]
    assert expected
    times = [0]

    def sent(*args: Any, **options: Any) -> Any:
        mx.eval(args, [a for a in options.values() if isinstance(a, mx.array)])
        with mx.stream(of_nobody):
            out = function(*args, **options, stream=elsewhere)
        mx.eval(results(out))  # of which nothing may be on the default stream
        times[0] += 1
        return out

    monkeypatch.setattr(mf, name, sent)
    for call, outs in zip(calls, expected, strict=True):
        same(call(), outs, 0)
    assert times[0]
