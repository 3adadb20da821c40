"""How the file of an exported function holds what each of MLX's operations has besides its inputs.

MLX documents no such thing. These are the tuples that ``state()`` of each class in mlx/primitives.h and
mlx/fast_primitives.h makes, in the order of mlx/export.cpp; the file does not say how long they are. One letter a part:

    ?  bool                 i  int32, or an enum     f  float32              d  float64
    D  dtype                I  vector of int32       L  vector of 64 bits    Q  64 bits
    S  string               B  vector of three bools each                    F  float32 that may be missing
    V  vector of numbers, each an int32, a float32 or a bool
"""

from __future__ import annotations

from typing import NamedTuple

KERNEL = "CustomKernel"

STATES = {
    "AddMM": "ff", "Arange": "ddd", "ArgPartition": "ii", "ArgReduce": "ii", "ArgSort": "i", "AsStrided": "ILQ",
    "AsType": "D", "BitwiseBinary": "i", "BlockMaskedMM": "i", "Broadcast": "I", "BroadcastAxes": "I",
    "Cholesky": "?", "Concatenate": "i", "Convolution": "IIIIIi?", KERNEL: "SSiiiiiiB?FV?ii", "DynamicSlice": "II",
    "DynamicSliceUpdate": "I", "Eig": "?", "Eigh": "S?", "Equal": "?", "ExpandDims": "I", "FFT": "L???",
    "Flatten": "ii", "Gather": "II", "GatherAxis": "i", "GatherMM": "??", "GatherQMM": "iii???", "Hadamard": "f",
    "Inverse": "??", "LayerNorm": "f", "LayerNormVJP": "f", "Log": "i", "NumberOfElements": "I?D", "Pad": "III",
    "Partition": "ii", "Quantize": "iii?", "QuantizedMatmul": "iii?", "RMSNorm": "f", "RMSNormVJP": "f",
    "RandomBits": "Ii", "Reduce": "iI", "Reshape": "I", "RoPE": "i?ff?", "SVD": "?",
    "ScaledDotProductAttention": "f????", "Scan": "ii??", "Scatter": "iI", "ScatterAxis": "ii", "SearchSorted": "?",
    "Slice": "III", "SliceUpdate": "iIII", "Softmax": "?", "Sort": "i", "Split": "Ii", "Sqrt": "?", "Squeeze": "I",
    "Transpose": "I", "Unflatten": "iI", "View": "D",
    **dict.fromkeys((
        "Abs", "Add", "ArcCos", "ArcCosh", "ArcSin", "ArcSinh", "ArcTan", "ArcTan2", "ArcTanh", "Ceil", "Conjugate",
        "Copy", "Cos", "Cosh", "Depends", "DivMod", "Divide", "Erf", "ErfInv", "Exp", "Expm1", "Floor", "FloorDivide",
        "Full", "Greater", "GreaterEqual", "Imag", "Less", "LessEqual", "Log1p", "LogAddExp", "LogSumExp", "LogicalAnd",
        "LogicalNot", "LogicalOr", "MaskedScatter", "Matmul", "Maximum", "Minimum", "Multiply", "Negative",
        "NotEqual", "Power", "QRF", "Real", "Remainder", "Round", "Select", "Sigmoid", "Sign", "Sin", "Sinh",
        "Square", "StopGradient", "Subtract", "Tan", "Tanh",
    ), ""),
}  # fmt: skip

# What MLX computes on no GPU.
CPU_ONLY = frozenset(("Cholesky", "Eig", "Eigh", "Inverse", "QRF", "SVD"))


class Older(NamedTuple):
    """What an operation's state was before MLX added a part to it.

    Fields:
        until: The first version that has the part.
        state: The letters before that.
        at: Where the part stands now.
        meant: Its value where the operation does what it did before.
    """

    until: tuple[int, ...]
    state: str
    at: int
    meant: int | bool


OLDER = {
    KERNEL: Older((0, 32, 0), "SSiiiiiiB?FV?i", 14, 0),
    "FFT": Older((0, 32, 4), "L??", 3, False),
    "ScaledDotProductAttention": Older((0, 32, 2), "f???", 4, False),
    "SliceUpdate": Older((0, 31, 2), "III", 0, 4),
}
LATER = {
    "FloorDivide": (0, 32, 4),
    "SearchSorted": (0, 32, 1),
}  # operations that are newer than the oldest layout, and since when they are there


def letters(name: str, version: tuple[int, ...]) -> tuple[str, Older | None]:
    """How a version of MLX writes an operation's state, and what it is without, if it is older than a part.

    Raises:
        KeyError: No version that is known has it, or this one does not.
    """
    if LATER.get(name, version) > version:
        raise KeyError(name)
    older = OLDER.get(name)
    return (older.state, older) if older and version < older.until else (STATES[name], None)
