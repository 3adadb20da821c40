"""Operations: functions of arrays with derivative and batching rules, by ``mx.custom_function``, called here alone.

MLX believes whatever a rule returns: with one gradient too few or too many, arguments get each other's, and no shape or
dtype is compared. An operation mapped without a vmap rule also forgets its vjp rule. So every operation has all three
rules, and what they return is checked here. Where no transformation looks on, the rules are left out to save time, and
so are those of operations that another one is made of.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import mlx.core as mx

from mpsfunc.core import launch

Arrays = tuple[mx.array, ...]
Tangents = tuple[mx.array | None, ...]  # None of an argument that is not differentiated
Gradients = Sequence[mx.array | None]  # one an argument, None where it is zero
Mapped = tuple[bool, ...]

P = ParamSpec("P")
R = TypeVar("R")
Rule = TypeVar("Rule", bound=Callable[..., Any])


class _Inside(threading.local):
    """Whether this thread computes an operation that has rules: what that is made of needs none of its own."""

    an_operation = False


_inside = _Inside()


class _Inference(threading.local):
    """Whether this thread makes results of which nobody is going to take derivatives."""

    meant = False


_inference = _Inference()


@contextlib.contextmanager
def for_inference() -> Iterator[None]:
    """Within it operations need keep nothing for derivatives, which are then right, but computed from the beginning."""
    before, _inference.meant = _inference.meant, True
    try:
        yield
    finally:
        _inference.meant = before


def keeps_for_gradients() -> bool:
    """Whether an operation had better keep what its derivatives need: `launch.tracing`, but for inference."""
    return launch.tracing() and not _inference.meant


class _Static:
    """Hides a record from MLX, which would take it apart at every call."""

    __slots__ = ("spec",)

    def __init__(self, spec: Any) -> None:
        self.spec = spec


class Operation(Generic[P, R]):
    """A function of arrays and, last, one hashable record of statics, which MLX differentiates and maps by its rules.

    The record's ``stream`` is where everything runs, the rules included. Arguments go by position. Rules are declared
    beneath the function, in this order::

        @operation("twice")
        def twice(x: mx.array, spec: Spec) -> mx.array: ...

        @twice.vjp
        def _(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients: ...

        @twice.jvp
        def _(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array: ...

        @twice.vmap
        def _(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array: ...

    or, in place of rules that it shall not have of its own, a slower function of the same arguments that is made of
    operations with rules: ``@twice.decomposition``.
    """

    def __init__(self, name: str, run: Callable[P, R]) -> None:
        self.name = name
        self.run: Callable[..., R] = run
        self.__doc__ = run.__doc__
        self.__name__, self.__qualname__, self.__module__ = run.__name__, run.__qualname__, run.__module__
        self._rules: dict[str, Callable[..., Any]] = {}
        self._function: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result; all arguments by position."""
        assert not kwargs, f"{self.__name__}: an operation takes its arguments by position"
        static: Any = args[-1]
        with mx.stream(static.stream):  # MLX puts nodes of its own around the kernel; they belong there too
            if _inside.an_operation or not launch.tracing():
                return self.run(*args, **kwargs)
            function: Callable[..., R] = self._function or self._made()
            return function(*args[:-1], _Static(static))

    def vjp(self, rule: Rule) -> Rule:
        """``rule(arrays, cotangents, outputs, spec)`` returns one gradient an array, None where it is zero."""
        return self._with("vjp", rule)

    def jvp(self, rule: Rule) -> Rule:
        """``rule(arrays, tangents, spec)`` returns one tangent an output.

        A tangent is None where an argument is not differentiated; the rule is not called when all are.
        """
        return self._with("jvp", rule)

    def vmap(self, rule: Rule) -> Rule:
        """``rule(arrays, mapped, size, spec)`` returns the outputs with the mapped axis first.

        Where ``mapped`` is True an array comes with its mapped axis, of length ``size``, moved to the front.
        """
        return self._with("vmap", rule)

    def decomposition(self, function: Callable[P, R]) -> Callable[P, R]:
        """``function`` computes the same from operations that have rules, and lends those that this one lacks."""
        for kind, rule in _borrowed(function).items():
            self._rules.setdefault(kind, rule)
        return function

    @property
    def rules(self) -> tuple[str, ...]:
        """Which rules there are, of "vjp", "jvp" and "vmap"."""
        return tuple(sorted(self._rules))

    def _with(self, kind: str, rule: Rule) -> Rule:
        self._rules[kind] = rule
        return rule

    def _made(self) -> Any:
        """The function with its rules, as MLX takes it."""
        missing = {"vjp", "jvp", "vmap"} - set(self._rules)
        if missing:
            raise AssertionError(f"{self.name}: no rule for {', '.join(sorted(missing))}")
        name, run = self.name, self.run
        vjp, jvp, vmap = (self._rules[kind] for kind in ("vjp", "jvp", "vmap"))

        def forward(*args: Any) -> Any:
            *arrays, static = args
            before, _inside.an_operation = _inside.an_operation, True
            try:
                # mx.jvp walks into what is behind the rule unless it is cut off.
                return run(*[mx.stop_gradient(a) for a in arrays], static.spec)
            finally:
                _inside.an_operation = before

        def vjp_rule(primals: Any, cotangents: Any, outputs: Any) -> Any:
            *arrays, static = primals
            spec = static.spec
            if not isinstance(outputs, tuple):
                cotangents, outputs = (cotangents,), (outputs,)
            with mx.stream(spec.stream):
                grads = vjp(tuple(arrays), cotangents, outputs, spec)
                if len(grads) != len(arrays):
                    raise AssertionError(f"{name}: vjp returned {len(grads)} gradients for {len(arrays)} arrays")
                return (*[_gradient(name, a, g) for a, g in zip(arrays, grads, strict=True)], None)

        def jvp_rule(primals: Any, tangents: Any) -> Any:
            *arrays, static = primals
            spec = static.spec
            with mx.stream(spec.stream):
                return jvp(tuple(arrays), tuple(tangents[: len(arrays)]), spec)

        def vmap_rule(args: Any, axes: Any) -> Any:
            *arrays, static = args
            spec = static.spec
            mapped = axes[: len(arrays)]
            with mx.stream(spec.stream):
                front = [a if i is None else mx.moveaxis(a, i, 0) for a, i in zip(arrays, mapped, strict=True)]
                size = next(a.shape[0] for a, i in zip(front, mapped, strict=True) if i is not None)
                if size == 0:  # map over one zero, so that the shapes come out, and keep none of it
                    front = [
                        a if i is None else mx.zeros((1, *a.shape[1:]), a.dtype)
                        for a, i in zip(front, mapped, strict=True)
                    ]
                out = vmap(tuple(front), tuple(i is not None for i in mapped), max(size, 1), spec)
                outs = out if isinstance(out, tuple) else (out,)
                if size == 0:
                    outs = tuple(o[:0] for o in outs)
            return (outs, tuple(0 for _ in outs)) if isinstance(out, tuple) else (outs[0], 0)

        function: Any = mx.custom_function(forward)
        function.vjp(vjp_rule)
        function.jvp(jvp_rule)
        function.vmap(vmap_rule)
        self._function = function
        return self._function


def operation(name: str) -> Callable[[Callable[P, R]], Operation[P, R]]:
    """Makes an `Operation` of a function, by the name that its errors, its CPU primitive or its kernel have."""

    def made(run: Callable[P, R]) -> Operation[P, R]:
        return Operation(name, run)

    return made


def _borrowed(decomposition: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The rules of a function that is made of operations."""

    def of(which: list[int], arrays: Arrays, spec: Any) -> Callable[..., Any]:
        """The decomposition as a function of some of the arrays."""

        def function(*some: mx.array) -> Any:
            known = dict(zip(which, some, strict=True))
            return decomposition(*[known.get(i, a) for i, a in enumerate(arrays)], spec)

        return function

    def vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Any) -> Gradients:
        which = [i for i, a in enumerate(arrays) if mx.issubdtype(a.dtype, mx.floating)]
        _, pulled = mx.vjp(of(which, arrays, spec), [arrays[i] for i in which], list(cotangents))
        known = dict(zip(which, pulled, strict=True))
        return [known.get(i) for i in range(len(arrays))]

    def jvp(arrays: Arrays, tangents: Tangents, spec: Any) -> Any:
        # Of none but those that move: a tangent of zeros times an infinite slope would be NaN.
        floating = [mx.issubdtype(a.dtype, mx.floating) for a in arrays]
        moving = {i: t for i, t in enumerate(tangents) if t is not None and floating[i]}
        which = list(moving)
        outputs, pushed = mx.jvp(of(which, arrays, spec), [arrays[i] for i in which], list(moving.values()))
        return tuple(pushed) if len(outputs) > 1 else pushed[0]

    def vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Any) -> Any:
        axes = tuple(0 if m else None for m in mapped)
        return mx.vmap(lambda *front: decomposition(*front, spec), in_axes=axes)(*arrays)

    return {"vjp": vjp, "jvp": jvp, "vmap": vmap}


def tangent_of(*terms: tuple[mx.array | None, Callable[[mx.array], mx.array]]) -> mx.array:
    """The tangent of a result: the sum, in their order, of what each tangent that there is makes of it."""
    made = [make(tangent) for tangent, make in terms if tangent is not None]
    return sum(made[1:], made[0])


def one_batch(array: mx.array, mapped: bool, size: int) -> mx.array:
    """Images with the mapped axis of length ``size`` first, or not mapped, as one long batch."""
    if not mapped:
        array = mx.broadcast_to(array, (size, *array.shape))
    return array.reshape(size * array.shape[1], *array.shape[2:])


def over_batches(function: Callable[..., R]) -> Callable[..., R]:
    """The vmap rule of an operation whose arrays are all batches, for which mapping is one longer batch."""

    def rule(arrays: Arrays, mapped: Mapped, size: int, spec: Any) -> Any:
        out: Any = function(*[one_batch(a, m, size) for a, m in zip(arrays, mapped, strict=True)], spec)
        apart = [a.reshape(size, a.shape[0] // size, *a.shape[1:]) for a in (out if isinstance(out, tuple) else (out,))]
        return tuple(apart) if isinstance(out, tuple) else apart[0]

    return rule


def _gradient(name: str, primal: mx.array, gradient: mx.array | None) -> mx.array:
    if gradient is None:
        return mx.zeros_like(primal)
    if gradient.shape != primal.shape or not mx.issubdtype(gradient.dtype, mx.floating):
        raise AssertionError(f"{name}: vjp returned {gradient.dtype}{gradient.shape} for {primal.dtype}{primal.shape}")
    return gradient.astype(primal.dtype)
