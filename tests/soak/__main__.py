"""`python -m tests.soak [program ...] --minutes 10 --seed 1 [--round K] [--out docs/benchmarks/soak.md]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.soak import programs, run


def main() -> int:
    """1 where something was found."""
    known = programs()
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each program; default 10")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="this one alone, in this process")
    parser.add_argument("--out", type=Path, help="a page whose table gets the results")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    wrong = [name for name in given.programs if name not in known]
    if wrong:
        parser.error(f"unknown programs: {', '.join(wrong)}; there are {', '.join(known)}")
    names = given.programs or list(known)
    if given.child or given.round is not None:
        return max(run.child(known[name], given.seed, given.round) for name in names)
    results = []
    for name in names:
        print(f"{name}, {given.minutes:g} minutes", flush=True)
        results.append(run.run(name, known[name].NAME, given.seed, given.minutes * 60))
        print(run.HEAD, run.row(results[-1]), run.told(results[-1]), sep="\n", flush=True)
        if given.out:
            given.out.write_text(run.merged(given.out.read_text() if given.out.exists() else "", results[-1:]))
    return int(any(result.findings for result in results))


if __name__ == "__main__":
    sys.exit(main())
