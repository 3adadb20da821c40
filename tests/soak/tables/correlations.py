"""Rows of correlations: of pixels with their neighbours, and of channels."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from tests.soak.tables.case import Case, Rng, Row, dtype, family, images, numbers, numpy, of, pick


def _local(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind, empty=False)
    y = numbers(rng, x.shape, kind)
    (wy, wx), (sy, sx) = rng.integers(0, 4, 2).tolist(), rng.integers(1, 4, 2).tolist()
    window, stride = ((wy, wx), (sy, sx)) if rng.integers(2) else ((wx, wx), (sx, sx))
    wy, sy = window[0], stride[0]
    _, height, width, _ = x.shape

    def summed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        made = np.zeros((*x.shape[:3], (2 * wy + 1) * (2 * wx + 1)))
        for h, w, i, j in np.ndindex(height, width, 2 * wy + 1, 2 * wx + 1):
            row, col = h + (i - wy) * sy, w + (j - wx) * sx
            if 0 <= row < height and 0 <= col < width:
                made[:, h, w, i * (2 * wx + 1) + j] = (x[:, h, w] * y[:, row, col]).sum(-1)
        return made

    def pulled(dy: mx.array, x: mx.array, y: mx.array) -> dict[int, mx.array]:
        both = "primary", "secondary"
        return {
            at: of.local_correlation_grad(dy, x, y, window, stride=stride, operand=operand)
            for at, operand in enumerate(both)
        }

    return Case(f"{window}, {stride}", [x, y], kind, lambda x, y: of.local_correlation(x, y, window, stride=stride),
        summed, lambda x, y: summed(np.abs(x), np.abs(y)), (2 * wy + 1) * (2 * wx + 1) * x.shape[3], moving=(0, 1),
        pulled=pulled)  # fmt: skip


def _gram(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind)
    alpha = float(pick(rng, 1.0, 0.5, -2.0, 1 / 3))

    def summed(x: np.ndarray) -> np.ndarray:
        n, h, w, c = x.shape
        pixels = x.reshape(n, h * w, c)
        return alpha * np.matmul(pixels.swapaxes(1, 2), pixels)[:, None]

    def more(x: mx.array) -> Iterator[str]:
        made = numpy(of.gram_matrix(x, alpha=alpha))
        if not np.array_equal(made, made.swapaxes(2, 3)):
            yield "gram_matrix is not symmetric"

    return Case(f"{alpha}", [x], kind, lambda x: of.gram_matrix(x, alpha=alpha), summed,
        lambda x: np.abs(summed(np.abs(x))), max(x.shape[1] * x.shape[2], 2 * x.shape[3]),
        pulled=lambda dy, x: {0: of.gram_matrix_grad(dy, x, alpha=alpha)}, more=more)  # fmt: skip


ROWS = {
    "local_correlation": Row(family("local_correlation", "grad"), _local),
    "gram_matrix": Row(family("gram_matrix", "grad"), _gram),
}
