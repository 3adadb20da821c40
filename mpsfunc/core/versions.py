"""Refuses, each in one sentence, an MLX that is missing, incomplete or foreign, and a second interpreter.

It comes before all other imports, which would fail in stranger ways.
"""

import ctypes
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from mpsfunc.core.mlx_table import END, FEATURES, TABLE, release

VERSION = "0.1.0"

# MLX's packages that bring libmlx, all to one place, and what ``pip install 'mlx[...]'`` calls them.
_EXTRAS = {"mlx-cpu": "cpu", "mlx-cuda-12": "cuda12", "mlx-cuda-13": "cuda13", "mlx-metal": ""}


class Installed(NamedTuple):
    """What there is of MLX.

    Fields:
        mlx: The version of its package, empty where there is none.
        backends: Versions of the packages that bring libmlx, by their names.
        libmlx: Whether that is there.
    """

    mlx: str
    backends: dict[str, str]
    libmlx: bool


def in_the_main_interpreter() -> bool:
    """Whether this is the interpreter that the process began with, by CPython's own account."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p)  # functions of our own: those of pythonapi are everybody's
    current, main = (pointer((f"PyInterpreterState_{which}", ctypes.pythonapi)) for which in ("Get", "Main"))
    return bool(current() == main())


def installed() -> Installed:
    """What there is of MLX, read off the names of files: to import `importlib.metadata` takes too long."""
    spec = importlib.util.find_spec("mlx")  # of a package without __init__.py, which may lie in several folders
    places = [place for place in (spec and spec.submodule_search_locations) or () if os.path.isdir(place)]
    with_core = [place for place in places if any(name.startswith("core.") for name in os.listdir(place))]
    if not (with_core or places):
        return Installed("", {}, False)
    place = (with_core or places)[0]
    names = [re.fullmatch(r"(mlx|mlx_\w+)-(.+)\.dist-info", name) for name in os.listdir(os.path.dirname(place))]
    found = {name[1].replace("_", "-"): name[2] for name in names if name}
    libmlx = any(name.startswith("libmlx.") for name in os.listdir(place) + _listed(os.path.join(place, "lib")))
    return Installed(found.get("mlx", ""), {name: found[name] for name in _EXTRAS if name in found}, libmlx)


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def complaint(here: Installed, loaded: str, lacks: Sequence[str] = (), broken: str = "") -> str:
    """What is wrong with MLX and the command that mends it; empty if nothing is.

    Args:
        here: What is installed.
        loaded: The version that ``mlx.core`` told, empty where it does not load.
        lacks: Those of `FEATURES` that it has not.
        broken: Why it does not load.
    """
    pip = "pip install"
    misfits = [f"{name} {version}" for name, version in here.backends.items() if here.mlx and version != here.mlx]
    unknown = not (here.mlx or loaded)  # as is one that somebody built, if it does not load
    if unknown and (here.backends or not here.libmlx):
        wrong = "MLX is not installed"
    elif not (here.libmlx or here.backends or loaded):
        wrong = f"mlx {here.mlx} is installed without a backend"
    elif misfits:
        wrong = f"mlx {here.mlx} is installed beside {' and '.join(misfits)}, which does not fit it"
    elif len(here.backends) > 1:
        wrong = f"mlx {here.mlx or loaded} is installed with {' and '.join(here.backends)}, which exclude each other"
    elif not (here.libmlx or loaded):
        wrong = f"libmlx is gone, which {' and '.join(here.backends)} brought"
    elif loaded and lacks:
        wrong = f"mlx {loaded} has no {' and no '.join(f'mx.{name}' for name in lacks)}"
    elif not (unknown or _in_reach(loaded or here.mlx)):
        wrong = f"mlx {loaded or here.mlx} is installed"
    elif not loaded:
        wrong, pip = f"{f'mlx {here.mlx}'.strip()} does not load ({broken})", "pip install --force-reinstall"
    else:
        return ""
    version = here.mlx if _as_published(here.mlx) and _in_reach(here.mlx) and not lacks else TABLE[-1].mlx
    return f"mpsfunc {VERSION} works with mlx>={TABLE[0].mlx},<{END}, but {wrong}; run: {_mending(here, pip, version)}"


def _in_reach(version: str) -> bool:
    return release(TABLE[0].mlx) <= release(version) < release(END)


def _as_published(version: str) -> bool:
    """Whether pip finds this version: not one that somebody built."""
    return ".".join(map(str, release(version))) == version


def _mending(here: Installed, pip: str, version: str) -> str:
    """The command that leaves one backend, of this version. One of a GPU is meant to be there."""
    extras = [_EXTRAS[name] for name in here.backends]
    if extras or sys.platform != "linux":
        extra = max(extras, default="")
        install = f"{pip} 'mlx[{extra}]=={version}'" if extra else f"{pip} mlx=={version}"
        # Each has its libmlx at one place, where the removal of one takes the other's away.
        parted = len(extras) > 1 or (extras and not here.libmlx)
        return f"pip uninstall -y {' '.join(here.backends)} && {install}" if parted else install
    return f"{pip} 'mlx[cpu]=={version}' (or, for an NVIDIA GPU, 'mlx[cuda13]=={version}')"


def words_of_the_command() -> list[str] | None:
    """What stands behind ``python -m mpsfunc`` while that imports mpsfunc; None for whoever else does."""
    module = sys.orig_argv[-len(sys.argv) :][:1]  # or with its option in one word: -mmpsfunc, -Immpsfunc
    asked = sys.argv[:1] == ["-m"] and re.fullmatch(r"(-\w*m)?mpsfunc(\.__main__)?", "".join(module))
    return sys.argv[1:] if asked else None


def _refuse(sentence: str, cause: Exception | None) -> NoReturn:
    """An ImportError; of ``python -m mpsfunc``, which imports this first, what can be told, and the exit status 1."""
    if words_of_the_command() is not None:
        import platform  # to import it takes long

        here = installed()
        packages = [f"mlx {here.mlx}"] * bool(here.mlx) + [f"{name} {of}" for name, of in here.backends.items()]
        print(f"{'mpsfunc':<10} {VERSION}")
        print(f"{'python':<10} {platform.python_version()}, {platform.platform()}")
        print(f"{'packages':<10} {', '.join(packages) or 'no MLX'}", flush=True)
        sys.exit(sentence)
    raise ImportError(sentence) from cause


if not in_the_main_interpreter():
    raise ImportError(
        f"mpsfunc {VERSION} runs in the main interpreter only: in another one its C++ module would wait without end; "
        "use threads or processes"
    )

# Behind the refusal above, since MLX's module may not load there; and by its own word, which its stubs leave out.
_broken: Exception | None = None
_loaded = ""
_lacks: list[str] = []
try:
    _core = importlib.import_module("mlx.core")
    if getattr(_core, "__file__", None) is None:  # the folder of its stubs
        raise ImportError("it has no mlx.core for this Python")
    _loaded, _lacks = _core.__version__, [name for name in FEATURES if not hasattr(_core, name)]
except Exception as error:  # also of a library that libmlx asks for
    _broken = error
_because = " ".join(str(_broken).split()) if _broken else ""
if _wrong := complaint(installed(), _loaded, _lacks, _because):
    _refuse(_wrong, _broken if _because in _wrong else None)
