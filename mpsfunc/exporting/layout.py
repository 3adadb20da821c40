"""The bytes of a file that ``mx.import_function`` reads: a header, and of each signature the operations in their order.

Numbers are little-endian and nothing is aligned. A vector is its length and its entries, a string a vector of bytes.
MLX documents no such thing, and each version reads its own; this is what mlx/export.cpp does from 0.31 to 0.32.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core.mlx_table import release
from mpsfunc.core.printing import describe
from mpsfunc.exporting.states import letters

# In the order of MLX's enum.
DTYPES = (
    *(mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64),
    *(mx.float16, mx.float32, mx.float64, mx.bfloat16, mx.complex64),
)
METADATA = 0, 32, 1  # the version that began to write some
_GPU = 0, 1, 0  # a stream's number, the kind of its device, and that one's number
_NUMBERS = {"?": "?", "i": "i", "f": "f", "d": "d", "Q": "Q"}
_VARIANT = "if?"  # in the order of its tags


class Refused(Exception):
    """Why a file is none that MLX wrote."""


class Array(NamedTuple):
    """What a file knows of an array."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """How long its data is."""
        size = self.dtype.size
        for length in self.shape:
            size *= length
        return size


class Operation(NamedTuple):
    """One operation, whose arrays are given as numbers."""

    name: str
    state: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arrays: tuple[Array, ...]  # what the outputs are


class Constant(NamedTuple):
    """An array whose values are in the file."""

    number: int
    array: Array
    data: memoryview


class Signature(NamedTuple):
    """One trace of the function; constants may be those of an earlier one."""

    keywords: tuple[str, ...]  # the names of the last inputs
    inputs: tuple[int, ...]
    arrays: tuple[Array, ...]  # what the inputs are
    outputs: tuple[int, ...]
    steps: tuple[Operation | Constant, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The steps that compute."""
        return tuple(step for step in self.steps if isinstance(step, Operation))

    def known(self) -> dict[int, Array]:
        """What each array is, by its number."""
        known = dict(zip(self.inputs, self.arrays, strict=True))
        for step in self.steps:
            if isinstance(step, Constant):
                known[step.number] = step.array
            else:
                known |= zip(step.outputs, step.arrays, strict=True)
        return known


class Whole(NamedTuple):
    """All of a file. Metadata is a string of any content; in older layouts it follows everything that MLX reads."""

    mlx: str
    shapeless: bool
    metadata: str
    signatures: tuple[Signature, ...]


# Reading ------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0
        self.version: tuple[int, ...] = ()

    def bytes(self, length: int) -> memoryview:
        if length > len(self.data) - self.at:
            raise Refused(f"it ends within a part of {length} bytes at byte {self.at}")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, code: str) -> Any:
        packed = struct.Struct(f"<{code}")
        if code == "?":
            value = self.bytes(1)[0]
            if value > 1:
                raise Refused(f"byte {self.at - 1} is {value}, expected 0 or 1")
            return bool(value)
        return packed.unpack(self.bytes(packed.size))[0]

    def length(self, least: int) -> int:
        """Of a vector whose entries take at least so many bytes."""
        length: int = self.number("Q")
        if length * least > len(self.data) - self.at:
            raise Refused(f"it ends within a part of {length} entries at byte {self.at}")
        return length

    def vector(self, code: str) -> tuple[Any, ...]:
        length = self.length(struct.calcsize(f"<{code}"))
        return struct.unpack(f"<{length}{code}", self.bytes(length * struct.calcsize(f"<{code}")))

    def string(self) -> str:
        raw = bytes(self.bytes(self.length(1)))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Refused(f"a name before byte {self.at} is no text") from None

    def dtype(self) -> mx.Dtype:
        kind, size = self.number("i"), self.number("B")
        if not 0 <= kind < len(DTYPES) or DTYPES[kind].size != size:
            raise Refused(f"no dtype has the number {kind} and {size} bytes, at byte {self.at - 5}")
        return DTYPES[kind]

    def array(self) -> Array:
        shape = self.vector("i")
        if any(length < 0 for length in shape):
            raise Refused(f"an array has the shape {describe(shape)}, before byte {self.at}")
        return Array(shape, self.dtype())

    def part(self, code: str) -> Any:
        """A part of a state."""
        if code in _NUMBERS:
            return self.number(code)
        if code == "S":
            return self.string()
        if code == "D":
            return self.dtype()
        if code == "F":
            return self.number("f") if self.number("?") else None
        if code == "B":
            return tuple(tuple(self.number("?") for _ in range(3)) for _ in range(self.length(3)))
        if code == "V":
            return tuple(self.variant() for _ in range(self.length(5)))
        return self.vector("i" if code == "I" else "q")

    def variant(self) -> tuple[str, Any]:
        tag = self.number("i")
        if not 0 <= tag < len(_VARIANT):
            raise Refused(f"no number has the tag {tag}, at byte {self.at - 4}")
        return _VARIANT[tag], self.number(_VARIANT[tag])

    def operation(self, number: int) -> Operation:
        inputs = self.vector("Q")
        for _ in _GPU:
            self.number("i")
        name = self.string()
        try:
            codes, older = letters(name, self.version)
        except KeyError:
            raise Refused(f"it has an operation that mpsfunc does not know, {describe(name)}") from None
        state = [self.part(code) for code in codes]
        if older:
            state.insert(older.at, older.meant)
        siblings = self.number("Q")
        if siblings == 0:
            return Operation(name, tuple(state), inputs, (number,), (self.array(),))
        outputs = self.vector("Q")
        shapes = [self.vector("i") for _ in range(self.length(8))]
        dtypes = [self.dtype() for _ in range(self.length(5))]
        if not len(outputs) == len(shapes) == len(dtypes) == siblings + 1 or number not in outputs:
            raise Refused(f"an operation {name} has {len(outputs)} results, {len(shapes)} shapes and {siblings} others")
        return Operation(name, tuple(state), inputs, outputs, tuple(map(Array, shapes, dtypes)))

    def signature(self, constants: dict[int, Constant]) -> Signature:
        keywords = tuple(self.string() for _ in range(self.length(8)))
        inputs = self.vector("Q")
        arrays = tuple(self.array() for _ in range(self.length(13)))
        outputs = self.vector("Q")
        if len(arrays) != len(inputs) or len(keywords) > len(inputs):
            raise Refused(f"it has {len(inputs)} inputs, {len(arrays)} shapes and {len(keywords)} names of them")
        known = set(inputs)
        steps: list[Operation | Constant] = []
        for _ in range(self.length(9)):
            number = self.number("Q")
            if self.number("?"):
                operation = self.operation(number)
                if not known.issuperset(operation.inputs):
                    raise Refused(f"an operation {operation.name} reads what was not made yet")
                known.update(operation.outputs)
                steps.append(operation)
            elif self.number("?"):
                if number not in constants:
                    array = self.array()
                    constants[number] = Constant(number, array, self.bytes(array.nbytes))
                known.add(number)
                steps.append(constants[number])
        if not known.issuperset(outputs):
            raise Refused("a result is not made")
        return Signature(keywords, inputs, arrays, outputs, tuple(steps))


def read(data: memoryview) -> Whole:
    """All of a file that MLX or `mpsfunc.export` wrote.

    Raises:
        Refused: It is none, or it is cut off.
    """
    reader = _Reader(data)
    version = reader.string()
    if not version[:1].isdigit() or len(version) > 40:
        raise Refused("it does not begin with MLX's version")
    count, shapeless = reader.number("i"), reader.number("?")
    reader.version = release(version)
    metadata = reader.string() if reader.version >= METADATA else ""
    if count < 0:
        raise Refused(f"it has {count} signatures")
    constants: dict[int, Constant] = {}
    signatures = tuple(reader.signature(constants) for _ in range(count))
    if reader.version < METADATA and reader.at < len(data):
        metadata = reader.string()
    if reader.at != len(data):
        raise Refused(f"more follows the last signature at byte {reader.at}")
    return Whole(version, shapeless, metadata, signatures)


# Writing ------------------------------------------------------------------------------------------------


def _vector(code: str, entries: tuple[Any, ...]) -> bytes:
    return struct.pack(f"<Q{len(entries)}{code}", len(entries), *entries)


def string(text: str) -> bytes:
    """A string as it stands in a file."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _dtype(dtype: mx.Dtype) -> bytes:
    return struct.pack("<iB", DTYPES.index(dtype), dtype.size)


def _array(array: Array) -> bytes:
    return _vector("i", array.shape) + _dtype(array.dtype)


def _part(code: str, value: Any) -> bytes:
    if code in _NUMBERS:
        return struct.pack(f"<{code}", value)
    if code == "S":
        return string(value)
    if code == "D":
        return _dtype(value)
    if code == "F":
        return b"\0" if value is None else struct.pack("<?f", True, value)
    if code == "B":
        return struct.pack("<Q", len(value)) + bytes(flag for three in value for flag in three)
    if code == "V":
        made = (struct.pack(f"<i{kind}", _VARIANT.index(kind), number) for kind, number in value)
        return struct.pack("<Q", len(value)) + b"".join(made)
    return _vector("i" if code == "I" else "q", value)


def written(whole: Whole) -> Iterator[bytes | memoryview]:
    """The parts of the file, as the MLX of its version reads it; every operation is on the GPU's stream.

    Arrays are numbered anew in their order, so that the same function makes the same file.

    Raises:
        ValueError: That MLX has no such operation.
    """
    version = release(whole.mlx)
    yield string(whole.mlx) + struct.pack("<i?", len(whole.signatures), whole.shapeless)
    if version >= METADATA:
        yield string(whole.metadata)
    constants: dict[int, int] = {}  # the new numbers of those that are written
    following = itertools.count(1)
    for signature in whole.signatures:
        numbers: dict[int, int] = {number: next(following) for number in dict.fromkeys(signature.inputs)}
        tape: list[bytes | memoryview] = []
        for step in signature.steps:
            if isinstance(step, Constant):
                first = step.number not in constants
                if first:
                    constants[step.number] = next(following)
                numbers[step.number] = constants[step.number]
                tape.append(struct.pack("<Q??", numbers[step.number], False, True))
                if first:
                    tape += [_array(step.array), step.data]
                continue
            inputs = tuple(numbers[number] for number in step.inputs)
            numbers |= {number: next(following) for number in step.outputs}
            tape.append(struct.pack("<Q?", numbers[step.outputs[0]], True) + _vector("Q", inputs))
            tape.append(_operation(step, version))
            if len(step.outputs) == 1:
                tape.append(struct.pack("<Q", 0) + _array(step.arrays[0]))
                continue
            tape.append(struct.pack("<Q", len(step.outputs) - 1))
            tape.append(_vector("Q", tuple(numbers[number] for number in step.outputs)))
            tape.append(struct.pack("<Q", len(step.arrays)) + b"".join(_vector("i", a.shape) for a in step.arrays))
            tape.append(struct.pack("<Q", len(step.arrays)) + b"".join(_dtype(a.dtype) for a in step.arrays))
        yield struct.pack("<Q", len(signature.keywords)) + b"".join(map(string, signature.keywords))
        yield _vector("Q", tuple(numbers[number] for number in signature.inputs))
        yield struct.pack("<Q", len(signature.arrays)) + b"".join(map(_array, signature.arrays))
        yield _vector("Q", tuple(numbers[number] for number in signature.outputs))
        yield struct.pack("<Q", len(signature.steps))
        yield from tape
    if version < METADATA and whole.metadata:
        yield string(whole.metadata)


def _operation(operation: Operation, version: tuple[int, ...]) -> bytes:
    name, state = operation.name, list(operation.state)
    try:
        codes, older = letters(name, version)
    except KeyError:
        raise ValueError(name) from None
    if older and state.pop(older.at) != older.meant:
        raise ValueError(name)
    return struct.pack("<iii", *_GPU) + string(name) + b"".join(map(_part, codes, state))
