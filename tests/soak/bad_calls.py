"""Random calls of every public function, right in some arguments and hostile in others.

A call gives a result, which is evaluated where it is small, or a TypeError or ValueError in the one form that all
errors have, by the name of the function. Half of the calls are traced, where whoever evaluates an argument is caught.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from support.hostile import FUNCTIONS, HOSTILE, fault, good, parameters

NAME = "bad calls"
_CALLS = 50  # of a round
_SMALL = 2**20  # elements of a result that is evaluated

# Values that are right here and there, so that a call gets past the first check.
_SIZES = (1, 2, 3, 0.5, (1, 2), ((1, 0), (0, 1)), [2, 1], 2**16, 2**30)
_NAMES = "same full clamp exclude global adaptive relu power mean data mirror half_pixel less".split()
FITTING: dict[str, Callable[[], Any]] = {
    **{repr(value): lambda value=value: value for value in (*_SIZES, *_NAMES)},
    "np.int16(2)": lambda: np.int16(2),
    "np.float64(0.25)": lambda: np.float64(0.25),
    "half images": lambda: mx.ones((2, 6, 5, 4), mx.float16),
    "an empty batch": lambda: mx.zeros((0, 6, 5, 4)),
    "images of another order": lambda: mx.ones((2, 4, 6, 5)),
    "whole numbers": lambda: mx.ones((2, 6, 5, 4), mx.int32),
}
VALUES = HOSTILE | FITTING


def rounds(seed: int) -> Iterator[Counter[str]]:
    """For ever; each round counts what its calls ended in."""
    chance = random.Random(seed)
    for at in range(2**63):
        yield _round(chance, f"seed {seed}, round {at}")


def _round(chance: random.Random, where: str) -> Counter[str]:
    done: Counter[str] = Counter()
    for _ in range(_CALLS):
        name = chance.choice(list(FUNCTIONS))
        chosen = chance.sample(parameters(name), k=min(chance.choice((1, 1, 1, 2, 2, 4)), len(parameters(name))))
        wrong = {argument: chance.choice(list(chance.choice((FITTING, VALUES)))) for argument in chosen}
        state = next((key for key, value in good(name).items() if hasattr(value, "_fields")), None)
        field = chance.choice(good(name)[state]._fields) if state and chance.random() < 0.3 else None
        forged = chance.choice(list(VALUES)) if field else None
        traced = chance.random() < 0.5
        what = f"{where}: {name} with {wrong}, {state}.{field}={forged}, {'traced' if traced else 'eager'}"
        text, ended = _try(name, wrong, (state, field, forged), traced)
        assert not text, f"{what}: {text}"
        done[ended] += 1
    return done


def _try(name: str, wrong: dict[str, str], forged: tuple[Any, Any, Any], traced: bool) -> tuple[str, str]:
    """What is wrong with how a call ends, and how it does."""
    ended = ["refused"]
    state, field, value = forged

    def call(x: mx.array | None = None) -> None:
        arguments = good(name) | {argument: VALUES[hostile]() for argument, hostile in wrong.items()}
        if x is not None:
            arguments = {argument: _made_of(x, value) for argument, value in arguments.items()}
        if field and state not in wrong:
            arguments[state] = arguments[state]._replace(**{field: VALUES[value]()})
        made = FUNCTIONS[name](**arguments)
        ended[0] = "answered"
        if not traced:
            arrays = _arrays(made)
            if sum(a.size for a in arrays) < _SMALL:
                mx.eval(arrays)
                ended[0] = "answered and evaluated"

    if not traced:
        return fault(name, call), ended[0]
    texts: list[str] = []

    def function(x: mx.array) -> mx.array:
        texts.append(fault(name, lambda: call(x)))
        return x

    mx.compile(function)(mx.array(0))
    return texts[0], f"{ended[0]}, traced"


def _made_of(x: mx.array, value: Any, depth: int = 0) -> Any:
    """Arrays that are not known while x is not; what a value says of its class is not asked."""
    kind: Any = type(value)
    if kind is mx.array:
        return value + x.astype(value.dtype)
    if (kind is list or kind is tuple) and value and depth < 4:
        return kind(_made_of(x, each, depth + 1) for each in value[:8])
    return value


def _arrays(made: Any) -> list[mx.array]:
    if isinstance(made, mx.array):
        return [made]
    return [a for each in made for a in _arrays(each)] if isinstance(made, (tuple, list)) else []
