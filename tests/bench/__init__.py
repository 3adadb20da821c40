"""Benchmarks: ``python -m tests.bench`` for the CPU, ``python -m tests.bench gpu`` and
``python -m tests.bench networks``; ``--help`` says more.

Every program checks an answer against PyTorch in float64 before it times anything, and times all rivals in turn,
round by round, so that what disturbs one round disturbs all of it. A ratio is the median of the rounds' ratios with
a bootstrap interval of 95 %. It meets a target if it is no lower, and the interval's lower end no lower than 97 %
of the target.

    operations.py  the operations that records of `tests/generic/ops` measure, and their rows
    problems.py  one operation on images of one shape and dtype, with its inputs
    rivals/      who computes it: a package a library, a module a family, a function an operation
    rounds.py    rows that were measured before
    clock.py     how the rivals take turns, and the CPU's clock
    cpu.py  gpu.py  memory.py  openblas.py      the programs
    networks.py  networks_turns.py  networks_csv.py  networks_page.py  networks_layers.py  whole.py     whole networks
    stats.py  results.py  report.py             ratios, targets and tables
"""

import sys
from pathlib import Path

FAMILIES = ("pooling", "normalization", "convolution", "pointwise", "sequences")  # in the order of the tables

_TESTS = str(Path(__file__).parents[1])  # where `generic` and `support` are
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
