"""Benchmarks: ``python -m tests.bench`` for the CPU, ``python -m tests.bench gpu``; ``--help`` says more.

Every program checks an answer against PyTorch in float64 before it times anything, and times all rivals in turn,
round by round, so that what disturbs one round disturbs all of it. A ratio is the median of the rounds' ratios with
a bootstrap interval of 95 %. It meets a target if it is no lower, and the interval's lower end no lower than 97 %
of the target.

    problems.py  what is computed, its inputs and the bytes that it must move
    rivals/      who computes it: one module a library, one function an operation
    clock.py     how the rivals take turns, and the CPU's clock
    cpu.py  gpu.py  memory.py  openblas.py      the programs
    stats.py  results.py  report.py             ratios, targets and tables
"""
