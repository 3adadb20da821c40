"""Placements of windows for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
placements = st.fixed_dictionaries(
    {
        "stride": pairs,
        "dilation": pairs,
        "offset": st.tuples(st.integers(-6, 9), st.integers(-6, 9)),
        "out_size": pairs,
        "edge_mode": st.sampled_from(["zero", "clamp"]),
    }
)
