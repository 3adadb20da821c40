"""Statistics and sums over the processes of a group, with their derivatives; only here mx.distributed is called.

Everything goes through one gather of all processes' vectors, combined in the order of their ranks, so that all compute
the same bits; NCCL sums `nccl_messages`. Derivatives are those of the sum of all processes' losses.
"""

from __future__ import annotations

import functools
import math
import os
import stat
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels import vector_rules
from mpsfunc.core import launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation
from mpsfunc.core.printing import describe
from mpsfunc.normalization import nccl_messages

Group = mx.distributed.Group
Vector = mx.array


class Spec(NamedTuple):
    """Which processes, and where everything runs."""

    group: Group
    stream: mx.Stream


def others(op: str, group: Group | None) -> Group | None:
    """The group, or None where it has no other process."""
    if group is None:
        return None
    if not is_a(group, Group):
        raise TypeError(
            f"{op}: not a group; got group={describe(group)}, expected None or one from mx.distributed.init()"
        )
    return group if group.size() > 1 else None


# The gather ---------------------------------------------------------------------------------------------


def _gathered(name: str, vectors: Sequence[mx.array], spec: Spec) -> list[list[mx.array]]:
    """Every process's vectors, by rank. They travel as words, so that the bits of all dtypes arrive as they were."""
    words = [mx.view(v.reshape(-1), mx.uint32) for v in vectors]
    # Bytes say not what they are. So each message begins with what should be the same in all processes.
    kind = zlib.crc32(repr((name, [(v.shape, str(v.dtype)) for v in vectors])).encode())
    row = mx.concatenate([mx.array([kind], mx.uint32), *words])[None]
    rows = mx.distributed.all_gather(row, group=spec.group)
    rows = launch.watched(rows, _connections(spec.group.size()), _timeout())
    flat, end, parts = rows.reshape(-1), 0, []  # mx.vmap has no right rule for rows[0]
    for _ in range(spec.group.size()):
        end, part = end + 1, []
        for vector, own in zip(vectors, words, strict=True):
            begin, end = end, end + own.size
            part.append(mx.view(flat[begin:end], vector.dtype).reshape(vector.shape))
        parts.append(part)
    return parts


def _timeout() -> float:
    """Seconds that a gather may take."""
    given = os.environ.get("MPSFUNC_DISTRIBUTED_TIMEOUT", "300")
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST:
        raise ValueError(
            f"MPSFUNC_DISTRIBUTED_TIMEOUT: not a time; got {describe(given)}, "
            f"expected seconds, more than 0 and at most {_LONGEST}"
        )
    return seconds


_LONGEST = 10**7


def _connections(size: int) -> list[int]:
    """Descriptors of this process's connections in MLX's ring, its default on CPUs and Macs; none of other backends."""
    hosts, rank = os.environ.get("MLX_HOSTFILE"), os.environ.get("MLX_RANK")
    if not hosts or not rank:
        return []
    return list(_ring(os.getpid(), hosts, int(rank), size)) if rank.isdecimal() else []


@functools.lru_cache(maxsize=1)
def _ring(process: int, hosts: str, rank: int, size: int) -> tuple[int, ...]:
    import json  # these two take long to import
    import socket

    try:
        with open(hosts, encoding="utf-8") as file:
            nodes = [[_address(host) for host in node] for node in json.load(file)]
        open_files = sorted(map(int, os.listdir("/dev/fd")))
    except (OSError, ValueError, TypeError, AttributeError):
        return ()
    if len(nodes) != size or not 0 <= rank < size:
        return ()
    here, there = nodes[rank], nodes[(rank + 1) % size]
    found: list[int] = []
    for number in open_files:
        try:
            if number in found or not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as end:  # a name of our own, which nobody else will close
                if end.getsockname()[:2] in here or end.getpeername()[:2] in there:
                    found.append(end.detach())
        except OSError:  # closed since, or not connected
            continue
    if len(found) == len(here) + len(there):
        return tuple(found)
    for number in found:
        os.close(number)
    return ()


def _address(host: str) -> tuple[Any, ...]:
    import socket

    name, _, port = host.rpartition(":")
    return socket.getaddrinfo(name, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4]


def refuse_nothing(x: mx.array) -> None:
    """Refuses a process without images on a GPU: it would send nothing, and the others would wait for that.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        f"batch_norm: a process of the group has no images; got x of shape {tuple(x.shape)}, expected an image or more "
        "in each process on a GPU"
    )


# With NCCL ----------------------------------------------------------------------------------------------


def _summed(a: mx.array, spec: Spec) -> mx.array:
    return mx.distributed.all_sum(a, group=spec.group, stream=spec.stream)


def merged_by_nccl(mean: Vector, var: Vector, count: mx.array, spec: Spec) -> tuple[Vector, Vector, mx.array]:
    """`merged` by one sum, without rules."""
    rows = _summed(nccl_messages.moments(mean, var, count, spec.group.rank(), spec.group.size()), spec)
    mean, var, counts = nccl_messages.merged_rows(rows, mean, spec.stream)
    return mean, var, nccl_messages.first_counts(counts, count)


def total_by_nccl(first: Vector, second: Vector, spec: Spec) -> tuple[Vector, Vector]:
    """`total` of two vectors (c,) by one sum, without rules."""
    one, other = mx.split(_summed(nccl_messages.in_one(first, second), spec).reshape(-1), 2)
    return one, other


# Sums ---------------------------------------------------------------------------------------------------


def total(vectors: Sequence[Vector], spec: Spec) -> tuple[Vector, ...]:
    """The sums of all processes' vectors, which have one shape and dtype."""
    with mx.stream(spec.stream):
        sums = all_sum(mx.stack(list(vectors)), spec)
        return tuple(sums[i] for i in range(len(vectors)))


@operation("total")
def all_sum(a: mx.array, spec: Spec) -> mx.array:
    """The sum of all processes' arrays."""
    if nccl_messages.are_sent(spec.stream):
        return _summed(a, spec)
    (first,), *rest = _gathered("total", (a,), spec)
    for (part,) in rest:
        first = first + part
    return first


@all_sum.vjp
def _all_sum_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (all_sum(cotangents[0], spec),)


@all_sum.jvp
def _all_sum_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return all_sum(tangents[0], spec)


@all_sum.vmap
def _all_sum_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    return all_sum(arrays[0], spec)


# Moments ------------------------------------------------------------------------------------------------


@operation("merged")
def merged(mean: Vector, var: Vector, count: mx.array, spec: Spec) -> tuple[Vector, Vector, mx.array]:
    """Mean, population variance and count of all processes' elements; each gives those of its own."""
    if nccl_messages.are_sent(spec.stream):
        return merged_by_nccl(mean, var, count, spec)
    (mean, var, count), *rest = _gathered("merged", (mean, var, count), spec)
    for part in rest:
        mean, var, count = vector_rules.joined(mean, var, count, *part)
    return mean, var, count


@merged.vjp
def _merged_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (mean, _, count), (dmean, dvar, _), (whole, _, everything) = arrays, cotangents, outputs
    dmean, dvar = total((dmean, dvar), spec)
    share = _share(count, everything, mean)
    return share * (dmean + 2 * (mean - whole) * dvar), share * dvar, None


@merged.jvp
def _merged_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> tuple[Vector, Vector, mx.array]:
    mean, var, count = arrays
    tmean, tvar = (mx.zeros_like(mean) if t is None else t for t in tangents[:2])
    whole, _, everything = merged(mean, var, count, spec)
    share = _share(count, everything, mean)
    tmean, tvar = total((share * tmean, share * (tvar + 2 * (mean - whole) * tmean)), spec)
    return tmean, tvar, mx.zeros_like(everything)


@merged.vmap
def _merged_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> tuple[Vector, Vector, mx.array]:
    mean, var = (a if m else mx.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays[:2], mapped[:2], strict=True))
    count = arrays[2].reshape(size, *(1,) * (mean.ndim - 1)) if mapped[2] else arrays[2]
    mean, var, everything = merged(mean, var, count, spec)
    return mean, var, mx.broadcast_to(everything.reshape(-1), (size,))


def _share(count: mx.array, everything: mx.array, like: Vector) -> mx.array:
    return mx.stop_gradient(count.astype(like.dtype) / mx.maximum(everything, 1).astype(like.dtype))
