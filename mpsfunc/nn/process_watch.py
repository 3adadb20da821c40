"""Tells within a limit of time that another process of a group has ended or stopped, also where MLX waits without end.

Each process has a thread that sends a message every second: all to that of rank 0, and that to all. It needs no GPU
and no collective. While ``mx.eval`` waits for a collective nothing can interrupt it, neither in NCCL nor in MPI. So
the thread that misses another process prints why, and ends its own process with status 1.
"""

from __future__ import annotations

import math
import os
import secrets
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import describe

VARIABLE, SECONDS = "MPSFUNC_DISTRIBUTED_TIMEOUT", 30.0
_MOST = 50.0  # so that with the two below a minute is enough
_PATIENCE = 1.5  # times the seconds until a process takes too long for a step: others wait for one that is silent
_INTERVAL = 1.0  # between two messages
_GRACE = 5.0  # in which the program may leave the watch by itself, such as by an error that MLX's ring raises
_MESSAGE = struct.Struct("<IIq")  # what, of which rank, and how many steps it has taken
_HELLO, _ALIVE, _LEAVES, _GONE, _SILENT, _STUCK = range(6)
_WORDS = {
    _GONE: "rank {rank} ended",
    _SILENT: "rank {rank} gave no sign of life in {seconds:g} s",
    _STUCK: "rank {rank} took no step in {seconds:g} s",
}


class _Peer(NamedTuple):
    """What is known of a process."""

    heard: float  # when
    steps: int
    moved: float  # when the number of steps last changed
    received: bytes = b""  # the begin of a message


class ProcessWatch:
    """The watch over a group's processes, as `watch_processes` begins it; ``with`` ends it."""

    def __init__(self, group: mx.distributed.Group, seconds: float, on_failure: Callable[[str], None] | None) -> None:
        self._rank, self._seconds, self._on_failure = group.rank(), seconds, on_failure
        self._steps, self._leaving, self._left = 0, threading.Event(), group.size() == 1
        self._peers: dict[socket.socket, tuple[int, _Peer]] = {}
        self._thread: threading.Thread | None = None
        if not self._left:
            self._connect(group)
            self._thread = threading.Thread(target=self._watch, name="mpsfunc process watch", daemon=True)
            self._thread.start()

    def step(self) -> None:
        """Says that this process goes on. From the first call on at most 1.5 times the watch's seconds may pass."""
        self._steps += 1

    def close(self) -> None:
        """Ends the watch: that this process ends is no failure any more, nor that another one does."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> ProcessWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # connections then close without a farewell: the others must not wait for this process
            self._left = True
        self.close()

    def _connect(self, group: mx.distributed.Group) -> None:
        """Connects all to rank 0, whose address and a number that nobody else knows go through the group."""
        listening = socket.create_server(("", 0)) if self._rank == 0 else None
        told = [0] * 8
        if listening is not None:
            address = socket.inet_aton(_address())
            told = [*address, listening.getsockname()[1], *(secrets.randbits(30) for _ in range(3))]
        numbers: list[int] = mx.distributed.all_sum(mx.array(told, mx.int32), group=group).tolist()  # type: ignore
        token = struct.pack("<3I", *numbers[5:])
        now = time.monotonic()
        if listening is None:
            host = socket.inet_ntoa(bytes(numbers[:4]))
            end = socket.create_connection((host, numbers[4]), self._seconds)
            end.sendall(token + _MESSAGE.pack(_HELLO, self._rank, 0))
            self._peers[end] = 0, _Peer(now, 0, now)
        else:
            with listening:
                listening.settimeout(self._seconds)
                while len(self._peers) < group.size() - 1:
                    end, _ = listening.accept()
                    end.settimeout(self._seconds)
                    greeting = _exactly(end, len(token) + _MESSAGE.size)
                    if len(greeting) < len(token) + _MESSAGE.size or not greeting.startswith(token):
                        end.close()
                        continue
                    self._peers[end] = _MESSAGE.unpack(greeting[len(token) :])[1], _Peer(now, 0, now)
        for end in self._peers:
            end.setblocking(False)

    def _watch(self) -> None:
        now = time.monotonic()
        self._peers = {end: (rank, _Peer(now, 0, now)) for end, (rank, _) in self._peers.items()}
        woke = now
        with selectors.DefaultSelector() as selector:
            for end in self._peers:
                selector.register(end, selectors.EVENT_READ)
            while self._peers and not self._left and not self._leaving.is_set():
                self._send(_ALIVE, self._rank)
                due = time.monotonic() + _INTERVAL
                while (left := due - time.monotonic()) > 0 and not self._leaving.is_set():
                    for key, _ in selector.select(min(left, 0.1)):
                        self._receive(key.fileobj, selector)  # type: ignore[arg-type]
                now = time.monotonic()
                if now - woke > self._seconds / 2:  # it was stopped itself, and has not read what came meanwhile
                    self._peers = {end: (r, p._replace(heard=now, moved=now)) for end, (r, p) in self._peers.items()}
                woke = now
                for rank, peer in list(self._peers.values()):
                    if now - peer.heard > self._seconds:
                        self._fail(_SILENT, rank)
                    elif peer.steps and now - peer.moved > _PATIENCE * self._seconds:
                        self._fail(_STUCK, rank)
        if not self._left:
            self._send(_LEAVES, self._rank)
        for end in self._peers:
            _closed(end, wait=not self._left)

    def _receive(self, end: socket.socket, selector: selectors.BaseSelector) -> None:
        rank, peer = self._peers[end]
        try:
            received = end.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if self._left:
            return
        if not received:
            self._fail(_GONE, rank)
            return
        now, all_of_it = time.monotonic(), peer.received + received
        peer = peer._replace(heard=now)
        while len(all_of_it) >= _MESSAGE.size:
            what, of, steps = _MESSAGE.unpack(all_of_it[: _MESSAGE.size])
            all_of_it = all_of_it[_MESSAGE.size :]
            if what == _LEAVES:
                selector.unregister(end)
                end.close()
                del self._peers[end]
                return
            if what in _WORDS:
                self._fail(what, of)
                return
            if steps != peer.steps:
                peer = peer._replace(steps=steps, moved=now)
        self._peers[end] = rank, peer._replace(received=all_of_it)

    def _send(self, what: int, of: int) -> None:
        message = _MESSAGE.pack(what, of, self._steps)
        for end in list(self._peers):
            try:
                end.send(message)  # so few bytes go as one
            except OSError:  # one that does not read; that it is silent will be seen
                continue

    def _fail(self, what: int, rank: int) -> None:
        if self._left:
            return
        self._send(what, rank)
        self._left = True
        seconds = _PATIENCE * self._seconds if what == _STUCK else self._seconds
        message = f"mpsfunc: {_WORDS[what].format(rank=rank, seconds=seconds)}"
        if self._on_failure is not None:
            self._on_failure(message)
            return
        print(f"{message}, says rank {self._rank}", file=sys.stderr, flush=True)
        if not self._leaving.wait(_GRACE):
            print(f"mpsfunc: rank {self._rank} waits for it without end, and so ends", file=sys.stderr, flush=True)
            os._exit(1)


def watch_processes(
    group: mx.distributed.Group | None = None,
    seconds: float | None = None,
    *,
    on_failure: Callable[[str], None] | None = None,
) -> ProcessWatch:
    """Ends this process, with a message and status 1, when another one of the group has ended or stopped.

    NCCL and MPI wait without end for a process that is gone, and nothing interrupts them. So each process has a thread
    that tells the others every second that it is there, over TCP connections to the host of rank 0. A process that was
    killed or raised an error is noticed at once, one that is stopped, or whose host is out of reach, after ``seconds``;
    with `ProcessWatch.step` also one that does nothing. Use it as ``with watch_processes(group) as watch:`` around
    the training; all processes of the group must. At the end of the ``with`` a process takes its leave, which is no
    failure, unless it leaves by an error. One that learns of a failure has five seconds to leave, such as by the error
    that MLX's ring raises; then it ends.

    Args:
        group: The processes. Default: all, as ``mx.distributed.init()`` returns them.
        seconds: For how long a process may be silent, 2 to 50. Default: ``MPSFUNC_DISTRIBUTED_TIMEOUT`` if that is set
            and not more than 50, else 30.
        on_failure: Called with the message, in the thread of the watch, instead of printing it and ending the process.

    Returns:
        The watch.

    Raises:
        TypeError: group is not a group, or seconds not a number.
        ValueError: seconds is out of range.
        OSError: There is no connection to rank 0.

    Example:
        >>> with watch_processes() as watch:
        ...     watch.step()
    """
    op = "watch_processes"
    if not (group is None or is_a(group, mx.distributed.Group)):
        rule = "expected None or one from mx.distributed.init()"
        raise TypeError(f"{op}: not a group; got group={describe(group)}, {rule}")
    if seconds is None:
        seconds = _given()
    elif not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"{op}: not a time; got seconds={describe(seconds)}, expected a number")
    if not 2 <= seconds <= _MOST:
        raise ValueError(f"{op}: out of range; got seconds={describe(seconds)}, expected 2 to {_MOST:g}")
    return ProcessWatch(group or mx.distributed.init(), seconds, on_failure)


def _given() -> float:
    try:
        seconds = float(os.environ.get(VARIABLE, SECONDS))
    except ValueError:
        return SECONDS
    return seconds if 2 <= seconds <= _MOST and not math.isnan(seconds) else SECONDS


def _address() -> str:
    """This host's, by which the others reach it: the one that MLX was given, or that of the host's name."""
    import json  # takes long to import

    host = os.environ.get("NCCL_HOST_IP", "")
    file = os.environ.get("MLX_HOSTFILE")
    if not host and file:
        try:
            with open(file, encoding="utf-8") as hosts:
                host = str(json.load(hosts)[0][0]).rpartition(":")[0]
        except (OSError, ValueError, LookupError, TypeError):
            host = ""
    return socket.gethostbyname(host or socket.gethostname())


def _closed(end: socket.socket, *, wait: bool) -> None:
    """Closes a connection, once the other end has what was sent: what is unread here would undo that."""
    try:
        end.shutdown(socket.SHUT_WR)
        end.settimeout(_INTERVAL)
        while wait and end.recv(4096):
            pass
    except OSError:
        pass
    end.close()


def _exactly(end: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        try:
            more = end.recv(count - len(received))
        except OSError:
            more = b""
        if not more:
            break
        received += more
    return received
