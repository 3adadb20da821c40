"""The average of all processes' gradients, which travel while the rest of the backward pass runs."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import describe

MEBIBYTE = 1024**2


def average_gradients(
    gradients: Any,
    group: mx.distributed.Group | None = None,
    all_reduce_size: int = 32 * MEBIBYTE,
    communication_stream: mx.Stream | None = None,
) -> Any:
    """``mlx.nn.average_gradients`` that sends the gradients of the last layers while those of the others are computed.

    Gradients are put together to buckets, from the last to the first, as the backward pass makes them. For each bucket
    this function has MLX launch the backward pass up to there, then the sum over all processes. So unlike MLX's it
    evaluates (asynchronously), and cannot be called within ``mx.compile`` or another transformation; a function that
    computes the gradients may be compiled. On an NVIDIA GPU a stream of its own lets sums and backward pass overlap:
    each is then an evaluation by itself, between which MLX has the GPU wait, while within one evaluation it has the
    Python thread wait wherever a result goes from one stream to another.

    Values are those of MLX's function. Gradients of different dtypes go into different buckets.

    Args:
        gradients: A tree of arrays, with the same structure, shapes and dtypes in all processes.
        group: The processes. Default: all, as ``mx.distributed.init()`` returns them.
        all_reduce_size: Bytes from which a bucket is full; with 0 or less each array is one. Default: 32 MiB.
        communication_stream: Where sums are computed, such as ``mx.new_stream(mx.gpu)``. On CPUs leave it out: the
            connections of MLX's ring are for one stream. Default: the current one.

    Returns:
        The tree of averages.

    Raises:
        TypeError: group is not a group, all_reduce_size not an int, or communication_stream not a stream.

    Example:
        >>> import mlx.nn
        >>> model = mlx.nn.Linear(2, 1)
        >>> loss = mlx.nn.value_and_grad(model, lambda x: model(x).mean())
        >>> value, grads = loss(mx.ones((4, 2)))
        >>> average_gradients(grads)["weight"].tolist()
        [[1.0, 1.0]]
    """
    op = "average_gradients"
    if not (group is None or is_a(group, mx.distributed.Group)):
        rule = "expected None or one from mx.distributed.init()"
        raise TypeError(f"{op}: not a group; got group={describe(group)}, {rule}")
    if not isinstance(all_reduce_size, int):
        raise TypeError(f"{op}: not a size; got all_reduce_size={describe(all_reduce_size)}, expected bytes as an int")
    if not (communication_stream is None or is_a(communication_stream, mx.Stream)):
        rule = "expected None or a stream"
        raise TypeError(f"{op}: not a stream; got communication_stream={describe(communication_stream)}, {rule}")
    group = group or mx.distributed.init()
    if group.size() == 1:
        return gradients
    flat: list[tuple[str, mx.array]] = tree_flatten(gradients)
    averages: dict[str, mx.array] = {}
    for paths in _buckets(flat, all_reduce_size):
        averages |= _averaged({path: array for path, array in flat if path in paths}, group, communication_stream)
    return tree_unflatten([(path, averages[path]) for path, _ in flat])


def _buckets(flat: list[tuple[str, mx.array]], size: int) -> list[set[str]]:
    """The paths of arrays of one dtype that travel together, in the order in which the backward pass fills buckets."""
    full: list[set[str]] = []
    filling: dict[mx.Dtype, tuple[set[str], int]] = {}
    for path, array in reversed(flat):
        paths, nbytes = filling.pop(array.dtype, (set(), 0))
        paths.add(path)
        if nbytes + array.nbytes >= size:
            full.append(paths)
        else:
            filling[array.dtype] = paths, nbytes + array.nbytes
    return full + [paths for paths, _ in filling.values()]


def _averaged(
    bucket: dict[str, mx.array], group: mx.distributed.Group, stream: mx.Stream | None
) -> dict[str, mx.array]:
    """One bucket's averages. What is evaluated here runs in the order of the calls, in all processes alike."""
    arrays = list(bucket.values())
    together = mx.concatenate([a.reshape(-1) for a in arrays]) if len(arrays) > 1 else arrays[0]
    mx.async_eval(together)  # the backward pass up to here, on the current stream
    whole = mx.distributed.all_sum(together, group=group, stream=stream)
    where = mx.default_stream(mx.default_device()) if stream is None else stream
    average = mx.divide(whole, group.size(), stream=where)
    mx.async_eval(average)  # by itself, so that only the GPU waits
    if len(arrays) == 1:
        return {path: average for path in bucket}
    ends, end = [], 0
    for array in arrays:
        end += array.size
        ends.append(end)
    parts = mx.split(average, ends[:-1])
    return {path: part.reshape(a.shape) for (path, a), part in zip(bucket.items(), parts, strict=True)}
