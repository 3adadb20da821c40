"""Trees as JSON: what is an array is named there, and everything else is written out.

None, True, False, strings, finite floats and ints of 64 bits are themselves. All else is an object with one name::

    {"list": [...]}   {"tuple": [...]}   {"dict": {"key": ...}}   {"ConvState": {"dw": ..., "db": ..., ...}}
    {"array": "the name of a tensor"}   {"int": "-0x8000000000000001"}   {"float": "7ff0000000000000"}

where a float that is not finite is its 64 bits.
"""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any

import mlx.core as mx

from mpsfunc.activation.fused import Neuron
from mpsfunc.convolution.conv_transpose import ConvTransposeState
from mpsfunc.convolution.deform_states import DeformConvState
from mpsfunc.convolution.states import ConvState
from mpsfunc.core import thread_ends
from mpsfunc.core.printing import a_kind, brief, describe, name_of
from mpsfunc.elementwise.dropout import DropoutState
from mpsfunc.image.crop_and_resize import CropAndResizeState
from mpsfunc.image.grid_sample import GridSampleState
from mpsfunc.image.padding import PadState
from mpsfunc.image.resampling import ResampleState
from mpsfunc.image.roi_align import RoiAlignState
from mpsfunc.losses.loss import LossState
from mpsfunc.losses.yolo import YoloLossState
from mpsfunc.normalization.batch_state import BatchNormState
from mpsfunc.normalization.cross_channel import CrossChannelNormState
from mpsfunc.normalization.instance import GroupNormState, InstanceNormState
from mpsfunc.normalization.spatial import LocalContrastNormState, SpatialNormState
from mpsfunc.pooling.average import AvgPoolState
from mpsfunc.pooling.l2 import L2PoolState
from mpsfunc.pooling.maximum import MaxPoolState
from mpsfunc.saving.earlier_files import LATER, completed
from mpsfunc.saving.safetensors import Refused, fits, parsed
from mpsfunc.windows.axis import Axis
from mpsfunc.windows.policy import PaddingPolicy
from mpsfunc.windows.sampling import Padded, Resized

# The only classes that a file can name.
RECORDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(AvgPoolState, BatchNormState, ConvState, ConvTransposeState, CropAndResizeState, CrossChannelNormState),
        *(DeformConvState, DropoutState, GridSampleState, GroupNormState, InstanceNormState, L2PoolState),
        *(LocalContrastNormState, LossState, MaxPoolState, PadState, ResampleState, RoiAlignState, SpatialNormState),
        YoloLossState,
        *(Axis, Neuron, Padded, PaddingPolicy, Resized),
    )
}
DEEPEST = 100
_KNOWN = "a tree of arrays, states, dicts, lists, tuples, numbers, strings, bools and None"

_LARGE = re.compile("-?0x[1-9a-f][0-9a-f]*")  # in time that grows with its length, unlike decimal digits

# What `load` returns; states are tuples, too.
Tree = mx.array | None | bool | int | float | str | list["Tree"] | tuple["Tree", ...] | dict[str, "Tree"]

# Where something is in a tree: how errors show each step, and what it adds to the name of an array.
Path = tuple[tuple[str, str], ...]


class Encoder:
    """Writes one tree down; ``arrays`` has its arrays by their names, one that is there twice once."""

    def __init__(self) -> None:
        self.arrays: dict[str, mx.array] = {}
        self._names: dict[int, str] = {}

    def text(self, tree: Any) -> str:
        """The tree as JSON."""
        return json.dumps(self._node(tree, ()), separators=(",", ":"), allow_nan=False)

    def _node(self, value: Any, path: Path, in_record: bool = False) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            if in_record and not is_short(value):
                raise ValueError(f"save: an int of a record is too large; got {place(path)}, expected at most 64 bits")
            return value if is_short(value) else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if len(path) >= DEEPEST:  # a list that holds itself is deep, too
            raise ValueError(f"save: nested too deep; got {place(path)}, expected at most {DEEPEST} levels")
        if kind is mx.array:
            return {"array": self._named(value, path)}
        if kind is list or kind is tuple:
            items = [self._node(item, (*path, (f"[{i}]", str(i))), in_record) for i, item in enumerate(value)]
            return {"tuple" if kind is tuple else "list": items}
        if kind is dict:
            for key in value:
                if type(key) is not str:
                    raise TypeError(
                        f"save: a key is not a string; got {place(path)} with key {describe(key)}, expected a str"
                    )
            steps = {key: (*path, (f"[{describe(key)}]", key)) for key in value}
            return {"dict": {key: self._node(item, steps[key], in_record) for key, item in value.items()}}
        called = name_of(kind)
        if RECORDS.get(called) is kind:
            fields = zip(value._fields, value, strict=True)
            return {called: {name: self._node(item, (*path, (f".{name}", name)), True) for name, item in fields}}
        if value is thread_ends.random_state():  # last, since a thread that reads it has to be waited for at exit
            return self._node(list(value), path, in_record)
        raise TypeError(
            f"save: cannot be saved; got {place(path)}={describe(value)}, {a_kind(value)}, expected {_KNOWN}"
        )

    def _named(self, a: mx.array, path: Path) -> str:
        if id(a) not in self._names:
            if not fits(a.shape):
                raise ValueError(f"save: no file holds this shape; got {place(path)}.shape={a.shape}, expected less")
            whole = ".".join(name for _, name in path) or "tree"
            whole = name = whole.encode(errors="replace").decode()
            again = 1
            while name in self.arrays or name == "__metadata__":
                again += 1
                name = f"{whole}~{again}"
            self.arrays[name], self._names[id(a)] = a, name
        return self._names[id(a)]


def is_short(value: int) -> bool:
    """Whether 64 bits hold an int, as they must in a record: sizes, strides and the like are not larger."""
    return -(2**63) <= value < 2**63


def fields_of(kind: str, version: int) -> tuple[str, ...]:
    """The fields that a record has in files of a version."""
    later = LATER.get(kind, {})
    return tuple(name for name in RECORDS[kind]._fields if name not in later or later[name][0] <= version)


def place(path: Path) -> str:
    """A part of a tree for errors."""
    return brief("tree" + "".join(shown for shown, _ in path))


def decode(text: str, arrays: dict[str, Any], version: int) -> Any:
    """The tree of a text of anybody's, of a version of the format, with these arrays, each of which must be there."""
    used: set[str] = set()

    def record(kind: str, body: dict[str, Any], depth: int) -> Any:
        fields = {name: node(item, depth + 1, True) for name, item in body.items()}
        return RECORDS[kind](**completed(kind, fields, version))

    def node(value: Any, depth: int, in_record: bool = False) -> Any:
        if value is None or type(value) in (bool, str) or (type(value) is int and (is_short(value) or not in_record)):
            return value
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is not dict or len(value) != 1:
            raise Refused(f"a part of the tree is none that save writes: {describe(value)}", "one name and a value")
        ((kind, body),) = value.items()
        if kind == "int" and type(body) is str and not in_record and _LARGE.fullmatch(body):
            return int(body, 16)
        if kind == "float" and type(body) is str and re.fullmatch("[0-9a-f]{16}", body):
            return struct.unpack(">d", bytes.fromhex(body))[0]
        if depth >= DEEPEST:
            raise Refused("the tree is nested too deep", f"at most {DEEPEST} levels")
        if kind == "array" and type(body) is str and body in arrays:
            used.add(body)
            return arrays[body]
        if kind in ("list", "tuple") and type(body) is list:
            items = [node(item, depth + 1, in_record) for item in body]
            return items if kind == "list" else tuple(items)
        if kind == "dict" and type(body) is dict:
            return {key: node(item, depth + 1, in_record) for key, item in body.items()}
        if kind in RECORDS and type(body) is dict and tuple(body) == fields_of(kind, version):
            return record(kind, body, depth)
        raise Refused(
            f"a part of the tree is none that save writes: {describe(value)}",
            "a list, a tuple, a dict, a number, an array of this file or a state with its fields",
        )

    tree = node(parsed(text), 0)
    left = [name for name in arrays if name not in used]
    if left:
        raise Refused(f"array {describe(left[0])} is not in the tree", "the arrays of the tree alone")
    return tree
