"""The cases of `cases` that normalize by statistics groups, straight from the launches of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import mlx.core as mx
import numpy as np
from support import close, exact, numbers
from support.oracle import activation as oracle_activation

from metal_host.case import Case, launched, like, named
from mpsfunc.channels import launches, vector_rules
from mpsfunc.channels.activation_spec import (
    EXPONENTIAL,
    GELU,
    NAMES,
    NO_ACTIVATION,
    POWER,
    RELU,
    RELUN,
    SOFTPLUS,
    Activation,
)
from mpsfunc.core import grids, launch

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Array = np.ndarray


# Statistics groups -----------------------------------------------------------------------------------------

_FORWARD = ("bn_stats", "bn_stats_merge", "bn_normalize")
_BACKWARD = ("bn_stats_grad", "bn_stats_grad_factors", "bn_grad")


def _stat_groups(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    stat_groups: int,
    act: Activation,
    *,
    slack: float = 8,
    crowded: bool = False,
) -> list[Case]:
    n, channels = shape[0], shape[3]
    vectors = (stat_groups, channels)
    x, dy = numbers(shape, dtype, 1) + 3, numbers(shape, dtype, 2)
    # One entry of scale is 0 and so is its shift: there the activation stands right at 0.
    scale, shift = (numbers(vectors, F32, seed) * (np.arange(channels) != 1) for seed in (3, 4))
    mean = mx.array(exact(x).reshape(stat_groups, -1, channels).mean(1)).astype(F32)

    def by_group(v: mx.array) -> Array:
        return exact(v).reshape(stat_groups, n // stat_groups, *shape[1:])

    def wide(v: mx.array) -> Array:
        return exact(v)[:, None, None, None]

    def pulled() -> Array:
        return by_group(dy) * oracle_activation.slope(before(), NAMES[act.kind], **known)

    def before() -> Array:
        return (by_group(x) - wide(mean)) * wide(scale) + wide(shift)

    given = {"scale": scale, "shift": shift} if act.kind else {}
    known = {"a": act.a, "b": act.b, "c": act.c}

    def stats() -> None:
        made = launched({"x": x}, ((vectors, F32),) * 2, launches.bn_stats(x, stat_groups))
        axes = (1, 2, 3)
        close(made[0], by_group(x).mean(axes), abs(by_group(x)).mean(axes), slack=slack)
        close(made[1], by_group(x).var(axes), by_group(x).var(axes), slack=slack)

    def normalize() -> None:
        arrays = {"x": x, "mean": mean, "scale": scale, "shift": shift}
        y = launched(arrays, like(x), launches.bn_normalize(x, stat_groups, act))[0]
        right = oracle_activation.neuron(before(), NAMES[act.kind], **known)
        close(y, right.reshape(shape), abs(right.reshape(shape)) + 3, slack=slack)

    def stats_grad() -> None:
        arrays = {"dy": dy, "x": x, "mean": mean, **given}
        total, dot = launched(arrays, ((vectors, F32),) * 2, launches.bn_stats_grad(dy, stat_groups, act))
        size = abs(by_group(dy)).sum((1, 2, 3)) + 1
        close(total, pulled().sum((1, 2, 3)), size, slack=slack)
        close(dot, (pulled() * (by_group(x) - wide(mean))).sum((1, 2, 3)), 3 * size, slack=slack)

    def grad() -> None:
        a, b, d = (numbers(vectors, F32, seed) for seed in (5, 6, 7))
        arrays = {"dy": dy, "x": x, "mean": mean, "a": a, "b": b, "d": d, **given}
        dx = launched(arrays, like(x), launches.bn_grad(dy, stat_groups, act))[0]
        right = wide(a) * pulled() + wide(b) * (by_group(x) - wide(mean)) + wide(d)
        close(dx, right.reshape(shape), abs(right.reshape(shape)) + 9, slack=slack)

    # The whole of a normalization by an image's or a batch's own statistics, parameters in the dtype of the images.
    vector = (vectors if stat_groups > 1 else (channels,), F32)
    gamma, beta = (v[0].astype(dtype) for v in (scale, shift))  # which all statistics groups share
    var, dmean, dvar = (numbers(vector[0], F32, seed) for seed in (8, 9, 10))
    var = abs(var) + 1

    def by_channel(v: mx.array) -> Array:
        return exact(v).reshape(-1, 1, 1, 1, channels)

    def composed() -> None:
        arrays, outputs = {"x": x, "gamma": gamma, "beta": beta}, (*like(x), vector, vector)
        kernels = launches.batch_norm(x, vector, act, 1e-3)
        y, found, spread = launched(arrays, outputs, kernels, returns=("y", "mean", "var"))
        center, width = (f(by_group(x), axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.var))
        z = (by_group(x) - center) / np.sqrt(width + 1e-3) * by_channel(gamma) + by_channel(beta)
        right = oracle_activation.neuron(z, NAMES[act.kind], **known)
        close(y, right.reshape(shape), abs(right.reshape(shape)) + 9, slack=slack)
        close(found, center.reshape(vector[0]), 4, slack=slack)
        close(spread, width.reshape(vector[0]), width.reshape(vector[0]), slack=slack)

    def pulled_back() -> None:
        count = float(x.size // channels // stat_groups)
        kernels = launches.batch_norm_grad(dy, vector, act, count, 1e-3)
        images, center = {"dy": dy, "x": x, "gamma": gamma, "beta": beta}, mean.reshape(vector[0])
        arrays = {**images, "mean": center, "var": var, "dmean": dmean, "dvar": dvar}
        outputs = (*like(x), vector, vector)
        dx, dgamma, dbeta = launched(arrays, outputs, kernels, returns=("dx", "dgamma", "dbeta"))
        root, off = 1 / np.sqrt(by_channel(var) + 1e-3), by_group(x) - wide(mean)
        z = off * root * by_channel(gamma) + by_channel(beta)
        g = by_group(dy) * oracle_activation.slope(z, NAMES[act.kind], **known)
        total, dot = (v.sum((1, 2, 3), keepdims=True) for v in (g, g * off))
        size = abs(by_group(dy)).sum((1, 2, 3), keepdims=True) + 1
        a = by_channel(gamma) * root
        b, d = (2 * by_channel(dvar) - a * root * root * dot) / count, (by_channel(dmean) - a * total) / count
        right = (a * g + b * off + d).reshape(shape)
        close(dx, right, abs(right) + 9, slack=slack)
        close(
            dgamma,
            (dot * root).reshape(vector[0]),
            (3 * size).reshape(stat_groups, 1, -1)[:, 0].reshape(vector[0]),
            slack=slack,
        )
        close(dbeta, total.reshape(vector[0]), size.reshape(vector[0]), slack=slack)

    told = {"stat_groups": stat_groups, "neuron": NAMES[act.kind]}
    return [
        Case(named("bn_normalize", shape, dtype, **told), ("bn_normalize",), normalize, crowded),
        Case(named("bn_stats_grad", shape, dtype, **told), ("bn_stats_grad", "sum_partials"), stats_grad, crowded),
        Case(named("bn_grad", shape, dtype, **told), ("bn_grad",), grad, crowded),
        Case(named("composed", shape, dtype, **told), _FORWARD, composed, crowded),
        Case(named("composed gradients", shape, dtype, **told), _BACKWARD, pulled_back, crowded),
        *(
            [
                Case(
                    named("bn_stats", shape, dtype, stat_groups=stat_groups),
                    ("bn_stats", "bn_stats_merge"),
                    stats,
                    crowded,
                )
            ]
            if not act.kind
            else []
        ),
    ]


# By a state ---------------------------------------------------------------------------------------------


def _by_state(
    shape: tuple[int, ...], dtype: mx.Dtype, act: Activation, *, slack: float = 8, crowded: bool = False
) -> list[Case]:
    """Parameters in the dtype of the images, a count that is not theirs."""
    channels = shape[3]
    x, dy = numbers(shape, dtype, 1) + 3, numbers(shape, dtype, 2)
    gamma, beta = ((numbers((channels,), F32, seed) * (np.arange(channels) != 1)).astype(dtype) for seed in (3, 4))
    mean, dgamma, dbeta = (numbers((channels,), F32, seed) for seed in (5, 6, 7))
    var = abs(numbers((channels,), F32, 8)) + 1
    count, known = mx.array([300], mx.int64), {"a": act.a, "b": act.b, "c": act.c}
    gradients = {"mean": mean, "var": var, "dgamma": dgamma, "dbeta": dbeta}
    scale, shift = ({"gamma": gamma}, {"beta": beta}) if act.kind else ({}, {})  # which only an activation needs
    off, root = exact(x) - exact(mean), 1 / np.sqrt(exact(var) + 1e-3)
    z = off * root * exact(gamma) + exact(beta)
    size = abs(exact(dy)).sum((0, 1, 2)) + 1

    def pulled() -> Array:
        return exact(dy) * oracle_activation.slope(z, NAMES[act.kind], **known)

    def normalize() -> None:
        arrays = {"x": x, "mean": mean, "var": var, "gamma": gamma, "beta": beta}
        y = launched(arrays, like(x), launches.bn_normalize_by(x, act, 1e-3))[0]
        close(y, oracle_activation.neuron(z, NAMES[act.kind], **known), abs(z) + 9, slack=slack)

    def grown() -> None:
        arrays = {"dy": dy, "x": x, **gradients, **scale, **shift}
        made = launched(arrays, (((channels,), F32),) * 2, launches.bn_stats_grad_by(dy, act, 1e-3))
        close(made[0], exact(dgamma) + (pulled() * off).sum((0, 1, 2)) * root, 3 * size, slack=slack)
        close(made[1], exact(dbeta) + pulled().sum((0, 1, 2)), size, slack=slack)

    def grad() -> None:
        arrays = {"dy": dy, "x": x, **gradients, "gamma": gamma, "count": count, **shift}
        dx = launched(arrays, like(x), launches.bn_grad_by(dy, act, 1e-3))[0]
        right = exact(gamma) * root * (pulled() - exact(dbeta) / 300 - off * root * exact(dgamma) / 300)
        close(dx, right, abs(right) + 9, slack=slack)

    told = {"neuron": NAMES[act.kind]}
    return [
        Case(named("bn_normalize by a state", shape, dtype, **told), ("bn_normalize",), normalize, crowded),
        Case(named("bn_grown", shape, dtype, **told), ("bn_stats_grad", "bn_stats_grad_merge"), grown, crowded),
        Case(named("bn_grad by a state", shape, dtype, **told), ("bn_grad_coefficients", "bn_grad"), grad, crowded),
    ]


# Vectors ------------------------------------------------------------------------------------------------


def _vectors_of(stat_groups: int, channels: int) -> list[Case]:
    shape, here = (stat_groups, channels), launch.resolve(None)
    gamma, dmean, dvar, dbeta, dot, mean = (numbers(shape, F32, seed) for seed in range(1, 7))
    var = abs(numbers(shape, F32, 7)) + 1

    def factors() -> None:
        made = vector_rules.composed_factors(gamma, var, dmean, dvar, dbeta, dot, 300.0, 1e-3, here)
        g, v, of_mean, of_var, total, product = (exact(a) for a in (gamma, var, dmean, dvar, dbeta, dot))
        root = 1 / np.sqrt(v + 1e-3)
        right = (
            (product * root, abs(product)),
            (g * root, abs(g)),
            ((2 * of_var - g * root * root * product * root) / 300, (abs(of_var) + abs(g * product)) / 100),
            ((of_mean - g * root * total) / 300, (abs(of_mean) + abs(g * total)) / 100),
        )
        for a, (wanted, size) in zip(made, right, strict=True):
            close(a, wanted, size, slack=8)

    def running(count: int, unbiased: float, dtype: mx.Dtype) -> Callable[[], None]:
        def run() -> None:
            held = (mean + 2).astype(dtype), (var + 3).astype(dtype)
            moved = vector_rules.running(*held, mean, var, mx.array(count, mx.int64), 0.25, unbiased, here)
            share, wide = 0.25 * (count > 0), max(count, 2) / (max(count, 2) - 1) if unbiased else 1.0
            if count == 1:  # which has no variance
                assert np.isnan(exact(moved[1])).all()
                moved = moved[:1]
            for a, before, found in zip(moved, held, (exact(mean), exact(var) * wide), strict=False):
                close(a, exact(before) + share * (found - exact(before)), abs(exact(before)) + abs(found), slack=8)

        return run

    return [
        *_by_group(stat_groups, channels),
        Case(f"bn_composed_factors {stat_groups}x{channels}", ("bn_composed_factors",), factors),
        *(
            Case(f"bn_running {stat_groups}x{channels} of {n}, {u}, {dtype}", ("bn_running",), running(n, u, dtype))
            for n, u, dtype in (
                *((0, 1.0, F32), (1, 1.0, F32), (300, 1.0, F32), (300, 0.0, F32), (2**40, 1.0, F32)),
                *((300, 1.0, F16), (300, 1.0, BF16)),
            )
        ),
    ]


def _by_group(stat_groups: int, channels: int) -> list[Case]:
    """Groups of all channels, of some, and of one each; for all of them at once or more than a grid has threads for."""
    shape, here = (stat_groups, channels), launch.resolve(None)
    var, b, d = abs(numbers(shape, F32, 1)), numbers(shape, F32, 2), numbers(shape, F32, 3)

    def together(a: Array, groups: int) -> Array:
        return a.reshape(stat_groups, groups, -1)

    def again(a: Array) -> Array:
        return np.broadcast_to(a, (*a.shape[:2], channels // a.shape[1])).reshape(shape)

    def moments(groups: int, mean: mx.array) -> Callable[[], None]:
        def run() -> None:
            made = vector_rules.group_moments(mean, var, float(groups), here)
            of_mean, of_var = (together(exact(a), groups) for a in (mean, var))
            wide = (of_var + (of_mean - of_mean.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
            close(made[0], again(of_mean.mean(-1, keepdims=True)), again(abs(of_mean).mean(-1, keepdims=True)), slack=8)
            close(made[1], again(wide), again(wide), slack=8)

        return run

    def equal(groups: int) -> Callable[[], None]:
        """A mean that a sum of as many would not leave as it is."""

        def run() -> None:
            mean = mx.full(shape, 0.3)
            found, none = vector_rules.group_moments(mean, mx.zeros(shape), float(groups), here)
            assert np.array_equal(exact(found), exact(mean)) and not exact(none).any()

        return run

    def sums(groups: int) -> Callable[[], None]:
        def run() -> None:
            for made, of in zip(vector_rules.group_sums(b, d, float(groups), here), (b, d), strict=True):
                terms = together(exact(of), groups)
                close(made, again(terms.sum(-1, keepdims=True)), again(abs(terms).sum(-1, keepdims=True)), slack=8)

        return run

    def cases(groups: int) -> list[Case]:
        told = f"{stat_groups}x{channels} in {groups}"
        return [
            Case(f"group_moments {told}", ("group_moments",), moments(groups, numbers(shape, F32, 4) + 100)),
            Case(f"group_moments {told}, equal", ("group_moments",), equal(groups)),
            Case(f"bn_group_sums {told}", ("bn_group_sums",), sums(groups)),
        ]

    return [case for groups in (1, 12, 60, 150, channels) if channels % groups == 0 for case in cases(groups)]


def _few_pixels() -> Case:
    """So few that a thread each would leave none whose own is near the mean of all; to rounding, without slack."""

    def check() -> None:
        for seed in range(4):
            x = numbers((3, 5, 4, 16), F32, seed)
            mean, var = launched({"x": x}, (((1, 16), F32),) * 2, launches.bn_stats(x, 1))
            right = exact(x).reshape(1, -1, 16)
            close(mean, right.mean(1), abs(right).mean(1))
            close(var, right.var(1), (right**2).mean(1))

    return Case("bn_stats of few pixels", ("bn_stats", "bn_stats_merge"), check)


def _behind_an_outlier() -> Case:
    """A thread's first pixel is far from the others, of which there are many: its error must not grow with them."""

    def check() -> None:
        x = exact(numbers((1, 30, 40, 1024)))
        x[0, -1, -1] += 30  # threads go from the last pixel to the first
        image = mx.array(x, F32)
        mean, var = launched({"x": image}, (((1, 1024), F32),) * 2, launches.bn_stats(image, 1))
        close(mean, x.mean((1, 2)), abs(x).mean((1, 2)), slack=8)
        close(var, x.var((1, 2)), x.var((1, 2)), slack=16)

    return Case("bn_stats behind an outlier", ("bn_stats", "bn_stats_merge"), check, crowded=True)


def _launched_with(case: Case, told: str, **known: int) -> Case:
    """The case with other numbers of `core.grids`."""

    def check() -> None:
        with mock.patch.multiple(grids, **known):
            case.check()

    return case._replace(name=f"{case.name} {told}", check=check)


def group_statistics() -> list[Case]:
    relu = Activation(RELU)
    many_parts = _stat_groups((1, 7, 43, 255), F32, 1, NO_ACTIVATION)
    return [
        *_stat_groups((4, 5, 3, 5), F32, 2, relu),
        *_stat_groups((4, 5, 3, 5), F32, 4, NO_ACTIVATION),
        *_stat_groups((4, 3, 2, 5), F32, 1, Activation(SOFTPLUS, 1.5, 0.75)),
        *_stat_groups((2, 3, 3, 8), F32, 2, Activation(RELUN, 0.25, 0.5)),
        *_stat_groups((2, 2, 3, 4), F32, 2, Activation(GELU)),
        *_stat_groups((2, 2, 3, 4), F32, 1, Activation(POWER, 0.25, 8.0, 2.0)),
        # A base that a float does not tell.
        *_stat_groups((2, 2, 3, 4), F32, 1, Activation(EXPONENTIAL, 1024.0, 16.0, 1.0001)),
        *_stat_groups((2, 9, 7, 24), F16, 2, relu),
        *_stat_groups((2, 3, 3, 8), BF16, 1, relu),
        *_stat_groups((2, 1, 3, 1), F32, 2, relu),
        *_stat_groups((3, 17, 15, 100), F32, 3, relu, crowded=True),
        *_stat_groups((3, 37, 45, 4), F32, 3, NO_ACTIVATION, crowded=True),
        *_stat_groups((1, 3, 49, 2048), BF16, 1, NO_ACTIVATION, crowded=True),  # 147 pixels a thread
        *_by_state((4, 3, 2, 5), F32, Activation(SOFTPLUS, 1.5, 0.75)),
        *_by_state((2, 2, 3, 4), F32, NO_ACTIVATION),
        *_by_state((2, 9, 7, 24), F16, relu),
        *_by_state((2, 3, 3, 8), BF16, relu),
        *_by_state((2, 1, 3, 1), F32, relu),
        *_by_state((3, 17, 15, 100), F32, relu, crowded=True),
        *_by_state((1, 3, 49, 2048), BF16, NO_ACTIVATION, crowded=True),
        *_by_state((1, 7, 43, 255), F32, NO_ACTIVATION),
        *_vectors_of(1, 5),
        *_vectors_of(3, 300),
        # A grid of fewer threads than there is to do.
        *(_launched_with(case, "in turns", FILL=1) for case in _by_group(30, 300)),
        _few_pixels(),
        _behind_an_outlier(),
        *many_parts,
        # More parts of a sum than the threads that fold them take at a time.
        *(
            _launched_with(case, "merged by few", _MERGING=2)
            for case in (*many_parts, *_by_state((1, 7, 43, 255), F32, NO_ACTIVATION))
        ),
    ]
