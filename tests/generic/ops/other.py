"""What is no operation: threads, files, and `checkpoint`."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import Any

import mlx.core as mx
from generic.opinfo import OpInfo

import mpsfunc as mf

_NO_OPERATION = "no operation"
_PATH = os.path.join(tempfile.gettempdir(), "never written")
ITSELF: list[Any] = []
ITSELF.append(ITSELF)


def _same(x: Any) -> Any:
    return x


def _shape(x: mx.array) -> Any:
    return x.shape


WRONG_FUNCTIONS = (
    ("function is not a function", lambda: mf.checkpoint(mx.ones(2))),
    ("function is not a function", lambda: mf.checkpoint(3)),
    (
        "an argument holds a collection or object whose arrays cannot be followed",
        lambda: mf.checkpoint(_same)(deque([mx.ones(2)])),
    ),
)
OPS = (
    OpInfo(
        name="get_num_threads",
        differentiable=False,
        compared="core/test_processes.py",
        no_node=_NO_OPERATION,
    ),
    OpInfo(
        name="set_num_threads",
        differentiable=False,
        compared="core/test_processes.py",
        wrong_values=(
            ("not a number of threads", lambda: mf.set_num_threads(0)),
            ("not a number of threads", lambda: mf.set_num_threads(2**40)),
        ),
        wrong_types=(("not a number of threads", lambda: mf.set_num_threads(1.5)),),
        no_node=_NO_OPERATION,
    ),
    OpInfo(
        name="export",
        differentiable=False,
        compared="exporting/test_export.py",
        wrong_values=(
            ("path names no file", lambda: mf.export("", abs, mx.ones(2))),
            ("unknown device", lambda: mf.export(_PATH, abs, mx.ones(2), device="cpu")),  # type: ignore[arg-type]
            ("unknown mlx", lambda: mf.export(_PATH, abs, mx.ones(2), mlx="0.30.0")),  # type: ignore[arg-type]
            (
                "two signatures take the same shapes and dtypes",
                lambda: mf.export(_PATH, abs, mx.ones(2), also=[(mx.ones(2),)]),
            ),
        ),
        wrong_types=(
            ("path is not a path", lambda: mf.export(3, abs, mx.ones(2))),  # type: ignore[arg-type]
            ("function is not a function", lambda: mf.export(_PATH, 3, mx.ones(2))),  # type: ignore[arg-type]
            ("also holds no arguments", lambda: mf.export(_PATH, abs, mx.ones(2), also=3)),  # type: ignore[arg-type]
            ("the function returns no array", lambda: mf.export(_PATH, _shape, mx.ones(2))),
        ),
        no_node=_NO_OPERATION,
    ),
    OpInfo(
        name="exported",
        differentiable=False,
        compared="exporting/test_export_contents.py",
        wrong_values=(("path names no file", lambda: mf.exported("")),),
        wrong_types=(("path is not a path", lambda: mf.exported(3)),),  # type: ignore[arg-type]
        no_node=_NO_OPERATION,
    ),
    OpInfo(
        name="save",
        differentiable=False,
        compared="saving/test_trees.py",
        wrong_values=(
            ("path names no file", lambda: mf.save("", 1)),
            ("no file has such a name", lambda: mf.save("a\0b", 1)),
            ("nested too deep", lambda: mf.save(_PATH, ITSELF)),
            ("an int of a record is too large", lambda: mf.save(_PATH, mf.Neuron("relu", 2**64))),
        ),
        wrong_types=(
            ("path is not a path", lambda: mf.save(3, 1)),
            ("cannot be saved", lambda: mf.save(_PATH, {"a": [1, {2}]})),
            ("a key is not a string", lambda: mf.save(_PATH, {"a": {1: 2}})),
        ),
        no_node=_NO_OPERATION,
    ),
    OpInfo(
        name="load",
        differentiable=False,
        compared="saving/test_trees.py",
        wrong_values=(
            ("path names no file", lambda: mf.load("")),
            ("no file has such a name", lambda: mf.load("a\0b")),
        ),
        wrong_types=(("path is not a path", lambda: mf.load(3)),),
        no_node=_NO_OPERATION,
    ),
    OpInfo(
        name="checkpoint",
        differentiable=False,
        compared="core/test_checkpointing.py",
        wrong_values=(("an argument is nested too deep", lambda: mf.checkpoint(_same)(ITSELF)),),
        wrong_types=WRONG_FUNCTIONS,
        no_node=_NO_OPERATION,
    ),
)
