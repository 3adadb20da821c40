"""Training on several GPUs of one host, beside PyTorch's DistributedDataParallel: speed, losses, processes that go.

python -m tests.bench.across_gpus --gpus 1 2 --commit HASH --out DIR      the page and the CSV
python -m tests.bench.across_gpus --gpus 1 2 4 8 --out DIR
python -m tests.bench.across_gpus --gpus 1 2 --variants --out DIR         other ways to average gradients, too
python -m tests.bench.across_gpus --quick                                 two processes on a CPU: to see that it runs

Everything is in one call. What fails or takes too long is reported, and the rest is still measured and written.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import across_gpus_page, report
from .across_gpus_groups import ROOT, Failed, Group, environment
from .across_gpus_page import Event, Measured, Side, Turn
from .across_gpus_ranks import COMPILED, OWN, SYNCHRONISED, VARIANTS, Options

OURS, PYTORCH = "mpsfunc", "PyTorch"
LIBRARIES = {OURS: "mpsfunc", PYTORCH: "torch"}
SETTINGS = ("MPSFUNC_RUN_AHEAD=0", "MLX_USE_CUDA_GRAPHS=1")
ALL = (*VARIANTS, *SETTINGS)
ROUNDS, LEAST, STEPS = 10, 3, 20
READY, ANSWER = 150.0, 60.0  # seconds for all first steps, and for a turn
LAST = 80.0  # seconds of what comes after the turns
GONE = 75.0  # seconds for which processes are given to notice that one is gone
IMAGES, PIXELS = 64, 64  # of the comparison of losses


class Program(NamedTuple):
    """What is measured, and until when."""

    options: Options
    gpus: tuple[int, ...]
    end: float
    folder: Path
    rounds: int

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
    found.add_argument("--seconds", type=float, default=240, help="for everything but variants")
    found.add_argument("--variants", nargs="*", metavar="NAME", help="all, or some of: " + "; ".join(ALL))
    found.add_argument(
        "--only-variants", action="store_true", help="neither PyTorch, nor losses, nor processes that go"
    )
    found.add_argument("--quick", action="store_true", help="a small network on a CPU, few steps")
    found.add_argument("--commit", help="what is measured, where there is no git")
    found.add_argument("--out", type=Path, help="folder of page and CSV; default: one that is printed")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes page and CSV after each part."""
    args = parser().parse_args(arguments)
    gpus = tuple(sorted({1, *args.gpus}))
    options = Options("resnet50", args.batch, 224, "bfloat16", (OWN, SYNCHRONISED), True)
    if args.quick:
        options = Options("small", 2, 32, "float32", (OWN, SYNCHRONISED), False)
    out = args.out or Path(tempfile.mkdtemp())
    measured = Measured(options, gpus, 3 if args.quick else STEPS, facts(args.commit, options.on_gpu))
    with tempfile.TemporaryDirectory() as folder:
        rounds = 2 if args.quick else ROUNDS
        program = Program(options, gpus, time.monotonic() + args.seconds, Path(folder), rounds)
        groups: dict[tuple[str, int], Group] = {}
        try:
            groups |= started(program, measured, [OURS] if args.only_variants else [OURS, PYTORCH])
            turns(program, measured, groups)
            print(across_gpus_page.write(out, measured), flush=True)
            if not args.only_variants:
                going = begin_events(program, measured, max(gpus)) if max(gpus) > 1 else []
                losses(program, measured, groups)
                finish_events(measured, going)
        finally:
            for group in groups.values():
                group.end()
        if args.variants is not None:
            across_gpus_page.write(out, measured)
            variants(program, measured, args.variants or ALL)
    print(across_gpus_page.write(out, measured))
    print(f"in {out}, after {args.seconds - program.left():.0f} s")
    return 0


def facts(commit: str | None, on_gpu: bool) -> dict[str, str]:
    """The machine and the software."""
    commit = commit or report.commit(ROOT)
    if not on_gpu:
        return report.cpu_facts(commit, "not asked", 1)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip().splitlines()
    name, driver = lines[0].split(", ")
    return {"GPUs there": str(len(lines)), **report.gpu_facts(commit, name, driver)}


# Speed --------------------------------------------------------------------------------------------------


def started(program: Program, measured: Measured, libraries: Sequence[str]) -> dict[tuple[str, int], Group]:
    """Groups of all libraries and sizes, once they have taken their first steps, all at the same time."""
    groups = {}
    for library in libraries:
        for size in program.gpus:
            groups[library, size] = group_of(program, library, size, kinds_of(program, library, size))
    until = time.monotonic() + min(READY, program.left())
    for (library, size), group in list(groups.items()):
        try:
            settings = group.answers(max(1.0, until - time.monotonic()))[0]["settings"]
            measured.facts.setdefault(f"{library}'s settings", settings)
        except Failed as why:
            failed(measured, library, size, "first steps", why)
            del groups[library, size]
    print(f"{len(groups)} groups are ready, {program.left():.0f} s left", flush=True)
    return groups


def kinds_of(program: Program, library: str, size: int) -> tuple[str, ...]:
    """The ways in which a library trains."""
    if size > 1:
        return program.options.kinds
    return (OWN, COMPILED) if library == OURS else (OWN,)


def group_of(program: Program, library: str, size: int, kinds: Sequence[str], setting: str = "") -> Group:
    """A new one, with a variable such as "NAME=1"."""
    options = json.dumps(program.options._replace(kinds=tuple(kinds))._asdict())
    command = ["-m", "tests.bench.across_gpus_ranks", LIBRARIES[library], options]
    variables = dict([setting.split("=")] if setting else [])
    return Group(command, [{**each, **variables} for each in environment(size, program.options.on_gpu, program.folder)])


def turns(program: Program, measured: Measured, groups: dict[tuple[str, int], Group]) -> None:
    """Every side in turn, round by round, as long as there is time."""
    sides = [Side(*key, kind) for key in groups for kind in kinds_of(program, *key)]
    longest = 0.0
    for i in range(program.rounds):
        begun = time.monotonic()
        if i >= LEAST and program.left() < LAST + longest:
            break
        for side in sides[i % len(sides) :] + sides[: i % len(sides)]:
            if group := groups.get((side.library, side.gpus)):
                try:
                    turn(measured, group, side, i)
                except Failed as why:
                    failed(measured, side.library, side.gpus, side.kind, why)
                    del groups[side.library, side.gpus]
        longest = max(longest, time.monotonic() - begun)


def turn(measured: Measured, group: Group, side: Side, number: int, kind: str | None = None) -> None:
    """One, of a kind that is not called as its side; the time is that of the slowest rank."""
    found = group.ask(ANSWER, do="turn", kind=kind or side.kind, steps=measured.steps)
    seconds, launched = (max(each[name] for each in found) for name in ("seconds", "launched"))
    measured.turns.append(Turn(side, number, seconds, launched, tuple(each["peak"] for each in found)))


def failed(measured: Measured, library: str, size: int, what: str, why: Failed) -> None:
    """Notes it."""
    note = f"{library}, {size} GPUs, {what}: {why}"
    measured.notes.append(note)
    print(note, flush=True)


# Losses -------------------------------------------------------------------------------------------------


def losses(program: Program, measured: Measured, groups: dict[tuple[str, int], Group]) -> None:
    """Those of ours, of each number of processes with the same images in all, with synchronised statistics."""
    size, pixels = (8, 32) if not program.options.on_gpu else (IMAGES, PIXELS)
    asked = {key: group for key, group in groups.items() if key[0] == OURS}
    for group in asked.values():
        group.tell(do="losses", size=size, pixels=pixels)
    for key, group in asked.items():
        try:
            found = group.answers(2 * ANSWER)
        except Failed as why:
            failed(measured, *key, "losses", why)
            del groups[key]
            continue
        measured.losses[key[1]] = [statistics.fmean(each) for each in zip(*(f["losses"] for f in found), strict=True)]


# Processes that go --------------------------------------------------------------------------------------


class Going(NamedTuple):
    """A group of which one process goes, while the example trains."""

    how: str
    group: Group
    at: float  # when


def begin_events(program: Program, measured: Measured, size: int) -> list[Going]:
    """Starts two groups with the example, and has one process of each go, killed or stopped."""
    example = [str(ROOT / "docs/examples/train_across_gpus.py"), "--network", "small", "--pixels", "32"]
    example += ["--steps", "1000000", "--batch", "8"]
    groups = {
        how: Group(example, environment(size, program.options.on_gpu, program.folder)) for how in ("killed", "stopped")
    }
    found = []
    for how, group in groups.items():
        until = time.monotonic() + ANSWER
        while not re.search(r"\| [1-9]\d+/", group.stderr(0)) and time.monotonic() < until:  # tqdm's count of steps
            time.sleep(0.1)
        if time.monotonic() >= until or any(rank.poll() is not None for rank in group.ranks):
            failed(measured, OURS, size, how, Failed(f"the example takes no steps: {group.stderr(0)[-300:]}"))
            group.end()
            continue
        group.ranks[-1].send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        found.append(Going(how, group, time.monotonic()))
    return found


def finish_events(measured: Measured, going: Sequence[Going]) -> None:
    """Waits until all others have ended, and notes how."""
    for how, group, at in going:
        others = group.ranks[:-1]
        ended: dict[int, float] = {}
        while len(ended) < len(others) and time.monotonic() < at + GONE:
            for i, rank in enumerate(others):
                if i not in ended and rank.poll() is not None:
                    ended[i] = time.monotonic() - at
            time.sleep(0.05)
        for i, rank in enumerate(others):
            said = [line for line in re.split(r"[\r\n]", group.stderr(i)) if re.search("mpsfunc: |Error", line)]
            event = Event(group.size, how, i, ended.get(i), rank.returncode, said[0].strip() if said else "nothing")
            measured.events.append(event)
        group.end()


# Variants -----------------------------------------------------------------------------------------------


def variants(program: Program, measured: Measured, names: Sequence[str]) -> None:
    """Other ways beside the two that are measured always, and these with other settings of how launches are made."""
    of_steps = [name for name in names if name in VARIANTS]
    variants_with(program, measured, [OWN, SYNCHRONISED, *of_steps], "")
    for setting in SETTINGS:
        if setting in names:
            variants_with(program, measured, [OWN, SYNCHRONISED], setting)


def variants_with(program: Program, measured: Measured, waiting: Sequence[str], setting: str) -> None:
    """Some with one setting. Where one hangs, a new group goes on with the next."""
    size = program.gpus[-1]

    def take(group: Group, kind: str, number: int) -> None:
        turn(measured, group, Side(OURS, size, ", ".join(filter(None, (kind, setting))), True), number, kind)

    while waiting:
        group = group_of(program, OURS, size, (), setting)
        tried, current = [], waiting[0]
        try:
            group.answers(READY)
            for current in waiting:
                group.ask(READY, do="turn", kind=current, steps=2)  # compile
                take(group, current, 0)
                tried.append(current)
            for number in range(1, 4):
                for current in waiting:
                    take(group, current, number)
        except Failed as why:
            failed(measured, OURS, size, f"{current} {setting}".strip(), why)
            tried.append(current)
        finally:
            group.end()
        waiting = [kind for kind in waiting if kind not in tried]


if __name__ == "__main__":
    raise SystemExit(main())
