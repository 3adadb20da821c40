"""Functions that take or return states under vmap, grad, compile and checkpoint, in one table that each must enter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from support.matrix import SIZE, Arrays, looped, same, stateful

import mpsfunc as mf
from mpsfunc.selftest.expressions import results

pytestmark = pytest.mark.usefixtures("on_cpu")
STATEFUL = stateful()
each = pytest.mark.parametrize("name", STATEFUL)


def test_every_function_with_a_state_is_in_the_table() -> None:
    annotations = {
        name: str(inspect.signature(getattr(mf, name))) for name in mf.__all__ if inspect.isfunction(getattr(mf, name))
    }
    with_state = {name for name, text in annotations.items() if "State" in text}
    shapes_only = {name for name in with_state if name.endswith("_state")} - {"conv_state", "deform_conv_state"}
    assert with_state - shapes_only == {name.split()[0] for name in STATEFUL}


class Flat(NamedTuple):
    """A row of the table as a function of arrays only: the state's, then the others."""

    call: Callable[..., Arrays]
    inputs: Callable[[int], Arrays]
    of_state: int  # how many are the state's

    def square(self, *arrays: mx.array) -> mx.array:
        floating = [y for y in self.call(*arrays) if mx.issubdtype(y.dtype, mx.floating)]
        return sum(((y * y).sum() for y in floating), mx.array(0.0, mx.float64))

    def differentiable(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self.inputs(0)) if mx.issubdtype(a.dtype, mx.floating))

    def many(self) -> Arrays:
        return tuple(mx.stack(leaves) for leaves in zip(*[self.inputs(seed) for seed in range(SIZE)], strict=True))


def leaves(states: tuple[Any, ...]) -> Arrays:
    return tuple(a for state in states for a in state.arrays)


def flat(name: str) -> Flat:
    row = STATEFUL[name]
    states, _ = row.given(0)
    count = len(leaves(states))

    def call(*arrays: mx.array) -> Arrays:
        own, made = iter(arrays), []
        for state in states:
            made.append(state.with_arrays([next(own) for _ in state.arrays]))
        return results(row.call(tuple(made), *own))

    def inputs(seed: int) -> Arrays:
        states, others = row.given(seed)
        own = [a + seed if a.dtype == mx.int64 and a.ndim == 0 else a for a in leaves(states)]  # counts
        return (*own, *others)

    return Flat(call, inputs, count)


def choices(row: Flat) -> list[list[bool]]:
    """Which arrays are mapped: each alone, all of the state, all others, all."""
    count = len(row.inputs(0))
    chosen = [{i} for i in range(count)] + [
        set(range(row.of_state)),
        set(range(row.of_state, count)),
        set(range(count)),
    ]
    return [[i in some for i in range(count)] for some in chosen if some]


def mixed(row: Flat, mapped: Sequence[bool]) -> Arrays:
    return tuple(many if m else one for m, many, one in zip(mapped, row.many(), row.inputs(0), strict=True))


def in_axes(mapped: Sequence[bool]) -> tuple[int | None, ...]:
    return tuple(0 if m else None for m in mapped)


@each
def test_vmap_over_the_arrays_of_a_state(name: str) -> None:
    row = flat(name)
    for mapped in choices(row):
        arrays = mixed(row, mapped)
        expected = looped(row.call, arrays, mapped)
        made = mx.vmap(row.call, in_axes=in_axes(mapped))(*arrays)
        # What depends on nothing that is mapped need not be.
        same([mx.broadcast_to(y, e.shape) for y, e in zip(made, expected, strict=True)], expected)


@each
def test_grad_and_vmap_commute(name: str) -> None:
    row = flat(name)
    wanted = row.differentiable()
    if not wanted:  # all of its arrays are integers
        return

    def grads(loss: Callable[..., mx.array]) -> Callable[..., Arrays]:
        pull = mx.grad(loss, argnums=wanted)
        return lambda *arrays: (pull(*arrays),) if len(wanted) == 1 else pull(*arrays)

    pull = grads(row.square)
    for mapped in choices(row):
        arrays = mixed(row, mapped)
        expected = looped(pull, arrays, mapped)
        same(mx.vmap(pull, in_axes=in_axes(mapped))(*arrays), expected, 1e-9)
        batched = mx.vmap(row.square, in_axes=in_axes(mapped))
        total = grads(lambda *a, batched=batched: batched(*a).sum())(*arrays)
        same(total, [e if mapped[i] else e.sum(0) for i, e in zip(wanted, expected, strict=True)], 1e-9)


@each
def test_a_state_passes_through_compile_and_checkpoint(name: str) -> None:
    row, of_arrays = STATEFUL[name], flat(name)

    def function(states: Any, *arrays: mx.array) -> Arrays:
        return results(row.call(states, *arrays))

    def square(states: Any, *arrays: mx.array) -> mx.array:
        return of_arrays.square(*leaves(states), *arrays)

    compiled = mx.compile(function)
    for seed in (0, 1, 0):
        states, arrays = row.given(seed)
        same(compiled(states, *arrays), function(states, *arrays))
    if arrays:
        floating = [i for i, a in enumerate(arrays, 1) if mx.issubdtype(a.dtype, mx.floating)]
        plain, kept = (mx.value_and_grad(f, argnums=floating)(states, *arrays) for f in (square, mx.checkpoint(square)))
        same(results(kept), results(plain))
