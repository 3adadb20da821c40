"""`mf.exported`: what it lists, of files that MLX wrote too, and files that are none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exporting.imported import exported

import mpsfunc as mf
from mpsfunc.exporting import layout, states

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.needs_cpu_module]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "function.mlxfn"


def step(params: dict[str, mx.array], x: mx.array) -> Any:
    loss = lambda params: (mf.conv(mf.avg_pool(x, 2), params["w"]) ** 2).mean()  # noqa: E731
    return mx.value_and_grad(loss)(params)


ARGUMENTS = {"w": mx.ones((4, 3, 3, 3))}, mx.ones((1, 8, 8, 3))


@pytest.mark.parametrize("mlx", [None, "0.31.1"])
def test_a_listing(mlx: Any, path: Path) -> None:
    also = [(ARGUMENTS[0], mx.ones((2, 8, 8, 3)))]
    found = exported(path, step, *ARGUMENTS, also=also, mlx=mlx) if mlx else exported(path, step, *ARGUMENTS, also=also)
    assert found.mlx == (mlx or mx.__version__) and found.mpsfunc == mf.__version__ and found.device == "metal"
    assert found.nbytes == path.stat().st_size
    first, second = found.signatures
    assert first.inputs == (("params.w", (4, 3, 3, 3), mx.float32), ("x", (1, 8, 8, 3), mx.float32))
    assert second.inputs[1] == ("x", (2, 8, 8, 3), mx.float32)
    assert first.outputs == (("result.0", (), mx.float32), ("result.1.w", (4, 3, 3, 3), mx.float32))
    assert first.kernels[:2] == ("avg_pool", "conv") and "Reduce" in first.operations
    assert "CustomKernel" not in first.operations


def test_a_listing_is_printed(path: Path) -> None:
    exported(
        path,
        lambda x, w: mf.conv(mf.avg_pool(mf.avg_pool(x, 2), 2) * 2, w),
        mx.ones((1, 8, 8, 3)),
        mx.ones((4, 1, 1, 3)),
    )
    lines = str(mf.exported(path)).splitlines()
    size = path.stat().st_size
    assert lines[0] == f"exported by mpsfunc {mf.__version__}, for metal, read by MLX {mx.__version__}: {size:,} bytes"
    assert lines[1] == "signature 0: 3 kernels (avg_pool 2, conv)"
    assert lines[2].startswith("  and ") and lines[2].endswith(" of MLX")
    assert lines[3:6] == [
        "  takes 0: x float32[1, 8, 8, 3]",
        "  takes 1: w float32[4, 1, 1, 3]",
        "  returns 0: result float32[1, 2, 2, 4]",
    ]
    assert lines[6].endswith(" bytes") and "constants: " in lines[6] and "  int32[22]" in lines[7:]


def test_a_file_of_mlx(path: Path) -> None:
    held = mx.arange(6.0)
    mx.eval(held)

    def function(x: mx.array, *, scale: mx.array, add: mx.array) -> Any:
        return [mx.sort(x) * scale + add + held, *mx.split(x, 2)]

    mx.export_function(str(path), function, mx.ones(6), scale=mx.ones(()), add=mx.ones((1,)))
    found = mf.exported(path)
    assert (found.mlx, found.mpsfunc, found.device) == (mx.__version__, "", "")
    (signature,) = found.signatures
    assert [a.name for a in signature.inputs] == ["0", "add", "scale"]
    assert [a.shape for a in signature.outputs] == [(6,), (3,), (3,)] and signature.kernels == ()
    assert {"Sort", "Split", "Add", "Multiply"} <= set(signature.operations)
    assert ("", (6,), mx.float32) in found.constants
    assert str(found).startswith("exported by MLX, read by MLX ")


def test_metadata_of_others_is_left_alone(path: Path) -> None:
    for metadata in ("", "words", "[]", json.dumps({"mpsfunc": 3}), json.dumps({"mpsfunc": "1", "signatures": [[]]})):
        mx.export_function(str(path), lambda x: x * 2, mx.ones(3), metadata=metadata)
        found = mf.exported(path)
        assert found.mpsfunc == "" and [a.name for a in found.signatures[0].inputs] == ["0"]


def test_metadata_is_what_mlx_returns(path: Path) -> None:
    """C++ has `ImportedFunction::metadata()`: names for whoever imports the file."""
    mf.export(path, step, *ARGUMENTS)
    about = json.loads(layout.read(memoryview(path.read_bytes())).metadata)
    assert about == {
        "mpsfunc": mf.__version__,
        "device": "metal",
        "signatures": [{"inputs": ["params.w", "x"], "outputs": ["result.0", "result.1.w"]}],
    }


# Files that are none ------------------------------------------------------------------------------------


def test_a_file_that_is_cut_off_is_an_error(path: Path) -> None:
    mf.export(path, lambda x: mx.split(mf.avg_pool(x, 2), 2, axis=-1), mx.ones((1, 4, 4, 2)))
    whole = path.read_bytes()
    for length in (*range(0, len(whole), 31), *range(len(whole) - 40, len(whole))):
        path.write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match="^exported: no exported function is in it: .*; got path=.*, expected a file"
        ):
            mf.exported(path)


def test_a_byte_that_changed_is_no_other_error(path: Path) -> None:
    mf.export(path, lambda x: mx.split(mf.avg_pool(x, 2), 2, axis=-1), mx.ones((1, 4, 4, 2)))
    whole = path.read_bytes()
    begin, end = whole.index(b"#if"), whole.rindex(b";\n")  # a kernel's text, of which any is one
    refused = 0
    for at in (*range(begin), *range(end, len(whole))):
        data = bytearray(whole)
        data[at] ^= (1, 0x80, 0xFF)[at % 3]
        path.write_bytes(data)
        try:
            str(mf.exported(path))
        except ValueError as error:
            assert str(error).startswith("exported: no exported function is in it: ")
            refused += 1
    assert refused > 100


FOREIGN = {
    "nothing": (b"", "it ends within a part of 8 bytes at byte 0"),
    "text": (b"# no function\n" * 9, "it ends within a part of "),
    "a zip": (b"PK\x03\x04" + bytes(40), "it ends within a part of "),
    "no version": (b"\x01" + bytes(7) + b"x" + bytes(40), "it does not begin with MLX's version"),
    "many inputs": (
        layout.string("0.32.4") + b"\x01\0\0\0\0" + layout.string("") + bytes(8) + b"\xff" * 8,
        "it ends within a part of 18446744073709551615 entries",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_is_an_error(what: str, path: Path) -> None:
    data, said = FOREIGN[what]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"^exported: no exported function is in it: {said}"):
        mf.exported(path)


def test_an_operation_that_is_not_known_is_named(path: Path) -> None:
    mf.export(path, lambda x: mx.sort(x), mx.ones(3))
    path.write_bytes(path.read_bytes().replace(b"Sort", b"Tros"))
    with pytest.raises(ValueError, match="it has an operation that mpsfunc does not know, 'Tros'; got path="):
        mf.exported(path)


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="exported: the file cannot be read"):
        mf.exported(tmp_path / "none")
    with pytest.raises(
        ValueError, match="exported: path leads to a folder; got path=.*, expected a file that export or MLX"
    ):
        mf.exported(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="exported: path leads to a pipe"):
        mf.exported(tmp_path / "pipe")
    with pytest.raises(TypeError, match="exported: path is not a path; got path=3"):
        mf.exported(3)  # type: ignore[arg-type]  # what is tested


# The layout ---------------------------------------------------------------------------------------------

STATES_OF_MLX = {
    "Arange": lambda x: x + mx.arange(3.0),
    "AsStrided": lambda x: mx.as_strided(x, (2, 2), (1, 1)),
    "Convolution": lambda x: mx.conv1d(x.reshape(1, 3, 1), mx.ones((1, 2, 1))),
    "FFT": lambda x: mx.fft.rfft(x),
    "Gather": lambda x: x[mx.array([0, 2])],
    "LogSumExp": lambda x: mx.logsumexp(x),
    "Pad": lambda x: mx.pad(x, 1),
    "RMSNorm": lambda x: mx.fast.rms_norm(x, None, 1e-5),
    "RandomBits": lambda x: x + mx.random.uniform(shape=(3,), key=mx.random.key(0)),
    "Reduce": lambda x: x.sum(),
    "RoPE": lambda x: mx.fast.rope(mx.ones((1, 1, 2, 4)) * x[0], 4, traditional=False, base=1e4, scale=1.0, offset=0),
    "Scan": lambda x: mx.cumsum(x),
    "Scatter": lambda x: x.at[mx.array([0, 0])].add(mx.ones(2)),
    "Slice": lambda x: x[1:],
    "SliceUpdate": lambda x: mx.slice_update(x, mx.ones(1), mx.array([1]), [0]),
    "View": lambda x: x.view(mx.int32),
}


@pytest.mark.parametrize("what", STATES_OF_MLX)
def test_what_mlx_writes_is_read_and_written_again(what: str, path: Path) -> None:
    mx.export_function(str(path), STATES_OF_MLX[what], mx.ones(3))
    whole = layout.read(memoryview(path.read_bytes()))
    again = layout.read(memoryview(b"".join(layout.written(whole))))
    names = [[o.name for o in each.signatures[0].operations] for each in (whole, again)]
    assert names[0] == names[1] and set(names[0]) <= set(states.STATES)
    assert [o.state for o in whole.signatures[0].operations] == [o.state for o in again.signatures[0].operations]
