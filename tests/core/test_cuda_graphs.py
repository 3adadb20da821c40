"""The import has MLX launch kernels one by one on NVIDIA GPUs, and bounds what waits, unless users say otherwise."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import mlx.core as mx
import pytest

from mpsfunc.core import launch

GRAPHS, AHEAD = "MLX_USE_CUDA_GRAPHS", "MPSFUNC_RUN_AHEAD"
BEGIN = f"""
import os, mlx.core as mx
from mpsfunc.core import launch
read = []
def synchronize(stream):
    read.append(os.environ.get({GRAPHS!r}))
    if FAILS: raise RuntimeError("no such GPU")
class Module:
    def set_run_ahead(self, share):
        read.append(share)
        return True
mx.synchronize, mx.default_stream, mx.cuda.is_available = synchronize, lambda device: None, lambda: ON_CUDA
launch.optional_module = Module
from mpsfunc.core import mlx_settings
before = dict(os.environ)
mlx_settings.launch_one_by_one()
print([read, before == dict(os.environ), mlx_settings.chosen])
"""


def run(program: str, **given: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in (GRAPHS, AHEAD)} | given
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)


def told(*, on_cuda: bool = True, fails: bool = False, **given: str) -> list[object]:
    done = run(f"ON_CUDA, FAILS = {on_cuda}, {fails}\n{BEGIN}", **given)
    assert done.returncode == 0, done.stderr
    found: list[object] = ast.literal_eval(done.stdout)
    return found


def test_mlx_reads_the_variable_and_the_environment_is_as_before() -> None:
    assert told() == [["0", 0.1], True, {GRAPHS: "0", AHEAD: "10"}]


def test_what_the_user_set_stays() -> None:
    assert told(**{GRAPHS: "0"}) == [[0.1], True, {AHEAD: "10"}]
    assert told(**{AHEAD: "2.5"}) == [["0", 0.025], True, {GRAPHS: "0", AHEAD: "2.5"}]
    assert told(**{GRAPHS: "1"}) == [[], True, {}]


def test_elsewhere_nothing_is_set() -> None:
    assert told(on_cuda=False) == [[], True, {}]


def test_a_gpu_that_cannot_be_used_is_no_error_of_the_import() -> None:
    assert told(fails=True) == [["0"], True, {}]


@pytest.mark.parametrize("given", ("-1", "nan", "inf", "ten"))
def test_no_percentage(given: str) -> None:
    done = run(f"ON_CUDA, FAILS = True, False\n{BEGIN}", **{AHEAD: given})
    assert f"ValueError: {AHEAD}: not a percentage; got '{given}', expected a number of 0 or more" in done.stderr


CHAIN = """
import mlx.core as mx, mpsfunc as mf
mx.set_default_device(mx.gpu)
x = mx.ones((32 << 20,), mx.bfloat16)
mx.eval(x)
def steps(count):
    y = x
    for _ in range(count): y = mf.relu(y, 0.5)
    return y
mx.eval(steps(4))
mx.reset_peak_memory()
before = mx.get_active_memory()
same = mx.array_equal(steps(400), x).item()
print([same, (mx.get_peak_memory() - before) >> 20])
"""


@pytest.mark.gpu
@pytest.mark.skipif(not mx.cuda.is_available(), reason="of MLX's CUDA backend")
def test_a_chain_of_launches_holds_few_arrays_of_64_megabytes() -> None:
    found = {percent: ast.literal_eval(run(CHAIN, **{AHEAD: percent}).stdout) for percent in ("0", "10")}
    (free_is_right, free), (is_right, bounded) = found["0"], found["10"]
    assert free_is_right and is_right
    assert bounded <= 64 * 4 and free > 2 * bounded


@pytest.mark.skipif(mx.cuda.is_available(), reason="with MLX's CUDA backend it is true")
@pytest.mark.needs_cpu_module
def test_without_a_cuda_backend_nothing_is_counted() -> None:
    assert launch.optional_module().set_run_ahead(0.1) is False
