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

_RATIOS = """All libraries solve the same problem in one process and take turns, for {rounds} rounds, or for fewer if
they are slow. Times are medians. A ratio is that of two times in the same round; shown are its median and a bootstrap
interval of 95 %. A target is met if the median reaches it and the lower end of the interval reaches 97 % of it.
Results were compared with float64 first. *MB* is what the operation has to read and write at least, counting an image
once for each pass over it. *of copy* compares the bandwidth for these bytes with that of"""

_CPU = (
    _RATIOS
    + """ two threads that copy x into new arrays of MLX, one for each call of mpsfunc. Calls are timed one by one, as
a user makes them: each result is computed and freed before the next call. If a call takes less than 2 ms in any
library, ten calls in a row are one sample (except in libraries that take more than 20 ms); one call before them is
not timed. Rows may come from several runs of this commit (`--minutes`). *kept* is the time of a call if the results
of all ten are kept until the last one is computed, in mpsfunc by one evaluation, as in the forward pass of a training
step; *of copy* is that of *kept*. PyTorch's operators run on images in both layouts, with autograd off; ratios, and
*PyTorch, kept*, are those of the faster layout. Since mpsfunc is imported, the process keeps freed memory
(docs/conventions.md), in the rows of stock MLX too. Gradients of stock MLX are those of `mx.vjp`. No library has more
than two threads. Written by `make bench`."""
)
_GPU = (
    _RATIOS
    + """ a device copy of x. Rows without a target have at most ten rounds. A time is how long the GPU works on a
call: the sum of its kernels, copies and fills by CUPTI's records, without the gaps between them and without
launching, which times of whole networks contain. Each call is evaluated by itself; cuDNN is in PyTorch's benchmark
mode. TF32 is {tf32} everywhere. Calls use several sets of inputs in turn, 240 MB in all, so that caches do not hold
them. A turn begins with one call for each set that is not counted, since results of the library before are then still
being written. *routed* rows run in the vendor's library through MLX, and *own kernel* rows in mpsfunc's kernel
instead; *PyTorch deterministic* has NCHW images and `torch.use_deterministic_algorithms`, which some adjoints refuse;
*cuDNN* is batch or instance norm by those operators of PyTorch that call cuDNN, in addition to its own; *MLX swapped*
is the weight gradient as a convolution of MLX with batch and channels swapped. In 16 bits the state of
`conv_grad_weights` holds float32, so results of other libraries are converted to float32 too; rows `by mx.vjp` have
the weights' dtype in all libraries. *same kernels* means that mpsfunc and the other library launch kernels of the same
names equally often (their sizes may still differ); a target of 1 is then met by 0.99. Written by `python -m
tests.bench gpu`."""
)
_MEMORY = """Each call runs in a new process, in which the inputs were created before. The figure is how much the call
raises that process's peak memory (VmHWM), minus the size of the outputs. Written by `make bench`."""

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
        from . import gpu, results

        facts = report.gpu_facts(commit, *gpu.card())
        method = _GPU.format(rounds=args.rounds, tf32="on" if args.tf32 else "off")
        name, title = ("gpu_tf32", " with TF32") if args.tf32 else ("gpu", "")
        rows: list[results.Row] = []
        try:
            for row in gpu.main(args):
                rows.append(row)
        except KeyboardInterrupt:
            print("interrupted: the rows so far", flush=True)
        finally:  # what was measured before an error is kept
            if rows:
                print(report.write(args.out, name, "Speed on an NVIDIA GPU" + title, facts, method, rows))
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
