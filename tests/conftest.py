"""Devices, what may be skipped (always with a reason), and how long property tests search."""

from __future__ import annotations

import collections
import gc
import importlib.util
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # before MLX reads it: float32 means float32
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of definitions in NumPy: threads of several processes wait in turn

# Before MLX asks for a compiler: tests/support/bin/g++ says why, and runs this one.
if "MPSFUNC_TESTS_GXX" not in os.environ and sys.platform == "linux" and (_gxx := shutil.which("g++")):
    os.environ["MPSFUNC_TESTS_GXX"] = _gxx
    os.environ["PATH"] = os.pathsep.join((str(Path(__file__).parent / "support" / "bin"), os.environ["PATH"]))

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
ON_REQUEST = {"huge": "arrays past 2**31 elements", "models": "networks of other packages"}
CPU = pytest.param("cpu", marks=pytest.mark.needs_cpu_module)
GPU = pytest.param("gpu", marks=pytest.mark.gpu)
LEFT_OUT = pytest.StashKey[collections.Counter[str]]()  # how many tests do not run here, by the reason
NO_CPU_MODULE = "mpsfunc was built without its C++ module"


def no_cpu_module() -> bool:
    """Whether this is a GPU machine with the package alone; elsewhere a missing module is a failure."""
    return launch._primitives is None and mx.is_available(mx.gpu)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--family", help="tests of one folder of mpsfunc, and what goes for all operations of those in it")


def pytest_configure(config: pytest.Config) -> None:
    if family := config.getoption("--family"):
        if not (Path(__file__).parent / family).is_dir():
            raise pytest.UsageError(f"--family {family}: no folder of tests has this name")
        if (Path(__file__).parents[1] / "metal" / family).is_dir():  # else no operation is in it
            os.environ["MPSFUNC_FAMILY"] = family  # before the records are imported
    config.addinivalue_line("markers", "huge: arrays past 2**31 elements; run by hand")
    config.addinivalue_line("markers", "models: networks of other packages, which make models installs")
    config.addinivalue_line("markers", "needs_cpu_module: runs the C++ primitives")
    config.addinivalue_line("markers", "needs_dev(module): asks one of the dev dependencies, which make lint installs")
    config.stash[LEFT_OUT] = collections.Counter()


def pytest_make_parametrize_id(val: object) -> str | None:
    """A failing test tells operation, dtype and geometry, where pytest would number what is no word or number."""
    if isinstance(val, str) and len(val) > 90:  # pytest would number it
        return f"{val[:80]}...{zlib.crc32(val.encode()):x}"
    return None if isinstance(val, str | int | float | bool | None) or callable(val) else _told(val)


def _told(value: object, depth: int = 3) -> str:
    """A shape as 2x5x4, settings as stride=2, others in brief."""
    if isinstance(value, mx.Dtype):
        return str(value).rpartition(".")[2]
    if isinstance(value, mx.array):
        return f"{_told(value.dtype)}{list(value.shape)}"
    if not isinstance(value, tuple | list | set | frozenset | dict):
        text = repr(value) if isinstance(value, str | int | float) else getattr(value, "__name__", type(value).__name__)
        return text[:40].encode("unicode_escape").decode()
    if depth == 0 or len(value) > 20:
        return f"{len(value)} parts"
    if isinstance(value, dict):
        return ",".join(f"{key}={_told(each, depth - 1)}" for key, each in value.items()) or "nothing"
    if isinstance(value, set | frozenset):  # each process has another order
        value = sorted(value, key=repr)
    if value and all(type(each) is int and each >= 0 for each in value):
        return "x".join(map(str, value))
    return f"({','.join(_told(each, depth - 1) for each in value)})"


def of_family(family: str, items: list[pytest.Item]) -> list[pytest.Item]:
    """Those in the family's own folder, and those of an operation, a sample or a kernel body of the family."""
    from generic.ops import FAMILIES

    bodies = {path.stem for path in (Path(__file__).parents[1] / "metal" / family).glob("*.metal")}
    names = {name for name, each in FAMILIES.items() if each == family} | bodies

    def concerns(value: object) -> bool:
        name = value if isinstance(value, str) else getattr(value, "name", "")
        return isinstance(name, str) and re.split(r"[ :,]", name)[0] in names

    def belongs(item: pytest.Item) -> bool:
        given = getattr(item, "callspec", None)
        folder = Path(__file__).parent / family
        return folder in item.path.parents or (given is not None and any(map(concerns, given.params.values())))

    return [item for item in items if belongs(item)]


def _why_not(item: pytest.Item, asked_for: str) -> str:
    if item.get_closest_marker("gpu") and not mx.is_available(mx.gpu):
        return "MLX finds no GPU"
    if item.get_closest_marker("needs_cpu_module") and no_cpu_module():
        return NO_CPU_MODULE
    for marker, why in ON_REQUEST.items():
        if item.get_closest_marker(marker) and marker not in asked_for:
            return f"{why}: pytest -m {marker}"
    if (needs := item.get_closest_marker("needs_dev")) and importlib.util.find_spec(needs.args[0]) is None:
        return f"{needs.args[0]}, one of the dev dependencies, is not installed"
    return ""


@pytest.hookimpl(trylast=True)  # after what -m and -k leave out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what cannot run here. To skip each of thousands would take a minute; the summary has their numbers."""
    if family := config.getoption("--family"):
        items[:] = of_family(family, items)
    why_not = {item: _why_not(item, config.option.markexpr or "") for item in items}
    left_out = [item for item, why in why_not.items() if why]
    config.stash[LEFT_OUT].update(why_not[item] for item in left_out)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not why_not[item]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests are no garbage: none is looked for while they are collected, nor later among them, which takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (sent := getattr(session.config, "workeroutput", None)) is not None:  # one of xdist's processes
        sent["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of xdist has collected all tests."""
    node.config.stash[LEFT_OUT] |= collections.Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = terminalreporter.config.stash[LEFT_OUT].copy()
    for report in terminalreporter.getreports("skipped"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
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


# Those that multiply bfloat16 have AVX-512's kernels but for what tests/convolution/test_bfloat16.py is about.
_ISAS = [] if launch._primitives is None else launch._primitives.isas()


@pytest.fixture(params=[name for name in _ISAS if name not in ("amx", "avx512_bf16")])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set with kernels of its own that this machine and build have, in use while the test runs."""
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
