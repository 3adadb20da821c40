"""The C++ module is that of the MLX which is here: picked by its version, missed with a warning."""

from __future__ import annotations

import runpy
import sys
import sysconfig
import warnings
from pathlib import Path

import mlx.core as mx
import pytest

from mpsfunc.core import launch, native
from mpsfunc.core.mlx_table import END, TABLE, release, row_for
from mpsfunc.core.versions import Installed, complaint

ROOT = Path(__file__).parents[2]
NEWER = ".".join((*TABLE[-1].mlx.split(".")[:2], "999"))  # that nobody tried, in reach
SUFFIX = ".abi3.so" if sys.platform != "win32" else ".pyd"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of built modules, with one for another MLX."""
    (tmp_path / f"mlx-{NEWER}").mkdir()
    (tmp_path / f"mlx-{NEWER}" / f"_primitives{SUFFIX}").touch()
    monkeypatch.setattr(native, "folders", lambda: [str(tmp_path)])
    return tmp_path


@pytest.mark.needs_cpu_module
def test_the_module_is_that_of_this_mlx() -> None:
    assert Path(launch._primitives.__file__).parent.name == f"mlx-{mx.__version__}"
    assert native.built_for()[mx.__version__] == launch._primitives.__file__


def test_where_none_fits_a_warning_says_what_makes_one(folder: Path) -> None:
    with pytest.warns(UserWarning, match=rf"no C\+\+ module for mlx {mx.__version__}, but for {NEWER}; GPUs") as told:
        assert native.load() == (None, f"mpsfunc has no C++ module for mlx {mx.__version__}, but for {NEWER}")
    assert len(told) == 1 and "`python -m mpsfunc build`" in str(told[0].message)
    assert native.remedy() == "`python -m mpsfunc build`"


def test_one_that_does_not_load_is_missed_with_the_reason(folder: Path) -> None:
    (folder / f"mlx-{NEWER}").rename(folder / f"mlx-{mx.__version__}")
    before = sys.modules.get(native.NAME)
    sys.modules.pop(native.NAME, None)
    try:
        with pytest.warns(UserWarning, match=f"module for mlx {mx.__version__} does not load .*too short"):
            module, why = native.load()
        assert module is None and "does not load" in why and native.NAME not in sys.modules
    finally:
        if before is not None:
            sys.modules[native.NAME] = before


@pytest.mark.parametrize("gpu", [False, True])
def test_a_package_without_cpp_warns_where_there_is_no_gpu(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it says nothing before it is asked."""
    monkeypatch.setattr(native, "folders", list)
    monkeypatch.setattr(mx, "is_available", lambda device: gpu)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module, why = native.load()
    assert module is None and "without its C++ module" in why and native.REINSTALL in native.remedy()
    said = "nothing runs here, since MLX has no GPU; in a checkout, with a C++ compiler, run: pip install "
    assert [said in str(each.message) for each in told] == [True] * (not gpu)


@pytest.mark.parametrize(("command", "warns"), [("build", False), ("--no-test", True)])
def test_what_makes_the_module_does_not_ask_for_itself(
    folder: Path, command: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["-m", command])  # while mpsfunc is imported
    monkeypatch.setattr(sys, "orig_argv", ["python", "-W", "error", "-mmpsfunc", command])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert native.load()[0] is None
    assert len(told) == warns


def test_the_table_is_what_the_package_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'dependencies = ["mlx>={TABLE[0].mlx},<{END}", ' in text
    versions = [release(row.mlx) for row in TABLE]
    assert versions == sorted(set(versions)) and versions[-1] < release(END)
    assert f'"nanobind=={TABLE[-1].nanobind}"' in text, "of the dev dependencies, which write the module's types"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (TABLE[0].mlx, TABLE[0]),
        (f"{TABLE[0].mlx}.post1", TABLE[0]._replace(mlx=f"{TABLE[0].mlx}.post1")),
        (f"{TABLE[0].mlx}.dev20261101+abc", TABLE[0]._replace(mlx=f"{TABLE[0].mlx}.dev20261101+abc")),
        (f"{TABLE[-1].mlx}+abc", TABLE[-1]._replace(mlx=f"{TABLE[-1].mlx}+abc")),
        (NEWER, TABLE[-1]._replace(mlx=NEWER)),
        (f"{NEWER}rc1", TABLE[-1]._replace(mlx=f"{NEWER}rc1")),
        ("0.32.2", None),
        (END, None),
        (f"{END}.0rc1", None),
        ("", None),
    ],
)
def test_how_to_build_for_a_version(version: str, found: object) -> None:
    assert row_for(version) == found


@pytest.mark.parametrize("end", ["", ".dev1", "rc1", ".post1", "+abc", ".dev20261101+abc"])
def test_a_release_is_the_numbers_before_any_word(end: str) -> None:
    assert release(f"0.32.4{end}") == (0, 32, 4)


def test_what_is_imported_can_be_built_for() -> None:
    for version in (
        TABLE[0].mlx,
        f"{TABLE[-1].mlx}.post1",
        f"{TABLE[-1].mlx}.dev1",
        NEWER,
        "0.32.2",
        END,
        f"{END}.dev1",
    ):
        assert (complaint(Installed(version, {}, libmlx=True), version) == "") is (row_for(version) is not None)


def test_a_build_asks_for_the_mlx_that_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scikit_build_core", reason="only builds have scikit-build-core")
    backend = runpy.run_path(str(ROOT / "primitives" / "backend.py"))
    monkeypatch.setattr(sys, "platform", "linux")

    def asked(**environment: str) -> list[str]:
        for name in ("MPSFUNC_MLX", "MPSFUNC_PURE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return list(backend["needs"]())

    first, last = TABLE[0], TABLE[-1]
    assert asked(MPSFUNC_MLX=first.mlx) == [f"nanobind=={first.nanobind}", f"mlx[cpu]=={first.mlx}"]
    with pytest.raises(
        SystemExit, match=f"MPSFUNC_MLX: no such MLX to build for; got '0.1', expected one of {first.mlx}"
    ):
        asked(MPSFUNC_MLX="0.1")
    assert asked(MPSFUNC_PURE="1") == []

    # The MLX where pip installs to; without one that fits, the one that pip is going to bring.
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    brought = [f"nanobind=={last.nanobind}", f"mlx[cpu]>={last.mlx},<{END}"]
    assert asked() == brought
    for version, wanted in (("0.1.0", brought), (first.mlx, [f"nanobind=={first.nanobind}", f"mlx[cpu]=={first.mlx}"])):
        info = tmp_path / f"mlx-{version}.dist-info"
        info.mkdir()
        assert asked() == wanted
        info.rmdir()
