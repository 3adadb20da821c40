"""Training on several GPUs of one host, beside PyTorch's DistributedDataParallel: speed, losses, processes that go.

python -m tests.bench.across_gpus --gpus 1 2 --commit HASH --out DIR      the page and the CSV
python -m tests.bench.across_gpus --gpus 1 2 4 8 --out DIR
python -m tests.bench.across_gpus --quick                                 two processes on a CPU: to see that it runs

Groups of processes follow one another, since processes that only wait slow the others, and each comes once a round.
What fails or takes too long is reported, and the rest is still measured and written.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mpsfunc.core import mlx_settings

from . import across_gpus_page, report
from .across_gpus_groups import ROOT, Failed, Group, environment
from .across_gpus_page import EXAMPLES, OURS, Event, Measured, Side, Turn
from .across_gpus_ranks import OWN, SYNCHRONISED, Options

PYTORCH = "PyTorch"
MODULES = {OURS: "mpsfunc", PYTORCH: "torch"}
AHEAD = tuple(dict.fromkeys((mlx_settings.PERCENT, EXAMPLES, 0)))  # MPSFUNC_RUN_AHEAD
ROUNDS, TURNS, STEPS = 5, 3, 20
READY, ANSWER = 120.0, 60.0  # seconds for a group's start and first steps, and for a turn
LAST = 50.0  # seconds of what comes after the rounds
GONE = 60.0  # seconds for which processes are given to notice that one is gone


class Program(NamedTuple):
    """What is measured, and until when."""

    options: Options
    gpus: tuple[int, ...]
    libraries: tuple[str, ...]
    ahead: tuple[float, ...]
    end: float
    folder: Path
    rounds: int
    turns: int

    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()


def parser() -> argparse.ArgumentParser:
    """Of this program's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m tests.bench.across_gpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="how many; 1 is always among them")
    found.add_argument("--batch", type=int, default=128, help="images of a GPU")
    found.add_argument("--ahead", type=float, nargs="+", default=list(AHEAD), help="values of MPSFUNC_RUN_AHEAD")
    found.add_argument("--libraries", nargs="+", choices=MODULES, default=list(MODULES))
    found.add_argument("--turns", type=int, default=TURNS, help="of each kind in a round")
    found.add_argument("--rounds", type=int, default=ROUNDS, help="at most")
    found.add_argument(
        "--seconds", type=float, default=300, help="for everything; no round begins that may take longer"
    )
    found.add_argument("--quick", action="store_true", help="a small network on a CPU, one round of few steps")
    found.add_argument("--commit", help="what is measured, where there is no git")
    found.add_argument("--out", type=Path, help="folder of page and CSV; default: one that is printed")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes page and CSV after each part."""
    args = parser().parse_args(arguments)
    gpus = tuple(sorted({1, *args.gpus}))
    options = Options("resnet50", args.batch, 224, "bfloat16", True)
    if args.quick:
        options = Options("small", 2, 32, "float32", False)
    out = args.out or Path(tempfile.mkdtemp())
    measured = Measured(options, gpus, 3 if args.quick else STEPS, facts(args.commit, options.on_gpu))
    measured.facts["command"] = f"`{command(sys.argv[1:] if arguments is None else arguments)}`"
    with tempfile.TemporaryDirectory() as folder:
        counts = (1, 1) if args.quick else (args.rounds, args.turns)
        end = time.monotonic() + args.seconds
        program = Program(options, gpus, tuple(args.libraries), tuple(args.ahead), end, Path(folder), *counts)
        rounds(program, measured)
        across_gpus_page.write(out, measured)
        if max(gpus) > 1:
            events(program, measured, max(gpus))
    print(across_gpus_page.write(out, measured))
    print(f"in {out}, after {args.seconds - program.left():.0f} s")
    return 0


def command(arguments: Sequence[str]) -> str:
    """What was called, without what says nothing of how it is measured."""
    told: list[str] = []
    for argument, before in zip(arguments, ["", *arguments], strict=False):
        if not {argument, before} & {"--out", "--commit"}:
            told.append(argument)
    return shlex.join(["python", "-m", "tests.bench.across_gpus", *told])


def facts(commit: str | None, on_gpu: bool) -> dict[str, str]:
    """The machine and the software."""
    commit = commit or report.commit(ROOT)
    if not on_gpu:
        return report.cpu_facts(commit, "not asked", 1)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip().splitlines()
    name, driver = lines[0].split(", ")
    return {"GPUs there": str(len(lines)), **report.gpu_facts(commit, name, driver)}


# Speed and losses ---------------------------------------------------------------------------------------


def sides(program: Program, library: str, gpus: int) -> list[Side]:
    """What a library does on so many GPUs, each kind of statistics at a time."""
    ahead = program.ahead if library == OURS else (None,)
    kinds = [OWN]
    if gpus > 1 and (program.options.on_gpu or library == OURS):  # SyncBatchNorm is for GPUs
        kinds.append(SYNCHRONISED)
    return [Side(library, gpus, kind, each) for kind in kinds for each in ahead]


def rounds(program: Program, measured: Measured) -> None:
    """Every group in turn, round by round, as long as there is time."""
    groups = [(library, gpus) for gpus in program.gpus for library in program.libraries]
    longest = 0.0
    for i in range(program.rounds):
        begun = time.monotonic()
        if i and program.left() < LAST + longest:
            break
        for library, gpus in groups[i % len(groups) :] + groups[: i % len(groups)]:
            try:
                one_group(program, measured, i, sides(program, library, gpus))
            except Failed as why:
                failed(measured, library, gpus, f"round {i}", why)
        longest = max(longest, time.monotonic() - begun)
        print(f"round {i} took {time.monotonic() - begun:.0f} s", flush=True)


def one_group(program: Program, measured: Measured, number: int, sides: Sequence[Side]) -> None:
    """Starts a group and takes each side's turns; in the first round also the losses of ours."""
    library, gpus = sides[0][:2]
    command = ["-m", "tests.bench.across_gpus_ranks", MODULES[library], json.dumps(program.options._asdict())]
    group = Group(command, environment(gpus, program.options.on_gpu, program.folder))
    try:
        if told := group.answers(READY)[0]["settings"]:
            measured.facts["settings of mpsfunc"] = told
        for kind in dict.fromkeys(side.kind for side in sides):
            group.ask(READY, do="begin", kind=kind)
            for _ in range(program.turns):
                for side in (side for side in sides if side.kind == kind):
                    found = group.ask(ANSWER, do="turn", ahead=side.ahead, steps=measured.steps)
                    seconds, launched = (max(each[name] for each in found) for name in ("seconds", "launched"))
                    measured.turns.append(Turn(side, number, seconds, launched, tuple(each["peak"] for each in found)))
        if library == OURS and number == 0:
            measured.losses[gpus] = group.ask(ANSWER, do="losses")[0]["losses"]
    finally:
        group.end()


def failed(measured: Measured, library: str, size: int, what: str, why: Failed) -> None:
    """Notes it."""
    note = f"{library}, {size} GPUs, {what}: {why}"
    measured.notes.append(note)
    print(note, flush=True)


# Processes that go --------------------------------------------------------------------------------------


def events(program: Program, measured: Measured, size: int) -> None:
    """Two groups train by the example; the last process of each is killed or stopped. Notes how all others end."""
    example = [str(ROOT / "docs/examples/train_across_gpus.py"), "--network", "small", "--pixels", "32"]
    example += ["--steps", "1000000", "--batch", "8"]
    signals = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
    groups = {how: Group(example, environment(size, program.options.on_gpu, program.folder)) for how in signals}
    sent: dict[str, float] = {}
    try:
        for how, group in groups.items():
            if takes_steps(group):
                group.ranks[-1].send_signal(signals[how])
                sent[how] = time.monotonic()
            else:
                failed(measured, OURS, size, how, Failed(f"the example takes no steps: {group.stderr(0)[-300:]}"))
        for how, at in sent.items():
            measured.events += ends(groups[how], how, at)
    finally:
        for group in groups.values():
            group.end()


def takes_steps(group: Group) -> bool:
    """Waits until tqdm has counted some."""
    until = time.monotonic() + ANSWER
    while time.monotonic() < until and all(rank.poll() is None for rank in group.ranks):
        if re.search(r"\| [1-9]\d+/", group.stderr(0)):
            return True
        time.sleep(0.1)
    return False


def ends(group: Group, how: str, at: float) -> Iterator[Event]:
    """Of all ranks but the last one, which went at that time."""
    others = group.ranks[:-1]
    ended: dict[int, float] = {}
    while len(ended) < len(others) and time.monotonic() < at + GONE:
        for i, rank in enumerate(others):
            if i not in ended and rank.poll() is not None:
                ended[i] = time.monotonic() - at
        time.sleep(0.05)
    for i, rank in enumerate(others):
        said = re.search(r"mpsfunc: .*? ends|\w*Error.*", group.stderr(i))
        yield Event(group.size, how, i, ended.get(i), rank.poll(), said[0].strip() if said else "nothing")


if __name__ == "__main__":
    raise SystemExit(main())
