"""What `core.operation` promises, on an operation that doubles its first argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest

from mpsfunc.core import launch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Operation, Tangents, operation

pytestmark = pytest.mark.usefixtures("on_cpu")


class Spec(NamedTuple):
    stream: mx.Stream


@pytest.fixture
def elsewhere() -> Spec:
    return Spec(mx.new_stream(mx.cpu))


def here() -> mx.Stream:
    return mx.default_stream(mx.default_device())


Doubling = Operation[[mx.array, mx.array, Spec], mx.array]


def doubling(gradients: Callable[..., Any], seen: list[mx.Stream] | None = None) -> Doubling:
    """``2 * x`` of (x, y), with a VJP to test; every rule notes its stream."""

    def noted(value: Any) -> Any:
        if seen is not None:
            seen.append(here())
        return value

    @operation("doubling")
    def twice(x: mx.array, y: mx.array, spec: Spec) -> mx.array:
        return noted(2 * x)

    @twice.vjp
    def vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
        return noted(gradients(*arrays, *cotangents))

    @twice.jvp
    def jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
        return noted(2 * tangents[0])

    @twice.vmap
    def vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
        return noted(2 * arrays[0])

    return twice


def grads(function: Any, spec: Spec, y: mx.array | None = None) -> Any:
    y = mx.ones(2) if y is None else y
    return mx.grad(lambda x, y: function(x, y, spec).sum(), argnums=(0, 1))(mx.ones(3), y)


def test_every_rule_runs_on_the_stream_of_the_forward(elsewhere: Spec) -> None:
    seen: list[mx.Stream] = []
    function = doubling(lambda x, y, dz: (2 * dz, None), seen)
    x, y = mx.ones(3), mx.ones(2)
    mx.eval(grads(function, elsewhere))
    mx.eval(mx.jvp(lambda x: function(x, y, elsewhere), [x], [x])[1])
    mx.eval(mx.vmap(lambda x: function(x, y, elsewhere))(mx.ones((4, 3))))
    assert len(seen) >= 6 and all(stream == elsewhere.stream for stream in seen)
    assert here() != elsewhere.stream


def test_none_is_a_zero_gradient(elsewhere: Spec) -> None:
    dx, dy = grads(doubling(lambda x, y, dz: (2 * dz, None)), elsewhere, mx.ones((2, 3), mx.float16))
    assert dx.tolist() == [2, 2, 2]
    assert dy.dtype == mx.float16 and dy.tolist() == [[0] * 3] * 2


def test_a_gradient_is_cast_to_the_dtype_of_its_argument(elsewhere: Spec) -> None:
    function = doubling(lambda x, y, dz: (2 * dz, dz[:2]))
    assert grads(function, elsewhere, mx.ones(2, mx.bfloat16))[1].dtype == mx.bfloat16


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (lambda x, y, dz: (dz,), "doubling: vjp returned 1 gradients for 2 arrays"),
        (lambda x, y, dz: (dz, None, dz), "doubling: vjp returned 3 gradients for 2 arrays"),
        (lambda x, y, dz: (dz[:2], None), "doubling: vjp returned .*2.* for .*3"),
        (lambda x, y, dz: (dz, dz), "doubling: vjp returned .*3.* for .*2"),
        (lambda x, y, dz: (dz.astype(mx.int32), None), "doubling: vjp returned .*int32"),
    ],
)
def test_a_wrong_vjp_is_found(elsewhere: Spec, gradients: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        grads(doubling(gradients), elsewhere)


@pytest.mark.needs_cpu_module
def test_a_gpu_kernel_can_be_mapped_after_an_inner_transformation() -> None:
    """It takes the marks off arrays that the map still follows."""
    wrapped = []

    def mapped(x: mx.array) -> mx.array:
        b = x * 2
        mx.grad(lambda z: (z * b).sum())(mx.array(2.0))
        made = mx.stop_gradient(b) + 1
        wrapped.append(launch._primitives.mappable([made])[0] is not made)
        return b

    mx.eval(mx.vmap(mapped)(mx.ones((2, 3))))
    assert wrapped == [True]


# Operations that others are made of ---------------------------------------------------------------------


def made_of(inner: Callable[..., Any]) -> Doubling:
    """``inner(x, y) + x``, whose own gradient is told apart by a factor of 100."""

    @operation("outer")
    def outer(x: mx.array, y: mx.array, spec: Spec) -> mx.array:
        return inner(x, y, spec) + x

    @outer.vjp
    def vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
        return 100 * cotangents[0] + inner(*arrays, spec) * 0, None

    @outer.jvp
    def jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
        return tangents[0]

    @outer.vmap
    def vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
        return arrays[0]

    return outer


def rules_of(function: Callable[[mx.array], mx.array], path: Path) -> int:
    """Operations with rules in the graph of a compiled function."""
    mx.export_to_dot(str(path), mx.compile(function)(mx.ones(3)))
    return path.read_text().count("CustomTransforms")


def test_what_an_operation_is_made_of_leaves_its_rules_out(elsewhere: Spec, tmp_path: Path) -> None:
    inner, y = doubling(lambda x, y, dz: (2 * dz, None)), mx.ones(2)
    outer = made_of(inner)
    assert rules_of(lambda x: inner(x, y, elsewhere), tmp_path / "inner.dot") == 1
    assert rules_of(lambda x: outer(x, y, elsewhere), tmp_path / "outer.dot") == 1
    assert mx.grad(lambda x: outer(x, y, elsewhere).sum())(mx.ones(3)).tolist() == [100.0] * 3
    # Inside a rule they have them, since it may be differentiated itself; the operation before it is gone.
    assert rules_of(mx.grad(lambda x: outer(x, y, elsewhere).sum()), tmp_path / "rule.dot") == 1


def test_an_error_inside_an_operation_takes_no_rules_away(elsewhere: Spec) -> None:
    def fails(x: mx.array, y: mx.array, spec: Spec) -> mx.array:
        raise ArithmeticError("on purpose")

    inner, y = doubling(lambda x, y, dz: (2 * dz, None)), mx.ones(2)
    outer = made_of(fails)
    with pytest.raises(ArithmeticError, match="on purpose"):
        mx.grad(lambda x: outer(x, y, elsewhere).sum())(mx.ones(3))
    assert grads(inner, elsewhere)[0].tolist() == [2.0] * 3


# Which rules there are ----------------------------------------------------------------------------------


def squaring() -> Operation[[mx.array, Spec], mx.array]:
    @operation("square")
    def square(x: mx.array, spec: Spec) -> mx.array:
        """Its doc."""
        return x * x

    return square


# Told apart from what is right by factors of 100.
RULES: dict[str, Callable[..., Any]] = {
    "vjp": lambda arrays, cotangents, outputs, spec: (100 * cotangents[0],),
    "jvp": lambda arrays, tangents, spec: 100 * tangents[0],
    "vmap": lambda arrays, mapped, size, spec: 100 * arrays[0],
}


def declare(function: Operation[[mx.array, Spec], mx.array], kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        assert getattr(function, kind)(RULES[kind]) is RULES[kind]


USES: dict[str, Callable[[Callable[[mx.array], mx.array], mx.array], mx.array]] = {
    "vjp": lambda f, x: mx.vjp(f, [x], [mx.ones_like(x)])[1][0],
    "jvp": lambda f, x: mx.jvp(f, [x], [mx.ones_like(x)])[1][0],
    "vmap": lambda f, x: mx.vmap(f)(x),
}
OWN = {"vjp": [100.0, 100.0], "jvp": [100.0, 100.0], "vmap": [300.0, 400.0]}
LENT = {"vjp": [6.0, 8.0], "jvp": [6.0, 8.0], "vmap": [9.0, 16.0]}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("kinds", "missing"),
    [
        (("jvp", "vmap"), "vjp"),
        (("vjp", "vmap"), "jvp"),
        (("vjp", "jvp"), "vmap"),
        (("vjp",), "jvp, vmap"),
        ((), "jvp, vjp, vmap"),
    ],
)
def test_an_operation_without_a_rule_says_so(elsewhere: Spec, use: str, kinds: tuple[str, ...], missing: str) -> None:
    function, x = squaring(), mx.array([3.0, 4.0])
    declare(function, kinds)
    assert function.rules == tuple(sorted(kinds)) and function(x, elsewhere).tolist() == [9, 16]
    with pytest.raises(AssertionError, match=f"^square: no rule for {missing}$"):
        USES[use](lambda x: function(x, elsewhere), x)


@pytest.mark.parametrize("first", [False, True], ids=["rules first", "decomposition first"])
@pytest.mark.parametrize("own", [(), ("vjp",), ("jvp",), ("vmap",), ("vjp", "vmap"), ("vjp", "jvp", "vmap")])
def test_a_decomposition_lends_what_is_missing(elsewhere: Spec, own: tuple[str, ...], first: bool) -> None:
    def power(x: mx.array, spec: Spec) -> mx.array:
        return x**2

    function = squaring()
    declare(function, () if first else own)
    assert function.decomposition(power) is power
    declare(function, own if first else ())
    assert function.rules == ("jvp", "vjp", "vmap")
    for kind, use in USES.items():
        made = use(lambda x: function(x, elsewhere), mx.array([3.0, 4.0]))
        assert made.tolist() == (OWN if kind in own else LENT)[kind], kind


def test_an_operation_reads_like_its_function() -> None:
    square = squaring()
    assert (square.name, square.__name__, square.__doc__) == ("square", "square", "Its doc.")
    assert square.__qualname__.endswith("squaring.<locals>.square") and square.__module__ == __name__
