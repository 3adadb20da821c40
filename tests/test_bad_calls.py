"""Each argument of each public function with values that fit hardly any: a result, or an error in our words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bad_calls
import mlx.core as mx
import numpy as np
import pytest
from bad_calls import FUNCTIONS, HOSTILE, HUGE, X, fault, good, parameters
from support import exact

import mpsfunc as mf

pytestmark = pytest.mark.usefixtures("on_cpu")
PACKAGE = Path(__file__).parents[1] / "mpsfunc"
each = pytest.mark.parametrize("name", FUNCTIONS)


def call(name: str, arguments: dict[str, Any]) -> Callable[[], Any]:
    return lambda: FUNCTIONS[name](**arguments)


def test_every_function_is_here() -> None:
    assert set(bad_calls.GOOD) | {name for name in FUNCTIONS if name.endswith("_fwd")} == set(FUNCTIONS)


@each
def test_right_arguments(name: str) -> None:
    assert FUNCTIONS[name](**good(name)) is not None or name == "set_num_threads"


@each
def test_one_argument_is_wrong(name: str) -> None:
    faults = {}
    for argument in parameters(name):
        for hostile, make in HOSTILE.items():
            faults[argument, hostile] = fault(name, call(name, good(name) | {argument: make()}))
    assert not {case: text for case, text in faults.items() if text}


TRACED: dict[str, Callable[[mx.array], Any]] = {
    "array": lambda k: k,
    "list": lambda k: [k, k],
    "pairs": lambda k: ((k, k), (k, k)),
    "shape": lambda k: (k, k, k, k),
    "policy": lambda k: mf.PaddingPolicy(k, k, k, k),  # type: ignore[arg-type]
    "neuron": lambda k: mf.Neuron("linear", k, k),  # type: ignore[arg-type]
    "neuron's type": lambda k: mf.Neuron(k),  # type: ignore[arg-type]
}
TRANSFORMATIONS: dict[str, Callable[[Any, mx.array], Any]] = {
    "compile": lambda f, k: mx.compile(f)(k),
    "vmap": lambda f, k: mx.vmap(f)(mx.stack([k, k])),
}


@each
@pytest.mark.parametrize("how", TRANSFORMATIONS)
def test_nothing_is_evaluated_where_an_array_stands_for_a_number(name: str, how: str) -> None:
    """While a function is traced, asking for an array's value is an error of MLX's."""
    faults = {}

    def function(k: mx.array) -> mx.array:
        for argument in parameters(name):
            for kind, make in TRACED.items():
                faults[argument, kind, k.shape] = fault(name, call(name, good(name) | {argument: make(k)}))
        return k

    for value in (mx.array(2), mx.array(1.0), mx.array([2, 2]), mx.ones(4), X):
        TRANSFORMATIONS[how](function, value)
    assert faults and not {case: text for case, text in faults.items() if text}


STATEFUL = [(name, key) for name in FUNCTIONS for key, value in good(name).items() if hasattr(value, "_fields")]


def _huge_axis(field: str) -> Callable[[], Any]:
    return lambda: mf.avg_pool_state((1, 4, 4, 1), 2).rows._replace(**{field: HUGE})


FORGED = HOSTILE | {f"a huge Axis.{field}": _huge_axis(field) for field in ("n_in", "n_out", "size", "pad", "edge")}


@pytest.mark.parametrize(("name", "argument"), STATEFUL)
def test_one_field_of_a_state_is_wrong(name: str, argument: str) -> None:
    faults = {}
    state = good(name)[argument]
    for field in state._fields:
        for hostile, make in FORGED.items():
            forged = state._replace(**{field: make()})
            faults[field, hostile] = fault(name, call(name, good(name) | {argument: forged}))
            text = repr(forged)
            assert len(text) < 3000 and "\n" not in text and "array(" not in text
            assert forged._repr_html_().startswith("<table>")
    assert not {case: text for case, text in faults.items() if text}


@pytest.mark.parametrize("value", [16**5000, -(16**5000)], ids=["above", "below"])
def test_a_constant_that_no_float_holds(value: int) -> None:
    with pytest.raises(
        ValueError, match=r"^pad: value is out of range; got value=an?( negative)? int of 20001 bits, exp"
    ):
        mf.pad(X, 1, 1, value=value)


# Numbers of NumPy ---------------------------------------------------------------------------------------

_INTS = (np.int8, np.uint8, np.int32, np.int64, np.uint64)
_FLOATS = (np.float16, np.float32, np.float64, np.longdouble)


def _numbers() -> list[tuple[str, str, Any]]:
    """Every argument that is a number, or a pair or a shape of them, with a right value."""
    found = []
    for name, function in FUNCTIONS.items():
        signature = inspect.signature(function).parameters
        for argument in parameters(name):
            default = signature[argument].default if argument in signature else None
            value = good(name).get(argument, default)
            known = {"a": 1.0, "minimum": 0.0, "maximum": 2.0, "seed": 3, "kernel_size": 2, "stride": 2, "eps": 1.0}
            value = known.get(argument, value) if value is None else value
            flat = value if isinstance(value, (tuple, list)) and value else [value]
            if all(type(entry) in (int, float) for entry in flat):
                found.append((name, argument, value))
    return found


def _as(kind: Any, value: Any) -> Any:
    return type(value)(map(kind, value)) if isinstance(value, (tuple, list)) else kind(value)


def _arrays(made: Any) -> list[mx.array]:
    if isinstance(made, mx.array):
        return [made]
    return sum(map(_arrays, made), []) if isinstance(made, (tuple, list)) else []


@pytest.mark.parametrize(("name", "argument", "value"), _numbers())
def test_numbers_of_numpy_are_numbers(name: str, argument: str, value: Any) -> None:
    more = {"neuron": {"type": "linear"}, "neuron_grad": {"type": "linear"}}.get(name, {})
    more = more | ({"state": None} if name == "bn_stats" else {})
    expected = FUNCTIONS[name](**good(name) | more | {argument: value})
    kinds = _INTS + (_FLOATS if isinstance(value, float) else ())
    for kind in kinds:
        if kind in (np.uint8, np.uint64) and np.min(value) < 0:
            continue
        converted = _as(kind, value)
        if np.any(np.asarray(converted, np.float64) != np.asarray(value, np.float64)):
            continue  # this kind has no such number
        made = FUNCTIONS[name](**good(name) | more | {argument: converted})
        if "key" in parameters(name) and argument != "seed":
            continue  # drawn at random
        for a, b in zip(_arrays(made), _arrays(expected), strict=True):
            np.testing.assert_array_equal(exact(a), exact(b))
