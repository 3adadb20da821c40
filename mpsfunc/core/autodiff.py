"""Gives an operation its derivative and batching rules, through ``mx.custom_function``, which no other module calls.

MLX believes whatever a rule returns: with one gradient too few or too many, arguments get each other's, and no shape or
dtype is compared. An operation mapped without a vmap rule also forgets its vjp rule. So every operation declares all
three, and what they return is checked here. Where no transformation looks on, the rules are left out to save time, and
so are those of operations that another one is made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mpsfunc.core import launch

Rule = Callable[..., Any]


class _Inside(threading.local):
    """Whether this thread computes an operation that has rules: what that is made of needs none of its own."""

    an_operation = False


_inside = _Inside()


class _Static:
    """Hides a record from MLX, which would take it apart at every call."""

    __slots__ = ("spec",)

    def __init__(self, spec: Any) -> None:
        self.spec = spec


def differentiable(name: str, run: Rule, *, vjp: Rule, jvp: Rule, vmap: Rule) -> Callable[..., Any]:
    """Wraps ``run(*arrays, spec)`` with its rules.

    Args:
        name: The operation, for errors.
        run: Computes one array or a tuple of arrays from arrays and one hashable record of statics, always last. The
            record's ``stream`` is where everything runs, the rules included. Operations that it calls leave their own
            rules out, so it must not transform them itself.
        vjp: ``vjp(arrays, cotangents, outputs, spec)`` returns one gradient an array, None where it is zero.
        jvp: ``jvp(arrays, tangents, spec)`` returns one tangent an output. A tangent is None where an argument is
            not differentiated; ``jvp`` is not called when all are.
        vmap: ``vmap(arrays, mapped, size, spec)`` returns the outputs with the mapped axis first. Where ``mapped`` is
            True an array comes with its mapped axis, of length ``size``, moved to the front.

    Returns:
        The function of ``(*arrays, spec)`` that MLX differentiates and maps by these rules.
    """

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
                    a if i is None else mx.zeros((1, *a.shape[1:]), a.dtype) for a, i in zip(front, mapped, strict=True)
                ]
            out = vmap(tuple(front), tuple(i is not None for i in mapped), max(size, 1), spec)
            outs = out if isinstance(out, tuple) else (out,)
            if size == 0:
                outs = tuple(o[:0] for o in outs)
        return (outs, tuple(0 for _ in outs)) if isinstance(out, tuple) else (outs[0], 0)

    function = mx.custom_function(forward)
    function.vjp(vjp_rule)
    function.jvp(jvp_rule)
    function.vmap(vmap_rule)

    def call(*args: Any) -> Any:
        with mx.stream(args[-1].stream):  # MLX puts nodes of its own around the kernel; they belong there too
            if _inside.an_operation or not launch.tracing():
                return run(*args)
            return function(*args[:-1], _Static(args[-1]))

    return call


def with_decomposition(
    name: str, run: Rule, decomposition: Rule, *, vjp: Rule | None = None, vmap: Rule | None = None
) -> Callable[..., Any]:
    """Wraps ``run(*arrays, spec)`` with the rules of ``decomposition(*arrays, spec)``, slower but differentiable.

    Args:
        name: The operation, for errors.
        run: As for `differentiable`.
        decomposition: Computes the same from operations that have rules.
        vjp: A rule that is better than ``decomposition``'s, as for `differentiable`.
        vmap: Likewise.
    """

    def of(which: list[int], arrays: Any, spec: Any) -> Rule:
        """The decomposition as a function of some of the arrays."""

        def function(*some: mx.array) -> Any:
            known = dict(zip(which, some, strict=True))
            return decomposition(*[known.get(i, a) for i, a in enumerate(arrays)], spec)

        return function

    def vjp_rule(arrays: Any, cotangents: Any, outputs: Any, spec: Any) -> Any:
        which = [i for i, a in enumerate(arrays) if mx.issubdtype(a.dtype, mx.floating)]
        _, pulled = mx.vjp(of(which, arrays, spec), [arrays[i] for i in which], list(cotangents))
        known = dict(zip(which, pulled, strict=True))
        return [known.get(i) for i in range(len(arrays))]

    def jvp_rule(arrays: Any, tangents: Any, spec: Any) -> Any:
        # Of none but those that move: a tangent of zeros times an infinite slope would be NaN.
        floating = [mx.issubdtype(a.dtype, mx.floating) for a in arrays]
        which = [i for i, tangent in enumerate(tangents) if tangent is not None and floating[i]]
        known = [tangents[i] for i in which]
        outputs, pushed = mx.jvp(of(which, arrays, spec), [arrays[i] for i in which], known)
        return tuple(pushed) if len(outputs) > 1 else pushed[0]

    def vmap_rule(arrays: Any, mapped: Any, size: int, spec: Any) -> Any:
        axes = tuple(0 if m else None for m in mapped)
        return mx.vmap(lambda *front: decomposition(*front, spec), in_axes=axes)(*arrays)

    return differentiable(name, run, vjp=vjp or vjp_rule, jvp=jvp_rule, vmap=vmap or vmap_rule)


def one_batch(array: mx.array, mapped: bool, size: int) -> mx.array:
    """Images with the mapped axis of length ``size`` first, or not mapped, as one long batch."""
    if not mapped:
        array = mx.broadcast_to(array, (size, *array.shape))
    return array.reshape(size * array.shape[1], *array.shape[2:])


def over_batches(function: Callable[[], Rule]) -> Rule:
    """The vmap rule of an operation whose arrays are all batches, for which mapping is one longer batch.

    Args:
        function: Returns the operation, a function of ``(*arrays, spec)``, once there is one.
    """

    def rule(arrays: Any, mapped: Any, size: int, spec: Any) -> Any:
        out = function()(*[one_batch(a, m, size) for a, m in zip(arrays, mapped, strict=True)], spec)
        apart = [a.reshape(size, a.shape[0] // size, *a.shape[1:]) for a in (out if isinstance(out, tuple) else (out,))]
        return tuple(apart) if isinstance(out, tuple) else apart[0]

    return rule


def _gradient(name: str, primal: mx.array, gradient: mx.array | None) -> mx.array:
    if gradient is None:
        return mx.zeros_like(primal)
    if gradient.shape != primal.shape or not mx.issubdtype(gradient.dtype, mx.floating):
        raise AssertionError(f"{name}: vjp returned {gradient.dtype}{gradient.shape} for {primal.dtype}{primal.shape}")
    return gradient.astype(primal.dtype)
