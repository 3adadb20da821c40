"""Files that mpsfunc writes, imported by the MLX that they are for, and by others.

MLX cannot import a kernel where it has no GPU, so the files' streams are moved to the CPU first. Those for MLX 0.31.1,
which MLX Swift carries, need an environment with it: ``make exported`` installs it in build/exported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from exporting import mlxfn

import mpsfunc as mf

OLD = "0.31.1"
PYTHON = Path(os.environ.get("MPSFUNC_EXPORTED", Path(__file__).parents[2] / "build" / "exported")) / "bin" / "python"
PROGRAM = """
import json, sys
import mlx.core as mx
mx.set_default_device(mx.cpu)
path, shapes = sys.argv[1], json.loads(sys.argv[2])
print(mx.__version__)
function = mx.import_function(path)
for signature in shapes:
    results = function(*[mx.zeros(shape, getattr(mx, dtype)) for shape, dtype in signature])
    print(json.dumps([[list(a.shape), str(a.dtype).rpartition(".")[2]] for a in results]))
"""
pytestmark = [pytest.mark.needs_cpu_module, pytest.mark.usefixtures("on_cpu")]


def network(params: dict[str, Any], x: mx.array, labels: mx.array) -> mx.array:
    """A loss of a network that has operations of most families."""
    x = mf.conv(x, params["w"], params["b"], padding=1)
    x = mf.batch_norm(x, params["gamma"], params["beta"], neuron="relu")
    x = mf.concatenate([mf.max_pool(x, 2), mf.avg_pool(x, 2)])
    x = mf.resize_bilinear(x, (4, 4))
    x = mf.fully_connected(mf.gelu(x), params["dense"]).reshape(x.shape[0], -1)
    return mf.loss_value(x[:, None, None], labels, "softmax_cross_entropy", "mean").sum()


def params() -> dict[str, Any]:
    keys = mx.random.split(mx.random.key(0), 2)
    return {
        **{
            "w": mx.random.normal((8, 3, 3, 3), key=keys[0]),
            "b": mx.zeros(8),
            "gamma": mx.ones(8),
            "beta": mx.zeros(8),
        },
        "dense": mx.random.normal((5, 4, 4, 16), key=keys[1]),
    }


def sgd(params: dict[str, Any], x: mx.array, labels: mx.array) -> tuple[Any, mx.array]:
    value, grads = mx.value_and_grad(network)(params, x, labels)
    return {name: p - 0.1 * grads[name] for name, p in params.items()}, value


def adam(params: dict[str, Any], state: dict[str, Any], x: mx.array, labels: mx.array) -> tuple[Any, Any, mx.array]:
    optimizer = optim.Adam(1e-3)
    optimizer.state = state
    value, grads = mx.value_and_grad(network)(params, x, labels)
    return optimizer.apply_gradients(grads, params), optimizer.state, value


def indexed(x: mx.array, i: mx.array) -> mx.array:
    """Operations of MLX's whose states differ between versions, or are made of several parts."""
    x = mf.relu(x)
    x[:, 1:3] = x[:, :2] * 2
    return mx.pad(x, ((0, 0), (1, 0), (0, 1), (0, 0))).at[i].add(1.0), mx.softmax(x.reshape(2, -1)).argmax(axis=1)


def images(batch: int) -> tuple[mx.array, mx.array]:
    return mx.zeros((batch, 8, 8, 3)), mx.zeros((batch, 1, 1), mx.int32)


def _adam_state() -> dict[str, Any]:
    optimizer = optim.Adam(1e-3)
    optimizer.init(params())
    return optimizer.state


CASES: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...], tuple[tuple[Any, ...], ...]]]] = {
    "a forward function": lambda: (mf.avg_pool_fwd, (mx.zeros((2, 8, 8, 4)), 3), ()),
    "two batch sizes": lambda: (sgd, (params(), *images(2)), ((params(), *images(3)),)),
    "Adam": lambda: (adam, (params(), _adam_state(), *images(2)), ()),
    "16 bits": lambda: (
        lambda x, w: mf.conv(x, w, neuron="silu"),
        tuple(mx.zeros((2, 5, 5, 5), mx.bfloat16) for _ in "xw"),
        (),
    ),
    "indices": lambda: (indexed, (mx.zeros((2, 4, 4, 3)), mx.array([1, 0])), ()),
}


@pytest.fixture(scope="module", params=CASES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], Path]:
    """Writes the case for a version, with its streams on the CPU; returns the path."""

    def write(version: str | None) -> Path:
        path = tmp_path_factory.mktemp("files") / "function.mlxfn"
        with mx.stream(mx.cpu):
            function, arguments, also = CASES[request.param]()
            mx.eval(arguments, also)
            mf.export(path, function, *arguments, mlx=version, also=also)
        path.write_bytes(mlxfn.on_cpu(path.read_bytes()))
        return path

    return write


def imported(python: Path, path: Path) -> tuple[str, list[Any]]:
    """The version of MLX that imported a file, and shapes and dtypes of results."""
    functions = mlxfn.read(path.read_bytes()).functions
    inputs = json.dumps([function.inputs for function in functions])
    done = subprocess.run([python, "-c", PROGRAM, path, inputs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version, *results = done.stdout.splitlines()
    return version, [[(tuple(shape), dtype) for shape, dtype in json.loads(each)] for each in results]


def expected(path: Path) -> list[Any]:
    return [[tuple(array) for array in function.outputs] for function in mlxfn.read(path.read_bytes()).functions]


needs_old = pytest.mark.skipif(not PYTHON.exists(), reason=f"MLX {OLD} is not in build/exported: make exported")


def test_this_mlx_imports_what_is_written_for_it(written: Callable[[str | None], Path]) -> None:
    path = written(None)
    version, shapes = imported(Path(sys.executable), path)
    assert (version, shapes) == (mx.__version__, expected(path))


@needs_old
def test_mlx_of_swift_imports_what_is_written_for_it(written: Callable[[str | None], Path]) -> None:
    path = written(OLD)
    version, shapes = imported(PYTHON, path)
    assert (version, shapes) == (OLD, expected(path))
    assert shapes == expected(written(None))


def why_not(python: Path, path: Path) -> str:
    """What MLX says of a file that it cannot import: it reads one number for another. A signal would be a failure."""
    program = "import sys, mlx.core as mx; mx.import_function(sys.argv[1])"
    done = subprocess.run([python, "-c", program, path], capture_output=True, text=True)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    return done.stderr.splitlines()[-1]


def test_no_newer_mlx_imports_what_is_written_for_swift(written: Callable[[str | None], Path]) -> None:
    error = why_not(Path(sys.executable), written(OLD))
    assert error in ("RuntimeError: [import_function] Invalid string size.", "MemoryError: std::bad_alloc")


@needs_old
def test_mlx_of_swift_imports_nothing_newer(written: Callable[[str | None], Path]) -> None:
    assert why_not(PYTHON, written(None)) == "MemoryError: std::bad_alloc"


def test_names_are_in_every_layout(tmp_path: Path) -> None:
    """Names of arrays stand where MLX reads text of anybody's, or, for 0.31.1, where it stops reading."""
    function, arguments, also = CASES["two batch sizes"]()
    mx.eval(arguments, also)
    weights = ["b", "beta", "dense", "gamma", "w"]
    for version in (None, OLD):
        mf.export(tmp_path / "function.mlxfn", function, *arguments, also=also, mlx=version)
        about = json.loads(mlxfn.read((tmp_path / "function.mlxfn").read_bytes()).metadata)
        assert about["device"] == "metal" and len(about["signatures"]) == 2
        for names in about["signatures"]:
            assert names["inputs"] == [*[f"params.{name}" for name in weights], "x", "labels"]
            assert names["outputs"] == [*[f"result.0.{name}" for name in weights], "result.1"]


def test_a_name_has_one_text(tmp_path: Path) -> None:
    """Of inputs with fewer than eight elements the text says otherwise; MLX 0.31.1 compiles a name's text anew each
    time that it is another."""

    def function(x: mx.array, w: mx.array, b: mx.array, few: mx.array) -> tuple[mx.array, mx.array]:
        return mf.conv(x, w, b), mf.conv(x, w[:4], few)

    path = tmp_path / "function.mlxfn"
    mf.export(path, function, mx.zeros((1, 4, 4, 3)), mx.zeros((16, 3, 3, 3)), mx.zeros(16), mx.zeros(4))
    (signature,) = mlxfn.read(path.read_bytes()).functions
    first, second = signature.kernels
    assert first.text != second.text and first.name != second.name
