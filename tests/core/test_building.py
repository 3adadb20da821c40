"""`python -m mpsfunc build` leaves a module that was tried, or what was there before."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from mpsfunc.core import building, native
from mpsfunc.core.mlx_table import END, TABLE

SUFFIX = ".abi3.so" if sys.platform != "win32" else ".pyd"
OTHER = "mlx-0.0.1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the kernels, and a module for another MLX."""
    place = tmp_path / "_cpu"
    (place / OTHER).mkdir(parents=True)
    (place / OTHER / f"_primitives{SUFFIX}").touch()
    (place / "libmpsfunc_cpu.so").touch()
    monkeypatch.setattr(native, "folders", lambda: [str(place)])
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(building, "_with_tools", lambda *_: {"PATH": ""})
    return place


def module(folder: Path) -> Path:
    return folder / f"mlx-{mx.__version__}" / f"_primitives{SUFFIX}"


Run = Callable[[list[str | Path], dict[str, str], Path], None]


def steps(folder: Path, fails: str = "", error: BaseException | None = None) -> Run:
    """What stands for the commands of a build: the installing one makes a module."""

    def run(command: list[str | Path], environment: dict[str, str], where: Path) -> None:
        if fails in command and fails:
            raise error or building.BuildError("a step failed")
        if "--install" in command:
            made = Path(command[-1], "mpsfunc", folder.name, module(folder).parent.name, module(folder).name)
            made.parent.mkdir(parents=True)
            made.write_text("after")

    return run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ("library", "without the kernels of the CPU: in a checkout, with a C++ compiler, run: pip install "),
        ("compiler", "there is no C++ compiler no-such-c++: install one"),
        ("two words", "there is no C++ compiler no-such-ccache g++: install one"),
        ("row", f"mlx {END} is not among those that a module can be built for"),
        ("leave", "cannot be written to: run it as the user who installed mpsfunc"),
    ],
)
def test_what_a_build_lacks_is_said_before_it_begins(
    folder: Path, gone: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gone == "library":
        (folder / "libmpsfunc_cpu.so").unlink()
    elif gone == "row":
        monkeypatch.setattr(mx, "__version__", END)
    elif gone == "leave":  # which root always has
        monkeypatch.setattr(os, "access", lambda path, how: not (Path(path) == folder and how == os.W_OK))
    else:
        monkeypatch.setenv("CXX", "no-such-c++" if gone == "compiler" else "no-such-ccache g++")
    monkeypatch.setattr(building, "_run", lambda *_: pytest.fail("something ran"))
    with pytest.raises(building.BuildError, match=re.escape(told)):
        building.build()


@pytest.mark.parametrize("compiler", [sys.executable, f"{sys.executable} -O", ""])
def test_compilers_as_cmake_takes_them(folder: Path, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: name if name in (sys.executable, "c++") else None)
    building._compiler()


@pytest.mark.parametrize("fails", ["-B", "--build", "--install", "mpsfunc", "nothing"])
@pytest.mark.parametrize("before", [False, True])
def test_a_build_that_fails_leaves_what_was_there(
    folder: Path, fails: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = module(folder)
    if before:
        kept.parent.mkdir()
        kept.write_text("before")
    monkeypatch.setattr(building, "_run", steps(folder, fails))
    if fails == "nothing":
        assert building.build() == kept and kept.read_text() == "after"
    else:
        with pytest.raises(building.BuildError, match="a step failed"):
            building.build()
        assert kept.exists() is before and (not before or kept.read_text() == "before")
    expected = {"libmpsfunc_cpu.so", OTHER} | ({kept.parent.name} if before or fails == "nothing" else set())
    assert names(folder) == expected


@pytest.mark.parametrize("where", ["copytree", "rename", "second rename", "trial"])
@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_and_ctrl_c_leave_what_was_there(
    folder: Path, where: str, error: BaseException, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, renamed, rename = module(folder), [], Path.rename
    if before:
        kept.parent.mkdir()
        kept.write_text("before")
    monkeypatch.setattr(building, "_run", steps(folder, "mpsfunc" if where == "trial" else "", error))

    def copytree(made: Path, place: Path) -> None:
        place.mkdir()
        (place / "half of it").touch()
        raise error

    def renames(path: Path, to: Path) -> Path:
        renamed.append(path)
        if len(renamed) == (1 if where == "rename" else 2 if before else 1):
            raise error
        return rename(path, to)

    if where == "copytree":
        monkeypatch.setattr(shutil, "copytree", copytree)
    elif where != "trial":
        monkeypatch.setattr(Path, "rename", renames)
    kind = building.BuildError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind, match="no space left" if isinstance(error, OSError) else None):
        building.build()
    assert not before or kept.read_text() == "before"
    assert names(folder) == {"libmpsfunc_cpu.so", OTHER} | ({kept.parent.name} if before else set())


def test_what_a_killed_build_put_aside_is_no_version_and_comes_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside, kept = folder / f"before-{module(folder).parent.name}", module(folder)
    aside.mkdir()
    (aside / kept.name).write_text("before")
    assert [*native.built_for()] == [OTHER.removeprefix(native.PREFIX)]
    monkeypatch.setattr(building, "_run", steps(folder, "mpsfunc"))
    with pytest.raises(building.BuildError):
        building.build()
    assert kept.read_text() == "before" and not aside.exists()


def test_the_trial_is_of_the_cpu_and_of_the_package_of_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of what lies where the command is given."""
    trials, make = [], steps(folder)

    def run(command: list[str | Path], environment: dict[str, str], where: Path) -> None:
        make(command, environment, where)
        if "mpsfunc" in command:
            trials.append((command, environment["PYTHONPATH"].split(os.pathsep), where))

    monkeypatch.setattr(building, "_run", run)
    monkeypatch.setattr(sys, "path", ["", "relative", *sys.path])
    building.build()
    ((command, paths, where),) = trials
    assert command[-4:] == ["-m", "mpsfunc", "--device", "cpu"]
    assert paths[:2] == [os.getcwd(), os.path.abspath("relative")] and where != Path.cwd() and not where.exists()


def test_a_step_runs_in_its_folder_and_tells_its_output(tmp_path: Path) -> None:
    program = "import os, sys; sys.exit(f'the reason, in {os.getcwd()}')"
    with pytest.raises(building.BuildError, match=f"(?s)import os.* failed:.*the reason, in {tmp_path}"):
        building._run([sys.executable, "-c", program], {**os.environ}, tmp_path)


def test_without_pip_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pip(command: list[str], environment: dict[str, str], where: Path) -> None:
        assert command[1:3] == ["-m", "pip"]
        raise building.BuildError("No module named pip")

    monkeypatch.setattr(building, "_run", no_pip)
    monkeypatch.setattr(building, "_version_of", lambda package: "")
    monkeypatch.setattr(building, "_cmake", lambda: ())
    wanted = f"No module named pip\ninstall nanobind=={TABLE[-1].nanobind} and cmake>=3.26 and ninja beside mpsfunc"
    with pytest.raises(building.BuildError, match=re.escape(wanted)):
        building._with_tools(tmp_path / "tools", TABLE[-1].nanobind)


def test_what_is_here_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_run", lambda *_: pytest.fail("something ran"))
    monkeypatch.setattr(building, "_version_of", lambda package: TABLE[-1].nanobind)
    monkeypatch.setattr(building, "_cmake", lambda: building.CMAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", "relative")))
    found = building._with_tools(tmp_path / "tools", TABLE[-1].nanobind)
    assert found["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "tools"), os.path.abspath("relative")]
