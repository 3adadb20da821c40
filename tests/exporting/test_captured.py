"""Arrays that an exported function takes from elsewhere: still computed, of other traces, or arguments as well."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from exporting.imported import on_the_cpu

import mpsfunc as mf

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.needs_cpu_module]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "function.mlxfn"


@pytest.mark.parametrize("way", ["as it is", "transposed"])
def test_values_that_are_still_computed_are_waited_for(way: str, path: Path) -> None:
    x = mx.random.normal((500, 500), key=mx.random.key(0))
    for _ in range(4):
        product = x
        for _ in range(6):
            product = product @ x / 30
        captured = (product.T if way == "transposed" else product) * 2
        mx.async_eval(captured)
        mf.export(path, lambda y, captured=captured: y + captured, mx.zeros((500, 500)))
        (found,) = on_the_cpu(path)(mx.zeros((500, 500)))
        assert mx.array_equal(found, captured)


def _left(path: Path) -> Callable[[], None]:
    """Exports a function that reads what the export before left behind."""
    box: list[mx.array] = []
    mf.export(path, lambda x: (box.append(x), 2 * x)[1], mx.ones(3))
    return lambda: mf.export(path, lambda y: y * box[0], mx.ones(3))


def _statistics(path: Path) -> Callable[[], None]:
    """Exports a model of which an export in training mode has changed the statistics."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm(4))
    mx.eval(model.parameters())
    x = mx.zeros((2, 6, 6, 3))
    model.train()
    mf.export(path, model, x)
    model.eval()
    return lambda: mf.export(path, model, x)


def _compiled(path: Path) -> Callable[[], None]:
    outer = mx.compile(lambda c: (mf.export(path, lambda a: a + c, mx.ones(3)), c)[1])
    return lambda: outer(mx.ones(3))


def _mapped(path: Path) -> Callable[[], None]:
    outer = mx.vmap(lambda c: (mf.export(path, lambda a: a + c, mx.ones(3)), c)[1])
    return lambda: outer(mx.ones((2, 3)))


@pytest.mark.parametrize("prepare", [_left, _statistics, _compiled, _mapped])
def test_arrays_of_other_traces_are_refused(prepare: Callable[[Path], Callable[[], None]], path: Path) -> None:
    again = prepare(path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(ValueError, match="export: the function reads an array without values"):
        again()
    assert (path.read_bytes() if path.exists() else None) == before


def test_an_argument_may_be_captured_too(path: Path) -> None:
    x = mx.array([1.0, 2.0])
    twice = 2 * x
    mf.export(path, lambda y: y + x + twice, x)
    assert on_the_cpu(path)(mx.array([10.0, 20.0]))[0].tolist() == [13, 26]


def test_what_depends_on_the_layout_of_a_copy_is_refused(path: Path) -> None:
    def windows(x: mx.array) -> mx.array:
        return mx.as_strided(mx.contiguous(x[:, 1]), (3,), (1,))

    with pytest.raises(ValueError, match="export: MLX cannot write Contiguous, which AsStrided depends on"):
        mf.export(path, windows, mx.ones((4, 4)))
    raw = mx.fast.metal_kernel("raw", ["a"], ["out"], "out[0] = a[1];", ensure_row_contiguous=False)

    def read(x: mx.array) -> mx.array:
        (made,) = raw(
            inputs=[mx.contiguous(x.T)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)],
            output_dtypes=[mx.float32],
        )  # fmt: skip
        return made

    with pytest.raises(ValueError, match="which CustomKernel depends on"):
        mf.export(path, read, mx.ones((4, 4)))


@pytest.mark.parametrize("tree", [np.ones(3, np.float32), {"a": [np.ones(3, np.float32)]}])
def test_arrays_of_other_libraries_are_refused(tree: Any, path: Path) -> None:
    with pytest.raises(TypeError, match="export: x has an array of another library; got an ndarray"):
        mf.export(path, lambda x, y: y, tree, mx.ones(3))
    with pytest.raises(TypeError, match="export: result has an array of another library"):
        mf.export(path, lambda y: (y, tree), mx.ones(3))


def test_a_number_of_numpy_is_a_number(path: Path) -> None:
    mf.export(path, lambda x, scale: x * float(scale), mx.ones(3), np.float32(2.5))
    assert on_the_cpu(path)(mx.ones(3))[0].tolist() == [2.5] * 3


def test_no_room_for_the_trace_is_an_os_error(path: Path) -> None:
    weights = mx.ones(10_000)
    mx.eval(weights)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="export: no temporary file can be written"):
            mf.export(path, lambda x: x + weights, mx.ones(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not os.listdir(path.parent)
