"""Parameters of launches over images and vectors, as ``metal/normalization/params.h`` has them."""

from __future__ import annotations

from typing import NamedTuple

from mpsfunc.channels.activation_spec import ActivationParams
from mpsfunc.core.params import Threadgroup

# Images -------------------------------------------------------------------------------------------------


class BnStatsLaunch(NamedTuple):
    """Of `bn_stats`.

    Fields:
        group: The threadgroup.
        stat_groups: Statistics groups.
        kept: The first of a thread's pixels that stay in a cache.
        fewest: Pixels of a thread at least.
        longer: How many rows of threads have one more.
    """

    group: Threadgroup
    stat_groups: int
    kept: int
    fewest: int
    longer: int


class BnStatsMergeLaunch(NamedTuple):
    """Of `bn_stats`: what merges the parts.

    Fields:
        group: The threadgroup.
        tall: Rows of threads of a part.
        fewest: Pixels of one of these threads at least.
        longer: How many of all rows had one more.
        share: Of a pixel in its statistics group.
    """

    group: Threadgroup
    tall: int
    fewest: int
    longer: int
    share: float


class BnStatsGradLaunch(NamedTuple):
    """Of `bn_stats_grad`; the fields are those of `BnStatsLaunch`, what is added to a variance, and the activation."""

    group: Threadgroup
    stat_groups: int
    kept: int
    fewest: int
    longer: int
    eps: float
    act: ActivationParams


class BnStatsGradFactorsLaunch(NamedTuple):
    """Of `batch_norm_grad`: channels of a statistics group, and its pixels."""

    group: Threadgroup
    channels: int
    pixels: float
    eps: float


class BnStatsGradMergeLaunch(NamedTuple):
    """Of `bn_stats_grad_by`."""

    group: Threadgroup
    eps: float


class BnNormalizeLaunch(NamedTuple):
    """Of `bn_normalize`, `batch_norm` and `bn_normalize_by`.

    Fields:
        stat_groups: Statistics groups.
        height: Of a threadgroup.
        share: Pixels of a thread.
        eps: Added to a variance.
        act: The activation.
    """

    stat_groups: int
    height: int
    share: int
    eps: float
    act: ActivationParams


class BnGradLaunch(NamedTuple):
    """Of `bn_grad`, `batch_norm_grad` and `bn_grad_by`; the fields are those of `BnNormalizeLaunch`."""

    stat_groups: int
    height: int
    share: int
    act: ActivationParams


class BnGradCoefficientsLaunch(NamedTuple):
    """Of `bn_grad_by`."""

    channels: int
    eps: float


# Vectors ------------------------------------------------------------------------------------------------


class BnSlopeParams(NamedTuple):
    """Of `vector_rules.slope`."""

    eps: float


class BnComposedFactorsParams(NamedTuple):
    """Of `vector_rules.composed_factors`."""

    elements: float
    eps: float


class BnComposedFactorsLaunch(NamedTuple):
    """Likewise for so many entries."""

    size: int
    params: BnComposedFactorsParams


class BnRunningParams(NamedTuple):
    """Of `vector_rules.running`; ``unbiased`` is 1 or 0."""

    share: float
    unbiased: float


class BnRunningLaunch(NamedTuple):
    """Likewise for so many entries."""

    size: int
    params: BnRunningParams


class BnGroupParams(NamedTuple):
    """Of `vector_rules.group_moments` and `vector_rules.group_sums`: how many groups."""

    groups: float


class BnGroupLaunch(NamedTuple):
    """Channels of a group."""

    size: int
