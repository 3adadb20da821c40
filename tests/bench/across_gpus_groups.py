"""Groups of processes, one a GPU, that answer to this one line by line, and are ended where they do not."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import groups

ROOT = Path(__file__).parents[2]
MARK = "@ "  # begins a line that is an answer; libraries print lines of their own


class Failed(Exception):
    """A group that ended or did not answer in time, and why."""


def environment(size: int, on_gpu: bool, folder: Path) -> list[dict[str, str]]:
    """The variables of each rank: those of ``mlx.launch``, and those that PyTorch reads."""
    first = groups.ports(size + 2)
    ports = range(first, first + size + 2)
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "docs/examples"), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "WORLD_SIZE": str(size),
        "MLX_ENABLE_TF32": "0",  # losses of one process and of several are compared in float32
    }
    if size == 1:
        return [{**shared, "RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}]
    if on_gpu:
        shared |= {"NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": str(ports[1]), "MLX_WORLD_SIZE": str(size)}
    else:
        hosts = folder / f"hosts {ports[0]}.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports[2:]]))
        shared |= {"MLX_HOSTFILE": str(hosts), "MPSFUNC_NUM_THREADS": "1"}
    return [
        {**shared, "RANK": str(rank), "MLX_RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(size)
    ]


class Group:
    """The ranks of one library."""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        self.size = len(environments)
        self._errors = [tempfile.TemporaryFile() for _ in environments]  # noqa: SIM115  # closed with the group
        self.ranks = [
            subprocess.Popen(
                [sys.executable, *command],
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True},
                env=dict(env),
                cwd=ROOT,
            )
            for env, errors in zip(environments, self._errors, strict=True)
        ]
        self._answers: list[queue.Queue[str | None]] = [queue.Queue() for _ in self.ranks]
        streams = [rank.stdout for rank in self.ranks]
        self._readers = [
            threading.Thread(target=_read, args=each, daemon=True) for each in zip(streams, self._answers, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    def tell(self, **what: Any) -> None:
        """Sends all ranks a request."""
        for rank in self.ranks:
            assert rank.stdin
            with contextlib.suppress(OSError):  # it has ended, as its answer says
                rank.stdin.write(json.dumps(what) + "\n")
                rank.stdin.flush()

    def answers(self, seconds: float) -> list[dict[str, Any]]:
        """What each rank answers to the last request.

        Raises:
            Failed: One ended or did not answer; then all are ended.
        """
        end, found = time.monotonic() + seconds, []
        for i, answers in enumerate(self._answers):
            try:
                line = answers.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                line = ""
            if not line:
                why = f"rank {i} did not answer in {seconds:.0f} s" if line == "" else f"rank {i} {self._last_words(i)}"
                self.end()
                raise Failed(why)
            found.append(json.loads(line))
        return found

    def ask(self, seconds: float, **what: Any) -> list[dict[str, Any]]:
        """Both."""
        self.tell(**what)
        return self.answers(seconds)

    def stderr(self, rank: int) -> str:
        """What a rank has printed there so far."""
        size = os.fstat(self._errors[rank].fileno()).st_size
        return os.pread(self._errors[rank].fileno(), size, 0).decode(errors="replace")

    def end(self) -> None:
        """Ends all ranks at once."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL)
        for rank, reader, errors in zip(self.ranks, self._readers, self._errors, strict=True):
            rank.wait()
            reader.join()
            for stream in (rank.stdin, rank.stdout, errors):
                assert stream
                with contextlib.suppress(BrokenPipeError):  # of a request that nobody has read
                    stream.close()

    def _last_words(self, rank: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.ranks[rank].wait(5)
        lines = [line.strip() for line in self.stderr(rank).splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|NCCL error|CUDA error|mpsfunc:", line)]
        return f"ended with {self.ranks[rank].returncode}: {(errors or lines or ['no word'])[-1]}"[:300]


def _read(stream: Any, answers: queue.Queue[str | None]) -> None:
    for line in stream:
        if line.startswith(MARK):
            answers.put(line.removeprefix(MARK))
    answers.put(None)
