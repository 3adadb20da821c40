"""Derivatives and batching of every public function, in one matrix that a new function must enter."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from generic.ops import OPS
from support import numbers
from support.matrix import MATRIX, OP_OF, SAMPLES, SIZE, Arrays, Entry, Stateful, grads, looped, same

import mpsfunc as mf
from mpsfunc.core import launch as core_launch
from mpsfunc.selftest.expressions import results

pytestmark = pytest.mark.usefixtures("on_cpu")  # central differences need float64
each = pytest.mark.parametrize("name", MATRIX)
STEP = 1e-5


def along(function: Callable[..., Arrays], arrays: Arrays, direction: Arrays) -> Arrays:
    """The central difference of a function along a direction."""
    ahead, behind = (
        function(*[a + sign * STEP * d for a, d in zip(arrays, direction, strict=True)]) for sign in (1, -1)
    )
    return tuple((p - m) / (2 * STEP) for p, m in zip(ahead, behind, strict=True))


def directions(entry: Entry, seed: int) -> Arrays:
    return tuple(numbers(shape, mx.float64, 1000 * seed + i) for i, shape in enumerate(entry.shapes))


def dot(a: Arrays, b: Arrays) -> mx.array:
    total = mx.array(0.0, mx.float64)
    for x, y in zip(a, b, strict=True):
        total = total + (x * y).sum()
    return total


def differentiated(loss: Callable[..., mx.array], entry: Entry, order: int) -> Callable[..., mx.array]:
    """The derivative of a loss along ``order`` directions, by reverse mode over reverse mode."""
    if order == 0:
        return loss
    lower, way = grads(differentiated(loss, entry, order - 1), len(entry.shapes)), directions(entry, 10 + order)
    return lambda *arrays: dot(lower(*arrays), way)


# Derivatives --------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("order", [pytest.param(1, marks=pytest.mark.smoke), 2, 3])
def test_reverse_mode_of_every_order(name: str, order: int) -> None:
    entry = MATRIX[name]
    loss, arrays = differentiated(entry.loss, entry, order - 1), entry.inputs()
    slopes = grads(loss, len(arrays))(*arrays)
    for i, way in enumerate(directions(entry, 1)):  # one argument at a time
        alone = tuple(way if j == i else mx.zeros_like(a) for j, a in enumerate(arrays))
        expected = along(lambda *a: (loss(*a),), arrays, alone)
        same([(slopes[i] * way).sum()], expected, 1e-6)


@pytest.mark.smoke
@each
def test_forward_mode(name: str) -> None:
    entry = MATRIX[name]
    arrays, ways = entry.inputs(), directions(entry, 1)
    for chosen in [*itertools.combinations(range(len(arrays)), 1), tuple(range(len(arrays)))]:

        def function(*some: mx.array, chosen: tuple[int, ...] = chosen) -> Arrays:
            full = list(arrays)
            for i, a in zip(chosen, some, strict=True):
                full[i] = a
            return entry.call(*full)

        some, way = tuple(arrays[i] for i in chosen), tuple(ways[i] for i in chosen)
        _, pushed = mx.jvp(function, list(some), list(way))
        same(pushed, along(function, some, way), 1e-7)


@each
def test_forward_mode_of_reverse_mode(name: str) -> None:
    entry = MATRIX[name]
    arrays, way = entry.inputs(), directions(entry, 1)
    pull = grads(entry.loss, len(arrays))
    _, pushed = mx.jvp(pull, list(arrays), list(way))
    same(pushed, along(pull, arrays, way), 1e-6)


# An inner transformation takes the marks of an outer one off the arrays that it passes, and MLX runs the rules of a
# forward mode where nothing is marked: what runs there must have rules all the same.


def pushed_loss(entry: Entry) -> Callable[..., mx.array]:
    """A scalar of the tangents, from forward mode inside."""
    ways = directions(entry, 2)

    def loss(*arrays: mx.array) -> mx.array:
        _, tangents = mx.jvp(entry.call, list(arrays), list(ways))
        return sum(((t * t).sum() for t in tangents), mx.array(0.0, mx.float64))

    return loss


@each
def test_reverse_mode_of_forward_mode(name: str) -> None:
    entry = MATRIX[name]
    arrays, way, loss = entry.inputs(), directions(entry, 1), pushed_loss(entry)
    slope = dot(grads(loss, len(arrays))(*arrays), way)
    same((slope,), along(lambda *a: (loss(*a),), arrays, way), 1e-6)


@each
def test_forward_mode_of_forward_mode(name: str) -> None:
    entry = MATRIX[name]
    arrays, way, loss = entry.inputs(), directions(entry, 1), pushed_loss(entry)
    _, pushed = mx.jvp(lambda *a: (loss(*a),), list(arrays), list(way))
    same(pushed, along(lambda *a: (loss(*a),), arrays, way), 1e-6)


@each
def test_compile_of_forward_mode(name: str) -> None:
    entry = MATRIX[name]
    arrays, way = entry.inputs(), list(directions(entry, 1))
    compiled = mx.compile(lambda *a: mx.jvp(entry.call, list(a), way)[1])
    same(compiled(*arrays), mx.jvp(entry.call, list(arrays), way)[1])


@each
def test_vmap_of_forward_mode(name: str) -> None:
    entry = MATRIX[name]
    arrays, way = entry.inputs(batch=SIZE), list(directions(entry, 1))

    def push(*some: mx.array) -> Arrays:
        return tuple(mx.jvp(entry.call, list(some), way)[1])

    same(mx.vmap(push)(*arrays), looped(push, arrays, [True] * len(arrays)))


@each
def test_an_inner_gradient_leaves_the_outer_one_alone(name: str) -> None:
    entry = MATRIX[name]
    arrays, way = entry.inputs(), directions(entry, 1)

    def loss(*some: mx.array) -> mx.array:
        before = entry.square(*some)  # a constant of the inner gradient, which walks over it
        inner = mx.grad(lambda z: z * z * before)(mx.array(2.0, mx.float64))
        return inner + entry.square(*some)

    slope = dot(grads(loss, len(arrays))(*arrays), way)
    same((slope,), along(lambda *a: (loss(*a),), arrays, way), 1e-6)


# Batching -----------------------------------------------------------------------------------------------


def mixed(entry: Entry, mapped: Sequence[bool]) -> Arrays:
    one, many = entry.inputs(), entry.inputs(batch=SIZE)
    return tuple(many[i] if m else one[i] for i, m in enumerate(mapped))


def choices(entry: Entry) -> list[tuple[bool, ...]]:
    """Which arguments are mapped: every choice of up to five, else each alone, all but each, and all."""
    count = len(entry.shapes)
    every = [m for m in itertools.product([False, True], repeat=count) if any(m)]
    return every if count <= 5 else [m for m in every if sum(m) in (1, count - 1, count)]


def in_axes(mapped: Sequence[bool]) -> tuple[int | None, ...]:
    return tuple(0 if m else None for m in mapped)


@pytest.mark.smoke
@each
def test_vmap_of_every_choice_of_arguments(name: str) -> None:
    entry = MATRIX[name]
    for mapped in choices(entry):
        arrays = mixed(entry, mapped)
        same(mx.vmap(entry.call, in_axes=in_axes(mapped))(*arrays), looped(entry.call, arrays, mapped))


@each
def test_vmap_over_other_axes(name: str) -> None:
    entry = MATRIX[name]
    arrays = entry.inputs(batch=SIZE)
    expected = looped(entry.call, arrays, [True] * len(arrays))
    for axis in (-1, 1, -2):
        moved = [mx.moveaxis(a, 0, axis) for a in arrays]
        same(mx.vmap(entry.call, in_axes=axis)(*moved), expected)
    out_last = mx.vmap(entry.call, in_axes=0, out_axes=-1)(*arrays)
    same([mx.moveaxis(y, -1, 0) for y in out_last], expected)


@each
def test_vmap_over_nothing(name: str) -> None:
    entry = MATRIX[name]
    for mapped in choices(entry):
        arrays = [a[:0] if m else a for a, m in zip(mixed(entry, mapped), mapped, strict=True)]
        expected = [y[None][:0] for y in entry.call(*entry.inputs())]
        same(mx.vmap(entry.call, in_axes=in_axes(mapped))(*arrays), expected)


@each
def test_vmap_of_vmap(name: str) -> None:
    entry = MATRIX[name]
    arrays = entry.inputs(batch=SIZE)
    others = [mx.stack([a, 2 * a]) for a in arrays]
    expected = [looped(entry.call, tuple(o[i] for o in others), [True] * len(arrays)) for i in range(2)]
    same(mx.vmap(mx.vmap(entry.call))(*others), [mx.stack(y) for y in zip(*expected, strict=True)])


@each
def test_grad_and_vmap_commute(name: str) -> None:
    entry = MATRIX[name]
    pull = grads(entry.loss, len(entry.shapes))
    for mapped in choices(entry):
        arrays = mixed(entry, mapped)
        expected = looped(pull, arrays, mapped)
        same(mx.vmap(pull, in_axes=in_axes(mapped))(*arrays), expected, 1e-9)
        batched = mx.vmap(entry.loss, in_axes=in_axes(mapped))
        total = grads(lambda *a, batched=batched: batched(*a).sum(), len(arrays))(*arrays)
        same(total, [e if m else e.sum(0) for e, m in zip(expected, mapped, strict=True)], 1e-9)


# Tracing ------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@each
def test_compile_and_checkpoint(name: str) -> None:
    entry = MATRIX[name]
    arrays, count = entry.inputs(), len(entry.shapes)
    expected = grads(entry.square, count)(*arrays)
    same(mx.compile(entry.call)(*arrays), entry.call(*arrays))
    same(mx.compile(grads(entry.square, count))(*arrays), expected)
    same(grads(mx.compile(entry.square), count)(*arrays), expected)
    same(grads(mx.checkpoint(entry.square), count)(*arrays), expected)
    same(mx.compile(grads(mx.checkpoint(entry.square), count))(*arrays), expected)


@pytest.mark.parametrize(
    "name",
    [
        next(name for name in MATRIX if name.startswith(f"{op} "))
        for op in ("avg_pool", "conv", "batch_norm")
        if op in OPS
    ],
)
def test_compile_of_a_second_order(name: str) -> None:
    entry = MATRIX[name]
    second = grads(differentiated(entry.square, entry, 1), len(entry.shapes))
    same(mx.compile(second)(*entry.inputs()), second(*entry.inputs()), 1e-9)


@each
def test_compile_of_vmap(name: str) -> None:
    entry = MATRIX[name]
    arrays = entry.inputs(batch=SIZE)
    expected = looped(entry.call, arrays, [True] * len(arrays))
    same(mx.compile(mx.vmap(entry.call))(*arrays), expected)
    same(mx.vmap(mx.compile(entry.call))(*arrays), expected)


# A compiled function keeps one trace for each shape and static, so what changes must not be baked in.


@each
def test_a_compiled_function_follows_its_arguments(name: str) -> None:
    entry = MATRIX[name]
    compiled = mx.compile(entry.call)
    for seed in (0, 1, 0):
        arrays = entry.inputs(seed=seed)
        same(compiled(*arrays), entry.call(*arrays))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@each
def test_gradients_keep_the_dtypes_of_the_arguments(name: str, dtype: mx.Dtype) -> None:
    entry = MATRIX[name]
    arrays = entry.inputs(dtype)

    def loss(*a: mx.array) -> Any:
        return sum(y.astype(mx.float32).sum() for y in entry.call(*a))

    assert [g.dtype for g in grads(loss, len(arrays))(*arrays)] == [a.dtype for a in arrays]


# Streams ------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[mx.Stream]:
    """The streams of every kernel that is launched from now on, and of the arithmetic around it."""
    streams: list[mx.Stream] = []
    launch = core_launch.launch

    def record(*args: Any, **options: Any) -> list[mx.array]:
        streams.extend([args[-1], mx.default_stream(mx.default_device())])
        return launch(*args, **options)

    monkeypatch.setattr(core_launch, "launch", record)
    return streams


@each
def test_rules_run_where_the_forward_ran(name: str, launched: list[mx.Stream]) -> None:
    entry, elsewhere = MATRIX[name], mx.new_stream(mx.cpu)

    def call(*arrays: mx.array) -> list[mx.array]:
        with mx.stream(elsewhere):
            return list(entry.call(*arrays))

    arrays, many = list(entry.inputs()), entry.inputs(batch=SIZE)
    outs, _ = mx.vjp(call, arrays, [mx.ones(y.shape, mx.float64) for y in entry.call(*arrays)])
    del launched[:]
    mx.eval(mx.vjp(call, arrays, outs)[1], mx.jvp(call, arrays, arrays)[1], mx.vmap(call)(*many))
    assert all(stream == elsewhere for stream in launched)
    op = OP_OF[name.removesuffix(" float64")]
    assert bool(launched) == (op.launches or op.pulls_by_kernels)


STREAMED = [name for name, op in OP_OF.items() if "stream" in inspect.signature(getattr(mf, op.name)).parameters]


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_can_be_given(name: str, launched: list[mx.Stream]) -> None:
    sample, elsewhere = SAMPLES[name], mx.new_stream(mx.cpu)
    row = Stateful(sample)
    states, others = row.given(0)
    expected = results(row.call(states, *others))
    mx.eval(states, expected)
    for given, meant in (
        (None, mx.default_stream(mx.default_device())),
        (mx.Device(mx.cpu), mx.default_stream(mx.cpu)),
        (elsewhere, elsewhere),
    ):
        del launched[:]
        made = results(row.call(states, *others, stream=given))
        assert len(made) == len(expected) and all(mx.array_equal(a, b) for a, b in zip(made, expected, strict=True))
        assert bool(launched) == OP_OF[name].launches and all(stream == meant for stream in launched)
    with pytest.raises(TypeError, match="^stream: not a stream; got stream='cpu', expected "):
        row.call(states, *others, stream="cpu")
    with pytest.raises(ValueError, match=r"^stream: no such device here; got stream=Device\(cpu, 5\), expected "):
        row.call(states, *others, stream=mx.Device(mx.cpu, 5))
    if not mx.is_available(mx.gpu):
        with pytest.raises(ValueError, match="^stream: no such device here; got stream=.*gpu.*, expected "):
            row.call(states, *others, stream=mx.gpu)


def test_a_stream_given_to_the_forward_is_the_one_of_its_gradient(launched: list[mx.Stream]) -> None:
    elsewhere = mx.new_stream(mx.cpu)
    mx.eval(mx.grad(lambda x: mf.avg_pool(x, 2, stream=elsewhere).sum())(mx.ones((1, 4, 4, 1))))
    assert len(launched) == 4 and set(map(str, launched)) == {str(elsewhere)}
