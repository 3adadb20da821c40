"""Hostile calls of the C++ entry points, which Python's checks never let through.

A call that the package itself makes is taken and spoiled: numbers become extreme, lists grow or shrink, arrays get
other shapes, dtypes, layouts and contents. The binding refuses it with a ValueError or a TypeError, or the result is
evaluated where it is small. Whatever ends the process or takes for ever is a fault, and under the address sanitizer
whatever reads or writes out of bounds.
"""

from __future__ import annotations

import faulthandler
import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from support.matrix import MATRIX

import mpsfunc as mf
from mpsfunc.channels import vector_rules
from mpsfunc.convolution import convolution, laid_out
from mpsfunc.core import launch

NAME = "entry points"
_CALLS = 25  # of a round
_SMALL = 2**20  # bytes of arrays that are made or evaluated
_SECONDS = 120  # for one call, also where a sanitizer slows it down

_EXTREME = (0, 1, -1, 2, 3, 7, 255, 256, 2**15, 2**16, 2**30 - 1, 2**30, 2**31 - 1, -(2**30), -(2**31), 1 - 2**31)
_BEYOND = (2**31, -(2**31) - 1, 2**63, 2**64, 2**200)  # no int of C++
_NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-300, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan, 2.0**31)
_DTYPES = (
    *(mx.float32, mx.float16, mx.bfloat16, mx.float64, mx.complex64, mx.bool_),
    *(mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint16, mx.uint32, mx.uint64),
)
_CONTENTS = ("as it was", "zeros", "ones", "largest", "random bits", "not a number")
_LAYOUTS = ("plain", "transposed", "every other", "broadcast", "off its beginning", "not evaluated")


class Given(NamedTuple):
    """An array of a call, told so that it can be made again."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    content: str
    layout: str
    seed: int
    values: mx.array  # as the package had them


class Entry(NamedTuple):
    """One call of an entry point."""

    op: str
    inputs: tuple[Given, ...]
    params: tuple[Any, ...]
    shapes: tuple[tuple[Any, ...], ...]
    dtypes: tuple[mx.Dtype, ...]

    def told(self) -> str:
        arrays = ", ".join(f"{a.dtype}{a.shape} {a.content}, {a.layout}, seed {a.seed}" for a in self.inputs)
        return f"{self.op}([{arrays}], {self.params}, {self.shapes}, {self.dtypes})"


def rounds(seed: int) -> Iterator[Counter[str]]:
    """For ever; each round counts what its calls ended in."""
    valid = templates()
    for at in range(2**63):
        # From the two numbers alone, so that a round can be had again without those before it.
        chance = random.Random(f"{seed} {at}")
        done: Counter[str] = Counter()
        for i in range(_CALLS):
            # Every operation in turn, however many valid calls there are of it.
            op = sorted(valid)[(at * _CALLS + i) % len(valid)]
            entry = spoiled(chance.choice(valid[op]), chance)
            done[tried(entry, f"seed {seed}, round {at}, call {i}")] += 1
        yield done


# Valid calls --------------------------------------------------------------------------------------------


def templates() -> dict[str, list[Entry]]:
    """Valid calls of every entry point: what the matrix of transformations makes of them, forward and backward."""
    recorder = _Recorder(launch._primitives)
    real = launch.module
    launch.module = lambda op: recorder
    try:
        with mx.stream(mx.cpu):
            _call_everything()
    finally:
        launch.module = real
    return {op: list(found.values()) for op, found in recorder.calls.items()}


def _call_everything() -> None:
    for entry in MATRIX.values():
        for dtype in (mx.float32, mx.bfloat16):
            arrays = entry.inputs(dtype)
            mx.eval(entry.call(*arrays), mx.vjp(entry.call, arrays, [mx.ones_like(y) for y in entry.call(*arrays)]))
    l2_pool = next(entry for name, entry in MATRIX.items() if name.startswith("l2_pool "))
    arrays = l2_pool.inputs(mx.float32)
    mx.eval(mx.jvp(l2_pool.call, arrays, arrays))
    x, y = mx.ones((2, 3, 4, 5)), mx.zeros((2, 3, 4, 5))
    rows = mx.ones((2, 6))
    mx.eval(vector_rules.group_moments(rows, rows, 2.0, mx.default_stream(mx.cpu)))  # groups among several processes
    w = mx.ones((32, 3, 3, 5))
    laid = laid_out.lay_out(lambda: w, 1)
    mx.eval(convolution.forward("conv", x, w, None, None, None, 1, keeping=False, laid=laid, stride=1, padding=1)[0])
    boxes, scores = mx.random.uniform(shape=(2, 20, 4)), mx.random.uniform(shape=(2, 20))
    mx.eval(mf.nms(boxes, scores, 0.3), mf.nms(boxes, scores, 0.3, classes=mx.zeros((2, 20), mx.int32)))
    mx.eval(mf.compare(x, y, "less"), mf.dropout_mask(x.shape, p=0.5, seed=1), mf.dropout(x, p=0.5, seed=1))


class _Recorder:
    """Stands for the C++ module and keeps one call of each kind."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.calls: dict[str, dict[str, Entry]] = {}

    def __getattr__(self, op: str) -> Callable[..., Any]:
        def call(
            arrays: list[mx.array],
            params: list[int],
            shapes: list[list[int]],
            dtypes: list[mx.Dtype],
            stream: mx.Stream,
        ) -> Any:
            made = getattr(self.module, op)(arrays, params, shapes, dtypes, stream)
            mx.eval(arrays)
            given = tuple(Given(tuple(a.shape), a.dtype, _CONTENTS[0], _LAYOUTS[0], 0, a) for a in arrays)
            entry = Entry(op, given, tuple(params), tuple(map(tuple, shapes)), tuple(dtypes))
            self.calls.setdefault(op, {}).setdefault(entry.told(), entry)
            return made

        return call


# Hostile ones -------------------------------------------------------------------------------------------


def spoiled(entry: Entry, chance: random.Random) -> Entry:
    """The call after one change or a few."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        entry = chance.choice(_CHANGES)(entry, chance)
    return entry


def _one(values: tuple[Any, ...], chance: random.Random, change: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not values:
        return values
    at = chance.randrange(len(values))
    return (*values[:at], change(values[at]), *values[at + 1 :])


def _length(values: tuple[Any, ...], chance: random.Random, other: Any) -> tuple[Any, ...]:
    """One more or fewer, or in another order."""
    at = chance.randrange(len(values) + 1)
    kind = chance.randrange(4)
    if kind == 0:
        return (*values[:at], other, *values[at:])
    if kind == 1:
        return values[:at]
    if kind == 2:
        return values[:at] + values[at + 1 :]
    return tuple(chance.sample(values, len(values)))


def _number(value: int, chance: random.Random) -> int:
    if chance.random() < 0.02:
        return chance.choice(_BEYOND)
    if chance.random() < 0.4:
        return value + chance.choice((-2, -1, 1, 2))
    return chance.choice(_EXTREME)


def _param(entry: Entry, chance: random.Random) -> Entry:
    return entry._replace(params=_one(entry.params, chance, lambda value: _number(value, chance)))


def _double(entry: Entry, chance: random.Random) -> Entry:
    """Two params that hold a double."""
    if len(entry.params) < 2:
        return entry
    at, words = chance.randrange(len(entry.params) - 1), struct.unpack("2i", struct.pack("d", chance.choice(_NUMBERS)))
    return entry._replace(params=(*entry.params[:at], *words, *entry.params[at + 2 :]))


def _params(entry: Entry, chance: random.Random) -> Entry:
    return entry._replace(params=_length(entry.params, chance, chance.choice(_EXTREME)))


def _output(entry: Entry, chance: random.Random) -> Entry:
    return entry._replace(shapes=_one(entry.shapes, chance, lambda shape: _shape(shape, chance)))


def _outputs(entry: Entry, chance: random.Random) -> Entry:
    shapes, dtypes = entry.shapes, entry.dtypes
    if chance.random() < 0.5:
        shapes = _length(shapes, chance, (1,))
    if chance.random() < 0.5:
        dtypes = _length(dtypes, chance, mx.float32)
    return entry._replace(shapes=shapes, dtypes=dtypes)


def _output_dtype(entry: Entry, chance: random.Random) -> Entry:
    return entry._replace(dtypes=_one(entry.dtypes, chance, lambda _: chance.choice(_DTYPES)))


def _shape(shape: tuple[Any, ...], chance: random.Random) -> tuple[Any, ...]:
    if chance.random() < 0.3:
        return _length(shape, chance, chance.choice((0, 1, 2, 5)))
    return _one(shape, chance, lambda value: _number(value, chance))


def _input(entry: Entry, chance: random.Random) -> Entry:
    def change(a: Given) -> Given:
        shape = _shape(a.shape, chance)
        possible = all(0 <= length < 2**31 for length in shape) and math.prod(shape) * a.dtype.size <= _SMALL
        return a._replace(shape=shape) if possible else a

    return entry._replace(inputs=_one(entry.inputs, chance, change))


def _inputs(entry: Entry, chance: random.Random) -> Entry:
    other = chance.choice(entry.inputs) if entry.inputs else None
    return entry if other is None else entry._replace(inputs=_length(entry.inputs, chance, other))


def _input_dtype(entry: Entry, chance: random.Random) -> Entry:
    return entry._replace(inputs=_one(entry.inputs, chance, lambda a: a._replace(dtype=chance.choice(_DTYPES))))


def _every_dtype(entry: Entry, chance: random.Random) -> Entry:
    """Another dtype wherever the image's stands, which may be right."""
    if not entry.inputs:
        return entry
    old, new = entry.inputs[0].dtype, chance.choice(_DTYPES)
    inputs = tuple(a._replace(dtype=new) if a.dtype == old else a for a in entry.inputs)
    return entry._replace(inputs=inputs, dtypes=tuple(new if dtype == old else dtype for dtype in entry.dtypes))


def _everywhere(entry: Entry, chance: random.Random) -> Entry:
    """Another number wherever one stands, in shapes and params, so that much still fits together."""
    known = sorted({length for shape in (*entry.shapes, *[a.shape for a in entry.inputs]) for length in shape})
    if not known:
        return entry
    old = chance.choice(known)
    new = chance.choice((0, 1, 2, 3, 5, 8, 17, 33, 64, 257, old + 1, 2 * old))

    def replaced(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(new if value == old else value for value in values)

    inputs = tuple(a._replace(shape=replaced(a.shape)) for a in entry.inputs)
    if any(math.prod(a.shape) * a.dtype.size > _SMALL or min(a.shape, default=0) < 0 for a in inputs):
        return entry
    return entry._replace(inputs=inputs, shapes=tuple(map(replaced, entry.shapes)), params=replaced(entry.params))


def _contents(entry: Entry, chance: random.Random) -> Entry:
    def change(a: Given) -> Given:
        return a._replace(content=chance.choice(_CONTENTS[1:]), seed=chance.randrange(2**31))

    return entry._replace(inputs=_one(entry.inputs, chance, change))


def _layout(entry: Entry, chance: random.Random) -> Entry:
    return entry._replace(inputs=_one(entry.inputs, chance, lambda a: a._replace(layout=chance.choice(_LAYOUTS))))


_CHANGES = (
    *(_param, _param, _param, _double, _params, _output, _outputs, _output_dtype),
    *(_input, _inputs, _input_dtype, _every_dtype, _everywhere, _everywhere, _contents, _contents, _layout),
)


# What comes of them -------------------------------------------------------------------------------------


def array(given: Given) -> mx.array:
    """The array that was told."""
    count = math.prod(given.shape)
    exact = given.dtype == given.values.dtype == mx.uint32  # float32 has not all of them
    if given.content == "as it was" and exact and given.values.size:
        a = mx.array(np.resize(np.array(given.values).ravel(), count))
    elif given.content == "as it was":
        values = np.array(given.values.astype(mx.float64)).ravel() if given.values.size else np.zeros(1)
        a = mx.array(np.resize(values, count)).astype(given.dtype)
    elif given.content == "random bits":
        words = np.random.default_rng(given.seed).integers(0, 256, count * given.dtype.size, np.uint8)
        if given.dtype == mx.bool_:
            words %= 2
        a = mx.array(words).view(given.dtype)
    elif mx.issubdtype(given.dtype, mx.inexact):
        whole = {"largest": math.inf, "not a number": math.nan, "ones": 1.0}.get(given.content, 0.0)
        a = mx.full((count,), whole, given.dtype)
    else:
        a = mx.array(np.full(count, _whole(given), str(given.dtype).rpartition(".")[2].rstrip("_")))
    a = _laid(a.reshape(given.shape), given.layout)
    if given.layout != "not evaluated":
        mx.eval(a)
    return a


def _whole(given: Given) -> int:
    if given.content == "largest":
        return 1 if given.dtype == mx.bool_ else int(mx.iinfo(given.dtype).max)
    return 1 if given.content == "ones" else 0


def _laid(a: mx.array, layout: str) -> mx.array:
    if a.ndim == 0 or a.size == 0:
        return a
    if layout == "transposed":
        return mx.contiguous(a.T).T
    if layout == "every other":
        return mx.repeat(a, 2, axis=-1)[..., ::2]
    if layout == "broadcast":
        return mx.broadcast_to(a[:1], a.shape)
    if layout == "off its beginning":
        return mx.concatenate([a.reshape(-1)[:1], a.reshape(-1)])[1:].reshape(a.shape)
    return a


def tried(entry: Entry, where: str) -> str:
    """How the call ends: a word for the statistics.

    Raises:
        AssertionError: It ends in another way than a call may.
    """
    arrays = [array(a) for a in entry.inputs]
    point = getattr(launch._primitives, entry.op)
    given = (arrays, list(entry.params), list(map(list, entry.shapes)), list(entry.dtypes), mx.cpu)
    faulthandler.dump_traceback_later(_SECONDS, exit=True)
    try:
        with mx.stream(mx.cpu):
            try:
                made = point(*given)
            except (ValueError, TypeError):
                return "refused"
            assert [tuple(a.shape) for a in made] == list(entry.shapes), "other shapes than asked for"
            assert [a.dtype for a in made] == list(entry.dtypes), "other dtypes than asked for"
            if max((math.prod(a.shape) * a.dtype.size for a in made), default=0) > _SMALL:
                return "taken, too large to be evaluated"
            mx.eval(made)
            return "evaluated"
    except Exception as error:
        raise AssertionError(f"{where}: {entry.told()}: {error!r}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
