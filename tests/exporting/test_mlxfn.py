"""The reader of .mlxfn files beside what MLX tells a callback of the same function, and on files that are broken."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exporting.mlx_functions import FUNCTIONS, ONLY_READ
from exporting.mlxfn import STATELESS, STATES, BadFile, File, on_cpu, read

CASES = {**FUNCTIONS, **ONLY_READ}


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield


def written(folder: Path, name: str) -> bytes:
    path = folder / "function.mlxfn"
    function, arguments, keywords = CASES[name]
    mx.export_function(str(path), function, *arguments, **keywords)
    return path.read_bytes()


def told(name: str) -> dict[str, list[dict[str, Any]]]:
    """What MLX tells of a function, by kind."""
    function, arguments, keywords = CASES[name]
    found: dict[str, list[dict[str, Any]]] = {"primitive": []}
    mx.export_function(lambda part: found.setdefault(part["type"], []).append(part), function, *arguments, **keywords)
    return found


def plain(value: Any) -> Any:
    """MLX's values as the reader has them."""
    if isinstance(value, mx.Dtype):
        return str(value).removeprefix("mlx.core.").rstrip("_")
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def numbered(arrays: Iterable[tuple[Any, Any, Any]], names: dict[Any, int]) -> list[tuple[int, Any, Any]]:
    """Arrays by numbers in the order in which they are met."""
    return [(names.setdefault(name, len(names)), shape, dtype) for name, shape, dtype in arrays]


def graph_of_file(file: File) -> tuple[Any, ...]:
    (function,) = file.functions
    names: dict[Any, int] = {}

    def arrays(ids: Iterable[int]) -> list[tuple[int, Any, Any]]:
        return numbered(((each, *function.arrays[each]) for each in ids), names)

    inputs = arrays(function.input_ids)
    steps = [
        (arrays(step.inputs), arrays(step.outputs), step.primitive.name, tuple(step.primitive.state.values()))
        for step in function.steps
    ]
    return inputs, steps, arrays(function.output_ids)


def graph_of_mlx(parts: dict[str, list[dict[str, Any]]]) -> tuple[Any, ...]:
    names: dict[Any, int] = {}

    def arrays(given: Iterable[Any]) -> list[tuple[int, Any, Any]]:
        return numbered(((name, shape, plain(dtype)) for name, shape, dtype in given), names)

    inputs = arrays(parts["inputs"][0]["inputs"])
    steps = [
        (arrays(part["inputs"]), arrays(part["outputs"]), part["name"], plain(part["arguments"]))
        for part in parts["primitive"]
    ]
    return inputs, steps, arrays(parts["outputs"][0]["outputs"])


@pytest.mark.parametrize("name", CASES)
def test_reads_what_mlx_tells(name: str, tmp_path: Path) -> None:
    file, parts = read(written(tmp_path, name)), told(name)
    assert graph_of_file(file) == graph_of_mlx(parts)
    assert file.functions[0].keywords == tuple(keyword for keyword, _ in parts["keyword_inputs"][0]["keywords"])
    constants = [bytes(memoryview(value)) for _, value in parts["constants"][0]["constants"]]
    assert sorted(each.data for each in file.constants.values()) == sorted(constants)
    assert (file.mlx, file.shapeless, file.metadata) == (mx.__version__, False, "")


def test_each_primitive_that_it_knows_is_in_a_function(tmp_path: Path) -> None:
    files = [read(written(tmp_path, name)) for name in CASES]
    seen = {step.primitive.name for file in files for step in file.functions[0].steps}
    assert seen | {"CustomKernel"} == {*STATES, *STATELESS, "SliceUpdate", "CustomKernel"}


def toy(folder: Path) -> bytes:
    """A file with one Metal kernel of two results, between operations of MLX's on the CPU."""
    kernel = mx.fast.metal_kernel(
        name="toy",
        input_names=["x", "few", "one"],
        output_names=["y", "z"],
        header="// a header\n",
        source="y[0] = x_shape[1] + x_strides[0] + x_ndim + few[0] + one; z[0] = T(x[0]);",
    )

    def function(x: mx.array) -> list[mx.array]:
        few, one = mx.array([2, 3], mx.int32), mx.array(0.5)
        return kernel(
            inputs=[x * 2, few, one],
            template=[("T", mx.float16)],
            output_shapes=[(1,), (2, 3)],
            output_dtypes=[mx.float32, mx.float16],
            grid=(5, 4, 3),
            threadgroup=(8, 4, 1),
            init_value=0.25,
            stream=mx.gpu,
        )

    mx.export_function(str(folder / "toy.mlxfn"), function, mx.ones((4, 16)))
    return (folder / "toy.mlxfn").read_bytes()


def test_reads_a_kernel(tmp_path: Path) -> None:
    file = read(toy(tmp_path))
    (function,) = file.functions
    (kernel,) = function.kernels
    assert kernel.name == "custom_kernel_toy__float16_t_float_int32_tc_floats_float_float16_t"
    assert kernel.text.startswith("// a header\n") and "x_strides[0] + x_ndim" in kernel.text
    assert (kernel.grid, kernel.threadgroup) == ((5, 4, 3), (8, 4, 1))
    assert kernel.sizes_of == ((True, True, True), (False, False, False), (False, False, False))
    assert kernel.ensure_row_contiguous and kernel.init_value == 0.25 and kernel.scalars == ()
    assert (kernel.is_precompiled, kernel.shared_memory, kernel.compile_options) == (False, 0, 0)
    assert function.outputs == (((1,), "float32"), ((2, 3), "float16"))
    assert function.steps[-1].outputs == function.output_ids
    assert {stream.device for stream in file.streams} == {"cpu", "gpu"}


def test_moves_to_the_cpu(tmp_path: Path) -> None:
    before = toy(tmp_path)
    after = on_cpu(before)
    assert len(after) == len(before) and read(after).streams == {(0, "cpu", 0)}
    steps = [
        [step._replace(primitive=step.primitive._replace(stream=None)) for step in read(each).functions[0].steps]
        for each in (before, after)
    ]
    assert steps[0] == steps[1]
    path = tmp_path / "moved.mlxfn"
    path.write_bytes(after)
    if not mx.is_available(mx.gpu):
        with pytest.raises(ValueError, match="gpu stream"):
            mx.import_function(str(tmp_path / "toy.mlxfn"))
    assert [y.shape for y in mx.import_function(str(path))(mx.ones((4, 16)))] == [(1,), (2, 3)]


def test_signatures_share_constants(tmp_path: Path) -> None:
    shared = mx.array([1.0, 2.0, 3.0])
    path = tmp_path / "two.mlxfn"
    with mx.exporter(str(path), lambda *arrays: [sum(arrays[1:], arrays[0]) * shared]) as exporter:
        exporter(mx.ones((2, 3)))
        exporter(mx.ones((5, 3)), mx.ones(3))
    file = read(path.read_bytes())
    assert [function.inputs for function in file.functions] == [
        (((2, 3), "float32"),),
        (((5, 3), "float32"), ((3,), "float32")),
    ]
    (constant,) = [each for each in file.constants.values() if each.array.shape == (3,)]
    assert struct.unpack("<3f", constant.data) == (1, 2, 3)
    assert len({function.constants for function in file.functions}) == 1


def test_refuses_what_is_too_short_or_too_long(tmp_path: Path) -> None:
    data = toy(tmp_path)
    for length in range(len(data)):
        with pytest.raises(BadFile):
            read(data[:length])
    with pytest.raises(BadFile, match="1 bytes after the last function"):
        read(data + b"\0")


def test_refuses_other_bytes_or_reads_another_file(tmp_path: Path) -> None:
    """Whatever stands in a file, nothing but `BadFile` comes of it."""
    data = toy(tmp_path)
    text = data.index(b"// a header")
    for place in [*range(text), *range(text + 900, len(data))]:
        for other in (0, 1, 0x7F, 0xFF):
            with contextlib.suppress(BadFile):
                read(data[:place] + bytes([other]) + data[place + 1 :])


def test_names_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "function.mlxfn"
    mx.export_function(str(path), mx.fft.fft, mx.ones(8))
    with pytest.raises(BadFile, match="primitive 'FFT'"):
        read(path.read_bytes())
    version = mx.__version__.encode()
    with pytest.raises(BadFile, match="version '9.99.9'"):
        read(path.read_bytes().replace(version, b"9.99.9", 1))
