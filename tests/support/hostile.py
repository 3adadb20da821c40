"""Every public function with right arguments, and values that are right for hardly any argument.

generic/test_bad_calls.py puts each of them in the place of each argument.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np

import mpsfunc as mf
from support import numbers

X, W = numbers((2, 6, 5, 4)), numbers((6, 3, 3, 4))
ONES, SIX = mx.ones(4), mx.ones(6)
SHAPE, FLAT = X.shape, mx.ones((3, 6, 5, 4))
LOSS = {"y": X, "target": X, "type": "mean_squared_error"}
Q = mx.zeros((2, 1, 1, 3), mx.uint8)


def _grad(forward: Any, *arguments: Any, **more: Any) -> dict[str, Any]:
    """The gradient and the state that belong to a forward call."""
    y, state = forward(*arguments, **more)
    return {"dy": mx.ones(y.shape), "state": state}


_STATS = mf.bn_stats(X)
_BN = {"dy": X, "x": X, "state": mf.bn_stats_grad(X, X, _STATS)}
_CONV = _grad(mf.conv_fwd, X, W, neuron="sigmoid")
_BACK = _grad(mf.conv_transpose_fwd, X, W)
_MAX = _grad(mf.max_pool_fwd, X, 2)
_SPATIAL = {"x": X, **_grad(mf.spatial_norm_fwd, X, 3)}
_OPERANDS = {"x": X, "y": X}

# What has no default; a function that makes a state besides takes the arguments of the one that makes none.
GOOD: dict[str, dict[str, Any]] = {
    "bn_frozen": {"mean": ONES, "var": ONES},
    "bn_merge": {"a": _STATS, "b": _STATS},
    "bn_reset": {"state": _STATS},
    "bn_running": {"running": mf.bn_frozen(ONES, ONES), "state": _STATS},
    "bn_stats": {"x": X},
    "bn_normalize": {"x": X, "state": _STATS},
    "bn_stats_grad": {"dy": X, "x": X, "state": _STATS},
    "bn_grad": _BN,
    "batch_norm": {"x": X},
    "instance_norm": {"x": X},
    "instance_norm_grad": {"x": X, **_grad(mf.instance_norm_fwd, X)},
    "group_norm": {"x": X, "groups": 2},
    "group_norm_grad": {"x": X, **_grad(mf.group_norm_fwd, X, 2)},
    "cross_channel_norm": {"x": X},
    "cross_channel_norm_grad": {"x": X, **_grad(mf.cross_channel_norm_fwd, X)},
    "spatial_norm": {"x": X, "kernel_size": 3},
    "spatial_norm_grad": _SPATIAL,
    "local_contrast_norm": {"x": X, "kernel_size": 3},
    "local_contrast_norm_grad": {"x": X, **_grad(mf.local_contrast_norm_fwd, X, 3)},
    "checkpoint": {"function": mx.abs},
    "set_num_threads": {"count": mf.get_num_threads()},
    **{
        name: {"x": X}
        for name in (
            "absolute elu exponential gelu hard_sigmoid linear logarithm power relu relun sigmoid softplus softsign "
            "tanh softmax log_softmax spatial_mean dropout"
        ).split()
    },
    "softmax_grad": {"dy": X, "y": X},
    "log_softmax_grad": {"dy": X, "y": X},
    "neuron": {"x": X, "type": "relu"},
    "neuron_grad": {"dy": X, "x": X, "type": "relu"},
    "prelu": {"x": X, "slopes": ONES},
    "prelu_grad": {"dy": X, "x": X, "slopes": ONES},
    "arithmetic": {**_OPERANDS, "operation": "add"},
    "arithmetic_grad": {"dy": X, **_OPERANDS, "operation": "add"},
    **{name: _OPERANDS for name in ("add", "subtract", "multiply", "divide", "compare")},
    "conv": {"x": X, "w": W},
    "conv_grad": {"x": X, "w": W, **_CONV},
    "conv_grad_input": {"w": W, **_CONV},
    "conv_grad_weights": {"x": X, **_CONV},
    "conv_state": {"x_shape": SHAPE, "w_shape": W.shape},
    "conv_transpose": {"x": X, "w": W},
    "conv_transpose_grad": {"x": X, "w": W, **_BACK},
    "conv_transpose_grad_input": {"w": W, **_BACK},
    "conv_transpose_grad_weights": {"x": X, **_BACK},
    "fully_connected": {"x": X, "w": FLAT},
    "fully_connected_grad": {"x": X, "w": FLAT, **_grad(mf.fully_connected_fwd, X, FLAT)},
    "dropout_grad": _grad(mf.dropout_fwd, X),
    "dropout_mask": {"shape": SHAPE},
    "concatenate": {"images": [X, X]},
    "concatenate_grad": {"dy": X, "channels": [1, 3]},
    "slice_channels": {"x": X, "start": 1, "stop": 3},
    "slice_channels_grad": {"dy": X, "start": 1, "channels": 6},
    "spatial_mean_grad": {"dy": X[:, :1, :1], "shape": SHAPE},
    **{name: {"x": X, "kernel_size": 2} for name in ("avg_pool", "max_pool", "l2_pool")},
    "avg_pool_state": {"x_shape": SHAPE, "kernel_size": 2},
    "avg_pool_grad": _grad(mf.avg_pool_fwd, X, 2),
    "l2_pool_grad": {"x": X, **_grad(mf.l2_pool_fwd, X, 2)},
    "max_pool_grad": _MAX,
    "max_pool_grad_from_source": {"dy": _MAX["dy"], "x": X, "kernel_size": 2},
    "max_pool_indices": {"state": _MAX["state"]},
    "max_unpool": {"y": _MAX["dy"], "state": _MAX["state"]},
    **{f"loss{kind}": {**LOSS, "reduction": "sum"} for kind in ("", "_value", "_grad")},
    "pad": {"x": X, "before": 1, "after": 1},
    "pad_state": {"x_shape": SHAPE, "before": 1, "after": 1},
    "pad_grad": _grad(mf.pad_fwd, X, 1, 1),
    **{f"resize_{how}": {"x": X, "out_size": 3} for how in ("bilinear", "nearest")},
    **{f"upsample_{how}": {"x": X, "scale": 2} for how in ("bilinear", "nearest")},
    **{f"resize_{how}_state": {"x_shape": SHAPE, "out_size": 3} for how in ("bilinear", "nearest")},
    **{f"upsample_{how}_state": {"x_shape": SHAPE, "scale": 2} for how in ("bilinear", "nearest")},
    "resize_bilinear_grad": _grad(mf.resize_bilinear_fwd, X, 3),
    "resize_nearest_grad": _grad(mf.resize_nearest_fwd, X, 3),
    "upsample_bilinear_grad": _grad(mf.upsample_bilinear_fwd, X, 2),
    "upsample_nearest_grad": _grad(mf.upsample_nearest_fwd, X, 2),
    "depth_to_space": {"x": X, "block_size": 2},
    "space_to_depth": {"x": X[:, :, :4], "block_size": 2},
    "dequantize_weights": {"q": Q, "table": mx.zeros((2, 256))},
    "fold_batch_norm": {"w": W, "b": SIX, "gamma": SIX, "beta": SIX, "mean": SIX, "var": SIX},
}
FUNCTIONS = {
    name: function
    for name, function in vars(mf).items()
    if inspect.isfunction(function) and not name.startswith("_") and name not in ("get_num_threads", "save", "load")
}


def good(name: str) -> dict[str, Any]:
    """Right arguments of a function by their names."""
    return dict(GOOD[name if name in GOOD else name.removesuffix("_fwd")])


def parameters(name: str) -> list[str]:
    """What a function takes, but for ``stream``, whose errors name no function."""
    signature = inspect.signature(FUNCTIONS[name])
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in signature.parameters.values() if p.kind in kinds and p.name != "stream"]


# Strangers ----------------------------------------------------------------------------------------------


class Raises:
    """All that one may be asked raises what is no error about an argument."""

    def _no(self, *_: object) -> NoReturn:
        raise RuntimeError("a stranger's method was called")

    __repr__ = __str__ = __index__ = __int__ = __float__ = __len__ = __iter__ = __bool__ = _no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __contains__ = _no
    __hash__ = None


class RaisingInt(int):
    """An int that raises where it is asked through its class."""

    __repr__ = __str__ = __index__ = __int__ = __float__ = __bool__ = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = Raises._no
    __hash__ = None


class RaisingText(str):
    """A str that does."""

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __hash__ = Raises._no
    __contains__ = __getitem__ = __format__ = __add__ = __mod__ = Raises._no
    startswith = endswith = lower = split = encode = Raises._no


class RaisingFloat(float):
    """A float that does."""

    __repr__ = __str__ = __int__ = __float__ = __bool__ = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = Raises._no


class RaisingList(list[Any]):
    """A list that does."""

    __repr__ = __len__ = __iter__ = __eq__ = __bool__ = Raises._no
    __contains__ = __getitem__ = __add__ = Raises._no
    __hash__ = None


class RaisingTuple(tuple[Any, ...]):
    """A tuple that does."""

    __repr__ = __len__ = __iter__ = __eq__ = __bool__ = __hash__ = Raises._no
    __contains__ = __getitem__ = __add__ = Raises._no


class RaisingNumPyInt(np.int64):
    """An int of NumPy that does."""

    __repr__ = __str__ = __int__ = __index__ = __float__ = __bool__ = item = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = Raises._no


class RaisingNumPyFloat(np.float64):
    """A float of NumPy that does."""

    __repr__ = __str__ = __int__ = __float__ = __bool__ = item = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = Raises._no


class RaisingClass:
    """What `isinstance` asks for raises."""

    __class__ = property(Raises._no)


class _RaisingMeta(type):
    _fields = __name__ = __mro__ = property(Raises._no)
    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = __repr__ = Raises._no


def odd_classes() -> tuple[Any, Any]:
    """A tuple's class that raises when it is asked itself, and a float's without a module; doctest asks every class."""

    class RaisingFields(tuple[Any, ...], metaclass=_RaisingMeta):
        pass

    class NoModule(float):
        __module__ = []

    return RaisingFields, NoModule


def _loop() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


HUGE = 16**5000
# Made anew for every call: a generator is spent after one.
HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "a huge int": lambda: HUGE,
    "a huge negative int": lambda: -HUGE,
    "2**63": lambda: 2**63,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "nan": lambda: float("nan"),
    "1e308": lambda: 1e308,
    "complex": lambda: 1 + 2j,
    "Decimal": lambda: Decimal("1.5"),
    "Fraction": lambda: Fraction(1, 3),
    "np.bool": lambda: np.True_,
    "np.float16": lambda: np.float16(1),
    "np.longdouble": lambda: np.longdouble("1e400"),
    "np.nan": lambda: np.float32("nan"),
    "np.uint64": lambda: np.uint64(2**64 - 1),
    "np.int8": lambda: np.int8(-3),
    "np.datetime": lambda: np.datetime64("2020-01-01"),
    "seconds": lambda: np.timedelta64(2, "s"),
    "NaT": lambda: np.timedelta64("NaT", "s"),
    "text": lambda: "nothing of the kind",
    "empty text": lambda: "",
    "long text": lambda: "a\n" * 10**5,
    "a surrogate": lambda: "\ud800",
    "NUL": lambda: "a\0b",
    "bytes": lambda: b"zero",
    "dict": lambda: {1: 2, "a": X},
    "set": lambda: {1, 2},
    "generator": lambda: (i for i in (1, 2)),
    "range": lambda: range(2),
    "empty list": lambda: [],
    "nested": lambda: [[[[[[X]]]]]],
    "long list": lambda: [HUGE] * 10**4,
    "loop": _loop,
    "huge pair": lambda: (HUGE, -HUGE),
    "pair of arrays": lambda: [mx.array(1), mx.array(2)],
    "four huge": lambda: (HUGE, 2, 2, HUGE),
    "shape of floats": lambda: (1.0, 2.0, 3.0, 4.0),
    "shape of NumPy": lambda: tuple(np.array((2, 6, 5, 4))),
    "shape of bools": lambda: (True, True, True, True),
    "shape of arrays": lambda: [mx.array(2)] * 4,
    "array": lambda: X,
    "int array": lambda: mx.array(2),
    "empty array": lambda: mx.zeros((0,)),
    "vector": lambda: mx.ones(4),
    "complex array": lambda: mx.zeros((2, 6, 5, 4), mx.complex64),
    "np.ndarray": lambda: np.ones((2, 6, 5, 4)),
    "np scalar array": lambda: np.array(2),
    "np objects": lambda: np.array([Raises(), None], object),
    "a type": lambda: int,
    "a function": lambda: len,
    "a dtype": lambda: mx.int32,
    "np dtype": lambda: np.float32,
    "raises": Raises,
    "raising int": lambda: RaisingInt(2),
    "raising text": lambda: RaisingText("zero"),
    "raising pair": lambda: (Raises(), Raises()),
    "raising list": lambda: RaisingList([2, 2]),
    "raising list of four": lambda: RaisingList([2, 6, 5, 4]),
    "raising tuple": lambda: RaisingTuple((2, RaisingInt(2))),
    "raising float": lambda: RaisingFloat(0.5),
    "raising np.int64": lambda: RaisingNumPyInt(2),
    "raising np.float64": lambda: RaisingNumPyFloat(0.5),
    "raising class": RaisingClass,
    "raising fields": lambda: odd_classes()[0]((1, 2)),
    "no module": lambda: odd_classes()[1](0.5),
    "policy": lambda: mf.PaddingPolicy(exclude_edges=1),  # type: ignore[arg-type]
    "policy of arrays": lambda: mf.PaddingPolicy(X, Raises(), [X]),  # type: ignore[arg-type]
    "neuron": lambda: mf.Neuron("relu", HUGE),
    "neuron of arrays": lambda: mf.Neuron("linear", X, Raises()),  # type: ignore[arg-type]
    "no neuron": lambda: mf.Neuron(X),  # type: ignore[arg-type]
    "state": lambda: _CONV["state"],
    "torn state": lambda: _CONV["state"]._replace(groups=Raises(), rows=None),
}


# The rule -----------------------------------------------------------------------------------------------

SENTENCE = re.compile(r"(?s)[^;]+: [^;]+; got .+, expected .+")
LONGEST = 700


def names(name: str) -> tuple[str, ...]:
    """What errors of a function may call it: with or without a state, it is one operation."""
    return name, name.removesuffix("_fwd")


def fault(name: str, call: Callable[[], Any]) -> str:
    """What is wrong with how a call ends: nothing, if it returns or refuses in our words."""
    try:
        call()
    except (TypeError, ValueError) as error:
        text = str(error)
        if not text.startswith(tuple(f"{known}: " for known in names(name))):
            return f"names no {name}: {text[:LONGEST]}"
        if not SENTENCE.fullmatch(text) or text.count("; got ") != 1:
            return f"not in the grammar: {text[:LONGEST]}"
        if len(text) > LONGEST or "\n" in text or "array(" in text:
            return f"too long, or with numbers of an array: {text[:LONGEST]}"
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:LONGEST]}"
    return ""


def single() -> Iterator[tuple[str, str, str]]:
    """Each function, argument and hostile value."""
    for name in FUNCTIONS:
        for argument in parameters(name):
            for hostile in HOSTILE:
                yield name, argument, hostile
