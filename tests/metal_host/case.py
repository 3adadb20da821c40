"""One call of a public function on a GPU, and what must come of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch, Output


class Case(NamedTuple):
    """A call, the bodies that it may launch, and a check of its results."""

    name: str
    bodies: tuple[str, ...]
    check: Callable[[], None]
    crowded: bool = False

    def run(self) -> None:
        """Calls and checks. ``crowded`` lets the GPU have few threadgroups, so that every grid stride is taken."""
        with _few_threadgroups() if self.crowded else contextlib.nullcontext():
            self.check()


@contextlib.contextmanager
def _few_threadgroups() -> Iterator[None]:
    with mock.patch.object(grids, "_BLOCKS_YZ", 1), mock.patch.object(grids, "FILL", 1):
        yield


def named(body: str, shape: tuple[int, ...], dtype: mx.Dtype, **options: Any) -> str:
    """The name of a case: body, shape, dtype, and what is special."""
    told = [f"{key}={value}".replace(" ", "") for key, value in options.items()]
    return " ".join([body, "x".join(map(str, shape)), str(dtype).rpartition(".")[2], *told])


def launched(
    arrays: dict[str, mx.array],
    outputs: tuple[Output, ...],
    launches: Any,
    *,
    returns: tuple[str, ...] = (),
) -> list[mx.array]:
    """What the launches make of the arrays, on the GPU of the moment."""

    def made() -> tuple[KernelLaunch, ...]:
        return tuple(launches)

    return launch.launch("norm", arrays, None, outputs, made, launch.resolve(None), returns=returns)


def like(x: mx.array) -> tuple[Output]:
    """An output of the same shape and dtype."""
    return ((tuple(x.shape), x.dtype),)
