"""Statistics and sums over the processes of a group, with their derivatives.

Everything goes through one gather of all processes' vectors, combined in the order of their ranks, so that all compute
the same bits. With NCCL, moments go through one gather and sums through one all-reduce, between two small kernels:
nothing there waits on the host, and no clock runs. Derivatives are those of the sum of all processes' losses.
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


# With NCCL ----------------------------------------------------------------------------------------------


def by_nccl(spec: Spec) -> bool:
    """Whether the GPU itself communicates, in the order of its stream: by NCCL, and not by a ring between CPUs."""
    return launch.backend(spec.stream) == "cuda" and not os.environ.get("MLX_HOSTFILE")


_HALF = 2.0**16  # counts travel as two float32, each exact: so many times the first, and the second


def _moments_in_one(mean: Vector, var: Vector, count: mx.array, row: mx.array) -> mx.array:
    """Mean, variance and count below each other, as one kernel; ``row`` is 0, 1, 2, 3 along the first axis."""
    high, low = (count // int(_HALF)).astype(mean.dtype), (count % int(_HALF)).astype(mean.dtype)
    return mx.where(row == 0, mean, mx.where(row == 1, var, mx.where(row == 2, high, low)))


def _moments_of_all(*parts: mx.array) -> tuple[Vector, Vector, mx.array]:
    """Mean, variance and counts of all, from four arrays of each process, as one kernel."""
    means, variances, highs, lows = (parts[i::4] for i in range(4))
    counts = [high * _HALF + low for high, low in zip(highs, lows, strict=True)]
    whole = mx.maximum(functools.reduce(mx.add, counts), 1)
    shares, apart = [count / whole for count in counts], [mean - means[0] for mean in means]
    off = functools.reduce(mx.add, (share * a for share, a in zip(shares, apart, strict=True)))
    spread = (s * (v + (a - off) ** 2) for s, v, a in zip(shares, variances, apart, strict=True))
    exact = (h.astype(mx.int64) * int(_HALF) + low.astype(mx.int64) for h, low in zip(highs, lows, strict=True))
    return means[0] + off, functools.reduce(mx.add, spread), functools.reduce(mx.add, exact)


_fused_moments_in_one = launch.fused(_moments_in_one)
_fused_moments_of_all = launch.fused(_moments_of_all)


def _merged_by_nccl(mean: Vector, var: Vector, count: mx.array, spec: Spec) -> tuple[Vector, Vector, mx.array]:
    sent = _fused_moments_in_one(mean, var, count, _below_each_other(4, mean))
    rows = mx.distributed.all_gather(sent[None], group=spec.group, stream=spec.stream)
    parts = mx.split(rows.reshape(-1, *mean.shape[1:]), 4 * spec.group.size())  # each of the shape of mean
    whole_mean, whole_var, counts = _fused_moments_of_all(*parts)
    # A count is repeated for all entries that it belongs to; the first of them is enough.
    first = tuple(slice(0, n) for n in ((1,) * (mean.ndim - count.ndim) + tuple(count.shape)))
    return whole_mean, whole_var, counts[first].reshape(count.shape)


def _in_one(*vectors_and_row: mx.array) -> mx.array:
    """Vectors below each other, as one kernel; the last argument is 0, 1, 2, ... along the first axis."""
    *vectors, row = vectors_and_row
    stacked = vectors[-1]
    for i in reversed(range(len(vectors) - 1)):
        stacked = mx.where(row == i, vectors[i], stacked)
    return stacked


_fused_in_one = launch.fused(_in_one)


def _factors_of_all(
    gamma: Vector, var: Vector, count: mx.array, dot: Vector, eps: float, *sums: Vector
) -> tuple[Vector, Vector, Vector, Vector]:
    """This process's gradient of the scale, and a, b and d of `rules.bn_grad`, as one kernel.

    The sums are over all processes: of g, of g * (x - mean), and, if there are any, of the gradients of mean and
    variance.
    """
    whole = mx.maximum(count, 1).astype(var.dtype)
    total, whole_dot, *of_statistics = (v / whole for v in sums)
    root = vector_rules.inverse_root(var, eps)
    a = gamma * root
    b, d = -a * (root * (whole_dot * root)), -a * total
    if of_statistics:
        b, d = b + 2 * of_statistics[1], d + of_statistics[0]
    return dot * root, a, b, d


gradient_factors: Any = launch.fused(_factors_of_all)


def _below_each_other(count: int, like: mx.array) -> mx.array:
    return _numbered(count, like.ndim)


@functools.lru_cache
def _numbered(count: int, axes: int) -> mx.array:
    """0, 1, 2, ... along the first axis, before so many of length 1: an array that is there, and no operation."""
    rows: list[Any] = []
    for row in range(count):
        entry: Any = row
        for _ in range(axes):
            entry = [entry]
        rows.append(entry)
    return mx.array(rows, mx.float32)


# Sums ---------------------------------------------------------------------------------------------------


def total(vectors: Sequence[Vector], spec: Spec) -> tuple[Vector, ...]:
    """The sums of all processes' vectors, which have one shape and dtype."""
    with mx.stream(spec.stream):
        if by_nccl(spec):
            sent = _fused_in_one(*vectors, _below_each_other(len(vectors), vectors[0]))
            parts = mx.split(all_sum(sent, spec), len(vectors))
            return tuple(part.reshape(vectors[0].shape) for part in parts)
        sums = all_sum(mx.stack(list(vectors)), spec)
        return tuple(sums[i] for i in range(len(vectors)))


@operation("total")
def all_sum(a: mx.array, spec: Spec) -> mx.array:
    """The sum of all processes' arrays."""
    if by_nccl(spec):
        return mx.distributed.all_sum(a, group=spec.group, stream=spec.stream)
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
    if by_nccl(spec):
        return _merged_by_nccl(mean, var, count, spec)
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
