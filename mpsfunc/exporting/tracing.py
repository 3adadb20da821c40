"""Traces a function for a GPU: MLX writes what it consists of to a file, which is finished later."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import arguments, launch, lazy, recomputing
from mpsfunc.core.printing import describe
from mpsfunc.exporting.kernels import Kernels

_UNWRITTEN = re.compile(r"\[export_function\] Unable to serialize primitive (.*)")


class Call(NamedTuple):
    """The arguments of one signature: what stands around their arrays, and the arrays with their names."""

    tree: Any
    arrays: list[mx.array]
    names: list[str]


def calls(function: Callable[..., Any], args: tuple[object, ...], also: Sequence[tuple[object, ...]]) -> list[Call]:
    """The arguments of every signature, which all differ."""
    others = arguments.entries(also)
    if others is None or not all(arguments.is_a(each, tuple) for each in others):
        raise TypeError(f"export: also holds no arguments; got also={describe(also)}, expected a list of tuples")
    made: list[Call] = []
    for i, each in enumerate((args, *others)):
        leaves, trees = recomputing.Leaves(by_place=True), []
        for name, arg in zip(_names(function, each), each, strict=True):
            trees.append(leaves.take("export", name, arg))
        for name, a in zip(leaves.names, leaves.arrays, strict=True):
            if a.dtype == mx.float64:
                raise TypeError(f"export: no GPU has float64; got {name}.dtype={a.dtype}, expected another dtype")
        for call in made:
            if [(a.shape, a.dtype) for a in call.arrays] == [(a.shape, a.dtype) for a in leaves.arrays]:
                raise ValueError(
                    "export: two signatures take the same shapes and dtypes; "
                    f"got also[{i - 1}]={describe(each)}, expected others"
                )
        made.append(Call(tuple(trees), leaves.arrays, leaves.names))
    return made


def _names(function: Callable[..., Any], args: tuple[object, ...]) -> list[str]:
    """What the function calls its arguments; positions where it does not say."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [*names, *map(str, range(len(names), len(args)))][: len(args)]


def traced(path: str, function: Callable[..., Any], given: Sequence[Call], kernels: Kernels) -> list[list[str]]:
    """Has MLX write all signatures to a file; the names of their results."""
    names: list[list[str]] = []
    module = launch.module("export")

    def flat(*arrays: mx.array) -> list[mx.array]:
        call = given[len(names)]
        result = function(*recomputing.filled(call.tree, arrays))
        leaves = recomputing.Leaves(by_place=True)
        leaves.take("export", "result", result)
        if not leaves.arrays:
            raise TypeError(f"export: the function returns no array; got result={describe(result)}, expected some")
        names.append(leaves.names)
        exportable: list[mx.array] = module.exportable(leaves.arrays, list(arrays))
        return exportable

    key = recomputing.random_state()
    try:
        with launch.exporting(kernels.gpu, kernels.node), mx.exporter(path, flat) as write:
            for call in given:
                # Others of their shapes: the function may read the arguments themselves, too, as constants.
                write(*(mx.zeros(a.shape, a.dtype) for a in call.arrays))
    except RuntimeError as error:
        if not str(error).startswith("[write]"):
            raise
        raise OSError(
            f"export: no temporary file can be written; got {error}, expected room in {tempfile.gettempdir()}"
        ) from None
    except ValueError as error:
        unwritten = _UNWRITTEN.fullmatch(str(error))
        if unwritten is None:
            raise
        raise ValueError(
            f"export: MLX cannot write an operation of the function; got {_said(unwritten[1])}, "
            "expected operations that mx.export_function writes"
        ) from None
    finally:
        drew = not lazy.same(key, recomputing.random_state())
        if drew:  # what it holds is nothing outside the trace
            recomputing.draw_from(key)
    if drew:
        raise ValueError(
            "export: the function draws from MLX's random state, so that every call would draw the same; "
            f"got function={describe(function)}, expected draws by a key among the arguments, "
            "such as mf.dropout(x, p=0.5, key=key) in place of mlx.nn.Dropout, which takes none"
        )
    return names


def _said(primitive: str) -> str:
    """An operation that cannot be written, and why it is there."""
    if primitive.startswith("Compiled"):  # and the names of all operations that MLX fused
        return (
            "Compiled, a function of mx.compile (such as mlx.nn.relu) that is called with arrays that do not depend on "
            "the arguments; call it outside"
        )
    ours = primitive.startswith("mpsfunc::") or primitive[:1].islower()  # names of MLX's begin with a capital
    return f"{primitive}, of an array that was not evaluated before" if ours else primitive
