"""What runs .mlxfn files: MLX's operations in NumPy beside MLX, and kernels as MLX would bind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exporting import mlx_in_numpy
from exporting.mlx_functions import FUNCTIONS, ONLY_READ
from exporting.mlx_in_numpy import cast, from_bytes, to_bytes
from exporting.mlxfn import Array, BadFile, File, Kernel, read
from exporting.run_file import run
from metal_host.host import needs_clang
from metal_host.job import KernelFault


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield


def exported(folder: Path, function: Callable[..., Any], *arguments: mx.array, **keywords: mx.array) -> File:
    mx.export_function(str(folder / "function.mlxfn"), function, *arguments, **keywords)
    return read((folder / "function.mlxfn").read_bytes())


def in_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_are_those_of_mlx(name: str, tmp_path: Path) -> None:
    function, arguments, keywords = FUNCTIONS[name]
    file = exported(tmp_path, function, *arguments, **keywords)
    given = {keyword: in_numpy(array) for keyword, array in keywords.items()}
    found = run(file, [in_numpy(array) for array in arguments], given)
    right = function(*arguments, **keywords)
    for one, other in zip(found, right if isinstance(right, list | tuple) else [right], strict=True):
        expected = in_numpy(other)
        assert (one.shape, one.dtype) == (expected.shape, expected.dtype)
        # Sums are of another order, and MLX's CPU rounds between the steps of a softmax.
        bits = {mx.bfloat16: 8, mx.float16: 11}.get(other.dtype, 24)
        np.testing.assert_allclose(one, expected, rtol=2.0 ** (3 - bits), atol=1e-6)


def test_each_operation_in_numpy_is_in_a_function(tmp_path: Path) -> None:
    files = [exported(tmp_path, case.function, *case.arguments, **case.keywords) for case in FUNCTIONS.values()]
    seen = {step.primitive.name for file in files for step in file.functions[0].steps}
    assert seen == mlx_in_numpy.NAMES


@pytest.mark.parametrize("name", ONLY_READ)
def test_names_operations_that_it_lacks(name: str, tmp_path: Path) -> None:
    function, arguments, keywords = ONLY_READ[name]
    file = exported(tmp_path, function, *arguments, **keywords)
    with pytest.raises(BadFile, match="is not among MLX's operations in NumPy"):
        run(file, [np.array(array) for array in arguments])


def test_bfloat16_rounds_as_mlx_does() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    ties = (np.arange(4096, dtype=np.uint32) << 15) + 0x3F000000
    x = np.concatenate([bits, ties, [0x7F7FFFFF, 0xFF7FFFFF, 0x80000001]]).astype(np.uint32).view(np.float32)
    right = mx.array(x).astype(mx.bfloat16)
    rounded = cast(x, "bfloat16")
    np.testing.assert_array_equal(rounded, in_numpy(right))
    number = ~np.isnan(x)
    as_words = np.frombuffer(to_bytes(rounded, "bfloat16"), np.uint16)
    np.testing.assert_array_equal(as_words[number], np.array(right.view(mx.uint16))[number])
    np.testing.assert_array_equal(from_bytes(as_words.tobytes(), Array(x.shape, "bfloat16")), rounded)


def test_finds_the_signature_of_its_arguments(tmp_path: Path) -> None:
    with mx.exporter(str(tmp_path / "two.mlxfn"), lambda *arrays, **_: [arrays[-1] * len(arrays)]) as exporter:
        exporter(mx.ones((2, 3)))
        exporter(mx.ones((2, 3)), mx.ones(3))
        exporter(mx.ones((2, 3)), extra=mx.ones(4))
    file = read((tmp_path / "two.mlxfn").read_bytes())
    long, short = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    assert (run(file, [long])[0] == np.ones((2, 3))).all()
    assert (run(file, [long, short])[0] == [2, 2, 2]).all()
    assert (run(file, [long], {"extra": np.ones(4, np.float32)})[0] == np.ones((2, 3))).all()
    for arguments, keywords in (
        ([short], {}),
        ([long.astype(np.float64)], {}),
        ([long], {"other": np.ones(4, np.float32)}),
    ):
        with pytest.raises(BadFile, match="0 of 3 signatures fit"):
            run(file, arguments, keywords)


# Kernels -------------------------------------------------------------------------------------------------


SOURCE = """
    uint i = thread_position_in_grid.x + thread_position_in_grid.y * 6;
    y[i] = T(x[i] * few[1] + one + x_shape[1] + x_strides[0] + x_ndim);
    z[i] = x[i] > 0;
"""


def toy(folder: Path, dtype: mx.Dtype = mx.float32, **options: Any) -> File:
    """A kernel of a matrix, whose text has it in device memory, and of small arrays, which are constants."""
    kernel = mx.fast.metal_kernel(name="toy", input_names=["x", "few", "one"], output_names=["y", "z"], source=SOURCE)

    def function(x: mx.array) -> list[mx.array]:
        return kernel(
            inputs=[x * 2, mx.array([3, 4], mx.int32), mx.array(0.5)],
            template=[("T", dtype)],
            output_shapes=[(4, 6), (4, 6)],
            output_dtypes=[dtype, mx.bool_],
            **{"grid": (6, 4, 1), "threadgroup": (8, 2, 1), "stream": mx.gpu, **options},
        )

    return exported(folder, function, mx.zeros((4, 6), dtype))


X = (np.arange(24, dtype=np.float32).reshape(4, 6) * 5 % 13 - 6) / 4  # whose results all dtypes hold


@needs_clang
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=lambda dtype: str(dtype)[9:])
@pytest.mark.parametrize("sanitizer", ["address", "none"])
def test_runs_a_kernel(dtype: mx.Dtype, sanitizer: str, tmp_path: Path) -> None:
    x = X.astype(np.float16) if dtype == mx.float16 else X
    y, z = run(toy(tmp_path, dtype), [x], sanitizer=sanitizer)
    np.testing.assert_array_equal(y, 8 * X + 0.5 + 14)
    np.testing.assert_array_equal(z, x > 0)


def changed(file: File, **fields: Any) -> File:
    """The file with other fields of its kernel."""
    (function,) = file.functions
    steps = [
        step._replace(primitive=step.primitive._replace(state=step.primitive.state._replace(**fields)))
        if isinstance(step.primitive.state, Kernel)
        else step
        for step in function.steps
    ]
    return file._replace(functions=(function._replace(steps=tuple(steps)),))


@needs_clang
def test_runs_what_the_file_says(tmp_path: Path) -> None:
    """Another text, grid or threadgroup in the file has other results."""
    file = toy(tmp_path)
    (kernel,) = file.functions[0].kernels
    other = changed(file, text=kernel.text.replace("few[1]", "few[0]"))
    np.testing.assert_array_equal(run(other, [X])[0], 6 * X + 0.5 + 14)
    fewer, _ = run(changed(file, grid=(6, 3, 1)), [X])
    assert np.isnan(fewer[3]).all() and not np.isnan(fewer[:3]).any()
    with pytest.raises(KernelFault, match="address"):
        run(changed(file, grid=(6, 5, 1)), [X])
    with pytest.raises(KernelFault, match="2048 threads in a threadgroup"):
        run(changed(file, grid=(2048, 1, 1), threadgroup=(2048, 1, 1)), [X])


NO, YES = (False, False, False), (True, True, True)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"sizes_of": (NO, NO, NO)}, "has 8 arguments, and gets 5"),
        ({"sizes_of": (YES, YES, NO)}, "has 8 arguments, and gets 11"),
        ({"sizes_of": (NO, YES, NO)}, "x_strides .* gets int32 as buffer 2"),
        ({"name": "another"}, "another is not in its own text"),
        ({"init_value": 0.5}, "what kernels for Metal"),
        ({"is_precompiled": True}, "what kernels for Metal"),
        ({"scalars": (1,)}, "what kernels for Metal"),
        ({"shared_memory": 8}, "what kernels for Metal"),
    ],
    ids=str,
)
def test_refuses_arguments_that_do_not_fit_the_text(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=words):
        run(changed(toy(tmp_path), **fields), [X])


def test_refuses_another_dtype_than_the_text_has(tmp_path: Path) -> None:
    file = toy(tmp_path)
    (kernel,) = file.functions[0].kernels
    for old, new in (("const constant int32_t* few", "const constant float* few"), ("device bool* z", "device int* z")):
        assert old in kernel.text
        with pytest.raises(BadFile, match=r"gets (int32|bool) as buffer"):
            run(changed(file, text=kernel.text.replace(old, new)), [X])


def test_refuses_a_kernel_on_the_cpu(tmp_path: Path) -> None:
    file = toy(tmp_path)
    (function,) = file.functions
    steps = [
        s._replace(primitive=s.primitive._replace(stream=s.primitive.stream._replace(device="cpu")))
        for s in function.steps
    ]
    with pytest.raises(BadFile, match="is on the cpu"):
        run(file._replace(functions=(function._replace(steps=tuple(steps)),)), [X])


def test_refuses_other_shapes_than_the_file_has(tmp_path: Path) -> None:
    file = exported(tmp_path, lambda x: x.sum(axis=0), mx.ones((2, 3)))
    (function,) = file.functions
    steps = [step._replace(arrays=(Array((3, 1), "float32"),)) for step in function.steps]
    with pytest.raises(BadFile, match=r"Reduce makes \(1, 3\) where the file says \(3, 1\)"):
        run(file._replace(functions=(function._replace(steps=tuple(steps)),)), [np.ones((2, 3), np.float32)])
