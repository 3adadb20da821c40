"""States with one to three fields forged, through every function that takes them, `repr`, `save` and `load`.

A call gives a result like its images or like the shape in the state, or a TypeError or ValueError in the one form.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from support.hostile import HOSTILE, fault
from support.matrix import stateful
from support.trees import same_tree

import mpsfunc as mf

NAME = "forged states"
_CALLS = 20  # of a round
_SMALL = 2**20  # elements of a result that is evaluated
_INTS = (-(2**31), -1, 0, 1, 2, 3, 4, 5, 7, 2**16, 2**30, 2**31, 2**32, 2**62, 2**63 - 1)
_SIZES = (0, 1, 2, 3, 4, 5)
_DTYPES = (mx.float32, mx.float16, mx.bfloat16, mx.float64, mx.uint8, mx.int32, mx.uint32, mx.int64, mx.bool_)
_WORDS = ("", "conv", "max_pool", "relu", "prelu", "tanh", "none", "clamp", "mirror", "huber", "sum")
with mx.stream(mx.cpu):  # a GPU has no float64
    STATEFUL = {name: row for name, row in stateful().items() if row.given(0)[0]}
_TAKING = list(STATEFUL)
# Which of the arrays of a row the first result of a function is like.
_LIKE = {name: 0 for name in ("bn_normalize", "dropout_grad")}
_LIKE |= {
    f"{name}_grad": 1
    for name in (
        *("l2_pool", "conv", "conv_transpose", "fully_connected", "bn"),
        *(f"{norm}_norm" for norm in ("instance", "group", "cross_channel", "spatial", "local_contrast")),
    )
}
assert set(_LIKE) <= {name.split()[0] for name in _TAKING}


def rounds(seed: int) -> Iterator[Counter[str]]:
    """For ever; each round counts what its calls ended in."""
    for at in range(2**63):
        yield _round(random.Random(f"{seed}, {at}"), f"seed {seed}, round {at}")


def _round(chance: random.Random, where: str) -> Counter[str]:
    done: Counter[str] = Counter()
    for _ in range(_CALLS):
        name = chance.choice(_TAKING)
        drawn = chance.randrange(1000)
        states, arrays = STATEFUL[name].given(drawn)
        at = chance.randrange(len(states))
        state = states[at]
        wrong = {
            field: _value(chance, state, field) for field in chance.sample(state._fields, chance.choice((1, 2, 3)))
        }
        forged = state._replace(**{field: value for field, (_, value) in wrong.items()})
        what = f"{where}: {name} of seed {drawn} with { {field: told for field, (told, _) in wrong.items()} }"
        text, ended = _try(name, states, at, forged, arrays)
        text = text or _kept(forged, state)
        assert not text, f"{what}: {text}"
        done[f"{name.split()[0]}: {ended}"] += 1
    return done


def _value(chance: random.Random, state: Any, field: str) -> tuple[str, Any]:
    """A random value for a field, and how it is told."""
    old = getattr(state, field)
    kind = chance.choice(("near", "near", "near", "int", "array", "word", "hostile", "field"))
    if kind == "near" and isinstance(old, tuple) and old:
        at = chance.randrange(len(old))
        parts = list(old)
        parts[at] = chance.choice(_INTS)
        return f"{parts}", type(old)(*parts) if hasattr(old, "_fields") else tuple(parts)
    if kind == "near" and isinstance(old, mx.array) or kind == "array":
        shape = tuple(chance.choice(_SIZES) for _ in range(chance.randrange(5)))
        shape = old.shape if isinstance(old, mx.array) and chance.random() < 0.3 else shape
        dtype, value = chance.choice(_DTYPES), chance.choice((0, 1, 255, float("nan"), float("inf")))
        value = value if value == value and abs(value) < 256 or mx.issubdtype(dtype, mx.floating) else 2
        return f"mx.full({shape}, {value}, {dtype})", mx.full(shape, value, dtype)
    if kind in ("near", "int"):
        value = chance.choice((*_INTS, 0.5, -1.0, float("nan"), True, 1e308))
        return repr(value), value
    if kind == "word":
        word = chance.choice(_WORDS)
        return repr(word), word
    if kind == "field":
        name, other = chance.choice(_TAKING), chance.choice(("first", "last", "random"))
        fields = STATEFUL[name].given(0)[0][0]
        at = {"first": 0, "last": len(fields) - 1, "random": chance.randrange(len(fields))}[other]
        return f"field {at} of the state of {name}", fields[at]
    key = chance.choice(list(HOSTILE))
    return key, HOSTILE[key]()


def _try(name: str, states: tuple[Any, ...], at: int, forged: Any, arrays: Any) -> tuple[str, str]:
    """What is wrong with how a call ends that has a forged state in place of one, and how it does."""
    ended, wrong, function = ["refused"], [""], name.split()[0]

    def call() -> None:
        made = STATEFUL[name].call((*states[:at], forged, *states[at + 1 :]), *arrays)
        ended[0] = "answered"
        wrong[0] = _unlike(function, made, forged, arrays)
        found = _arrays(made)
        if not wrong[0] and sum(a.size for a in found) < _SMALL:
            mx.eval(found)

    return fault(function, call) or wrong[0], ended[0]


def _unlike(name: str, made: Any, state: Any, arrays: Any) -> str:
    """What is wrong with the shape or the dtype of a result."""
    first = made[0] if isinstance(made, tuple) and not hasattr(made, "_fields") else made
    if name in _LIKE:
        like = arrays[_LIKE[name]]
        shape, dtype = like.shape, like.dtype
    elif name.endswith(("_grad", "_grad_input")) and hasattr(state, "x_shape"):
        shape, dtype = tuple(state.x_shape), arrays[0].dtype
    else:
        return "" if _arrays(made) else f"no arrays: {type(made).__name__}"
    right = isinstance(first, mx.array) and first.shape == shape and first.dtype == dtype
    return "" if right else f"a result {first!r:.200}, expected {dtype}{list(shape)}"


def _kept(forged: Any, state: Any) -> str:
    """What is wrong with how a state prints, takes arrays, and is saved."""
    made = forged.with_arrays(state.arrays)
    if type(made) is not type(state) or any(a is not b for a, b in zip(made.arrays, state.arrays, strict=True)):
        return "with_arrays gave others"
    if not repr(forged).startswith(f"{type(state).__name__}("):
        return "printed as another"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state")

        def keep() -> None:
            mf.save(path, forged)
            assert same_tree(mf.load(path), forged), "loaded as another"

        known: Callable[[], Any] = keep
        if text := fault("save", known):
            return f"save: {text}"
    return ""


def _arrays(made: Any) -> list[mx.array]:
    """Of a result; a state that was forged may hold a list that holds itself, so that only its own fields count."""
    if isinstance(made, mx.array):
        return [made]
    if hasattr(made, "_fields"):
        return [a for a in made if isinstance(a, mx.array)]
    return [a for each in made for a in _arrays(each)] if isinstance(made, (tuple, list)) else []
