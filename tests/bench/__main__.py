"""The command line: ``python -m tests.bench [cpu | memory | gpu | networks]``, from the root of the checkout.

``networks`` has arguments of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from . import FAMILIES

_DTYPES = ("float32", "float16", "bfloat16")
_ROUNDS, _QUICK_ROUNDS = 30, 2

_RATIOS = """All sides solve one problem in one process and take turns for {rounds} rounds, slow sides in fewer. Times
are medians. A ratio is that of two times in one round: given are its median and a bootstrap interval of 95 %, and a
target is met by a median no lower than it with a lower end of no less than 97 % of it. Answers were compared with
float64 first. *MB* counts each image once for each pass that the operation cannot do without; *of copy* compares the
bandwidth on those bytes with that of"""

_CPU = (
    _RATIOS
    + """ two threads that copy x into arrays just made by MLX, one for each of our calls.
Calls are timed one by one, as a user makes them: each result is there and is dropped before the next call. Where some
side takes less than 2 ms in a few calls beforehand, ten such calls in a row are one sample, except for sides beyond
20 ms; one call before them is not timed. Rows may be of several runs of this commit (`--minutes`). *kept* is the time
of a call where the results of all ten are kept until the last is there, for ours in one evaluation, as in the forward
pass of a training step; *of copy* is that of *kept*.
PyTorch's operators run on images in both layouts, with autograd off, and ratios are to the faster layout, as is
*PyTorch, kept*. Importing mpsfunc has the process keep freed memory (docs/conventions.md), for stock
MLX's rows too. Stock MLX's gradients are `mx.vjp`'s. No side has more than two threads. Written by `make bench`."""
)
_GPU = (
    _RATIOS
    + """ a device copy of x. Rows without a target have at most ten rounds. A time is that for which the GPU
works on a call, on each side: its kernels, copies and fills added up, by CUPTI's records, without what lies between
them and without launching, which whole networks contain. Each call is evaluated by itself; cuDNN
is in PyTorch's benchmark mode. TF32 is {tf32} everywhere. Sets of inputs take turns, so that 240 MB pass before one
is read again, and a turn begins with all of them once, not counted: what the side before has written is still on its
way to memory then. *routed* is a call that ours hands to the vendor's library through MLX, with *own kernel* beside it;
*cuDNN* is what PyTorch's operators for it make of batch and instance norm, beside those that it has of its own;
*MLX swapped* is the weight gradient by hand as a convolution with batch and channels swapped. In 16 bits
`conv_grad_weights`, whose state holds float32, has rivals whose results are made float32 too, and `by mx.vjp` all sides
give the weights' dtype. *same kernels*:
ours and the rival launch kernels of the same names as often, which may still differ in their sizes; a target of 1 is
met by 0.99 then. Written by `python -m tests.bench gpu`."""
)
_MEMORY = """Each call has a process of its own, which makes the inputs first; the figure is how far the call raises the
peak of that process (VmHWM), less the outputs. Written by `make bench`."""

_ONLY = f"operations, such as avg_pool_grad, and families: {', '.join(FAMILIES)}"


def main() -> int:
    """Runs a program and writes its tables."""
    if sys.argv[1:2] == ["networks"]:
        from . import networks

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return networks.main(sys.argv[2:])
    parser = _parser()
    args = parser.parse_args()
    if args.keep and not args.compare:
        parser.error("--keep goes with --compare")
    if args.compare and (args.program not in (None, "cpu") or args.only or args.rounds):
        parser.error("--compare measures ten rows of the CPU, as often as it is kept")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a limit of time keeps the rows so far
    args.rounds = args.rounds or (_QUICK_ROUNDS if args.quick else _ROUNDS)
    if not args.compare:
        args.out = args.out or Path(tempfile.mkdtemp() if args.quick else "docs/benchmarks")
    if args.program == "gpu":
        os.environ["MLX_ENABLE_TF32"] = "01"[args.tf32]  # before MLX reads it
    else:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # before any library counts processors

    from . import networks_csv, report
    from .operations import named

    try:
        args.only = named(args.only)
    except ValueError as unknown:
        parser.error(str(unknown))
    commit = args.commit or (networks_csv.last_change() if args.program == "cpu" else report.commit())
    if args.program == "gpu":
        from . import gpu

        facts = report.gpu_facts(commit, *gpu.card())
        method = _GPU.format(rounds=args.rounds, tf32="on" if args.tf32 else "off")
        name, title = ("gpu_tf32", " with TF32") if args.tf32 else ("gpu", "")
        print(report.write(args.out, name, "Speed on an NVIDIA GPU" + title, facts, method, gpu.main(args)))
        return 0
    if args.compare:
        from . import compare

        return compare.main(args, commit)

    from mpsfunc import _primitives

    facts = report.cpu_facts(commit, _primitives.isa(), threads=2)
    if args.program != "memory":
        from . import cpu, rounds

        of = {name: facts[name] for name in ("processor", "instruction set used", "packages", "commit")}
        kept = rounds.Kept(args.out / rounds.NAME, of | {"rounds": str(args.rounds)})
        again = args.quick or args.jax or args.openblas or commit == "unknown" or commit.endswith("-dirty")
        method = _CPU.format(rounds=args.rounds)
        print(report.write(args.out, "cpu", "Speed on the CPU", facts, method, cpu.main(args, None if again else kept)))
    if args.program != "cpu":
        from . import memory

        print(report.write_memory(args.out, facts, _MEMORY, memory.main(args)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("program", nargs="?", choices=("cpu", "memory", "gpu"), help="default: cpu, then memory")
    parser.add_argument("--only", nargs="+", metavar="OP", default=[], help=_ONLY)
    parser.add_argument("--dtype", nargs="+", choices=_DTYPES, help="default: all of a row (cpu, gpu)")
    parser.add_argument("--no-mlx", action="store_true", help="leave stock MLX out, whose calls may take long (cpu)")
    parser.add_argument("--minutes", type=float, help="begin no row after so many; the next run has the rest (cpu)")
    parser.add_argument("--quick", action="store_true", help="small images, two rounds: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"default {_ROUNDS}")
    parser.add_argument("--out", type=Path, help="folder for the tables; default docs/benchmarks, if not --quick")
    parser.add_argument("--compare", action="store_true", help="ten rows of the CPU beside what is kept of them")
    parser.add_argument("--keep", action="store_true", help="with --compare: keep them for this kind of processor")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    parser.add_argument("--tf32", action="store_true", help="float32 convolutions by TensorFloat-32 (gpu)")
    parser.add_argument("--jax", action="store_true", help="time JAX too (cpu)")
    parser.add_argument(
        "--openblas", metavar="PATH", help="library that MLX is preloaded with in another process (cpu)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
