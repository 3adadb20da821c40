"""`checkpoint` for modules: their second call starts from the state of the first and restores it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import mlx.core as mx
import mlx.nn as stock
from mlx.utils import tree_flatten, tree_unflatten

from mpsfunc.core import recomputing
from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import a_kind

P = ParamSpec("P")
R = TypeVar("R")
_Made = TypeVar("_Made", covariant=True)


class _Layer(Protocol[P, _Made]):
    """A module, by what a call of it takes and returns."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> _Made: ...

    def trainable_parameters(self) -> object: ...


@overload
def checkpoint(module: _Layer[P, R], fn: None = None) -> Callable[P, R]: ...


@overload
def checkpoint(module: stock.Module, fn: Callable[P, R]) -> Callable[P, R]: ...


def checkpoint(module: _Layer[P, R] | stock.Module, fn: Callable[P, R] | None = None) -> Callable[P, R]:
    """``mlx.nn.utils.checkpoint`` for modules that draw random numbers or change themselves.

    Intermediate results of the module are not stored for its gradients, but computed again: that saves memory at the
    cost of one more forward pass. MLX's function calls the module a second time in its current state, so a `Dropout`
    draws another mask, and a `BatchNorm` updates its running statistics twice. Here the second call starts from the
    random state and the module of the first, and restores them: results, gradients, random state and everything that
    the module holds, such as running statistics, are those without ``checkpoint``.

    There are gradients of the trainable parameters of the module and of the arrays among the arguments. Frozen
    parameters and the training mode are respected. It works with drop-ins, MLX's layers and your own, under
    ``mlx.nn.value_and_grad``, ``mx.grad`` and ``mx.compile`` with ``model.state`` and ``mx.random.state`` among its
    inputs and outputs. Arrays that a module keeps in other objects than modules, lists, tuples and dicts are not
    restored.

    Args:
        module: A module of ``mlx.nn``. It is not changed; the returned function changes it as calling it would.
        fn: A function to run instead of the module, whose parameters it uses. Default: the module.

    Returns:
        A function of the arguments of the module, or of ``fn``. It takes and returns arrays in lists, tuples,
        NamedTuples and dicts, and anything else that holds none; see `mpsfunc.checkpoint`.

    Raises:
        TypeError: module is not a module, or fn is not callable; when called, an argument or the result holds an array
            in anything else, or an iterator.
        ValueError: When called, an argument or the result is nested deeper than 100 levels, or contains itself.

    Example:
        >>> from mpsfunc import nn
        >>> block = stock.Sequential(nn.BatchNorm(4), nn.Dropout(0.5))
        >>> run = checkpoint(block)
        >>> x = mx.arange(32.0).reshape(8, 4)
        >>> y, dy = mx.vjp(run, [x], [mx.ones((8, 4))])
        >>> block.layers[0].running_mean  # a tenth of the mean of x, once
        array([1.4, 1.5, 1.6, 1.7], dtype=float32)
    """
    op = "checkpoint"
    if not is_a(module, stock.Module):
        raise TypeError(f"{op}: module is not a module; got {a_kind(module)}, expected an mlx.nn.Module")
    if fn is not None:
        recomputing.callable_or_refused(op, "fn", fn)
    run: Callable[P, R] = module if fn is None else fn

    def checkpointed(*args: P.args, **kwargs: P.kwargs) -> R:
        trainable: Any = tree_flatten(module.trainable_parameters())
        start = Kept(module, copied=True)

        def first(_: Sequence[mx.array], /, *args: P.args, **kwargs: P.kwargs) -> R:
            return run(*args, **kwargs)

        def again(parameters: Sequence[mx.array], /, *args: P.args, **kwargs: P.kwargs) -> R:
            now = Kept(module, copied=False)
            try:
                start.restore()
                paths = [path for path, _ in trainable]
                module.update(tree_unflatten(list(zip(paths, parameters, strict=True))))
                return run(*args, **kwargs)
            finally:
                now.restore()

        return recomputing.run(op, first, again, [a for _, a in trainable], *args, **kwargs)

    if fn is not None:
        functools.update_wrapper(checkpointed, fn)
    return checkpointed


class Kept:
    """What a module and everything in it consists of, to be put back."""

    def __init__(self, module: stock.Module, *, copied: bool) -> None:
        """With copies, arrays that are changed in place later are put back as they are here."""
        self.copied = copied
        self.containers: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
        self._look(module)
        if copied:
            self.containers = self._copies()

    def _look(self, value: Any) -> None:
        if not isinstance(value, (dict, list, tuple)) or id(value) in self.containers:
            return
        items = list(value.values()) if isinstance(value, dict) else list(value)
        own = dict(vars(value)) if isinstance(value, stock.Module) else {}
        if not isinstance(value, tuple):
            self.containers[id(value)] = value, dict(value) if isinstance(value, dict) else items, own
        for item in (*items, *own.values()):
            self._look(item)

    def _copies(self) -> dict[int, tuple[Any, Any, dict[str, Any]]]:
        """With arrays of their own that share memory, one for each however often it is there."""
        copies: dict[int, mx.array] = {}

        def copied(value: Any) -> Any:
            if isinstance(value, mx.array):
                return copies.setdefault(id(value), copy.copy(value))
            if isinstance(value, tuple):
                made = [copied(v) for v in value]
                return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
            return value

        def each(values: Any) -> Any:
            return {k: copied(v) for k, v in values.items()} if isinstance(values, dict) else [*map(copied, values)]

        return {at: (c, each(items), each(own)) for at, (c, items, own) in self.containers.items()}

    def restore(self) -> None:
        """Puts everything back, any number of times."""
        for container, items, own in (self._copies() if self.copied else self.containers).values():
            if isinstance(container, dict):
                dict.clear(container)
                dict.update(container, items)  # of a module, update is something else
            else:
                container[:] = items
            if isinstance(container, stock.Module):
                vars(container).clear()
                vars(container).update(own)
