"""The C++ module is that of the MLX which is here: picked by its version, missed with a warning, made on demand."""

from __future__ import annotations

import os
import re
import runpy
import sys
import warnings
from pathlib import Path

import mlx.core as mx
import pytest

from mpsfunc.core import building, launch, native
from mpsfunc.core.mlx_table import END, TABLE, release, row_for

ROOT = Path(__file__).parents[2]
SUFFIX = ".abi3.so" if sys.platform != "win32" else ".pyd"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of built modules, with one for another MLX."""
    (tmp_path / "mlx-0.32.99").mkdir()
    (tmp_path / "mlx-0.32.99" / f"_primitives{SUFFIX}").touch()
    monkeypatch.setattr(native, "folders", lambda: [str(tmp_path)])
    return tmp_path


@pytest.mark.needs_cpu_module
def test_the_module_is_that_of_this_mlx() -> None:
    assert Path(launch._primitives.__file__).parent.name == f"mlx-{mx.__version__}"
    assert native.built_for()[mx.__version__] == launch._primitives.__file__


def test_where_none_fits_a_warning_says_what_makes_one(folder: Path) -> None:
    with pytest.warns(UserWarning, match=f"no CPU module for mlx {mx.__version__}, but for 0.32.99; GPUs") as told:
        assert native.load() == (None, f"mpsfunc has no CPU module for mlx {mx.__version__}, but for 0.32.99")
    assert len(told) == 1 and "`python -m mpsfunc build`" in str(told[0].message)
    assert native.remedy() == "`python -m mpsfunc build`"


def test_one_that_does_not_load_is_missed_with_the_reason(folder: Path) -> None:
    (folder / "mlx-0.32.99").rename(folder / f"mlx-{mx.__version__}")
    before = sys.modules.get(native.NAME)
    sys.modules.pop(native.NAME, None)
    try:
        with pytest.warns(UserWarning, match=f"module for mlx {mx.__version__} does not load .*too short"):
            module, why = native.load()
        assert module is None and "does not load" in why and native.NAME not in sys.modules
    finally:
        if before is not None:
            sys.modules[native.NAME] = before


def test_a_package_without_cpp_says_nothing_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "folders", list)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module, why = native.load()
    assert module is None and "without its CPU module" in why and "C++ compiler" in native.remedy()


@pytest.mark.parametrize(
    ("gone", "told"), [("library", "without the kernels of the CPU"), ("compiler", "compiler no-such-c++: install")]
)
def test_what_a_build_lacks_is_said_before_it_begins(
    folder: Path, gone: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gone != "library":
        (folder / "libmpsfunc_cpu.so").touch()
        monkeypatch.setenv("CXX", "no-such-c++")
    monkeypatch.setattr(building, "_run", lambda *_: pytest.fail("something ran"))
    with pytest.raises(building.BuildError, match=re.escape(told)):
        building.build()


@pytest.mark.parametrize("fails", ["-B", "--build", "--install", "mpsfunc", "nothing"])
@pytest.mark.parametrize("before", [False, True])
def test_a_build_that_fails_leaves_what_was_there(
    folder: Path, fails: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "libmpsfunc_cpu.so").touch()
    kept = folder / f"mlx-{mx.__version__}" / f"_primitives{SUFFIX}"
    if before:
        kept.parent.mkdir()
        kept.write_text("before")

    def run(command: list[str | Path], environment: dict[str, str]) -> None:
        if fails in command:
            raise building.BuildError("a step failed")
        if "--install" in command:
            made = Path(command[-1], "mpsfunc", folder.name, kept.parent.name, kept.name)
            made.parent.mkdir(parents=True)
            made.write_text("after")

    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(building, "_run", run)
    monkeypatch.setattr(building, "_with_tools", lambda *_: {"PATH": ""})
    if fails == "nothing":
        assert building.build() == kept and kept.read_text() == "after"
    else:
        with pytest.raises(building.BuildError, match="a step failed"):
            building.build()
        assert kept.exists() is before and (not before or kept.read_text() == "before")
    expected = {"libmpsfunc_cpu.so", "mlx-0.32.99"} | ({kept.parent.name} if before or fails == "nothing" else set())
    assert {path.name for path in folder.iterdir()} == expected


def test_a_step_that_fails_tells_its_output() -> None:
    with pytest.raises(building.BuildError, match="(?s)import sys.* failed:.*the reason"):
        building._run([sys.executable, "-c", "import sys; sys.exit('the reason')"], {**os.environ})


def test_the_table_is_what_the_package_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'dependencies = ["mlx>={TABLE[0].mlx},<{END}", ' in text
    versions = [release(row.mlx) for row in TABLE]
    assert versions == sorted(set(versions)) and versions[-1] < release(END)


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (TABLE[0].mlx, TABLE[0]),
        ("0.32.99", TABLE[-1]._replace(mlx="0.32.99")),
        ("0.32.99.dev20261101+abc", TABLE[-1]._replace(mlx="0.32.99.dev20261101+abc")),
        ("0.32.2", None),
        (END, None),
        ("", None),
    ],
)
def test_how_to_build_for_a_version(version: str, found: object) -> None:
    assert row_for(version) == found


def test_a_build_asks_for_the_mlx_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scikit_build_core", reason="only builds have scikit-build-core")
    backend = runpy.run_path(str(ROOT / "primitives" / "backend.py"))
    monkeypatch.setenv("MPSFUNC_MLX", "0.32.3")
    assert backend["row"]() == ("0.32.3", "3.1.0")
    monkeypatch.setenv("MPSFUNC_MLX", "0.1")
    with pytest.raises(SystemExit, match="MPSFUNC_MLX: no such MLX to build for; got '0.1', expected one of 0.32.3"):
        backend["row"]()
    monkeypatch.delenv("MPSFUNC_MLX")
    assert backend["row"]()[0] == mx.__version__
    monkeypatch.setenv("MPSFUNC_PURE", "1")
    assert backend["needs"]() == []
