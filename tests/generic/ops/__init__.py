"""A record of every public function; a file of records is found by being here."""

from __future__ import annotations

import importlib
import os
import pkgutil

from generic.opinfo import OpInfo

import mpsfunc as mf

FILES: dict[str, str] = {}  # the file of each
FAMILIES: dict[str, str] = {}  # the folder of mpsfunc that each is in
OPS: dict[str, OpInfo] = {}
_WANTED = os.environ.get("MPSFUNC_FAMILY")  # set by `pytest --family`: its operations alone, which is faster

for _file in sorted(info.name for info in pkgutil.iter_modules(__path__)):
    for _op in importlib.import_module(f"{__name__}.{_file}").OPS:
        assert _op.name not in FILES, f"{_op.name} has two records, in {FILES[_op.name]} and {_file}"
        FILES[_op.name], FAMILIES[_op.name] = _file, getattr(mf, _op.name).__module__.split(".")[1]
        if _WANTED in (None, FAMILIES[_op.name]):
            OPS[_op.name] = _op
