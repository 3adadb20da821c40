"""`python -m mpsfunc`: it knows every function and kernel, and says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from generic import selftest_file

import mpsfunc as mf
from mpsfunc import __main__ as command
from mpsfunc.core import launch, native, versions
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.selftest import calls

NAN = float("nan")
BODIES = {path.stem for path in (Path(__file__).parents[2] / "metal").glob("*/*.metal")}


def test_the_file_holds_the_samples_of_the_records(on_cpu: mx.Device) -> None:
    """Else `python -m generic.selftest_file --write` makes it again."""
    found = [
        {key: value for key, value in each.items() if key != "sums"} for each in json.loads(calls.KEPT.read_text())
    ]
    assert found == [json.loads(json.dumps(selftest_file.as_json(call))) for call in selftest_file.checked()]


@pytest.mark.parametrize("call", calls.kept(), ids=lambda call: call.name)
def test_what_is_kept_is_what_doubles_give(call: calls.Checked, on_cpu: mx.Device) -> None:
    assert call.sums
    found = [calls.sums(a) for a in call.computed(mx.float64)]
    for a, right in zip(found, call.sums, strict=True):
        np.testing.assert_allclose(a, right, rtol=0, atol=1e-12 * max(1, right[0]))


BETWEEN_PROCESSES = {"bn_messages_merge"}  # by NCCL; tests/generic/ops/bn_states.py has cases of it


@pytest.mark.parametrize(
    ("backend", "of_others"),
    [
        ("metal", {f"conv_grad_weights_{how}" for how in ("simt", "registers", "tensor_core")} | BETWEEN_PROCESSES),
        # The tensor core's is for sixteen bits.
        ("cuda", {"conv_grad_weights", "conv_grad_weights_tensor_core"} | BETWEEN_PROCESSES),
    ],
)
def test_every_kernel_is_launched(monkeypatch: pytest.MonkeyPatch, backend: str, of_others: set[str]) -> None:
    launched = set()

    def run_kernel(stage: KernelLaunch, arrays: Sequence[mx.array], stream: Any) -> list[mx.array]:
        launched.add(stage.body)
        return [mx.zeros(shape, dtype) for shape, dtype in stage.results]

    monkeypatch.setattr(launch, "run_kernel", run_kernel)
    monkeypatch.setattr(launch, "backend", lambda stream: backend)
    with mx.stream(mx.cpu), calls._ours():
        for call in calls.kept():
            call.computed(mx.float32)
    assert BODIES - launched == of_others


def test_all_is_well(device: mx.Device) -> None:
    families = list(calls.test(device))
    assert {call.family for call in calls.kept()} <= {family.name for family in families}
    for family in families:
        assert family.calls > 0 and not family.wrong and not family.error, family


def test_what_is_wrong_is_said(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    relu, softmax = mf.relu, mf.softmax

    def one_off(x: mx.array, *args: float) -> mx.array:
        return relu(x, *args) + 0.25 * (mx.arange(x.size) == 0).reshape(x.shape)

    monkeypatch.setattr(mf, "relu", one_off)
    monkeypatch.setattr(mf, "softmax", lambda *args: softmax(*args) * float("nan"))
    monkeypatch.setattr(mf, "pad_grad", lambda *args, **how: 1 / 0)
    monkeypatch.setattr(command, "devices", lambda: [mx.Device(mx.cpu)])
    monkeypatch.setattr(sys, "argv", ["mpsfunc"])
    assert command.main() == 1
    told = capsys.readouterr().out
    assert "relu: off by" in told and "softmax: off by nan" in told
    assert "image: ZeroDivisionError: division by zero" in told and "NOT well" in told
    assert "sigmoid: off" not in told


def test_what_is_wrong_in_a_later_result_is_said(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = mf.bn_stats
    monkeypatch.setattr(mf, "bn_stats", lambda *args, **how: (s := stats(*args, **how))._replace(var=s.var * NAN))
    wrong = [name for family in calls.test(on_cpu) for name in family.wrong]
    assert any(name.startswith("bn_stats: off by nan") for name in wrong)


def test_the_environment_is_left_alone(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "0"):
        if before is None:
            monkeypatch.delenv("MPSFUNC_DETERMINISTIC", raising=False)
        else:
            monkeypatch.setenv("MPSFUNC_DETERMINISTIC", before)
        list(calls.test(on_cpu))
        assert os.environ.get("MPSFUNC_DETERMINISTIC") == before


def test_mlx_makes_no_kernels_meanwhile(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def doubled(x: mx.array) -> mx.array:
        traced.append(x)
        return x + x

    compiled, avg_pool = mx.compile(doubled), mf.avg_pool
    few = [call for call in calls.kept() if call.name in ("avg_pool, globally", "avg_pool, adaptively")]
    monkeypatch.setattr(calls, "kept", lambda: few)
    monkeypatch.setattr(mf, "avg_pool", lambda *args, **how: (compiled(mx.ones(3)), avg_pool(*args, **how))[1])
    list(calls.test(on_cpu))
    assert len(traced) == 2  # each call was the function itself
    for _ in range(2):
        compiled(mx.ones(3))
    assert len(traced) == 3


def test_float32_means_float32_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")  # for monkeypatch to put back
    monkeypatch.delenv("MLX_ENABLE_TF32")
    monkeypatch.setattr(sys, "argv", ["mpsfunc", "--no-test"])
    assert command.main() == 0 and os.environ["MLX_ENABLE_TF32"] == "0"


NO_MODULE, NO_GPU = "this mpsfunc has no module", "MLX has no GPU"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], f"{NO_MODULE} and {NO_GPU}; the CPU needs `python -m mpsfunc build`"),
        (["--device", "cpu"], f"{NO_MODULE}; the CPU needs `python -m mpsfunc build`"),
        (["--device", "gpu"], NO_GPU),
        (["--no-test"], ""),
    ],
)
def test_to_test_nothing_is_a_failure(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "_primitives", None)
    monkeypatch.setattr(launch, "_why_no_primitives", NO_MODULE)
    monkeypatch.setattr(native, "folders", lambda: ["a folder"])
    monkeypatch.setattr(mx, "is_available", lambda device: False)
    monkeypatch.setattr(sys, "argv", ["mpsfunc", *words])
    assert command.main() == bool(told)
    shown = capsys.readouterr()
    assert "devices    none\n" in shown.out
    assert shown.err == (f"nothing to test here: {told}\n" if told else "")


def test_one_device_is_tested_where_one_is_named(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[mx.Device] = []
    monkeypatch.setattr(command, "devices", lambda: [mx.Device(mx.cpu), mx.Device(mx.gpu)])
    monkeypatch.setattr(command, "facts", dict)
    monkeypatch.setattr(command, "tested", lambda device: asked.append(device) or True)
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(sys, "argv", ["mpsfunc", "--device", device])
        assert command.main() == 0
    assert asked == [mx.Device(mx.cpu), mx.Device(mx.gpu)]


def test_the_report_is_of_the_mlx_that_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may have been built here, so that no package is installed."""
    monkeypatch.setattr(versions, "installed", lambda: versions.Installed("", {}, libmlx=True))
    assert command.facts()["packages"] == f"mlx {mx.__version__}, numpy {np.__version__}"


@pytest.mark.needs_cpu_module
def test_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "mpsfunc"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"mpsfunc    {mf.__version__}" in done.stdout and "all well" in done.stdout
    short = subprocess.run([sys.executable, "-m", "mpsfunc", "--no-test"], capture_output=True, text=True, check=True)
    assert "threads" in short.stdout and "well" not in short.stdout


def test_who_reads_no_further_gets_no_traceback() -> None:
    told = [sys.executable, "-m", "mpsfunc", "--no-test"]
    with subprocess.Popen(told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_package_without_its_module_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_primitives", None)
    assert "without the C++ module" in command.facts()["cpu"]
    assert mx.Device(mx.cpu) not in command.devices()


def test_the_report_says_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in command._set():
        monkeypatch.delenv(name)
    assert command.facts()["settings"] == "as they come"
    monkeypatch.setenv("MPSFUNC_WINOGRAD", "0")
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "1")
    assert command.facts()["settings"] == "MPSFUNC_DETERMINISTIC=1, MPSFUNC_WINOGRAD=0"


def test_an_interrupted_build_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mpsfunc.core import building

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build", interrupted)
    assert command.build() == 130
    assert capsys.readouterr().err == "python -m mpsfunc build: interrupted; the package is as it was\n"


def test_the_report_says_that_numpy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name: str) -> None:
            raise ModuleNotFoundError("No module named 'numpy'")

    monkeypatch.setattr(command, "np", Missing())
    assert command.facts()["packages"].endswith(", numpy is missing; run: pip install numpy")
