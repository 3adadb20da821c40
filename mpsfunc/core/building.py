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
    """
    version = vars(mx)["__version__"]
    row = row_for(version)
    if row is None:
        raise BuildError(f"mlx {version} is not among those that a module can be built for")
    library = _library()
    _compiler()
    place = library.parent / f"{native.PREFIX}{version}"
    if not os.access(library.parent, os.W_OK):
        raise BuildError(f"{library.parent} cannot be written to: run it as who installed mpsfunc")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        environment = _with_tools(work / "tools", row.nanobind)
        settings = [
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DMPSF_CPU_LIBRARY={library}",
        ]
        generator = ["-G", "Ninja"] if shutil.which("ninja", path=environment["PATH"]) else []
        _run(["cmake", "-S", _sources(), "-B", work / "build", *generator, *settings], environment)
        _run(["cmake", "--build", work / "build", "--parallel", str(os.cpu_count() or 1)], environment)
        _run(["cmake", "--install", work / "build", "--prefix", work / "installed"], environment)
        made = work / "installed" / "mpsfunc" / library.parent.name / place.name
        kept = place.with_name(f"{place.name}.before")
        shutil.rmtree(kept, ignore_errors=True)
        if place.exists():
            place.rename(kept)
        shutil.copytree(made, place)
    try:
        _run([sys.executable, "-W", "error", "-m", "mpsfunc"], {**os.environ})
    except BuildError:
        shutil.rmtree(place)
        if kept.exists():
            kept.rename(place)
        raise
    shutil.rmtree(kept, ignore_errors=True)
    return Path(native.built_for()[version])


def _library() -> Path:
    for folder in native.folders():
        for file in sorted(Path(folder).glob("libmpsfunc_cpu.*")):
            return file
    raise BuildError("this mpsfunc came without the kernels of the CPU: install it where a C++ compiler is")


def _sources() -> Path:
    """Inside an installed package, or beside it in a checkout."""
    packaged = Path(__file__).parents[1] / "primitives"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "primitives"


def _compiler() -> None:
    name = os.environ.get("CXX", "c++")
    if shutil.which(name) is None:
        raise BuildError(f"there is no C++ compiler {name}: install one, or name it by the environment variable CXX")


def _with_tools(folder: Path, nanobind: str) -> dict[str, str]:
    """The environment of a build: this one, with what pip had to fetch in front."""
    missing = [] if _version_of("nanobind") == nanobind else [f"nanobind=={nanobind}"]
    if _cmake() < CMAKE:
        missing += [f"cmake>={'.'.join(map(str, CMAKE))}", "ninja"]
    if missing:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        try:
            _run([*pip, "--target", str(folder), *missing], {**os.environ})
        except BuildError as error:
            raise BuildError(f"{error}\ninstall {' and '.join(missing)} and try again") from None
    found = {
        "PATH": os.pathsep.join((str(folder / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "PYTHONPATH": os.pathsep.join((str(folder), *filter(None, [os.environ.get("PYTHONPATH")]))),
    }
    return {**os.environ, **found}


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


def _run(command: Sequence[str | Path], environment: dict[str, str]) -> None:
    program = shutil.which(str(command[0]), path=environment.get("PATH")) or command[0]
    done = subprocess.run([program, *command[1:]], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        told = f"{done.stdout}\n{done.stderr}".strip().splitlines()[-30:]
        raise BuildError("\n".join((f"{' '.join(map(str, command))} failed:", *told)))
