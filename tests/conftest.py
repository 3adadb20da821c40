"""Devices, what may be skipped (always with a reason), and how long property tests search."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # before MLX reads it: float32 means float32

import mlx.core as mx
import pytest
from support import DTYPES

from mpsfunc.core import launch

try:
    from hypothesis import settings
except ImportError:  # a GPU machine may have pytest alone
    pass
else:
    settings.register_profile("ci", max_examples=40, derandomize=True, deadline=None)
    settings.register_profile("few", max_examples=10, derandomize=True, deadline=None)  # where each takes long
    settings.register_profile("soak", max_examples=5000, deadline=None, print_blob=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Markers that run only when asked for by name, as in `pytest -m huge`.
ON_REQUEST = {"huge": "arrays past 2**31 elements"}
CPU = pytest.param("cpu", marks=pytest.mark.needs_cpu_module)
GPU = pytest.param("gpu", marks=pytest.mark.gpu)
NO_CPU_MODULE = "mpsfunc was built without its CPU module"


def no_cpu_module() -> bool:
    """Whether this is a GPU machine with the package alone; elsewhere a missing module is a failure."""
    return launch._primitives is None and mx.is_available(mx.gpu)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "huge: arrays past 2**31 elements; run by hand")
    config.addinivalue_line("markers", "needs_cpu_module: runs the C++ primitives")


def _why_not(item: pytest.Item, asked_for: str) -> str | None:
    if item.get_closest_marker("gpu") and not mx.is_available(mx.gpu):
        return "MLX finds no GPU"
    if item.get_closest_marker("needs_cpu_module") and no_cpu_module():
        return NO_CPU_MODULE
    for marker, why in ON_REQUEST.items():
        if item.get_closest_marker(marker) and marker not in asked_for:
            return f"{why}: pytest -m {marker}"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        why = _why_not(item, config.option.markexpr or "")
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: dict[str, int] = {}
    for report in terminalreporter.getreports("skipped"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {count} tests, because {reason}", yellow=True)


@pytest.fixture(params=[CPU, GPU])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[mx.Device]:
    """Every device that MLX has here, as the default one while the test runs; on a GPU with our own kernels.

    A vendor's library may round where a definition does not: generic/test_gpu.py holds the routes to it.
    """
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "1")
    here = mx.Device(getattr(mx, request.param))
    with mx.stream(here):
        yield here


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).rpartition(".")[2])
def dtype(request: pytest.FixtureRequest, device: mx.Device) -> mx.Dtype:
    """Every dtype that the device has."""
    if request.param == mx.float64 and device != mx.Device(mx.cpu):
        pytest.skip("float64 runs on the CPU only")
    return request.param


@pytest.fixture
def on_cpu() -> Iterator[mx.Device]:
    """The CPU as the default device, where float64 exists."""
    if no_cpu_module():
        pytest.skip(NO_CPU_MODULE)
    with mx.stream(mx.Device(mx.cpu)):
        yield mx.Device(mx.cpu)


@pytest.fixture(params=() if launch._primitives is None else launch._primitives.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this machine and build have, in use while the test runs."""
    before = launch._primitives.isa()
    launch._primitives.set_isa(request.param)
    yield request.param
    launch._primitives.set_isa(before)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads until the test ends."""
    before = launch._primitives.get_num_threads()
    yield launch._primitives.set_num_threads
    launch._primitives.set_num_threads(before)
