"""Reads files of MLX's exported functions (.mlxfn) without MLX.

    file = read(path.read_bytes())
    file.functions[0].inputs             # shapes and dtypes, in the order of the call
    file.functions[0].kernels[0].text    # what Apple's or NVIDIA's compiler gets

Numbers are little-endian and nothing is aligned. MLX neither documents nor numbers the layout: it is that of
``mlx/export.cpp`` and of each primitive's ``state()``, and `read` refuses a version whose layout it does not know. What
does not end where it should, points at nothing or is of a kind that is not in the tables is a `BadFile`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

# By their numbers in a file, each with the size that the file repeats.
DTYPES = {
    "bool": 1,
    **{"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8},
    **{"int8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"float16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "complex64": 8},
}
DEVICES = ("cpu", "gpu")


class BadFile(ValueError):
    """What is wrong with a file, and where."""


class Layout(NamedTuple):
    """In what the layouts differ."""

    metadata: bool  # a string after the header; without it mpsfunc puts one behind the last function
    reducing_updates: bool  # SliceUpdate says how it combines values
    compile_options: bool  # an int32 after each kernel


LAYOUTS = {
    **dict.fromkeys(("0.31.1",), Layout(metadata=False, reducing_updates=False, compile_options=False)),
    **dict.fromkeys(("0.32.3", "0.32.4"), Layout(metadata=True, reducing_updates=True, compile_options=True)),
}


class Array(NamedTuple):
    """Shape and dtype of an array, the dtype by NumPy's name or "bfloat16"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]


class Constant(NamedTuple):
    array: Array
    data: bytes


class Stream(NamedTuple):
    index: int
    device: str
    device_index: int


class Kernel(NamedTuple):
    """The state of a primitive CustomKernel.

    ``sizes_of`` has, for each input, whether its shape, its strides and its number of axes are arguments too.
    """

    name: str
    text: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    sizes_of: tuple[tuple[bool, bool, bool], ...]
    ensure_row_contiguous: bool
    init_value: float | None
    scalars: tuple[bool | int | float, ...]
    is_precompiled: bool
    shared_memory: int
    compile_options: int | None  # None: the layout has none


class Primitive(NamedTuple):
    """An operation; ``at`` is where in the file its stream is."""

    name: str
    stream: Stream
    state: Any  # a Kernel, or a dictionary of the fields
    at: int


class Step(NamedTuple):
    """A primitive with ids of what it reads and makes, and what that is."""

    primitive: Primitive
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arrays: tuple[Array, ...]


class Function(NamedTuple):
    """One signature. Inputs that have keywords come last, in the order of the keywords."""

    keywords: tuple[str, ...]
    input_ids: tuple[int, ...]
    inputs: tuple[Array, ...]
    output_ids: tuple[int, ...]
    outputs: tuple[Array, ...]
    steps: tuple[Step, ...]
    constants: tuple[int, ...]  # the ids of those that it reads
    arrays: dict[int, Array]  # what each id stands for

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step.primitive.state for step in self.steps if isinstance(step.primitive.state, Kernel))


class File(NamedTuple):
    mlx: str
    shapeless: bool
    metadata: str
    functions: tuple[Function, ...]
    constants: dict[int, Constant]

    @property
    def streams(self) -> set[Stream]:
        """Those that anything runs on."""
        return {step.primitive.stream for function in self.functions for step in function.steps}


def read(data: bytes) -> File:
    """Reads a whole file.

    Raises:
        BadFile: It is not one, or its version's layout is not known.
    """
    source = _Source(data)
    version = source.text()
    count = source.int32()
    shapeless = source.flag()
    if version not in LAYOUTS:
        raise BadFile(f"version {version[:40]!r}; the layouts of {', '.join(LAYOUTS)} are known")
    source.layout = LAYOUTS[version]
    metadata = source.text() if source.layout.metadata else ""
    constants: dict[int, Constant] = {}
    functions = tuple(_function(source, constants) for _ in range(count))
    if not source.layout.metadata and source.at < len(data):  # MLX stops reading here
        metadata = source.text()
    if source.at != len(data):
        raise BadFile(f"{len(data) - source.at} bytes after the last function")
    return File(version, shapeless, metadata, functions, constants)


def on_cpu(data: bytes) -> bytes:
    """The same file with all streams on the CPU, where kernels cannot run, but MLX without a GPU can import it."""
    changed = bytearray(data)
    for function in read(data).functions:
        for step in function.steps:
            struct.pack_into("<iii", changed, step.primitive.at, 0, DEVICES.index("cpu"), 0)
    return bytes(changed)


class _Source:
    """The bytes, and how far they are read."""

    layout: Layout

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise BadFile(f"{count} bytes are wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def int32(self) -> int:
        return self._number("i")

    def int64(self) -> int:
        return self._number("q")

    def uint64(self) -> int:
        return self._number("Q")

    def float32(self) -> float:
        return self._number("f")

    def float64(self) -> float:
        return self._number("d")

    def flag(self) -> bool:
        byte = self.take(1)[0]
        if byte > 1:
            raise BadFile(f"{byte} for a bool at {self.at - 1}")
        return byte == 1

    def text(self) -> str:
        data = self.take(self.uint64())
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BadFile(f"no text before {self.at}: {error}") from None

    def many(self, one: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(one() for _ in range(self.uint64()))

    def int32s(self) -> tuple[int, ...]:
        return self.many(self.int32)

    def int64s(self) -> tuple[int, ...]:
        return self.many(self.int64)

    def ids(self) -> tuple[int, ...]:
        return self.many(self.uint64)

    def triple(self) -> tuple[int, int, int]:
        return self.int32(), self.int32(), self.int32()

    def dtype(self) -> str:
        number, size = self.int32(), self.take(1)[0]
        known = list(DTYPES.items())
        if not 0 <= number < len(known) or known[number][1] != size:
            raise BadFile(f"dtype {number} of {size} bytes before {self.at}")
        return known[number][0]

    def array(self) -> Array:
        shape = self.int32s()
        if any(length < 0 for length in shape):
            raise BadFile(f"shape {shape} before {self.at}")
        return Array(shape, self.dtype())

    def stream(self) -> Stream:
        index, device, device_index = self.triple()
        if not 0 <= device < len(DEVICES):
            raise BadFile(f"device {device} before {self.at}")
        return Stream(index, DEVICES[device], device_index)

    def scalar(self) -> bool | int | float:
        tag = self.int32()
        if not 0 <= tag <= 2:
            raise BadFile(f"scalar of kind {tag} before {self.at}")
        return (self.int32, self.float32, self.flag)[tag]()

    def kernel(self) -> Kernel:
        return Kernel(
            self.text(),
            self.text(),
            self.triple(),
            self.triple(),
            self.many(lambda: (self.flag(), self.flag(), self.flag())),
            self.flag(),
            self.float32() if self.flag() else None,
            self.many(self.scalar),
            self.flag(),
            self.int32(),
            self.int32() if self.layout.compile_options else None,
        )

    def slice_update(self) -> dict[str, Any]:
        reduce = self.int32() if self.layout.reducing_updates else 4  # None, the last of Max, Min, Sum, Prod, None
        return {"reduce": reduce, "start": self.int32s(), "end": self.int32s(), "strides": self.int32s()}


def _function(source: _Source, constants: dict[int, Constant]) -> Function:
    keywords = source.many(source.text)
    input_ids, inputs = source.ids(), source.many(source.array)
    output_ids = source.ids()
    if len(input_ids) != len(inputs) or len(keywords) > len(inputs):
        raise BadFile(f"{len(input_ids)} inputs with {len(inputs)} shapes and {len(keywords)} keywords")
    known = dict(zip(input_ids, inputs, strict=True))
    steps: dict[int, Step] = {}  # by the first output: a step comes once for each output that is used
    read = []
    for _ in range(source.uint64()):
        made = source.uint64()
        if source.flag():
            step = _step(source, made, known)
            if made not in step.outputs:
                raise BadFile(f"array {made} is not among what {step.primitive.name} makes")
            steps.setdefault(step.outputs[0], step)
            known.update(zip(step.outputs, step.arrays, strict=True))
        elif source.flag():
            if made not in constants:
                array = source.array()
                constants[made] = Constant(array, source.take(array.bytes))
            known[made] = constants[made].array
            read.append(made)
        elif made not in input_ids:
            raise BadFile(f"array {made} is neither made nor a constant nor an input")
    if missing := [made for made in output_ids if made not in known]:
        raise BadFile(f"nothing makes the outputs {missing}")
    outputs = tuple(known[made] for made in output_ids)
    return Function(keywords, input_ids, inputs, output_ids, outputs, tuple(steps.values()), tuple(read), known)


def _step(source: _Source, made: int, known: dict[int, Array]) -> Step:
    inputs = source.ids()
    if missing := [each for each in inputs if each not in known]:
        raise BadFile(f"array {made} is made of {missing}, which nothing has made before")
    at, stream, name = source.at, source.stream(), source.text()
    primitive = Primitive(name, stream, _state(source, name), at)
    if source.uint64() == 0:  # siblings
        return Step(primitive, inputs, (made,), (source.array(),))
    outputs, shapes, dtypes = source.ids(), source.many(source.int32s), source.many(source.dtype)
    if not len(outputs) == len(shapes) == len(dtypes):
        raise BadFile(f"{name} makes {len(outputs)} arrays of {len(shapes)} shapes and {len(dtypes)} dtypes")
    return Step(primitive, inputs, outputs, tuple(map(Array, shapes, dtypes)))


def _state(source: _Source, name: str) -> Any:
    if name == "CustomKernel":
        return source.kernel()
    if name == "SliceUpdate":
        return source.slice_update()
    if name in STATELESS:
        return {}
    if name not in STATES:
        raise BadFile(f"primitive {name[:60]!r} before {source.at}")
    return {field: getattr(source, kind)() for field, kind in STATES[name].items()}


# Of the fields of each primitive's state, in their order, the names and what of `_Source` reads them.
STATES = {
    "AddMM": {"alpha": "float32", "beta": "float32"},
    "Arange": {"start": "float64", "stop": "float64", "step": "float64"},
    "ArgPartition": {"kth": "int32", "axis": "int32"},
    "ArgReduce": {"reduce": "int32", "axis": "int32"},
    "ArgSort": {"axis": "int32"},
    "AsStrided": {"shape": "int32s", "strides": "int64s", "offset": "uint64"},
    "AsType": {"dtype": "dtype"},
    "BitwiseBinary": {"op": "int32"},
    "Broadcast": {"shape": "int32s"},
    "Concatenate": {"axis": "int32"},
    "Convolution": {
        **{"strides": "int32s", "padding_low": "int32s", "padding_high": "int32s"},
        **{"dilation": "int32s", "input_dilation": "int32s", "groups": "int32", "flip": "flag"},
    },
    "DynamicSlice": {"axes": "int32s", "sizes": "int32s"},
    "DynamicSliceUpdate": {"axes": "int32s"},
    "Equal": {"equal_nan": "flag"},
    "ExpandDims": {"axes": "int32s"},
    "Flatten": {"start": "int32", "end": "int32"},
    "Gather": {"axes": "int32s", "sizes": "int32s"},
    "GatherAxis": {"axis": "int32"},
    "Log": {"base": "int32"},
    "Pad": {"axes": "int32s", "low": "int32s", "high": "int32s"},
    "Partition": {"kth": "int32", "axis": "int32"},
    "RandomBits": {"shape": "int32s", "width": "int32"},
    "Reduce": {"reduce": "int32", "axes": "int32s"},
    "Reshape": {"shape": "int32s"},
    "Scan": {"reduce": "int32", "axis": "int32", "reverse": "flag", "inclusive": "flag"},
    "Scatter": {"reduce": "int32", "axes": "int32s"},
    "ScatterAxis": {"reduce": "int32", "axis": "int32"},
    "Slice": {"start": "int32s", "end": "int32s", "strides": "int32s"},
    "Softmax": {"precise": "flag"},
    "Sort": {"axis": "int32"},
    "Split": {"at": "int32s", "axis": "int32"},
    "Sqrt": {"reciprocal": "flag"},
    "Squeeze": {"axes": "int32s"},
    "Transpose": {"axes": "int32s"},
    "Unflatten": {"axis": "int32", "shape": "int32s"},
    "View": {"dtype": "dtype"},
}
STATELESS = frozenset(
    """Abs Add ArcCos ArcCosh ArcSin ArcSinh ArcTan ArcTan2 ArcTanh Ceil Conjugate Cos Cosh Depends DivMod Divide
    Erf ErfInv Exp Expm1 Floor FloorDivide Full Greater GreaterEqual Less LessEqual Log1p LogAddExp LogSumExp
    LogicalAnd LogicalNot LogicalOr Matmul Maximum Minimum Multiply Negative NotEqual Power Remainder Round Select
    Sigmoid Sign Sin Sinh Square Subtract Tan Tanh""".split()
)
