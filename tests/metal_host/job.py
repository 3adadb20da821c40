"""One kernel with its data, ready to run under the sanitizers: bytes in, bytes out, no MLX, from any thread."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from metal_host import build
from metal_host.msl_text import Kernel

CONSTANT, INPUT, OUTPUT = 0, 1, 2
_REVERSED, _ROUNDED, _SHIFTED = 1, 2, 4
_TIMEOUT = 60  # seconds; a kernel that runs longer does not end
_HOST_STATUS = 3
_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=0",
}


class KernelFault(AssertionError):
    """What was wrong with a kernel, and who found it.

    ``by`` is "compiler", "address" (or undefined behaviour), "thread", "lanes" (their order or the inputs' alignment
    made a difference), "stores" (results that are not stored once) or "host" (barriers that not all threads reach, too
    much threadgroup memory, no end).
    """

    def __init__(self, by: str, words: str) -> None:
        super().__init__(f"{by}: {words}")
        self.by = by


class Buffer(NamedTuple):
    """An argument of a kernel: a constant that MLX adds, an input, or an output, which has no data yet."""

    name: str
    role: int
    dtype: str  # NumPy's name, or "bfloat16"
    bytes: int
    data: bytes = b""

    @property
    def element(self) -> int:
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize


class Traffic(NamedTuple):
    """Bytes that all threads together loaded from a buffer and stored to it."""

    loaded: int
    stored: int


class Outcome(NamedTuple):
    """The contents of the outputs, and the traffic of every input and output."""

    results: dict[str, bytes]
    traffic: dict[str, Traffic]


class Job(NamedTuple):
    """A kernel, its buffers in Metal's order, and the threads to run."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    threads: tuple[int, int, int]
    threadgroup: tuple[int, int, int]

    @property
    def whole(self) -> bool:
        """Whether the grid is one of whole threadgroups."""
        return all(count % size == 0 for count, size in zip(self.threads, self.threadgroup, strict=True))

    def run(self, *, rounded: bool = False) -> Outcome:
        """Runs the kernel in every way there is.

        Threads that have neither memory nor lanes in common can race for outputs only, which the thread sanitizer
        need not look for where each is stored once.

        Args:
            rounded: Round the grid up to whole threadgroups, as CUDA does.

        Raises:
            KernelFault: Something was wrong.
        """
        outcome = self.once("address", rounded=rounded)
        if self.once("address", rounded=rounded, disturbed=True).results != outcome.results:
            raise KernelFault("lanes", "other bits with the lanes reversed and the inputs one element off")
        if self.kernel.shares:
            self.once("thread", rounded=rounded)
        elif faults := self.not_stored_once(outcome):
            raise KernelFault("stores", f"results that are not stored once and never loaded: {faults}")
        return outcome

    def not_stored_once(self, outcome: Outcome) -> dict[str, Traffic]:
        """The outputs that are loaded, or stored to more or fewer than once: what threads could race for."""
        outputs = [buffer for buffer in self.buffers if buffer.role == OUTPUT]
        found = {buffer.name: outcome.traffic[buffer.name] for buffer in outputs}
        return {buffer.name: found[buffer.name] for buffer in outputs if found[buffer.name] != (0, buffer.bytes)}

    def once(
        self, sanitizer: str, *, rounded: bool = False, disturbed: bool = False, seconds: float | None = None
    ) -> Outcome:
        """Runs the kernel in one way: under a sanitizer of `build.SANITIZERS`.

        Args:
            sanitizer: Which.
            rounded: As for `run`.
            disturbed: With the lanes in reversed order and the inputs one element off.
            seconds: After which a kernel that still runs is taken for one that does not end. Default: a minute.

        Raises:
            KernelFault: Something was wrong.
        """
        seconds = _TIMEOUT if seconds is None else seconds
        options = _ROUNDED * rounded | (_REVERSED | _SHIFTED) * disturbed
        try:
            library = build.shared_object(self.kernel, sanitizer)
        except build.CompileError as error:
            raise KernelFault("compiler", str(error)) from None
        with tempfile.TemporaryDirectory() as folder:
            job, result = Path(folder) / "job", Path(folder) / "result"
            job.write_bytes(self._packed(options))
            command = [*_at_fixed_addresses(sanitizer), *map(str, (build.runner(sanitizer), library, job, result))]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=seconds, env={**os.environ, **_ENVIRONMENT}
                )
            except subprocess.TimeoutExpired:
                raise KernelFault("host", f"ran for more than {seconds} s") from None
            if done.returncode != 0:
                by = "host" if done.returncode == _HOST_STATUS else sanitizer.removeprefix("quick ")
                raise KernelFault(by, done.stderr[:3000] or f"exit status {done.returncode}")
            return self._unpacked(result.read_bytes())

    def _packed(self, options: int) -> bytes:
        header = [*self.threads, *self.threadgroup, options, len(self.buffers)]
        table = [number for b in self.buffers for number in (b.role, b.bytes, b.element)]
        return np.array(header + table, np.int64).tobytes() + b"".join(b.data for b in self.buffers)

    def _unpacked(self, data: bytes) -> Outcome:
        results, at = {}, 0
        for buffer in self.buffers:
            if buffer.role == OUTPUT:
                results[buffer.name] = data[at : at + buffer.bytes]
                at += buffer.bytes
        counts = np.frombuffer(data, np.int64, offset=at).reshape(-1, 2).tolist()
        pairs = zip(self.buffers, counts, strict=True)
        return Outcome(results, {b.name: Traffic(*c) for b, c in pairs if b.role != CONSTANT})


def values(dtype: str, data: bytes) -> np.ndarray:
    """The numbers in a buffer, in float64."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(data, dtype).astype(np.float64)


def _at_fixed_addresses(sanitizer: str) -> list[str]:
    """Older thread sanitizers cannot live with much randomness in the addresses that Linux hands out."""
    setarch = shutil.which("setarch")
    return [setarch, "-R"] if sanitizer == "thread" and setarch else []
