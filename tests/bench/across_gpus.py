"""Training on several GPUs of one host, beside PyTorch's DistributedDataParallel: speed, losses, processes that go.

python -m tests.bench.across_gpus --gpus 1 2 --commit HASH --out DIR      the page and the CSV
python -m tests.bench.across_gpus --gpus 1 2 4 8 --out DIR
python -m tests.bench.across_gpus --quick                                 two processes on a CPU: to see that it runs

All sides live until the end and take turns. What fails or takes too long is reported, and the rest is still measured
and written.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import across_gpus_page, report
from .across_gpus_groups import ROOT, Failed, Group, environment
from .across_gpus_page import OURS, Event, Measured, Side, Turn
from .across_gpus_ranks import OWN, SYNCHRONISED, Options

UNLIMITED, PYTORCH = "mpsfunc, no launch limit", "PyTorch"
LIBRARIES: dict[str, tuple[str, dict[str, str]]] = {  # what ranks import, and variables
    OURS: ("mpsfunc", {}),
    UNLIMITED: ("mpsfunc", {"MPSFUNC_RUN_AHEAD": "0"}),
    PYTORCH: ("torch", {}),
}
ROUNDS, LEAST, STEPS = 10, 3, 20
READY, ANSWER = 180.0, 60.0  # seconds for all first steps, and for a turn
LAST = 80.0  # seconds of what comes after the turns
GONE = 75.0  # seconds for which processes are given to notice that one is gone


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
    found.add_argument("--seconds", type=float, default=300, help="for everything")
    found.add_argument("--quick", action="store_true", help="a small network on a CPU, few steps")
    found.add_argument("--commit", help="what is measured, where there is no git")
    found.add_argument("--out", type=Path, help="folder of page and CSV; default: one that is printed")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes page and CSV after each part."""
    args = parser().parse_args(arguments)
    gpus = tuple(sorted({1, *args.gpus}))
    options = Options("resnet50", args.batch, 224, "bfloat16", (), True)
    if args.quick:
        options = Options("small", 2, 32, "float32", (), False)
    out = args.out or Path(tempfile.mkdtemp())
    measured = Measured(options, gpus, 3 if args.quick else STEPS, facts(args.commit, options.on_gpu))
    with tempfile.TemporaryDirectory() as folder:
        rounds = 2 if args.quick else ROUNDS
        program = Program(options, gpus, time.monotonic() + args.seconds, Path(folder), rounds)
        groups: dict[tuple[str, int], Group] = {}
        try:
            groups |= started(program, measured)
            turns(program, measured, groups)
            print(across_gpus_page.write(out, measured), flush=True)
            losses(measured, groups)
            if max(gpus) > 1:
                events(program, measured, max(gpus))
        finally:
            for group in groups.values():
                group.end()
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


def started(program: Program, measured: Measured) -> dict[tuple[str, int], Group]:
    """Groups of all libraries and sizes, once they have taken their first steps, all at the same time."""
    groups = {}
    for library, (module, variables) in LIBRARIES.items():
        for size in program.gpus:
            if kinds := kinds_of(program, library, size):
                options = json.dumps(program.options._replace(kinds=kinds)._asdict())
                command = ["-m", "tests.bench.across_gpus_ranks", module, options]
                ranks = environment(size, program.options.on_gpu, program.folder)
                groups[library, size] = Group(command, [{**each, **variables} for each in ranks])
    until = time.monotonic() + min(READY, program.left())
    for key, group in list(groups.items()):
        try:
            settings = group.answers(max(1.0, until - time.monotonic()))[0]["settings"]
            measured.facts.setdefault(f"settings of {key[0]}", settings)
        except Failed as why:
            failed(measured, *key, "first steps", why)
            del groups[key]
    print(f"{len(groups)} groups are ready, {program.left():.0f} s left", flush=True)
    return groups


def kinds_of(program: Program, library: str, size: int) -> tuple[str, ...]:
    """The statistics with which a library trains on so many GPUs."""
    if size == 1:
        return () if library == UNLIMITED else (OWN,)
    on_gpu = program.options.on_gpu
    return (OWN, SYNCHRONISED) if on_gpu or library != PYTORCH else (OWN,)  # SyncBatchNorm is for GPUs


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
                    found = group.ask(ANSWER, do="turn", kind=side.kind, steps=measured.steps)
                except Failed as why:
                    failed(measured, side.library, side.gpus, side.kind, why)
                    del groups[side.library, side.gpus]
                    continue
                seconds, launched = (max(each[name] for each in found) for name in ("seconds", "launched"))
                measured.turns.append(Turn(side, i, seconds, launched, tuple(each["peak"] for each in found)))
        longest = max(longest, time.monotonic() - begun)


def failed(measured: Measured, library: str, size: int, what: str, why: Failed) -> None:
    """Notes it."""
    note = f"{library}, {size} GPUs, {what}: {why}"
    measured.notes.append(note)
    print(note, flush=True)


# Losses -------------------------------------------------------------------------------------------------


def losses(measured: Measured, groups: dict[tuple[str, int], Group]) -> None:
    """Those of ours, of each number of processes with the same images in all, with synchronised statistics."""
    for key, group in list(groups.items()):
        if key[0] == OURS:
            try:
                measured.losses[key[1]] = group.ask(ANSWER, do="losses")[0]["losses"]
            except Failed as why:
                failed(measured, *key, "losses", why)
                del groups[key]


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
        said = re.search(r"mpsfunc: .*|\w*Error.*", group.stderr(i))
        yield Event(group.size, how, i, ended.get(i), rank.returncode, said[0].strip() if said else "nothing")


if __name__ == "__main__":
    raise SystemExit(main())
