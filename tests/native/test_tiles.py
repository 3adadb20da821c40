"""The convolutions of the AMX level over a model of its instructions, on machines that have none.

Those of AVX512-BF16, where the processor has it, run in the same way: with memory that ends where it is said to.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from native.cxx import HERE, PRIMITIVES, compile_, isa_flags, needs_compiler
from support import same_bits
from support.bfloat16_case import Channels, Windows, check, defined, grad_both, level
from support.convolution_case import WINDOWS, Case, axis, close, exact

from mpsfunc.core.params import for_cpu

pytestmark = needs_compiler

_TYPES = {mx.float32: 0, mx.bfloat16: 2}  # in call.h


class Tensor(ctypes.Structure):
    """The one of call.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("shape", ctypes.c_int * 8),
        ("ndim", ctypes.c_int),
        ("type", ctypes.c_int),
        ("streamed", ctypes.c_bool),
    )


def tensor(shape: tuple[int, ...], dtype: mx.Dtype, data: np.ndarray) -> Tensor:
    return Tensor(data.ctypes.data, data.size, (ctypes.c_int * 8)(*shape), len(shape), _TYPES[dtype], False)


def raw(a: mx.array) -> np.ndarray:
    """An array's numbers, those of bfloat16 as their bits."""
    return np.array(a.view(mx.uint16) if a.dtype == mx.bfloat16 else a)


@functools.lru_cache
def library() -> list[Any]:
    """Where the fixture leaves what it builds for Modelled."""
    return []


@pytest.fixture(scope="module", autouse=True, params=("model of amx", "avx512_bf16"))
def _built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tiles")
    flags = ["-DMPSF_TILES", f'-DMPSF_TILE_MODEL="{HERE / "tile_model.h"}"']
    if request.param == "avx512_bf16":
        flags = isa_flags(level(request.param))
    source = PRIMITIVES / "kernels" / "convolution" / "bfloat16" / "bfloat16.cpp"
    named = ("-DMPSF_ISA=tested", "-DMPSF_BELOW=below")
    made = compile_(source, folder / "level.o", "-c", "-O2", "-ffp-contract=off", *named, *flags)
    built = compile_(HERE / "tiles_driver.cpp", folder / "tiles.so", "-shared", "-O1", str(made))
    library().append(ctypes.CDLL(str(built)))


class Modelled(Case):
    """A case that the model runs."""

    def run(self, op: str, arrays: list[mx.array], params: Any, *outputs: mx.array) -> list[mx.array]:
        dtypes = [a.dtype if op == "conv_grad_weights" else self.x.dtype for a in outputs]
        given = [raw(a) for a in arrays]
        made = [
            np.full(a.shape, 0x7FC0, np.uint16) if d == mx.bfloat16 else np.full(a.shape, np.nan, np.float32)
            for a, d in zip(outputs, dtypes, strict=True)
        ]
        ins = (Tensor * len(arrays))(*(tensor(a.shape, a.dtype, g) for a, g in zip(arrays, given, strict=True)))
        outs = (Tensor * len(outputs))(*(tensor(m.shape, d, m) for m, d in zip(made, dtypes, strict=True)))
        words = for_cpu(params)
        library()[-1].run(op.encode(), ins, outs, len(outputs), (ctypes.c_int * len(words))(*words))
        return [mx.array(m).view(d) for m, d in zip(made, dtypes, strict=True)]

    def laid_out(self, *added: mx.array) -> mx.array | None:
        """The convolution with weights that are laid out first, if they are, and images added to what it makes."""
        arrays = [self.x, self.w, self.b, *added]
        given, made = [raw(a) for a in arrays], np.full(self.dy.shape, 0x7FC0, np.uint16)
        ins = (Tensor * len(arrays))(*(tensor(a.shape, a.dtype, g) for a, g in zip(arrays, given, strict=True)))
        out, words = tensor(self.dy.shape, mx.bfloat16, made), for_cpu(self._params)
        run = library()[-1].run_laid_out
        run.restype = ctypes.c_bool
        done = run(ins, len(arrays), ctypes.byref(out), (ctypes.c_int * len(words))(*words), self.groups)
        return mx.array(made).view(mx.bfloat16) if done else None


# Whole tiles, rests of them in rows, lanes and depth, two row tiles and one, sums that are cut, and what is gathered.
CHANNELS = ((1, 32, 32), (1, 64, 40), (1, 3, 7), (1, 16, 33), (1, 65, 3), (2, 32, 16), (2, 3, 50), (1, 96, 17))


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS.keys())
def test_every_window(windows: Windows, channels: Channels) -> None:
    check(windows, channels, of=Modelled)


@pytest.mark.parametrize(
    ("windows", "channels", "images"),
    (
        ((axis(9, 9, 1, 1, 1, 0), axis(31, 31, 1, 1, 1, 0)), (1, 64, 70), 2),
        ((axis(3, 3, 1, 1, 1, 0), axis(17, 17, 1, 1, 1, 0)), (1, 2080, 40), 1),
        ((axis(5, 3, 3, 2, 1, 1), axis(40, 20, 3, 2, 1, 1)), (1, 1024, 33), 1),
        ((axis(20, 20, 3, 1, 1, 1), axis(31, 31, 3, 1, 1, 1)), (1, 32, 35), 3),
        ((axis(30, 15, 7, 2, 1, 3), axis(230, 115, 7, 2, 1, 3)), (1, 3, 20), 1),
    ),
    ids=str,
)
def test_many_pixels_and_long_sums(windows: Windows, channels: Channels, images: int) -> None:
    check(windows, channels, images, of=Modelled)


@pytest.mark.parametrize("channels", ((1, 32, 32), (1, 3, 20), (1, 65, 33), (2, 32, 16), (1, 96, 70)), ids=str)
@pytest.mark.parametrize("name", ("1x1", "1x1 s2", "3x3 p1", "3x3 s2 p1", "dilated", "hangs over", "long line"))
def test_weights_laid_out_ahead(name: str, channels: Channels) -> None:
    k, expected = defined(WINDOWS[name], channels, 2)
    modelled = Modelled(*k)
    made = modelled.laid_out()
    assert made is not None and same_bits(made, modelled.conv())
    y, size = expected[0]
    sums = modelled.laid_out(k.dy)
    assert sums is not None
    close(sums, y + exact(k.dy), size + np.abs(exact(k.dy)))


def test_subnormal_numbers_are_zeros() -> None:
    k = Modelled(*defined(WINDOWS["1x1"], (1, 32, 32), 2)[0])
    tiny = k._replace(x=mx.full(k.x.shape, 1e-39, mx.bfloat16), w=mx.full(k.w.shape, 1e30, mx.bfloat16))
    assert same_bits(tiny.conv(), k._replace(x=mx.zeros_like(k.x)).conv())


def test_nan_and_infinity_stay() -> None:
    k = Modelled(*defined(WINDOWS["3x3 p1"], (1, 32, 40), 2)[0])
    x = np.array(k.x.astype(mx.float32))
    x[1, 2, 3, 5], x[0, 2, 9, 7] = np.nan, np.inf
    spoiled = k._replace(x=mx.array(x).astype(mx.bfloat16))
    y, dw = spoiled.conv(), grad_both(spoiled)[0]
    expected = np.zeros(y.shape, bool)
    expected[1, 1:4, 2:5] = expected[0, 1:4, 8:11] = True
    assert np.array_equal(~np.isfinite(np.array(y.astype(mx.float32))), expected)
    assert np.isnan(np.array(dw)[..., 5]).all() and not np.isfinite(np.array(dw)[..., 7]).any()
    assert np.isfinite(np.array(dw)[..., 6]).all()
