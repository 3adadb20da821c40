"""The kernel cases of all records: small calls that reach every body in every way that its text can go.

A record's cases hold odd and vector channel counts, each dtype, an input of fewer than eight elements (which Metal
keeps in another address space), and a ``crowded`` one, where few threads have much to do.
"""

from __future__ import annotations

from generic.ops import OPS

CASES = {case.name: case for op in OPS.values() for case in op.cases()}
