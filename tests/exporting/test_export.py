"""`mf.export`: the order of arrays, several signatures, what the file replaces, and what cannot be exported."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import pytest
from exporting.imported import exported, on_the_cpu
from support import numbers

import mpsfunc as mf
from mpsfunc.core import launch
from mpsfunc.exporting import layout

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.needs_cpu_module]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "function.mlxfn"


def names(arrays: Any) -> list[str]:
    return [a.name for a in arrays]


# Order and names ----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: mx.array
    right: mx.array
    scale: float = 2.0


def test_arrays_go_by_position_and_sorted_keys(path: Path) -> None:
    def function(tree: Any, pair: Pair, *others: Any) -> Any:
        return {"z": tree["b"][0] * pair.scale, "a": [pair.right, None, {"y": others[0], 3: tree["a"]}]}

    a, b, c, d, e = (mx.full((i,), float(i)) for i in range(1, 6))
    found = exported(path, function, {"b": (b, 7), "a": a}, Pair(c, d), e)
    (signature,) = found.signatures
    assert names(signature.inputs) == ["tree.a", "tree.b.0", "pair.left", "pair.right", "2"]
    assert names(signature.outputs) == ["result.a.0", "result.a.2.3", "result.a.2.y", "result.z"]
    outs = on_the_cpu(path)(a, b, c, d, e)
    assert [out.tolist() for out in outs] == [d.tolist(), a.tolist(), e.tolist(), (2 * b).tolist()]


def test_an_array_that_is_there_twice_is_two_arguments(path: Path) -> None:
    x = mx.ones(2)
    exported(path, lambda x, y: (x - y, x, x), x, x)
    outs = on_the_cpu(path)(mx.array([5.0, 6.0]), mx.array([1.0, 1.0]))
    assert [out.tolist() for out in outs] == [[4, 5], [5, 6], [5, 6]]


def test_functions_without_names_have_positions(path: Path) -> None:
    found = exported(path, mx.add, mx.ones(3), mx.ones(1))
    assert names(found.signatures[0].inputs) == ["0", "1"]
    assert names(found.signatures[0].outputs) == ["result"]


def test_states_are_arguments_and_results(path: Path) -> None:
    x, w = numbers((2, 5, 5, 3), mx.float32), numbers((4, 3, 3, 3), mx.float32)
    _, state = mf.conv_fwd(x, w, padding=1)
    found = exported(path, mf.conv_grad_weights, mx.ones((2, 5, 5, 4)), x, state)
    fields = [name for name, value in zip(state._fields, state, strict=True) if isinstance(value, mx.array)]
    assert names(found.signatures[0].inputs) == ["dy", "x", *(f"state.{name}" for name in fields)]
    assert names(found.signatures[0].outputs) == [f"result.{name}" for name in fields]


# Signatures ---------------------------------------------------------------------------------------------


def test_several_signatures_share_constants(path: Path) -> None:
    w = numbers((4, 3, 3, 3), mx.float32)
    mx.eval(w)
    also = [(mx.zeros((n, 6, 6, 3)),) for n in (2, 3)]
    found = exported(path, lambda x: mf.conv(x, w), mx.zeros((1, 6, 6, 3)), also=also)
    assert [signature.outputs[0].shape[0] for signature in found.signatures] == [1, 2, 3]
    assert [a.shape for a in found.constants].count((4, 3, 3, 3)) == 1


def test_signatures_may_have_other_numbers_of_arguments(path: Path) -> None:
    exported(path, lambda *arrays: sum(arrays[1:], arrays[0]), mx.ones(2), also=[(mx.ones(2), mx.ones(2))])
    assert [on_the_cpu(path)(*[mx.ones(2)] * n)[0].tolist() for n in (1, 2)] == [[1, 1], [2, 2]]


# The file -----------------------------------------------------------------------------------------------


def test_the_same_function_makes_the_same_file(path: Path) -> None:
    code = (
        "import sys, mlx.core as mx, mpsfunc as mf\n"
        "loss = lambda w, x: (mf.conv(x, w, neuron='relu') ** 2).mean()\n"
        "mf.export(sys.argv[1], mx.value_and_grad(loss), mx.ones((4, 3, 3, 3)), mx.ones((2, 8, 8, 3)))\n"
    )
    made = []
    for i in range(2):
        file = path.with_name(str(i))
        env = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONHASHSEED": str(i)}
        subprocess.run([sys.executable, "-c", code, file], env=env, check=True)
        made.append(file.read_bytes())
    assert made[0] == made[1]


def test_every_operation_is_on_the_gpu(path: Path) -> None:
    exported(path, lambda x: mx.exp(mf.avg_pool(x, 2, stream=mx.cpu)).sum(), mx.ones((1, 4, 4, 2)))
    data = path.read_bytes()
    for name in (b"CustomKernel", b"Exp", b"Reduce"):
        at = data.index(len(name).to_bytes(8, "little") + name)
        assert data[at - 12 : at] == bytes([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])


def test_a_failure_leaves_the_file_as_it_was(path: Path) -> None:
    path.write_text("before")
    with pytest.raises(ValueError, match="BitwiseInvert"):
        mf.export(path, lambda x: ~x, mx.zeros(3, mx.int32))
    assert path.read_text() == "before" and [p.name for p in path.parent.iterdir()] == [path.name]
    mf.export(path, lambda x: -x, mx.zeros(3))
    assert [p.name for p in path.parent.iterdir()] == [path.name] and mf.exported(path).signatures


def test_no_folder_is_an_error_before_the_function_is_called(tmp_path: Path) -> None:
    def function(x: mx.array) -> mx.array:
        raise AssertionError("it was called")

    with pytest.raises(FileNotFoundError, match="export: there is no such folder"):
        mf.export(tmp_path / "none" / "f.mlxfn", function, mx.ones(2))
    with pytest.raises(
        ValueError, match="export: path leads to a folder; got path=.*, expected a new name or a file's"
    ):
        mf.export(tmp_path, function, mx.ones(2))


# Constants ----------------------------------------------------------------------------------------------


def test_large_constants_are_told(path: Path) -> None:
    large, small = mx.ones((1 << 18, 1)) * 1.5, mx.ones((1 << 17, 1)) * 2.5
    mx.eval(large, small)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mf.export(path, lambda x: x * large, mx.ones(1))
        assert mf.exported(path).constants[0] == ("", (1 << 18, 1), mx.float32)
    wanted = r"export: the file holds 1,572,864 bytes of arrays that .*, the largest float32\[262144, 1\]; "
    with pytest.warns(UserWarning, match=wanted) as told:
        mf.export(path, lambda x: (x * small, x * large), mx.ones(1))
    assert told[0].filename == __file__
    assert [a.shape[0] for a in mf.exported(path).constants] == [1 << 18, 1 << 17]


def test_constants_have_their_values(path: Path) -> None:
    held = [numbers((3, 4), dtype) for dtype in (mx.float32, mx.float16, mx.bfloat16)] + [mx.arange(5)]
    mx.eval(held)
    exported(path, lambda x: [x + a.astype(mx.float32) for a in held], mx.zeros(()))
    for made, a in zip(on_the_cpu(path)(mx.array(1.0)), held, strict=True):
        assert mx.array_equal(made, 1 + a.astype(mx.float32))


def test_views_among_constants_have_their_values(path: Path) -> None:
    """MLX's own exporter takes their bytes for those of an array that lies row by row."""
    x = numbers((4, 6), mx.float32)
    views = [x.T, x[1:, ::2], mx.broadcast_to(x[:1], (1000, 6)), x[2:], x[:, 3]]
    mx.eval(views)
    exported(path, lambda zero: [view + zero for view in views] + [views[0]], mx.zeros(()))
    for made, view in zip(on_the_cpu(path)(mx.zeros(())), [*views, views[0]], strict=True):
        assert mx.array_equal(made, view)


# What cannot be exported --------------------------------------------------------------------------------

UNLIKE: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "path": (lambda p: mf.export(3, abs, mx.ones(2)), TypeError, "path is not a path; got path=3, "),
    "function": (lambda p: mf.export(p, 3, mx.ones(2)), TypeError, "function is not a function; got function=3, "),
    "device": (
        lambda p: mf.export(p, mx.abs, mx.ones(2), device="gpu"),
        ValueError,
        "unknown device; got device='gpu', expected 'metal' or 'cuda'",
    ),
    "mlx": (
        lambda p: mf.export(p, mx.abs, mx.ones(2), mlx="0.30"),
        ValueError,
        f"unknown mlx; got mlx='0.30', expected None, '{mx.__version__}' or '0.31.1'",
    ),
    "also": (
        lambda p: mf.export(p, mx.abs, mx.ones(2), also=[mx.ones(3)]),
        TypeError,
        r"also holds no arguments; got also=\[float32\[3\]\], expected a list of tuples",
    ),
    "a signature twice": (
        lambda p: mf.export(p, mx.abs, mx.ones(2), also=[(mx.zeros(2),)]),
        ValueError,
        r"two signatures take the same shapes and dtypes; got also\[0\]=\(float32\[2\],\), expected ",
    ),
    "a module": (
        lambda p: mf.export(p, lambda model, x: x, nn.Linear(2, 3), mx.ones(2)),
        TypeError,
        "model holds a collection or object whose arrays cannot be followed; got a Linear, expected arrays in lists",
    ),
    "float64": (
        lambda p: mf.export(p, mx.abs, mx.ones(2, mx.float64)),
        TypeError,
        "no GPU has float64; got 0.dtype=mlx.core.float64, expected another dtype",
    ),
    "float64 within": (
        lambda p: mf.export(p, lambda x: mf.relu(x.astype(mx.float64)), mx.ones((1, 2, 2, 1))),
        TypeError,
        "no GPU has float64; got x.dtype=mlx.core.float64 of neuron, expected another dtype",
    ),
    "float64 of MLX": (
        lambda p: mf.export(p, lambda x: mx.exp(x.astype(mx.float64)), mx.ones(2)),
        TypeError,
        "no GPU has float64; got AsType of the argument x, expected another dtype",
    ),
    "no array": (
        lambda p: mf.export(p, lambda x: x.shape, mx.ones(2)),
        TypeError,
        r"the function returns no array; got result=\(2,\), expected some",
    ),
    "an unknown result": (
        lambda p: mf.export(p, lambda x: {x.size}.union([0]) and iter([x]), mx.ones(2)),
        TypeError,
        "result holds a collection or object whose arrays cannot be followed; got a list_iterator, ",
    ),
    "random numbers": (
        lambda p: mf.export(p, lambda x: mf.dropout(x, keep_probability=0.5), mx.ones((1, 2, 2, 1))),
        ValueError,
        "the function draws from MLX's random state, .*; got function=.*, expected draws by a key among the "
        "arguments, such as mf.dropout",
    ),
    "an operation without a place in MLX's table": (
        lambda p: mf.export(p, lambda x: ~x, mx.ones(2, mx.int32)),
        ValueError,
        "MLX cannot write an operation of the function; got BitwiseInvert, expected operations that mx.export_function",
    ),
    "an operation of the CPU": (
        lambda p: mf.export(p, lambda x: mx.linalg.inv(x, stream=mx.cpu), mx.eye(2)),
        ValueError,
        "MLX has no Inverse on a GPU; got Inverse of the argument x, expected none",
    ),
    "a newer operation": (
        lambda p: mf.export(p, lambda x: mx.searchsorted(x, x), mx.ones(2), mlx="0.31.1"),
        ValueError,
        "MLX 0.31.1 has no such SearchSorted; got SearchSorted of the argument x, the argument x, expected others",
    ),
    "a newer way of an operation": (
        lambda p: mf.export(p, lambda x: mx.fft.irfft(x, n=3), mx.ones(2, mx.complex64), mlx="0.31.1"),
        ValueError,
        "MLX 0.31.1 has no such FFT; got FFT of ",
    ),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_what_cannot_be_exported(what: str, path: Path) -> None:
    call, kind, said = UNLIKE[what]
    with pytest.raises(kind, match=f"^export: {said}"):
        call(path)
    assert not path.exists() and not [*path.parent.iterdir()]


def test_a_captured_array_has_to_be_evaluated(path: Path) -> None:
    pooled = mf.avg_pool(mx.ones((1, 4, 4, 1)), 2)
    with pytest.raises(ValueError, match="got avg_pool, of an array that was not evaluated before, expected"):
        mf.export(path, lambda x: x + pooled, mx.ones(1))
    mx.eval(pooled)
    assert exported(path, lambda x: x + pooled, mx.ones(1)).constants


def test_what_does_not_depend_on_the_arguments_is_computed_in_the_file(path: Path) -> None:
    image, ones = mx.random.normal((1, 4, 4, 4)), mx.ones((1, 4, 4, 4))
    mx.eval(image)
    for norm in (lambda a: mf.group_norm(a, 2), mf.instance_norm, lambda a: mf.batch_norm(a, mx.ones(4), mx.zeros(4))):
        assert exported(path, lambda x, norm=norm: x + norm(image), ones).signatures[0].kernels
    assert exported(path, lambda x: nn.relu(x), ones).signatures
    with pytest.raises(ValueError, match="got Compiled, a function of mx.compile .*; call it outside"):
        mf.export(path, lambda x: x + nn.relu(image), ones)


def test_what_a_gpu_fuses_is_plain_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the default is no CPU; mx.compile calls the function only once."""
    monkeypatch.setattr(launch, "CPU", mx.Device(mx.gpu))
    called: list[mx.array] = []

    def function(a: mx.array) -> mx.array:
        called.append(a)
        return a + 1

    fused, x = launch.fused(function), mx.ones(2)
    with launch.exporting("metal", lambda of, arrays: []):
        fused(x), fused(x)
    assert len(called) == 2
    fused(x), fused(x)
    assert len(called) == 3


def test_the_version_of_a_file_can_be_given_again(path: Path) -> None:
    version = exported(path, mx.abs, mx.ones(2)).mlx
    assert exported(path, mx.abs, mx.ones(2), mlx=version).mlx == version == mx.__version__


def test_another_gpus_kernel_is_refused(path: Path) -> None:
    kernel = mx.fast.metal_kernel(name="own", input_names=["x"], output_names=["y"], source="y[0] = x[0];")

    def function(x: mx.array) -> mx.array:
        made = kernel(
            inputs=[x], output_shapes=[(1,)], output_dtypes=[x.dtype], grid=(1, 1, 1), threadgroup=(1, 1, 1),
            stream=mx.gpu,
        )  # fmt: skip
        return made[0]

    assert exported(path, function, mx.ones(9)).signatures[0].kernels == ("custom_kernel_own_float_float",)
    with pytest.raises(
        ValueError, match="a kernel is written for another GPU; got custom_kernel_own_.* of the argument x"
    ):
        mf.export(path, function, mx.ones(9), device="cuda")


def test_an_error_of_the_function_is_the_callers(path: Path) -> None:
    with pytest.raises(ValueError, match="^avg_pool: window does not fit"):
        mf.export(path, lambda x: mf.avg_pool(x, 9), mx.ones((1, 4, 4, 1)))


def test_nothing_stays_behind(path: Path) -> None:
    """The random state is usable, and operations run on the CPU again, also after errors and in other threads."""
    mx.random.seed(3)
    expected = mx.random.uniform(shape=(2,)).tolist()
    mx.random.seed(3)
    with pytest.raises(ValueError, match="random state"):
        mf.export(path, lambda x: mx.random.uniform(shape=(2,)) + x, mx.ones(2))
    assert mx.random.uniform(shape=(2,)).tolist() == expected
    seen = []

    def function(x: mx.array) -> mx.array:
        other = threading.Thread(target=lambda: seen.append(launch.backend(mx.default_stream(mx.cpu))))
        other.start()
        other.join()
        return mf.avg_pool(x, 2)

    mf.export(path, function, mx.ones((1, 4, 4, 1)))
    assert seen == ["cpu"] and mf.avg_pool(mx.ones((1, 4, 4, 1)), 2).sum().item() == 4


def test_without_the_module(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_primitives", None)
    with pytest.raises(RuntimeError, match="^export: "):
        mf.export(path, mx.abs, mx.ones(2))


def test_layouts_differ_in_the_header_and_in_each_kernel(path: Path) -> None:
    x = mx.ones((1, 4, 4, 2))
    mf.export(path, lambda x: mf.avg_pool(mf.avg_pool(x, 2), 2), x, mlx="0.31.1")
    old = path.read_bytes()
    mf.export(path, lambda x: mf.avg_pool(mf.avg_pool(x, 2), 2), x)
    new = layout.read(memoryview(path.read_bytes()))
    assert layout.read(memoryview(old)).signatures == new.signatures and new.metadata
    # Metadata has its place in the header, or at the end behind its length; each kernel has 4 bytes more.
    assert len(path.read_bytes()) - len(old) == 2 * 4 + len(mx.__version__) - len("0.31.1")
