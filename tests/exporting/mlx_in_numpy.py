"""MLX's own operations in NumPy, by the names and states of their primitives in .mlxfn files.

Each takes a `Call` and returns one array, or several. What a result's dtype is says the file, and `cast` rounds to it.
bfloat16 is float32 with rounded values. An operation that no function needed so far is a `BadFile`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from exporting.mlxfn import Array, BadFile


class Call(NamedTuple):
    """A primitive's state, its inputs, and what the file says of what it reads and makes."""

    state: dict[str, Any]
    inputs: Sequence[np.ndarray]
    reads: Sequence[Array]
    makes: Sequence[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.makes[0].shape


def results(
    name: str, state: dict[str, Any], inputs: Sequence[np.ndarray], reads: Sequence[Array], makes: Sequence[Array]
) -> list[np.ndarray]:
    """What a primitive makes, not yet rounded to the dtypes of ``makes``.

    Raises:
        BadFile: It is none of those here.
    """
    call = Call(state, inputs, reads, makes)
    if name in _UFUNCS:
        if len(inputs) != _UFUNCS[name].nin:
            raise BadFile(f"{name} of {len(inputs)} arrays")
        return [_UFUNCS[name](*inputs)]
    if name not in _OPERATIONS:
        raise BadFile(f"{name} is not among MLX's operations in NumPy")
    made = _OPERATIONS[name](call)
    return list(made) if isinstance(made, list | tuple) else [np.asarray(made)]


def cast(value: np.ndarray, dtype: str) -> np.ndarray:
    """Values of a dtype, which for bfloat16 are rounded to even, as float32."""
    if dtype != "bfloat16":
        return np.asarray(value).astype(dtype)
    bits = np.array(value, np.float32, order="C").view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(value), np.float32(np.nan), rounded.view(np.float32)).astype(np.float32)


def to_bytes(value: np.ndarray, dtype: str) -> bytes:
    """The memory of a row-contiguous array."""
    if dtype == "bfloat16":
        return (np.array(value, np.float32, order="C").view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return np.array(value, dtype, order="C").tobytes()


def from_bytes(data: bytes, array: Array) -> np.ndarray:
    """The array with this memory."""
    if array.dtype == "bfloat16":
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, array.dtype)
    return values.reshape(array.shape)


# Those that NumPy has element by element.
_UFUNCS: dict[str, np.ufunc] = {
    **{"Abs": np.abs, "Add": np.add, "ArcCos": np.arccos, "ArcCosh": np.arccosh, "ArcSin": np.arcsin},
    **{"ArcSinh": np.arcsinh, "ArcTan": np.arctan, "ArcTan2": np.arctan2, "ArcTanh": np.arctanh, "Ceil": np.ceil},
    **{"Cos": np.cos, "Cosh": np.cosh, "Divide": np.divide, "Exp": np.exp, "Expm1": np.expm1, "Floor": np.floor},
    "FloorDivide": np.floor_divide,
    **{"Greater": np.greater, "GreaterEqual": np.greater_equal, "Less": np.less, "LessEqual": np.less_equal},
    **{"Log1p": np.log1p, "LogAddExp": np.logaddexp, "LogicalAnd": np.logical_and, "LogicalNot": np.logical_not},
    **{"LogicalOr": np.logical_or, "Matmul": np.matmul, "Maximum": np.maximum, "Minimum": np.minimum},
    **{"Multiply": np.multiply, "Negative": np.negative, "NotEqual": np.not_equal, "Power": np.power},
    **{"Remainder": np.remainder, "Round": np.rint, "Sign": np.sign, "Sin": np.sin, "Sinh": np.sinh},
    **{"Square": np.square, "Subtract": np.subtract, "Tan": np.tan, "Tanh": np.tanh},
}


def _reshaped(call: Call) -> np.ndarray:
    return call.inputs[0].reshape(call.shape)


def _broadcast(call: Call) -> np.ndarray:
    return np.broadcast_to(call.inputs[0], call.shape)


def _same(call: Call) -> np.ndarray:
    return call.inputs[0]


def _accurate(x: np.ndarray) -> np.ndarray:
    """What sums are made in: MLX adds 16-bit numbers as float32."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _reduce(call: Call) -> np.ndarray:
    x, how = call.inputs[0], (np.all, np.any, np.sum, np.prod, np.min, np.max)[call.state["reduce"]]
    options = {"dtype": call.makes[0].dtype} if how in (np.sum, np.prod) and x.dtype.kind in "iub" else {}
    return how(_accurate(x), tuple(call.state["axes"]), keepdims=True, **options)


def _arg_reduce(call: Call) -> np.ndarray:
    return (np.argmin, np.argmax)[call.state["reduce"]](call.inputs[0], call.state["axis"], keepdims=True)


def _log_sum_exp(call: Call) -> np.ndarray:
    x = _accurate(call.inputs[0])
    most = x.max(-1, keepdims=True)
    return np.log(np.exp(x - most).sum(-1, keepdims=True)) + most


def _softmax(call: Call) -> np.ndarray:
    x = _accurate(call.inputs[0])
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _at(x: np.ndarray, indices: Sequence[np.ndarray], axes: Sequence[int], sizes: Sequence[int]) -> Any:
    """The index of the blocks of these sizes that start where ``indices`` say, which are broadcast, along ``axes``."""
    indices = np.broadcast_arrays(*indices) if indices else []
    places: list[Any] = []
    for axis, size in enumerate(sizes):
        place = np.arange(size).reshape([size if other == axis else 1 for other in range(x.ndim)])
        if axis in axes:
            start = indices[list(axes).index(axis)].astype(np.int64)
            start = np.where(start < 0, start + x.shape[axis], start)
            place = place + start.reshape(*start.shape, *[1] * x.ndim)
        places.append(place)
    return tuple(places)


def _gather(call: Call) -> np.ndarray:
    x, *indices = call.inputs
    return x[_at(x, indices, call.state["axes"], call.state["sizes"])]


_SCATTERS = (np.maximum, np.minimum, np.add, np.multiply)


def _scatter(call: Call) -> np.ndarray:
    x, *indices, updates = call.inputs
    made = np.array(_accurate(x))
    where = _at(x, indices, call.state["axes"], updates.shape[updates.ndim - x.ndim :])
    if call.state["reduce"] == len(_SCATTERS):
        made[where] = updates
    else:
        _SCATTERS[call.state["reduce"]].at(made, where, updates)
    return made


def _gather_axis(call: Call) -> np.ndarray:
    x, indices = call.inputs
    return np.take_along_axis(x, indices.astype(np.int64), call.state["axis"])


def _scatter_axis(call: Call) -> np.ndarray:
    x, indices, updates = call.inputs
    axis, made = call.state["axis"], np.array(_accurate(x))
    if call.state["reduce"] == 1:
        np.put_along_axis(made, indices.astype(np.int64), updates, axis)
        return made
    where: list[Any] = list(np.indices(indices.shape, sparse=True))
    where[axis] = indices.astype(np.int64)
    np.add.at(made, tuple(where), np.broadcast_to(updates, indices.shape))
    return made


def _slices(call: Call) -> tuple[slice, ...]:
    state = call.state
    return tuple(
        slice(start, None if stride < 0 and end < 0 else end, stride)
        for start, end, stride in zip(state["start"], state["end"], state["strides"], strict=True)
    )


def _slice(call: Call) -> np.ndarray:
    return call.inputs[0][_slices(call)]


def _slice_update(call: Call) -> np.ndarray:
    x, update = call.inputs
    made, where = np.array(x), _slices(call)
    reduce = call.state["reduce"]
    made[where] = update if reduce == len(_SCATTERS) else _SCATTERS[reduce](made[where], update)
    return made


def _block(x: np.ndarray, start: np.ndarray, axes: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The block of these sizes that starts where ``start`` says along ``axes``."""
    first = [0] * x.ndim
    for axis, at in zip(axes, start.tolist(), strict=True):
        first[axis] = at
    if any(at < 0 or at + size > length for at, size, length in zip(first, sizes, x.shape, strict=True)):
        raise BadFile(f"a block of {tuple(sizes)} at {first} of {x.shape}")
    return tuple(slice(at, at + size) for at, size in zip(first, sizes, strict=True))


def _dynamic_slice(call: Call) -> np.ndarray:
    x, start = call.inputs
    return x[_block(x, start, call.state["axes"], call.state["sizes"])]


def _dynamic_slice_update(call: Call) -> np.ndarray:
    x, update, start = call.inputs
    made = np.array(x)
    made[_block(x, start, call.state["axes"], update.shape)] = update
    return made


def _pad(call: Call) -> np.ndarray:
    x, value = call.inputs
    widths = [(0, 0)] * x.ndim
    for axis, low, high in zip(call.state["axes"], call.state["low"], call.state["high"], strict=True):
        widths[axis] = (low, high)
    return np.pad(x, widths, constant_values=value.item())


def _as_strided(call: Call) -> np.ndarray:
    place = np.full(call.shape, call.state["offset"], np.int64)
    for axis, stride in enumerate(call.state["strides"]):
        place += np.arange(call.shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(call.shape))]) * stride
    return call.inputs[0].reshape(-1)[place]


def _add_mm(call: Call) -> np.ndarray:
    a, b, c = call.inputs
    return np.float32(call.state["alpha"]) * (a @ b) + np.float32(call.state["beta"]) * c


def _arange(call: Call) -> np.ndarray:
    return call.state["start"] + np.arange(*call.shape) * call.state["step"]


def _equal(call: Call) -> np.ndarray:
    a, b = call.inputs
    same = np.equal(a, b)
    return same | np.isnan(a) & np.isnan(b) if call.state["equal_nan"] else same


def _sqrt(call: Call) -> np.ndarray:
    root = np.sqrt(call.inputs[0])
    return 1 / root if call.state["reciprocal"] else root


def _log(call: Call) -> np.ndarray:
    return (np.log2, np.log10, np.log)[call.state["base"]](call.inputs[0])


def _view(call: Call) -> np.ndarray:
    return from_bytes(to_bytes(call.inputs[0], call.reads[0].dtype), call.makes[0])


def _sigmoid(call: Call) -> np.ndarray:
    x = call.inputs[0]
    less = np.exp(-np.abs(x))
    return np.where(x < 0, less, 1) / (1 + less)


def _erf(call: Call) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[float])(call.inputs[0])


def _threefry(key: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    first, second = first + keys[0], second + keys[1]
    for five in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[five % 2]:
            first = first + second
            second = (second << np.uint32(turn) | second >> np.uint32(32 - turn)) ^ first
        first, second = first + keys[(five + 1) % 3], second + keys[(five + 2) % 3] + np.uint32(five + 1)
    return first, second


def _random_bits(call: Call) -> np.ndarray:
    """The words of a key: word i of the first half and of the second are of one count; one in the middle is alone."""
    keys = call.inputs[0].reshape(-1, 2)
    size = math.prod(call.shape) * call.state["width"] // len(keys)
    words = -(-size // 4)
    half, odd = divmod(words, 2)
    place = np.arange(half + odd, dtype=np.uint32)
    partner = np.where(place < half, place + np.uint32(half + odd), np.uint32(0)).astype(np.uint32)
    made = b""
    for key in keys:
        first, second = _threefry(key, place, partner)
        made += np.concatenate([first, second[:half]]).tobytes()[:size]
    return np.frombuffer(made, call.makes[0].dtype).reshape(call.shape)


_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)

_OPERATIONS: dict[str, Callable[[Call], Any]] = {
    "AddMM": _add_mm,
    "Arange": _arange,
    "ArgReduce": _arg_reduce,
    "ArgSort": lambda call: np.argsort(call.inputs[0], call.state["axis"], kind="stable"),
    "AsStrided": _as_strided,
    "AsType": _same,
    "Broadcast": _broadcast,
    "BitwiseBinary": lambda call: _BITWISE[call.state["op"]](*call.inputs),
    "Concatenate": lambda call: np.concatenate(call.inputs, call.state["axis"]),
    "Depends": lambda call: list(call.inputs[: len(call.makes)]),
    "DivMod": lambda call: [np.floor_divide(*call.inputs), np.remainder(*call.inputs)],
    "DynamicSlice": _dynamic_slice,
    "DynamicSliceUpdate": _dynamic_slice_update,
    "Equal": _equal,
    "Erf": _erf,
    "ExpandDims": _reshaped,
    "Flatten": _reshaped,
    "Full": _broadcast,
    "Gather": _gather,
    "GatherAxis": _gather_axis,
    "Log": _log,
    "LogSumExp": _log_sum_exp,
    "Pad": _pad,
    "RandomBits": _random_bits,
    "Reduce": _reduce,
    "Reshape": _reshaped,
    "Scatter": _scatter,
    "ScatterAxis": _scatter_axis,
    "Select": lambda call: np.where(*call.inputs),
    "Sigmoid": _sigmoid,
    "Slice": _slice,
    "SliceUpdate": _slice_update,
    "Softmax": _softmax,
    "Sort": lambda call: np.sort(call.inputs[0], call.state["axis"]),
    "Split": lambda call: np.split(call.inputs[0], call.state["at"], call.state["axis"]),
    "Sqrt": _sqrt,
    "Squeeze": _reshaped,
    "Transpose": lambda call: np.transpose(call.inputs[0], call.state["axes"]),
    "Unflatten": _reshaped,
    "View": _view,
}
NAMES = frozenset({*_UFUNCS, *_OPERATIONS})
