"""Runs a function under ``mx.checkpoint`` so that its second run is what the first was.

MLX calls the Python function once for its results and once more for each derivative. Nothing tells these calls apart
but their order: the first comes as the checkpointed function is called. It draws from MLX's random state and may change
what it likes; later ones draw from the state that the first began with, and leave it where they found it.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import mlx.core as mx

from mpsfunc.core import thread_ends
from mpsfunc.core.arguments import is_a
from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import a_kind, describe

P = ParamSpec("P")
R = TypeVar("R")

_DEEPEST = 100  # lists in lists, which also ends those that hold themselves
_HELD = (type(None), bool, int, float, complex, str, bytes, Enum, mx.Dtype, mx.Device, mx.Stream)
_RUNNING = (type, ModuleType, CodeType, FrameType, TracebackType)


class Leaves:
    """Trees of lists, tuples and dicts, whose arrays are taken out; everything else stays, if it holds no arrays.

    An array that is there twice is taken once, since ``mx.vjp`` knows one cotangent for the results that are the same.

    Args:
        by_place: To take an array as often as it is there, and those of dicts in the order of their sorted keys, so
            that trees with the same keys give their arrays in the same order.
    """

    def __init__(self, *, by_place: bool = False) -> None:
        self.arrays: list[mx.array] = []
        self.names: list[str] = []  # where each was first: keys, fields and positions behind the name of its tree
        self._at: dict[int, int] = {}
        self._by_place = by_place

    def take(self, op: str, name: str, tree: Any, depth: int = 0, place: str = "") -> Any:
        """The tree with places in the order of `arrays` where arrays were."""
        kind, place = type(tree), place or name
        if is_a(tree, mx.array):
            if id(tree) not in self._at or self._by_place:
                self._at[id(tree)] = len(self.arrays)
                self.arrays.append(tree)
                self.names.append(place)
            return _Place(self._at[id(tree)])
        named = is_a(tree, tuple) and hasattr(tree, "_fields")
        if kind is list or kind is tuple or kind is dict or named:
            if depth >= _DEEPEST:
                raise ValueError(
                    f"{op}: {name} is nested too deep; got {describe(tree)}, expected at most {_DEEPEST} levels"
                )
            if kind is dict:
                keys = sorted(tree, key=lambda key: (str(key), a_kind(key))) if self._by_place else tree
                made = {k: self.take(op, name, tree[k], depth + 1, f"{place}.{k}") for k in keys}
                return {k: made[k] for k in tree}
            entries = tuple.__iter__(tree) if named else tree  # whatever a class that derives from a NamedTuple says
            steps = tree._fields if named else range(len(tree))
            taken = [
                self.take(op, name, t, depth + 1, f"{place}.{step}") for step, t in zip(steps, entries, strict=True)
            ]
            return _Named(kind, taken) if named else kind(taken)
        if self._by_place and hasattr(kind, "__dlpack__"):
            raise TypeError(f"{op}: {name} has an array of another library; got {a_kind(tree)}, expected mx.array")
        if is_a(tree, (list, tuple, dict, Iterator)) or _holds_arrays(tree):
            raise TypeError(
                f"{op}: {name} holds a collection or object whose arrays cannot be followed; got {a_kind(tree)}, "
                "expected arrays in lists, tuples, NamedTuples and dicts"
            )
        return tree


def _holds_arrays(value: Any) -> bool:
    """Whether Python finds an array in an object, without calling anything of it; a function's are not looked for."""
    seen, left = {id(value): value}, [value]
    while left:
        each = left.pop()
        if is_a(each, mx.array):
            return True
        if is_a(each, (*_HELD, *_RUNNING, np.generic)) or (callable(each) and not is_a(each, dict)):
            continue
        if is_a(each, np.ndarray):  # of which the collector knows nothing
            objects = np.ndarray.dtype.__get__(each).hasobject
            found = np.ndarray.flatten(each).tolist() if objects else []
        else:
            found = gc.get_referents(each)
        left += [held for held in found if id(held) not in seen]
        seen.update((id(held), held) for held in found)
    return False


class _Place:
    """Where an array was."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Named:
    """A NamedTuple taken apart."""

    def __init__(self, kind: Any, fields: list[Any]) -> None:
        self.kind, self.fields = kind, fields


def filled(tree: Any, arrays: Sequence[mx.array]) -> Any:
    """What `Leaves.take` took apart, with these arrays."""
    if is_a(tree, _Place):
        return arrays[tree.index]
    if is_a(tree, _Named):
        return tree.kind(*[filled(t, arrays) for t in tree.fields])
    kind = type(tree)
    if kind is list or kind is tuple:
        return kind(filled(t, arrays) for t in tree)
    if kind is dict:
        return {k: filled(t, arrays) for k, t in tree.items()}
    return tree


def run(
    op: str,
    first: Callable[Concatenate[Sequence[mx.array], P], R],
    again: Callable[Concatenate[Sequence[mx.array], P], R],
    arrays: Sequence[mx.array],
    /,  # what follows may have any name
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """``first(arrays, *args, **kwargs)``, whose derivatives are those of ``again`` of the same arguments.

    Derivatives are by the arrays and by those among the arguments.
    """
    leaves = Leaves()
    tree = leaves.take(op, "an argument", (args, kwargs), -2)
    key, own = random_state(), len(arrays)
    returned: list[Any] = []

    def call(*given: mx.array) -> list[mx.array]:
        # MLX differentiates by every array; some operations, such as random bits, have no derivative by integers.
        known = [a if mx.issubdtype(a.dtype, mx.inexact) else mx.stop_gradient(a) for a in given]
        positional, named = filled(tree, known[own:])
        if not returned:
            made = Leaves()
            returned.append(made.take(op, "the result", first(known[:own], *positional, **named)))
            return _apart(made.arrays)
        with drawing_from(key):
            made = Leaves()
            made.take(op, "the result", again(known[:own], *positional, **named))
            return _apart(made.arrays)

    made = mx.checkpoint(call)(*arrays, *leaves.arrays)
    result: R = filled(returned[0], made)
    return result


def _apart(results: Sequence[mx.array]) -> list[mx.array]:
    """The results, behind views of them, or one of no meaning where there is none, without which MLX crashes.

    ``mx.vjp`` gives a result that comes straight from ``mx.stop_gradient`` no cotangent, and its own to the next one.
    """
    return [mx.squeeze(mx.expand_dims(a, 0), 0) for a in results] or [mx.array(0.0)]


def random_state() -> mx.array:
    """MLX's random state of this thread, which later draws do not change."""
    state = thread_ends.random_state()
    return copy.copy(state[0])  # type: ignore[no-any-return]


@contextlib.contextmanager
def drawing_from(key: mx.array) -> Iterator[None]:
    """Draws from another random state inside, and from that of before behind it."""
    before = random_state()
    draw_from(key)
    try:
        yield
    finally:
        draw_from(before)


def draw_from(key: mx.array) -> None:
    """There is no setter. The seed puts an array there that nobody else holds, and this is written into."""
    state: Any = mx.random.state
    mx.random.seed(0)
    state[0][:] = key


def callable_or_refused(op: str, name: str, value: Any) -> None:
    """What can be called."""
    if not callable(value):
        raise TypeError(f"{op}: {name} is not a function; got {name}={describe(value)}, expected a function of arrays")
