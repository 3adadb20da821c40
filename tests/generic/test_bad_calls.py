"""Each argument of each public function with values that fit hardly any: a result, or an error in our words."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from support import exact
from support.hostile import (
    FUNCTIONS,
    HOSTILE,
    HUGE,
    RaisingFloat,
    RaisingInt,
    RaisingList,
    RaisingNumPyFloat,
    RaisingNumPyInt,
    RaisingText,
    RaisingTuple,
    X,
    fault,
    good,
    parameters,
)

import mpsfunc as mf
from mpsfunc import graph, nn

pytestmark = pytest.mark.usefixtures("on_cpu")
PACKAGE = Path(__file__).parents[2] / "mpsfunc"
each = pytest.mark.parametrize("name", FUNCTIONS)


def call(name: str, arguments: dict[str, Any]) -> Callable[[], Any]:
    return lambda: FUNCTIONS[name](**arguments)


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


# What is no function -----------------------------------------------------------------------------------

with mx.stream(mx.cpu):
    STATES = {
        type(value): value for name in FUNCTIONS for value in good(name).values() if hasattr(value, "with_arrays")
    }


@pytest.mark.parametrize("kind", STATES, ids=lambda kind: kind.__name__)
def test_arrays_of_a_state(kind: type[Any]) -> None:
    given = {"two": [X, X], "seven": [X] * 7, "none": (), **{each: make() for each, make in HOSTILE.items()}}
    faults = {
        each: fault(kind.__name__, lambda value=value: STATES[kind].with_arrays(value)) for each, value in given.items()
    }
    assert not {case: text for case, text in faults.items() if text}


@pytest.mark.parametrize("way", ["forward", "reverse"])
def test_lengths_of_a_policy(way: str) -> None:
    faults = {}
    for argument in ("length", "kernel_size", "stride", "dilation", "axis"):
        for hostile, make in HOSTILE.items():
            arguments = {"length": 5, "kernel_size": 3, argument: make()}
            faults[argument, hostile] = fault(
                "PaddingPolicy", lambda arguments=arguments: getattr(mf.PaddingPolicy(), way)(**arguments)
            )
    assert not {case: text for case, text in faults.items() if text}


_WINDOW = {"kernel_size": 3}
_POOL = {"kernel_size": 2}
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "L2Pool2d": ("l2_pool", _POOL),
    "AdaptiveAvgPool2d": ("avg_pool", {"out_size": 2}),
    "AdaptiveMaxPool2d": ("max_pool", {"out_size": 2}),
    "CrossChannelNorm": ("cross_channel_norm", {}),
    "LocalContrastNorm": ("local_contrast_norm", _WINDOW),
    "SpatialNorm": ("spatial_norm", _WINDOW),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_arguments_of_a_layer(layer: str) -> None:
    (op, right), make_layer = LAYERS[layer], getattr(nn, layer)
    faults = {}
    for argument in inspect.signature(make_layer).parameters:
        for hostile, make in HOSTILE.items():
            if hostile == "raising class":
                continue  # MLX's modules ask for the class of what they are given
            arguments = right | {argument: make()}
            faults[argument, hostile] = fault(op, lambda arguments=arguments: make_layer(**arguments)(X))
    assert not {case: text for case, text in faults.items() if text}


@pytest.mark.parametrize("op", ["convert", "revert", "from_torch"])
def test_arguments_of_a_conversion(op: str) -> None:
    function, faults = getattr(nn, op), {}
    more = {"state_dict": {}} if op == "from_torch" else {}
    for argument in inspect.signature(function).parameters:
        for hostile, make in HOSTILE.items():
            arguments = {"model": stock.Sequential(stock.ReLU()), **more, argument: make()}
            faults[argument, hostile] = fault(op, lambda arguments=arguments: function(**arguments))
    assert not {case: text for case, text in faults.items() if text}


FILTERS: dict[str, dict[str, Any]] = {
    **{name: _POOL for name in ("avg_pool", "max_pool", "l2_pool", "depthwise_conv")},
    **{name: _WINDOW for name in ("spatial_norm", "local_contrast_norm")},
    **{name: {"out_channels": 3, "kernel_size": 2} for name in ("conv", "conv_transpose")},
    **{f"resize_{how}": {"out_size": 3} for how in ("bilinear", "nearest")},
    **{f"upsample_{how}": {"scale": 2} for how in ("bilinear", "nearest")},
    "fully_connected": {"out_channels": 3},
    "group_norm": {"groups": 2},
    "slice_channels": {"start": 0, "stop": 2},
    "reshape": {"shape": (6, 5, 4)},
    "pad": {"before": 1, "after": 1},
    "depth_to_space": {"block_size": 2},
    "space_to_depth": {"block_size": 1},
    "loss": {"type": "hinge", "reduction": "sum"},
    "forward_loss": {"type": "hinge", "reduction": "sum"},
    "yolo_loss": {"anchors": [(1.0, 2.0)]},
    **dict.fromkeys(("resize_bicubic", "resize_area"), {"out_size": 3}),
    "crop": {"out_size": 2},
    "crop_and_resize": {"regions": [(0, 0, 1, 1)], "crop_size": 2},
    **dict.fromkeys(("slice_rows", "slice_columns"), {"start": 0, "stop": 2}),
    **{f"reduce_{how}": {"over": "rows"} for how in ("sum", "mean", "weighted_sum", "max", "min", "argmax", "argmin")},
}


def _filters() -> dict[str, Any]:
    return {name: value for name, value in vars(graph).items() if hasattr(value, "__signature__")}


@pytest.mark.parametrize("name", _filters())
def test_arguments_of_a_filter(name: str) -> None:
    make_filter, x = _filters()[name], graph.ImageNode("x")
    own = make_filter.__signature__.parameters
    images: dict[str, Any] = {source: x for source in ("x", "y", "target") if source in own}
    images |= {"images": [x, x], "grid": graph.slice_channels(x, 0, 2)}
    if name == "yolo_loss":  # of three classes
        images |= dict.fromkeys(("y", "target"), graph.concatenate([x, x]))
    images |= {"weights": x} if name == "reduce_weighted_sum" else {}
    right = {argument: value for argument, value in images.items() if argument in own}
    right |= FILTERS.get(name, {}) | {"name": name}

    def run(arguments: dict[str, Any]) -> None:
        network = graph.compile(make_filter(**arguments))
        params, states = network.init(mx.random.key(0), {"x": X.shape})
        network(params, {"x": X}, states)

    run(right)
    faults = {}
    for argument in own:
        for hostile, make in HOSTILE.items():
            arguments = right | {argument: make()}
            faults[argument, hostile] = fault(name, lambda arguments=arguments: run(arguments))
    assert not {case: text for case, text in faults.items() if text}


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
    if argument == "seed":  # which a key or a mask leaves nothing to say
        more = more | {other: None for other in ("key", "mask") if other in parameters(name)}
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


@pytest.mark.parametrize("span", [np.timedelta64(2, "s"), np.timedelta64("NaT", "s"), np.datetime64(2, "s")])
def test_spans_of_time_are_no_numbers(span: Any) -> None:
    for call, name in (
        (lambda: mf.avg_pool(X, span), "kernel_size is not an int"),
        (lambda: mf.avg_pool(X, (2, span)), "kernel_size is not an int"),
        (lambda: mf.add(X, span), "y is not an array"),
        (lambda: mf.elu(X, span), "a is not a number"),
    ):
        with pytest.raises(TypeError, match=name):
            call()


# Classes that derive from Python's and NumPy's ----------------------------------------------------------

_PYTHON: dict[type, Any] = {
    **{int: RaisingInt, float: RaisingFloat, str: RaisingText},
    **{tuple: RaisingTuple, list: RaisingList},
}
_NUMPY = _PYTHON | {int: RaisingNumPyInt, float: RaisingNumPyFloat}
_SAID: dict[str, Any] = {
    **{"kernel_size": 2, "stride": (2, 2), "neuron": "sigmoid", "source_window": ([0, 0], [2, 2]), "seed": 3},
    **{"eps": 1.0, "minimum": 0.0, "maximum": 2.0, "momentum": 0.5},
}
_OTHERWISE: dict[str, list[Any]] = {
    "kernel_size": ["global"],
    "padding": ["same", "full", [1, 1], ([1, 0], [0, 1])],
    "edge_mode": ["clamp"],
}


def _derived(value: Any, kinds: dict[type, Any]) -> Any:
    if type(value) in (tuple, list):
        value = type(value)(_derived(entry, kinds) for entry in value)
    return kinds.get(type(value), lambda same: same)(value)


def _said(name: str) -> dict[str, list[Any]]:
    """Values for each argument that may be a number, a name or a sequence."""
    signature, found = inspect.signature(FUNCTIONS[name]).parameters, {}
    for argument in parameters(name):
        default = signature[argument].default if argument in signature else None
        value = good(name).get(argument, default)
        value = _SAID.get(argument) if value is None else value
        found[argument] = [value, *_OTHERWISE.get(argument, [])]
    return found


@each
def test_derived_classes_are_as_their_bases(name: str) -> None:
    faults = {}
    for argument, values in _said(name).items():
        for value, kinds in itertools.product(values, (_PYTHON, _NUMPY)):
            derived = _derived(value, kinds)
            if type(derived) is type(value):
                continue
            try:
                expected = FUNCTIONS[name](**good(name) | {argument: value})
            except (TypeError, ValueError):
                faults[argument, str(value)] = fault(name, call(name, good(name) | {argument: derived}))
                continue
            made = FUNCTIONS[name](**good(name) | {argument: derived})
            if "key" in parameters(name) and argument != "seed":
                continue  # drawn at random
            for a, b in zip(_arrays(made), _arrays(expected), strict=True):
                np.testing.assert_array_equal(exact(a), exact(b))
    assert not {case: text for case, text in faults.items() if text}
