"""`checkpoint` of functions: what is computed again is what was computed first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from support import numbers, same_bits
from support.checkpoint_case import DRAWING, X, alike, both, drop, seeded, state

import mpsfunc as mf


def test_a_dropout_agrees_with_its_gradient(device: mx.Device) -> None:
    """And under mx.checkpoint it does not, or nothing of this would be needed."""
    ones = mx.ones(4096)
    (y,), (dx,) = mx.vjp(mf.checkpoint(drop), [ones], [ones])
    assert same_bits(y, dx)
    (y,), (dx,) = mx.vjp(mx.checkpoint(drop), [ones], [ones])
    assert not same_bits(y, dx)


@DRAWING
def test_everything_is_what_it_is_without(device: mx.Device, function: Any) -> None:
    kept = mf.checkpoint(function)

    def square(f: Any) -> Any:
        return lambda x: (f(x) ** 2).sum()

    transformed: list[Callable[[Any], Any]] = [
        lambda f: f,
        lambda f: lambda x: mx.vjp(f, [x], [mx.cos(x)]),
        lambda f: lambda x: mx.jvp(f, [x], [mx.cos(x)]),
        lambda f: mx.value_and_grad(square(f)),
        lambda f: mx.grad(lambda x: mx.grad(square(f))(x).sum()),
        lambda f: mx.grad(lambda x: f(f(x)).sum()),
    ]
    for transform in transformed:
        plain, after = seeded(transform(function), X)
        made, then = seeded(transform(kept), X)
        assert alike(made, plain) and same_bits(then, after)
        again, then = seeded(transform(mf.checkpoint(kept)), X)
        assert alike(again, plain) and same_bits(then, after)


@DRAWING
def test_maps(device: mx.Device, function: Any) -> None:
    """A draw is not mapped: each gets the same, and the state is one that goes on to be used."""
    kept, many = mf.checkpoint(function), mx.stack([X, mx.cos(X)])
    plain, after = seeded(mx.vmap(function), many)
    made, then = seeded(mx.vmap(kept), many)
    assert same_bits(made, plain) and same_bits(then, after)
    (y,), (dx,) = mx.vjp(mx.vmap(kept), [many], [mx.ones_like(many)])
    assert dx.shape == y.shape
    mx.eval(mx.random.uniform(shape=(3,)))
    for f in (mf.checkpoint(both), mx.checkpoint(both)):  # MLX maps no gradient of either
        with pytest.raises(ValueError, match="Not implemented for Depends"):
            mx.vmap(mx.grad(lambda x, f=f: f(x).sum()))(many)


@DRAWING
def test_compiled(device: mx.Device, function: Any) -> None:
    kept = mf.checkpoint(function)
    told: dict[str, Any] = {"inputs": mx.random.state, "outputs": mx.random.state}
    ones = mx.ones(512)
    steps = [mx.compile(lambda x, f=f: mx.vjp(f, [x], [x]), **told) for f in (function, kept)]
    rounds = []
    for step in steps:
        mx.random.seed(3)
        rounds.append([step(ones) for _ in range(3)])
        rounds[-1].append([state()])
    assert alike(*rounds)
    assert not same_bits(rounds[1][0][0][0], rounds[1][1][0][0])  # other masks in each step
    inner = mx.compile(lambda x: kept(x).sum(), **told)
    made, _ = seeded(mx.grad(inner), X)
    plain, _ = seeded(mx.grad(lambda x: function(x).sum()), X)
    np.testing.assert_allclose(np.array(made), np.array(plain), rtol=1e-6)


class Pair(NamedTuple):
    a: mx.array
    name: str
    b: Any


def test_trees_and_what_is_no_array_pass(device: mx.Device) -> None:
    seen: list[Any] = []
    token = object()

    def function(pair: Pair, items: list[Any], *, by: float, more: dict[str, Any]) -> Any:
        seen.append((type(pair), pair.name, items[1], by, more["token"]))
        x = drop(pair.a) * by + pair.b[0] * items[0]
        return Pair(x, pair.name, (more["y"] * x, 3)), {"token": more["token"], "none": None}, [x.sum()]

    kept = mf.checkpoint(function)

    def call(f: Any, a: mx.array, b: mx.array, c: mx.array, y: mx.array) -> Any:
        pair, rest, (total,) = f(Pair(a, "p", [b]), [c, "text"], by=2.0, more={"y": y, "token": token})
        assert isinstance(pair, Pair) and pair.name == "p" and pair.b[1] == 3 and type(pair.b) is tuple
        assert rest["token"] is token and rest["none"] is None
        return total + (pair.b[0] ** 2).sum()

    arrays = [X, mx.cos(X), mx.sin(X), X / 7]
    plain, made = (
        seeded(mx.value_and_grad(lambda *a, f=f: call(f, *a), argnums=(0, 1, 2, 3)), *arrays)[0]
        for f in (function, kept)
    )
    assert alike(made, plain)
    assert all(s == (Pair, "p", "text", 2.0, token) for s in seen) and len(seen) == 3


def test_states_and_keys_are_arguments(device: mx.Device) -> None:
    x, w = numbers((2, 4, 4, 3)), numbers((5, 3, 3, 3), seed=1)

    def function(x: mx.array, w: mx.array, key: mx.array) -> Any:
        y, conv = mf.conv_fwd(x, w)
        return mx.random.bernoulli(0.5, y.shape, key=key) * y, conv

    def loss(f: Any, x: mx.array, w: mx.array) -> mx.array:
        y, conv = f(x, w, mx.random.key(4))
        return (y**2).sum() + mf.conv_grad_input(y, w, conv).sum()

    plain, made = (
        mx.grad(lambda x, w, f=f: loss(f, x, w), argnums=(0, 1))(x, w) for f in (function, mf.checkpoint(function))
    )
    assert alike(made, plain)


@pytest.mark.parametrize("fails_in_call", [1, 2])
def test_an_exception_leaves_the_random_state(device: mx.Device, fails_in_call: int) -> None:
    """In the second call that of before; in the first, that of where it was thrown."""
    calls: list[int] = []

    def function(x: mx.array) -> mx.array:
        calls.append(1)
        y = drop(x)
        if len(calls) == fails_in_call:
            raise RuntimeError("thrown")
        return y

    mx.random.seed(3)
    mx.random.uniform()
    after = state()
    mx.random.seed(3)
    with pytest.raises(RuntimeError, match="thrown"):
        mx.grad(lambda x: mf.checkpoint(function)(x).sum())(X)
    assert same_bits(state(), after) and len(calls) == fails_in_call


def test_a_random_state_that_somebody_holds_stays(device: mx.Device) -> None:
    drawn: Any = mx.random.state
    mx.random.seed(8)
    held = drawn[0]
    mx.eval(mx.grad(lambda x: mf.checkpoint(drop)(x).sum())(X))
    assert same_bits(held, mx.random.key(8))


@pytest.mark.programs
def test_what_is_computed_again_is_not_kept(on_cpu: mx.Device) -> None:
    """A chain of functions takes no more memory than under mx.checkpoint."""

    def deep(x: mx.array) -> mx.array:
        for _ in range(30):
            x = mx.sin(x)
        return x

    def peak(f: Callable[[mx.array], mx.array]) -> int:
        x = mx.ones(2**18)
        mx.eval(x)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(mx.grad(lambda x: f(f(f(f(x)))).sum())(x))
        return mx.get_peak_memory() - before

    assert peak(mf.checkpoint(deep)) <= 1.05 * peak(mx.checkpoint(deep)) < 0.6 * peak(deep)


def test_results_that_are_arguments_or_each_other_or_none(device: mx.Device) -> None:
    """In MLX results that are one array get one cotangent, and a function without any crashes."""
    kept = mf.checkpoint(lambda x: (x, x * 2, [x]))
    slopes = [mx.grad(lambda x, f=f: f(kept(x)).sum())(X) for f in (lambda y: y[0], lambda y: y[2][0] * y[1] + y[0])]
    assert alike(slopes, [mx.ones_like(X), 4 * X + 1])
    assert mf.checkpoint(lambda x: "none")(X) == "none" and mf.checkpoint(lambda: mx.ones(2))().shape == (2,)


def test_results_that_are_whole_numbers_leave_the_others_their_gradients(device: mx.Device) -> None:
    """MLX gives them no cotangent where they are arguments handed back."""
    n, labels = mx.array(3), mx.arange(X.size, dtype=mx.int32).reshape(X.shape)
    for kept in (
        lambda x: (n, (x * x).sum()),
        lambda x, n=n: (n, (x * x).sum()),
        lambda x, labels=labels: (labels, labels.reshape(X.shape), x * x),
    ):
        given = [X] + [a for a in (kept.__defaults__ or ()) if kept.__code__.co_argcount > 1]
        want, got = (mx.grad(lambda *a, f=f: f(*a)[-1].sum())(*given) for f in (kept, mf.checkpoint(kept)))
        assert alike([got], [want]) and mx.any(want != 0).item()
    both = mf.checkpoint(lambda x, n: (n, x * x, x * x * x))
    slope = mx.grad(lambda x: (2 * both(x, n)[1] + 7 * both(x, n)[2]).sum())(X)
    assert mx.allclose(slope, 4 * X + 21 * X * X).item()


def test_a_state_can_be_handed_through(device: mx.Device) -> None:
    x = mx.arange(16.0).reshape(1, 2, 2, 4)
    state = mf.bn_stats(x)
    block = mf.checkpoint(lambda x, state: (state, mf.bn_normalize(x, state) ** 2))
    want = mx.grad(lambda x: (mf.bn_normalize(x, state) ** 2).sum())(x)
    assert mx.allclose(mx.grad(lambda x: block(x, state)[1].sum())(x), want).item()


def test_a_function_keeps_its_name() -> None:
    assert mf.checkpoint(both).__name__ == "both"


class Counter(dict[str, mx.array]):
    pass


def test_what_is_refused(device: mx.Device) -> None:
    with pytest.raises(TypeError, match="^checkpoint: function is not a function; got function=3, expected a function"):
        mf.checkpoint(3)  # type: ignore[arg-type]
    layer = stock.Linear(2, 2)
    for module in (layer, layer.__call__):
        with pytest.raises(TypeError, match=r"^checkpoint: a module's .* expected .*mpsfunc\.nn\.checkpoint\(module\)"):
            mf.checkpoint(module)
    for given in (Counter(x=X), [Counter(x=X)]):
        with pytest.raises(TypeError, match="^checkpoint: an argument holds a collection .* got a Counter, expected "):
            mf.checkpoint(lambda x: X)(given)
    with pytest.raises(TypeError, match="^checkpoint: the result holds a collection .* got a Counter, expected "):
        mf.checkpoint(lambda x: Counter(x=x))(X)
