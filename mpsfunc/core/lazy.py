"""What is known of an array without evaluating it, which only the C++ module can tell."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import launch


def same(a: mx.array, b: mx.array) -> bool:
    """Whether two objects hold one array: what ``copy.copy`` makes does until either is changed in place.

    False without the C++ module.
    """
    module = launch.optional_module()
    return module is not None and module.same(a, b)


def is_lazy_zeros(a: mx.array) -> bool:
    """Whether an array is an ``mx.zeros`` that is not evaluated yet. False without the C++ module."""
    module = launch.optional_module()
    return module is not None and module.is_lazy_zeros(a)


def addends(a: mx.array) -> tuple[mx.array, mx.array] | None:
    """The two arrays that ``a`` is the sum of, if it is one that is not evaluated yet and neither was repeated for it.

    Where MLX cast one for that, it is what came of this. None also without the C++ module.
    """
    module = launch.optional_module()
    return None if module is None else module.addends(a)


def known_count(a: mx.array) -> int | None:
    """The value of a 0-d int64 array that is a constant or evaluated, also within a transformation.

    None where it is yet to be computed or follows from what a transformation looks on, and without the C++ module.
    """
    module = launch.optional_module()
    return None if module is None else module.known_count(a)


def are_settled(arrays: list[mx.array]) -> bool:
    """Whether arrays are what they are, and nothing that a transformation looks on; without the C++ module, never."""
    some = mx.concatenate([mx.isnan(a.reshape(-1)[:1]) for a in arrays]).astype(mx.int64).sum()
    try:
        mx.eval(some)
    except (RuntimeError, ValueError):  # within mx.compile or mx.vmap
        return False
    return known_count(some) is not None


def channel_factors(a: mx.array) -> tuple[mx.array, mx.array] | None:
    """Images (n, h, w, c) and numbers (n, 1, 1, c) or (1, 1, 1, c) whose product ``a`` is, if it is not evaluated yet.

    None also without the C++ module.
    """
    module = launch.optional_module()
    return None if module is None else module.channel_factors(a)


def channel_scale(a: mx.array) -> tuple[mx.array, mx.array] | None:
    """Images (..., c) and a vector (c,) of their dtype whose product ``a`` is, if it is not evaluated yet.

    None also without the C++ module.
    """
    module = launch.optional_module()
    return None if module is None else module.channel_scale(a)


def joined(a: mx.array) -> list[mx.array] | None:
    """The arrays that ``a`` is the concatenation of along the last axis on a CPU, if it is not evaluated yet.

    None also without the C++ module.
    """
    module = launch.optional_module()
    return None if module is None else module.joined(a)


def join(parts: list[mx.array]) -> mx.array:
    """``mx.concatenate(parts, axis=-1)`` on the CPU, by all threads; with the C++ module."""
    made: mx.array = launch.module("join").join(parts)
    return made


def hard_sigmoid_of(a: mx.array) -> mx.array | None:
    """The x of which ``a`` is ``relu6(x + 3) / 6``, if ``a`` is not evaluated yet and MLX has not fused these steps.

    So within ``mx.compile``. None also without the C++ module.
    """
    module = launch.optional_module()
    return None if module is None else module.hard_sigmoid_of(a)


def become(a: mx.array, b: mx.array) -> None:
    """Has the object ``a`` hold what ``b`` holds, as ``a[...] = b`` does; of the same shape and dtype.

    Without the C++ module it holds what it did.
    """
    module = launch.optional_module()
    if module is not None:
        module.become(a, b)


def mean_of(a: mx.array) -> mx.array | None:
    """The images (n, h, w, c) whose ``mean(axis=(1, 2))`` ``a`` is, if it is not evaluated yet.

    None also without the C++ module.
    """
    module = launch.optional_module()
    return None if module is None else module.mean_of(a)
