"""`exported`, which lists what is in the file of an exported function."""

from __future__ import annotations

import json
import mmap
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core.printing import describe
from mpsfunc.exporting import layout
from mpsfunc.exporting.finishing import constants
from mpsfunc.exporting.kernels import body_of
from mpsfunc.exporting.layout import Signature, Whole
from mpsfunc.exporting.states import KERNEL
from mpsfunc.saving import places
from mpsfunc.saving.safetensors import Refused


class ExportedArray(NamedTuple):
    """An array that an exported function takes, returns or holds.

    Fields:
        name: Where it is in the tree of arguments or of the result, such as "params.blocks.0.w"; of a constant, "".
        shape: Its shape.
        dtype: Its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: mx.Dtype

    def __str__(self) -> str:
        what = f"{str(self.dtype).rpartition('.')[2]}{list(self.shape)}"
        return f"{self.name} {what}" if self.name else what


class ExportedSignature(NamedTuple):
    """One of the signatures by which an exported function can be called.

    Fields:
        inputs: The arrays that it takes, in their order. Those of ``mx.export_function`` with keywords are named so.
        outputs: The arrays that it returns, in their order.
        kernels: Kernels of mpsfunc and others, in the order in which they are launched, such as "avg_pool".
        operations: Operations of MLX, in their order, such as "Add".
    """

    inputs: tuple[ExportedArray, ...]
    outputs: tuple[ExportedArray, ...]
    kernels: tuple[str, ...]
    operations: tuple[str, ...]


class Exported(NamedTuple):
    """What is in the file of an exported function; `print` shows it as a list.

    Fields:
        mlx: The version of MLX that reads it.
        mpsfunc: The version that wrote it; "" where MLX alone did.
        device: The GPU that it is for, "metal" or "cuda"; "" where MLX alone wrote it.
        signatures: The arrays that it takes and returns, and what it runs, for each signature.
        constants: Arrays whose values are in the file, the largest first.
        nbytes: How long the file is.
    """

    mlx: str
    mpsfunc: str
    device: str
    signatures: tuple[ExportedSignature, ...]
    constants: tuple[ExportedArray, ...]
    nbytes: int

    def __str__(self) -> str:
        by = f"mpsfunc {self.mpsfunc}, for {self.device}" if self.mpsfunc else "MLX"
        lines = [f"exported by {by}, read by MLX {self.mlx}: {self.nbytes:,} bytes"]
        for i, signature in enumerate(self.signatures):
            lines.append(f"signature {i}: {_counted(signature.kernels, 'kernel')}")
            lines.append(f"  and {_counted(signature.operations, 'operation')} of MLX")
            for way, arrays in (("takes", signature.inputs), ("returns", signature.outputs)):
                lines += [f"  {way} {j}: {array}" for j, array in enumerate(arrays)]
        size = sum(layout.Array(array.shape, array.dtype).nbytes for array in self.constants)
        lines.append(f"{len(self.constants)} constants: {size:,} bytes")
        lines += [f"  {array}" for array in self.constants]
        return "\n".join(lines)


def exported(path: str | os.PathLike[str]) -> Exported:
    """Lists what is in a file that `export` or ``mx.export_function`` wrote, without running or importing it.

    The file may be for any GPU, and of MLX 0.31 and 0.32.

    Args:
        path: The file.

    Returns:
        An `Exported`, which ``print`` shows as a list: the arrays that the function takes and returns, in their order,
        kernels, constants, and the version of MLX that reads it.

    Raises:
        TypeError: path is not a path.
        FileNotFoundError: There is no such file.
        ValueError: It is not such a file, not whole, or of a version that is not known; or the path leads to a folder,
            a pipe, a socket, a device or a symbolic link loop, or names no file.
        OSError: The file cannot be read.

    Example:
        >>> import os, tempfile
        >>> from mpsfunc import conv, export
        >>> path = os.path.join(tempfile.mkdtemp(), "conv.mlxfn")
        >>> image, weights = mx.zeros((1, 8, 8, 3)), mx.zeros((16, 3, 3, 3))
        >>> export(path, lambda x, w: conv(x, w, padding=1), image, weights, mlx="0.31.1")
        >>> found = exported(path)
        >>> found.mlx, found.device, found.signatures[0].kernels
        ('0.31.1', 'metal', ('conv',))
        >>> print(*found.signatures[0].inputs, *found.signatures[0].outputs, sep=", ")
        x float32[1, 8, 8, 3], w float32[16, 3, 3, 3], result float32[1, 8, 8, 16]
    """
    name = places.name_of("exported", path)
    try:
        with places.errors("exported", name), places.opened("exported", name) as file:
            length = os.fstat(file.fileno()).st_size
            # Mapped: of a large file of something else only the beginning is read.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if length else b""
        whole = layout.read(memoryview(data))
    except Refused as why:
        complaint, rule = why.args
        raise ValueError(f"exported: {complaint}; got path={describe(name)}, expected {rule}") from None
    except layout.Refused as why:
        raise ValueError(
            f"exported: no exported function is in it: {why}; got path={describe(name)}, "
            "expected a file that export or MLX wrote"
        ) from None
    about = _about(whole)
    signatures = [_listed(each, about, i) for i, each in enumerate(whole.signatures)]
    held = [ExportedArray("", each.array.shape, each.array.dtype) for each in constants(whole)]
    held.sort(key=lambda array: -layout.Array(array.shape, array.dtype).nbytes)
    return Exported(
        whole.mlx, about.get("mpsfunc", ""), about.get("device", ""), tuple(signatures), tuple(held), length
    )


def _about(whole: Whole) -> dict[str, Any]:
    """What `export` wrote of the file; nothing where it did not."""
    try:
        about = json.loads(whole.metadata)
    except (ValueError, RecursionError):
        return {}
    named = about.get("signatures") if isinstance(about, dict) and isinstance(about.get("mpsfunc"), str) else None
    fits = isinstance(named, list) and len(named) == len(whole.signatures)
    return about if fits and isinstance(about.get("device"), str) else {}


def _listed(signature: Signature, about: dict[str, Any], i: int) -> ExportedSignature:
    known = signature.known()
    names = about["signatures"][i] if about else {}
    ours = _names(names, "inputs", len(signature.inputs))
    first = len(signature.inputs) - len(signature.keywords)
    inputs = ours or [*map(str, range(first)), *signature.keywords]
    outputs = _names(names, "outputs", len(signature.outputs)) or [*map(str, range(len(signature.outputs)))]
    operations = signature.operations
    return ExportedSignature(
        tuple(ExportedArray(name, *known[number]) for name, number in zip(inputs, signature.inputs, strict=True)),
        tuple(ExportedArray(name, *known[number]) for name, number in zip(outputs, signature.outputs, strict=True)),
        tuple(body_of(each.state[0]) for each in operations if each.name == KERNEL),
        tuple(each.name for each in operations if each.name != KERNEL),
    )


def _names(of: Any, key: str, count: int) -> list[str]:
    names = of.get(key) if isinstance(of, dict) else None
    if not isinstance(names, list) or len(names) != count:
        return []
    return names if all(isinstance(name, str) for name in names) else []


def _counted(names: Iterable[str], what: str) -> str:
    """How often each is there: "3 kernels (avg_pool 2, conv)"."""
    counts = Counter(names)
    total = sum(counts.values())
    each = ", ".join(name if count == 1 else f"{name} {count}" for name, count in counts.items())
    return f"{total} {what}{'' if total == 1 else 's'}{f' ({each})' if each else ''}"
