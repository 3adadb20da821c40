"""The command line: ``python -m tests.bench [cpu | memory | gpu]``, from the root of the checkout."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

_ROUNDS, _QUICK_ROUNDS = 30, 2

_RATIOS = """The same problem for all, in one process, round by round; medians of {rounds} rounds, fewer where a call
takes long. Ratios are of times in the same round, with a bootstrap interval of 95 %; a target is met when the median
reaches it and the lower end 97 % of it. Every answer was compared with float64 before. *MB* counts each image once for
each pass that the operation cannot do without; *of copy* is the bandwidth on those bytes as a share of"""

_CPU = (
    _RATIOS
    + """ a two-thread copy
of x into a new MLX array. Calls under a millisecond are timed ten an evaluation, *alone* is one. PyTorch runs its own
operators without autograd, with images in either layout; ratios take the faster. Stock MLX's gradients are
`mx.vjp`'s. All use two threads, as far as they use threads. Written by `make bench`."""
)
_GPU = (
    _RATIOS
    + """ a device copy of x.
Time of ours and MLX is the slope between 10 and 110 independent calls in one evaluation, of PyTorch the replay of a
CUDA graph (cuDNN's benchmark mode on); TF32 is off everywhere. Inputs change places until 240 MB have passed. *routed*
is a call that ours hands to the vendor's library through MLX, with *own kernel* beside it; *MLX swapped* is the
weight gradient by hand as a convolution with batch and channels swapped. Written by `python -m tests.bench gpu`."""
)
_MEMORY = """Growth of VmHWM by one call in a fresh process that already holds the inputs, less the outputs.
Written by `make bench`."""


def main() -> None:
    """Runs a program and writes its tables."""
    args = _arguments()
    args.rounds = args.rounds or (_QUICK_ROUNDS if args.quick else _ROUNDS)
    args.out = args.out or Path(tempfile.mkdtemp() if args.quick else "docs/benchmarks")
    if args.program == "gpu":
        os.environ["MLX_ENABLE_TF32"] = "0"  # before MLX reads it
    else:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # before any library counts processors

    from . import report

    commit = args.commit or report.commit()
    if args.program == "gpu":
        from . import gpu

        facts = report.gpu_facts(commit, *gpu.card())
        method = _GPU.format(rounds=args.rounds)
        print(report.write(args.out, "gpu", "Speed on an NVIDIA GPU", facts, method, gpu.main(args)))
        return

    from mpsfunc import _primitives

    facts = report.cpu_facts(commit, _primitives.isa(), threads=2)
    if args.program != "memory":
        from . import cpu

        method = _CPU.format(rounds=args.rounds)
        print(report.write(args.out, "cpu", "Speed on the CPU", facts, method, cpu.main(args)))
    if args.program != "cpu":
        from . import memory

        print(report.write_memory(args.out, facts, _MEMORY, memory.main(args)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("program", nargs="?", choices=("cpu", "memory", "gpu"), help="default: cpu, then memory")
    parser.add_argument("--only", nargs="+", metavar="OP", default=[], help="operations, such as avg_pool_grad")
    parser.add_argument("--quick", action="store_true", help="small images, two rounds: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"default {_ROUNDS}")
    parser.add_argument("--out", type=Path, help="folder for the tables; default docs/benchmarks, if not --quick")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    parser.add_argument("--jax", action="store_true", help="time JAX too (cpu)")
    parser.add_argument(
        "--openblas", metavar="PATH", help="library that MLX is preloaded with in another process (cpu)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
