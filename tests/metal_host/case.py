"""One call of a public function on a GPU, and what must come of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.launch import Output, Stage


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
    with mock.patch.object(launch, "_BLOCKS_YZ", 1), mock.patch.object(launch, "FILL", 1):
        yield


def named(body: str, shape: tuple[int, ...], dtype: mx.Dtype, **options: Any) -> str:
    told = [f"{key}={value}".replace(" ", "") for key, value in options.items()]
    return " ".join([body, "x".join(map(str, shape)), str(dtype).rpartition(".")[2], *told])


def launched(
    arrays: Sequence[mx.array],
    outputs: tuple[Output, ...],
    stages: Any,
    *more: mx.array,
    results_of: tuple[int, ...] = (),
) -> list[mx.array]:
    """What the stages make of the arrays, on the GPU of the moment."""

    def made() -> tuple[Stage, ...]:
        return tuple(stages)

    here = launch.resolve(None)
    return launch.launch("norm", arrays, (), outputs, made, here, finally_with=more, results_of=results_of)


def like(x: mx.array) -> tuple[Output]:
    """An output of the same shape and dtype."""
    return ((tuple(x.shape), x.dtype),)
