"""Finds the C++ module that was built for the MLX which is here.

An installed package holds the CPU's kernels once, ``_cpu/libmpsfunc_cpu``, and a thin module for each MLX that it was
built for, ``_cpu/mlx-<version>/_primitives``, since a module can take only the arrays of the MLX that it was built
with. ``python -m mpsfunc build`` adds one.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import warnings
from types import ModuleType

import mlx.core as mx

from mpsfunc.core import versions

NAME = "mpsfunc._primitives"
PREFIX = "mlx-"
BUILD = "python -m mpsfunc build"
REINSTALL = "pip install '.[cpu]'" if sys.platform == "linux" else "pip install ."  # in a checkout

_version: str = vars(mx)["__version__"]  # which MLX's stubs leave out


def folders() -> list[str]:
    """Where the package keeps what is built: nowhere where it came without C++. An editable install has two places."""
    places = [os.path.join(place, "_cpu") for place in sys.modules["mpsfunc"].__path__]
    return [place for place in places if os.path.isdir(place)]


def built_for() -> dict[str, str]:
    """The modules that are here: the version of MLX that each was built for, and its file."""
    found: dict[str, str] = {}
    for folder in folders():
        for name in sorted(os.listdir(folder)):
            if name.startswith(PREFIX):
                files = [
                    os.path.join(folder, name, f"_primitives{end}") for end in importlib.machinery.EXTENSION_SUFFIXES
                ]
                found |= {name.removeprefix(PREFIX): file for file in files if os.path.isfile(file)}
    return found


def load() -> tuple[ModuleType | None, str]:
    """The module for this MLX, as ``mpsfunc._primitives``; where there is none, why.

    A warning says so, too, unless GPUs are all that this package is for and there is one.

    Raises:
        ValueError: An environment variable has a value that means nothing.
    """
    found = built_for()
    if not folders():
        why = "this mpsfunc was built without its C++ module"
        then = f"nothing runs here, since MLX has no GPU; in a checkout, with a C++ compiler, run: {REINSTALL}"
        return None, why if mx.is_available(mx.gpu) else _warned(why, then)
    if _version not in found:
        known = ", ".join(sorted(found)) or "no other"
        return None, _warned(f"mpsfunc has no C++ module for mlx {_version}, but for {known}")
    try:
        return load_from(found[_version]), ""
    except ImportError as error:
        if str(error).startswith("MPSFUNC_"):  # it loads, and refuses its settings
            raise ValueError(str(error)) from None
        return None, _warned(f"mpsfunc's C++ module for mlx {_version} does not load ({error})")


def remedy() -> str:
    """What brings the module where there is none."""
    return f"`{BUILD}`" if folders() else f"an install with a C++ compiler, in a checkout `{REINSTALL}`"


def load_from(file: str) -> ModuleType:
    """The module in this file."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, file)
    spec = importlib.util.spec_from_file_location(NAME, file, loader=loader)
    if spec is None:
        raise ImportError(f"{file} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[NAME]
        raise
    vars(sys.modules["mpsfunc"])["_primitives"] = module
    return module


def _warned(why: str, then: str = f"GPUs work without it, and where a C++ compiler is, `{BUILD}` makes it") -> str:
    if "build" not in (versions.words_of_the_command() or ()):  # which is about to make it
        warnings.warn(f"{why}; {then}", stacklevel=2)
    return why
