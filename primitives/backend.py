"""The build's backend: scikit-build-core, which is told which MLX and which nanobind it needs.

The C++ module is built for the MLX of the environment that it is installed into if mpsfunc works with that, as
``mpsfunc/core/mlx_table.py`` has it, and else for the one that pip is about to install: the newest before the end of
the table, though nobody may have tried it. ``MPSFUNC_MLX=0.32.3`` asks for another.
"""

import os
import runpy
import sys
import sysconfig
from pathlib import Path

import scikit_build_core.build as _skbuild
from scikit_build_core.build import *  # noqa: F403  # the hooks

_table = runpy.run_path(str(Path(__file__).parents[1] / "mpsfunc" / "core" / "mlx_table.py"))


def installed() -> str:
    """The version of MLX in the environment that pip installs into, empty where it has none."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = [info.name.split("-")[1] for folder in folders for info in Path(folder).glob("mlx-*.dist-info")]
    return found[0].removesuffix(".dist") if found else ""


def row() -> tuple[str, str]:
    """What to ask of pip behind the name of MLX, and the nanobind that fits, as far as that is known."""
    asked = os.environ.get("MPSFUNC_MLX", "")
    found = _table["row_for"](asked or installed())
    if asked and not found:
        known = ", ".join(each.mlx for each in _table["TABLE"])
        raise SystemExit(f"MPSFUNC_MLX: no such MLX to build for; got {asked!r}, expected one of {known}")
    newest = _table["TABLE"][-1]
    # A module for just the newest that is known would be missing where pip then installs a newer one.
    return (f"=={found.mlx}", found.nanobind) if found else (f">={newest.mlx},<{_table['END']}", newest.nanobind)


def needs() -> list[str]:
    """What scikit-build-core does not know that a build needs; nothing where no C++ is built."""
    if os.environ.get("MPSFUNC_PURE"):
        return []
    mlx, nanobind = row()
    return [f"nanobind=={nanobind}", f"mlx{'[cpu]' if sys.platform == 'linux' else ''}{mlx}"]


def get_requires_for_build_wheel(config_settings=None):  # noqa: D103
    return [*_skbuild.get_requires_for_build_wheel(config_settings), *needs()]


def get_requires_for_build_editable(config_settings=None):  # noqa: D103
    return [*_skbuild.get_requires_for_build_editable(config_settings), *needs()]
