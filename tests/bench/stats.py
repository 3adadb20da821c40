"""Medians of paired ratios, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLES = 2000


class Ratio(NamedTuple):
    """A median and its 95 % interval."""

    median: float
    low: float
    high: float

    def reaches(self, least: float) -> bool:
        """Whether the median reaches ``least`` and the lower end 97 % of it."""
        return self.median >= least and self.low >= 0.97 * least


def paired(above: Sequence[float], below: Sequence[float], scale: float = 1.0) -> Ratio:
    """The median of ``scale * above / below``, round by round; a round with a NaN does not count."""
    ratios = scale * np.asarray(above) / np.asarray(below)
    return middle(ratios[~np.isnan(ratios)])


def middle(values: Sequence[float] | np.ndarray) -> Ratio:
    """The median of values, with its interval."""
    draws = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(values)), float(low), float(high))


def median(values: Sequence[float]) -> float:
    """The median of the rounds that took place."""
    return float(np.nanmedian(values))
