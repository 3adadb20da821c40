"""Every public function beside tables in NumPy, float64, that are written from the documentation alone.

Values; the explicit gradients and autodiff beside finite differences of the tables; `f` beside `f_fwd`; tangents beside
cotangents; compiled and mapped calls beside plain ones. What a result may be off by follows from its dtype and from the
number and size of the terms that it is made of.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables import ROWS
from tests.soak.tables.case import EPS, LARGEST, TINY, Case, Rng, array, laid, numpy, of, roots, rounded

NAME = "differential"
_ROWS = 6  # of a round


def rounds(seed: int) -> Iterator[Counter[str]]:
    """For ever; each round counts the calls of each function."""
    for at in itertools.count():
        yield one_round(seed, at)


def one_round(seed: int, at: int) -> Counter[str]:
    """One round: the next rows of the tables."""
    of.calls.clear()
    names = list(ROWS)
    for k in range(_ROWS):
        name = names[(at * _ROWS + k) % len(names)]
        rng = np.random.default_rng((seed, at, k))
        check(name, rng, f"seed {seed}, round {at}")
    return Counter(of.calls)


def check(name: str, rng: Rng, where: str) -> None:
    """One case of a row.

    Raises:
        AssertionError: Something differs from what it must be.
    """
    with mx.stream(mx.cpu), np.errstate(all="ignore"):
        case = ROWS[name].sample(rng)
        said = f"{where}: {name}: {case.told}; {', '.join(f'{a.shape}' for a in case.arrays)} of {case.dtype}"
        try:
            wrong = next(_wrong(case, rng), "")
        except Exception as error:
            raise AssertionError(f"{said}: {type(error).__name__}: {error}") from error
    if wrong:
        raise AssertionError(f"{said}: {wrong}; arrays {[a.tolist() for a in case.arrays]}"[:6000])


def _wrong(case: Case, rng: Rng) -> Iterator[str]:
    plain = [array(a, kind) for a, kind in zip(case.arrays, case.given(), strict=True)]
    arrays = [laid(rng, a) for a in plain]
    y, (want, bound) = case.call(*arrays), _wanted(case)
    if y.shape != want.shape:
        yield f"the shape is {y.shape}, expected {want.shape}"
    yield from _apart("the result", numpy(y), want, bound, case.dtype)
    if case.first is not None:
        yield from _apart("by f_fwd the result", numpy(case.first(*arrays)), numpy(y), np.zeros(want.shape), case.dtype)
    if case.more is not None:
        yield from case.more(*arrays)
    if rng.random() < 0.1:  # MLX may call a C++ compiler for it
        yield from _apart("compiled, the result", numpy(mx.compile(case.call)(*arrays)), want, bound, case.dtype)
    if case.mapped and rng.random() < 0.3 and arrays:
        other = [array(a[..., ::-1], k) for a, k in zip(case.arrays, case.given(), strict=True)]
        both = mx.vmap(case.call)(*[mx.stack(pair) for pair in zip(plain, other, strict=True)])
        each = np.stack([numpy(case.call(*plain)), numpy(case.call(*other))])
        yield from _apart("mapped, the result", numpy(both), each, np.stack([bound, bound]), case.dtype)
    tame = np.abs(want).max(initial=0) < 1e-3 * LARGEST[mx.float16] and all(
        np.abs(a).max() < 1e4 for a in case.arrays if a.size
    )
    if case.moving and y.size and tame:
        yield from _gradients(case, rng, arrays, y)


def _wanted(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The result, and how far off one may be."""
    with np.errstate(all="ignore"):
        want = np.asarray(case.result(*case.arrays), np.float64)
        if case.exact:
            return want, np.zeros(want.shape)
        if case.size is not None:
            size = np.broadcast_to(np.asarray(case.size(*case.arrays), np.float64), want.shape)
        else:
            step = 1e-5
            moved = [case.result(*(a * (1 + sign * step) for a in case.arrays)) for sign in (1, -1)]
            size = np.abs(want) + np.maximum(*(np.abs(each - want) for each in moved)) / step
    return want, EPS[case.dtype] * np.abs(want) * 1.01 + (case.terms + 8) * roots(case.dtype) * size + TINY[case.dtype]


def _apart(what: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray, kind: mx.Dtype) -> Iterator[str]:
    """Where two differ by more than they may. Numbers near the end of the dtype may be infinite."""
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= bound)
        same |= (np.abs(want) + bound > 0.99 * LARGEST[kind]) & (np.abs(got) > 0.98 * LARGEST[kind])
        same |= ~np.isfinite(bound)
    if not same.all():
        at = tuple(int(i[0]) for i in np.nonzero(~same))
        yield f"{what} at {at} is {got[at]!r}, expected {want[at]!r} within {bound[at]:.2g}"


def _gradients(case: Case, rng: Rng, arrays: list[mx.array], y: mx.array) -> Iterator[str]:
    dy = rounded(rng.standard_normal(y.shape), case.dtype)
    given = array(dy, case.dtype)

    def call(*moving: mx.array) -> mx.array:
        every: list[Any] = list(arrays)
        for index, a in zip(case.moving, moving, strict=True):
            every[index] = a
        return case.call(*every)

    moving = [arrays[index] for index in case.moving]
    pulled = dict(zip(case.moving, mx.vjp(call, moving, [given])[1], strict=True))
    for index, gradient in pulled.items():
        yield from _slopes(f"autodiff by argument {index}", case, rng, index, dy, gradient)
    if case.pulled is not None:
        for index, gradient in case.pulled(given, *arrays).items():
            yield from _slopes(f"the explicit gradient of argument {index}", case, rng, index, dy, gradient)
    if case.dtype in (mx.float32, mx.float64) and rng.random() < 0.3:
        tangents = [array(rng.standard_normal(a.shape), a.dtype) for a in moving]
        pushed = float((numpy(mx.jvp(call, moving, tangents)[1][0]) * dy).sum())
        products = [numpy(pulled[i]) * numpy(t) for i, t in zip(case.moving, tangents, strict=True)]
        back = float(sum(p.sum() for p in products))
        size = sum(np.abs(p).sum() for p in products) + max(np.abs(numpy(g)).max(initial=0) for g in pulled.values())
        # A gradient that is a difference, as softmax's, has the roundings of what it is the difference of.
        size += np.abs(dy).max(initial=0) * max(np.abs(numpy(t)).max(initial=0) for t in tangents)
        narrow = max([EPS[a.dtype] for a in moving])
        bound = (4 * (case.terms + y.size + 8) * roots(case.dtype) + 2 * narrow) * size + 1e-30
        if not abs(pushed - back) <= bound and np.isfinite(size):
            yield f"tangents give {pushed!r}, cotangents {back!r}, within {bound:.2g}"


def _slopes(what: str, case: Case, rng: Rng, index: int, dy: np.ndarray, gradient: mx.array) -> Iterator[str]:
    """Along directions: all of an argument at once, and single elements. A kink in between tells nothing."""
    at = case.arrays[index]
    if gradient.shape != at.shape:
        yield f"{what} has the shape {gradient.shape}, expected {at.shape}"
        return
    got = numpy(gradient)
    directions = [rng.standard_normal(at.shape)]
    for _ in range(min(at.size, 3)):
        unit = np.zeros(at.size)
        unit[rng.integers(at.size)] = 1.0
        directions.append(unit.reshape(at.shape))
    others = max([np.abs(a).max(initial=0) for k, a in enumerate(case.arrays) if k != index], default=0.0)
    size = np.abs(got).max(initial=0) + np.abs(dy).max(initial=0) * (1 + others)
    for direction in directions:
        step = 1e-6 * max(1e-2, min(1.0, float(np.abs(at).max(initial=0))))

        def value(t: float, direction: np.ndarray = direction) -> np.ndarray:
            every = list(case.arrays)
            every[index] = at + t * direction
            made = case.result(*every)
            return np.array([(made * dy).sum(), (made * np.abs(dy)).sum()])

        with np.errstate(all="ignore"):
            middles, ahead, behind = value(0.0), value(step), value(-step)
            (right, bent), (left, other) = (ahead - middles) / step, (middles - behind) / step
        middle = middles[0]
        want, told = (right + left) / 2, float((got * direction).sum())
        noise = 2e-15 * (np.abs(dy).sum() + 1) * (1 + max(abs(middle), 1.0)) / step
        weight = float(np.abs(direction).sum())
        bend = 1e-4 * (abs(want) + size)
        # Where several elements are at kinks these may cancel, but not in both sums.
        if not np.isfinite(want) or max(abs(right - left), abs(bent - other)) > bend + noise:
            continue
        bound = 2 * EPS[gradient.dtype] * float(np.abs(got * direction).sum()) + noise + abs(right - left)
        bound += step * float((direction**2).sum()) * size  # where a slope bends, such as softsign's at 0
        bound += (2 * (case.terms + dy.size + 8) * roots(case.dtype) + case.narrow * EPS[case.dtype]) * weight * size
        bound += TINY[gradient.dtype] * weight
        if not abs(told - want) <= bound:
            yield f"{what} says {told!r} along a direction, expected {want!r} within {bound:.2g}"
