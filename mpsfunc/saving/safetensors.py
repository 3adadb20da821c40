"""Files in the safetensors format: eight bytes, a header in JSON, and the bytes of arrays one after the other.

MLX's own reader comes back to a file when an array is evaluated, and neither it nor the writer has float64. So arrays
are written and read here, and a header is held to the whole format before anything else looks at the file.
"""

from __future__ import annotations

import io
import json
import math
import os
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import describe

# What the format calls a dtype, and the bytes of its elements for NumPy, which has no bfloat16.
DTYPES: dict[str, tuple[mx.Dtype, str]] = {
    "BOOL": (mx.bool_, "?"),
    "U8": (mx.uint8, "<u1"),
    "I8": (mx.int8, "<i1"),
    "U16": (mx.uint16, "<u2"),
    "I16": (mx.int16, "<i2"),
    "U32": (mx.uint32, "<u4"),
    "I32": (mx.int32, "<i4"),
    "U64": (mx.uint64, "<u8"),
    "I64": (mx.int64, "<i8"),
    "F16": (mx.float16, "<f2"),
    "BF16": (mx.bfloat16, "<u2"),
    "F32": (mx.float32, "<f4"),
    "F64": (mx.float64, "<f8"),
    "C64": (mx.complex64, "<c8"),
}
_CALLED = {dtype: name for name, (dtype, _) in DTYPES.items()}
_LONGEST = 100_000_000  # every header is shorter, says the format
_AXES, _LENGTH, _ELEMENTS = 64, 2**31, 2**62  # more than any array has, and nothing overflows
_WHOLE = "the file as save wrote it"
_FORMAT = "a safetensors file"


class Refused(Exception):
    """Why a file is not read, and what was expected; the caller knows which file it was."""


class Tensor(NamedTuple):
    """An array in a file: its name, what the format calls its dtype, its shape, and its bytes behind the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """What a file says of itself: its metadata, the entries of its arrays, unchecked, and how many bytes follow."""

    metadata: dict[str, str]
    entries: dict[str, Any]
    follow: int


def fits(shape: Sequence[int]) -> bool:
    """Whether an array of this shape can be written and read."""
    return len(shape) <= _AXES and math.prod(max(length, 1) for length in shape) < _ELEMENTS


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text of anybody's."""
    try:
        return json.loads(
            text if isinstance(text, str) else text.decode(),
            object_pairs_hook=_once,
            parse_int=_short,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise Refused("JSON is nested too deep", _WHOLE) from None
    except ValueError as error:  # what is not UTF-8, too
        raise Refused(f"no JSON ({error})", _WHOLE) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Refused("a name is there twice", "every name once")
    return made


def _short(digits: str) -> int:
    if len(digits) > 20:  # a number of a million digits would take hours
        raise Refused("a number is too long", "at most 64 bits")
    return int(digits)


def _no_constant(word: str) -> Any:
    raise Refused(f"{word} is not a number", "a number")


# Writing ------------------------------------------------------------------------------------------------


def layout(arrays: dict[str, mx.array]) -> list[Tensor]:
    """Where each array goes: the widest elements first, so that all are aligned."""
    tensors, begin = [], 0
    for name in sorted(arrays, key=lambda name: -arrays[name].itemsize):
        a = arrays[name]
        tensors.append(Tensor(name, _CALLED[a.dtype], tuple(a.shape), begin, begin + a.nbytes))
        begin += a.nbytes
    return tensors


def header(metadata: dict[str, str], tensors: list[Tensor]) -> bytes:
    """The first bytes of a file, up to the arrays'."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    for name, dtype, shape, begin, end in tensors:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) >= _LONGEST:
        raise ValueError(
            f"save: the tree is too large; got a header of {len(text)} bytes, expected less than {_LONGEST}"
        )
    return len(text).to_bytes(8, "little") + text


def write_arrays(file: io.BufferedIOBase, arrays: dict[str, mx.array], tensors: list[Tensor], crc: int) -> int:
    """Writes evaluated arrays, and returns the checksum that goes on from ``crc``."""
    with mx.stream(mx.cpu):
        for tensor in tensors:
            a = arrays[tensor.name]
            plain = a.view(mx.uint16) if a.dtype == mx.bfloat16 else a
            piece = np.ascontiguousarray(np.asarray(plain)).reshape(-1).data
            crc = zlib.crc32(piece, crc)
            file.write(piece)
    return crc


# Reading ------------------------------------------------------------------------------------------------


def read_header(file: io.BufferedReader) -> Header:
    """The header of a file of anybody's; goes on to where its arrays begin."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or not 2 <= length < _LONGEST:
        raise Refused(f"no header begins a file of {size} bytes", _FORMAT)
    if length > size - 8:
        raise Refused(f"the header of {length} bytes ends after the file of {size} bytes", _WHOLE)
    text = file.read(length)
    entries = parsed(text)
    if type(entries) is not dict or text[:1] != b"{":
        raise Refused("the header is not an object", _FORMAT)
    metadata = entries.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata  # MLX writes null where it has none
    if type(metadata) is not dict or any(type(value) is not str for value in metadata.values()):
        raise Refused("the metadata are not strings", _FORMAT)
    return Header(metadata, entries, size - 8 - length)


def checked(header: Header) -> list[Tensor]:
    """The arrays of a file in the order of their bytes, if these are there and nothing else is."""
    tensors = sorted(map(_tensor, header.entries.items()), key=lambda tensor: (tensor.begin, tensor.end, tensor.name))
    at = 0
    for tensor in tensors:
        if tensor.begin != at:
            raise Refused(f"array {describe(tensor.name)} begins at byte {tensor.begin}", f"byte {at}, without gaps")
        at = tensor.end
    if at != header.follow:
        raise Refused(f"{header.follow} bytes follow the header", f"the {at} bytes of its arrays")
    return tensors


def _tensor(item: tuple[str, Any]) -> Tensor:
    """An entry of a header that is one of the format."""
    name, entry = item
    shown = describe(name)
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Refused(f"the entry of array {shown} is incomplete", "its dtype, shape and data_offsets, and no more")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(dtype) is not str or dtype not in DTYPES:
        raise Refused(f"array {shown} has the unknown dtype {describe(dtype)}", f"one of {', '.join(DTYPES)}")
    if not _whole(shape) or any(length >= _LENGTH for length in shape) or not fits(shape):
        raise Refused(f"array {shown} has the shape {describe(shape)}", "lengths that an array can have")
    if not _whole(offsets) or len(offsets) != 2:
        raise Refused(f"array {shown} has the offsets {describe(offsets)}", "where its bytes begin and end")
    begin, end = offsets
    needed = math.prod(shape) * DTYPES[dtype][0].size
    if end - begin != needed:
        raise Refused(f"array {shown} lies from byte {begin} to {end}", f"the {needed} bytes of its shape and dtype")
    return Tensor(name, dtype, tuple(shape), begin, end)


def _whole(numbers: Any) -> bool:
    return type(numbers) is list and all(type(number) is int and number >= 0 for number in numbers)


def read_arrays(file: io.BufferedReader, tensors: list[Tensor], crc: int) -> tuple[dict[str, mx.array], int]:
    """Evaluated arrays by their names, and the checksum that goes on from ``crc``."""
    arrays = {}
    with mx.stream(mx.cpu):
        for tensor in tensors:
            dtype, kind = DTYPES[tensor.dtype]
            piece = np.empty(tensor.end - tensor.begin, np.uint8)
            if file.readinto(piece.data) != piece.size:
                raise Refused(f"the file ends within array {describe(tensor.name)}", _WHOLE)
            crc = zlib.crc32(piece.data, crc)
            if tensor.dtype == "BOOL" and piece.max(initial=0) > 1:
                raise Refused(f"array {describe(tensor.name)} has bytes that are no bools", "0 or 1")
            plain = mx.array(piece.view(kind), None if tensor.dtype == "BF16" else dtype)
            a = plain.view(dtype) if tensor.dtype == "BF16" else plain
            arrays[tensor.name] = a.reshape(tensor.shape)
        mx.eval(arrays)
    return arrays, crc
