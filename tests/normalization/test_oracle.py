"""The worked numbers of the definition, against the oracle that the normalizations are held to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.oracle import normalization as oracle

NINE = np.arange(1.0, 10.0).reshape(1, 3, 3, 1)
CENTRE = np.zeros((1, 3, 3, 1))
CENTRE[0, 1, 1] = 1
CHANNELS, CHANNELS_DY = np.array([1.0, 2, 3, 4]).reshape(1, 1, 1, 4), np.array([1.0, 0, -1, 2]).reshape(1, 1, 1, 4)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (
            oracle.spatial_norm_grad(CENTRE, NINE, 3, beta=0.5),
            [-0.00297557, -0.00595114, -0.00892671, -0.01190228, 0.1600857, -0.01785342]
            + [-0.02082899, -0.02380457, -0.02678014],
        ),
        (
            (NINE / oracle.spatial_norm(NINE, 3, beta=0.5)) ** 2,
            [6.11111111, 11.11111111, 9.22222222, 18.66666667, 32.66666667, 25.33333333]
            + [18.11111111, 31.11111111, 23.88888889],
        ),
        (
            (NINE / oracle.spatial_norm(NINE, 2, beta=0.5)) ** 2,
            [1.25, 2.25, 4.25, 5.25, 12.5, 19.5, 17.25, 39.5, 52.5],
        ),
        (
            oracle.spatial_norm_grad(CENTRE, NINE, 2, beta=0.5),
            [-0.02828427, -0.05656854, 0, -0.11313708, 0.14142136, 0, 0, 0, 0],
        ),
        (oracle.local_contrast_norm(np.arange(1.0, 17.0).reshape(1, 4, 4, 1), 3)[:, :1, :1], [-17.77777778]),
        (
            oracle.local_contrast_norm(NINE, 3, 1.0, 0.5, 1.0),
            [-0.16012815, -0.14002801, 0.49642305, 0.32163376, 0, 0.67671554, 1.30654916, 1.0440738, 1.56220566],
        ),
        (
            oracle.local_contrast_norm_grad(CENTRE, NINE, 3, 1.0, 0.5, 1.0),
            [-0.04012862] * 4 + [0.32102894] + [-0.04012862] * 4,
        ),
        (oracle.cross_channel_norm(CHANNELS, 3, 3.0, 0.5), [0.40824829, 0.51639778, 0.54772256, 0.78446454]),
        (
            oracle.cross_channel_norm_grad(CHANNELS_DY, CHANNELS, 3, 3.0, 0.5),
            [0.34020691, -0.09956793, -0.30883221, 0.22388824],
        ),
        (oracle.cross_channel_norm(CHANNELS, 2, 3.0, 0.5), [0.63245553, 0.68599434, 0.66258916, 0.64465837]),
        (
            oracle.cross_channel_norm_grad(CHANNELS_DY, CHANNELS, 2, 3.0, 0.5),
            [0.25298221, 0.09696427, -0.22611601, 0.12139671],
        ),
    ],
)
def test_worked_numbers(actual: np.ndarray, expected: Any) -> None:
    np.testing.assert_allclose(actual.reshape(-1), expected, atol=1e-8)
