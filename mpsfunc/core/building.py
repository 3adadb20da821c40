"""Makes the C++ module for the MLX that is here: what ``python -m mpsfunc build`` does, and nothing else asks for.

The kernels are there already, compiled, in the package; the module between them and MLX is two files of C++.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from mpsfunc.core import native
from mpsfunc.core.mlx_table import row_for

CMAKE = (3, 26)


class BuildError(RuntimeError):
    """Why there is no module now."""


def build() -> Path:
    """Builds the module, tries it in a process of its own and keeps it in the package; its file.

    What is missing of nanobind, CMake and Ninja is fetched by pip into a folder that is gone afterwards.

    Raises:
        BuildError: The package has no kernels or cannot be written to, there is no compiler, or one of the steps fails.
            The package then is as it was.
    """
    try:
        return _build()
    except OSError as error:  # such as a full disk
        raise BuildError(str(error)) from error


def _build() -> Path:
    version = vars(mx)["__version__"]
    row = row_for(version)
    if row is None:
        raise BuildError(f"mlx {version} is not among those that a module can be built for")
    library = _library()
    _compiler()
    place = library.parent / f"{native.PREFIX}{version}"
    if not os.access(library.parent, os.W_OK):
        raise BuildError(f"{library.parent} cannot be written to: run it as the user who installed mpsfunc")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        environment = _with_tools(work / "tools", row.nanobind)
        settings = [
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DMPSF_CPU_LIBRARY={library}",
        ]
        generator = ["-G", "Ninja"] if shutil.which("ninja", path=environment["PATH"]) else []
        _run(["cmake", "-S", _sources(), "-B", work / "build", *generator, *settings], environment, work)
        _run(["cmake", "--build", work / "build", "--parallel", str(os.cpu_count() or 1)], environment, work)
        _run(["cmake", "--install", work / "build", "--prefix", work / "installed"], environment, work)
        _keep(work / "installed" / "mpsfunc" / library.parent.name / place.name, place, work)
    return Path(native.built_for()[version])


def _keep(made: Path, place: Path, elsewhere: Path) -> None:
    """Puts a module into the package and tries it; whatever goes wrong, what was there before is there again."""
    new, before = (place.with_name(f"{which}-{place.name}") for which in ("new", "before"))
    if place.exists():
        shutil.rmtree(before, ignore_errors=True)
    elif before.exists():  # somebody killed the last build
        before.rename(place)
    first = not place.exists()
    try:
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(made, new)
        if not first:
            place.rename(before)
        new.rename(place)
        # The CPU alone, since nothing here is about a GPU; the mpsfunc of this process, whatever lies in its folder.
        here = {**os.environ, "PYTHONPATH": _paths(sys.path)}
        _run([sys.executable, "-W", "error", "-m", "mpsfunc", "--device", "cpu"], here, elsewhere)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if first or before.exists():
            shutil.rmtree(place, ignore_errors=True)
        if before.exists():
            before.rename(place)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _library() -> Path:
    for folder in native.folders():
        for file in sorted(Path(folder).absolute().glob("libmpsfunc_cpu.*")):
            return file
    raise BuildError(
        f"this mpsfunc came without the kernels of the CPU: in a checkout, with a C++ compiler, run: {native.REINSTALL}"
    )


def _sources() -> Path:
    """Inside an installed package, or beside it in a checkout."""
    package = Path(__file__).absolute().parents[1]
    return package / "primitives" if (package / "primitives").is_dir() else package.parent / "primitives"


def _compiler() -> None:
    name = os.environ.get("CXX") or "c++"
    if shutil.which(name) is None and shutil.which(name.split()[0]) is None:  # "ccache g++", as CMake takes it
        raise BuildError(f"there is no C++ compiler {name}: install one, or name it by the environment variable CXX")


def _with_tools(folder: Path, nanobind: str) -> dict[str, str]:
    """The environment of a build: this one, with what pip had to fetch in front."""
    missing = [] if _version_of("nanobind") == nanobind else [f"nanobind=={nanobind}"]
    if _cmake() < CMAKE:
        missing += [f"cmake>={'.'.join(map(str, CMAKE))}", "ninja"]
    if missing:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        try:
            _run([*pip, "--target", str(folder), *missing], {**os.environ}, folder.parent)
        except BuildError as error:
            raise BuildError(f"{error}\ninstall {' and '.join(missing)} beside mpsfunc and try again") from None
    found = {
        "PATH": os.pathsep.join((str(folder / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "PYTHONPATH": _paths([str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]),
    }
    return {**os.environ, **found}


def _paths(folders: Sequence[str]) -> str:
    """As a process in another folder finds them."""
    return os.pathsep.join(map(os.path.abspath, folders))


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cmake() -> tuple[int, ...]:
    """The version of CMake here; () where there is none."""
    place = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which("cmake", path=place)
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout if found else ""
    numbers = re.search(r"version (\d+)\.(\d+)", told)
    return (int(numbers[1]), int(numbers[2])) if numbers else ()


def _run(command: Sequence[str | Path], environment: dict[str, str], folder: Path) -> None:
    program = shutil.which(str(command[0]), path=environment.get("PATH")) or command[0]
    done = subprocess.run(
        [program, *command[1:]], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        told = f"{done.stdout}\n{done.stderr}".strip().splitlines()[-30:]
        raise BuildError("\n".join((f"{' '.join(map(str, command))} failed:", *told)))
