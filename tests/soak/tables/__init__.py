"""A row for each function: a sampler of legal arguments, and what must come out, in NumPy.

They are written from docs/ and Apple's documentation, and share nothing with the library or with `support.oracle`.
"""

from __future__ import annotations

from tests.soak.tables import (
    activations,
    correlations,
    detection,
    elements,
    losses,
    moves,
    norms,
    reductions,
    regions,
    samples,
    sequences,
    windows,
)
from tests.soak.tables.case import Row

ROWS: dict[str, Row] = {
    **activations.ROWS,
    **elements.ROWS,
    **losses.ROWS,
    **windows.ROWS,
    **norms.ROWS,
    **moves.ROWS,
    **sequences.ROWS,
    **samples.ROWS,
    **correlations.ROWS,
    **regions.ROWS,
    **detection.ROWS,
    **reductions.ROWS,
}
