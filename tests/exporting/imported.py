"""Exported files on a machine without their GPU: MLX imports them once their operations are on the CPU's stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.exporting import layout

CPU = (0, 0, 0)


def on_the_cpu(path: Path) -> Callable[..., list[mx.array]]:
    """What MLX imports of a file. Results have shapes; values only where the file has no kernel."""
    whole = layout.read(memoryview(path.read_bytes()))
    with mock.patch.object(layout, "_GPU", CPU):
        data = b"".join(layout.written(whole))
    moved = path.with_suffix(".cpu.mlxfn")
    moved.write_bytes(data)
    return mx.import_function(str(moved))


def shapes(arrays: Any) -> list[tuple[tuple[int, ...], mx.Dtype]]:
    """Shapes and dtypes of arrays."""
    return [(tuple(a.shape), a.dtype) for a in arrays]


def exported(path: Path, function: Callable[..., Any], *args: Any, **how: Any) -> mf.exporting.contents.Exported:
    """What is in the file of a function, which MLX also imports with the shapes that it lists."""
    mf.export(path, function, *args, **how)
    found = mf.exported(path)
    if "mlx" not in how:
        imported = on_the_cpu(path)
        for signature in found.signatures:
            given = [mx.zeros(a.shape, a.dtype) for a in signature.inputs]
            assert shapes(imported(*given)) == shapes(signature.outputs)
    return found
