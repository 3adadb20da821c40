"""`checkpoint`, which computes a function again for its derivatives, with the random numbers that it drew before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import mlx.core as mx

from mpsfunc.core import recomputing
from mpsfunc.core.printing import a_kind

P = ParamSpec("P")
R = TypeVar("R")


def checkpoint(function: Callable[P, R]) -> Callable[P, R]:
    """`mx.checkpoint` for functions that draw random numbers, such as `dropout` without a key.

    Intermediate results of the function are not stored for its derivatives, but computed again. MLX calls the Python
    function a second time for that, and under ``mx.checkpoint`` that call draws other random numbers, so the gradient
    belongs to another mask than the result. Here the second call starts from the random state of the first, and later
    random numbers are not affected: results, gradients and the random state are those without ``checkpoint``.

    Arrays in lists, tuples, NamedTuples (such as states) and dicts, as arguments and results, take part in ``mx.grad``,
    ``mx.vjp``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile``, which needs ``inputs=mx.random.state,
    outputs=mx.random.state`` where random numbers are drawn. Keys of ``mx.random`` may be among them. The function gets
    copies of lists and dicts, so changes to them are lost. Arguments without arrays are passed on unchanged, and so are
    functions and other callables, in which arrays are constants. As in MLX, ``mx.vmap`` may be inside ``mx.grad`` but
    not around it, and arrays that are not arguments are constants for derivatives: for a module of ``mlx.nn`` use
    `mpsfunc.nn.checkpoint`. If the function changes anything else, the second call changes it again.

    Args:
        function: Of arrays and anything else, with positional and named arguments.

    Returns:
        A function of the same arguments.

    Raises:
        TypeError: function is not callable, or is a module; when called, an argument or the result holds an array in
            anything but the above, such as a deque, a set or a dataclass, a list, tuple or dict of a class of its own,
            or an iterator.
        ValueError: When called, an argument or the result is nested deeper than 100 levels, or contains itself.

    Example:
        >>> import mlx.core as mx
        >>> import mpsfunc as mf
        >>> drop = checkpoint(lambda x: mf.dropout(x, keep_probability=0.5))
        >>> (y,), (dx,) = mx.vjp(drop, [mx.ones(64)], [mx.ones(64)])
        >>> mx.array_equal(y, dx).item()
        True
    """
    op = "checkpoint"
    recomputing.callable_or_refused(op, "function", function)
    if hasattr(getattr(function, "__self__", function), "trainable_parameters"):
        raise TypeError(
            f"{op}: a module's parameters would get no gradients; got {a_kind(function)}, expected a "
            "function of arrays, or mpsfunc.nn.checkpoint(module)"
        )

    @functools.wraps(function)
    def checkpointed(*args: P.args, **kwargs: P.kwargs) -> R:
        def call(_: Sequence[mx.array], /, *args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **kwargs)

        return recomputing.run(op, call, call, (), *args, **kwargs)

    return checkpointed
