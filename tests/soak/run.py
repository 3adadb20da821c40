"""Runs programs, each in a process of its own, and keeps a table of what came out."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
MOST = 20  # findings, after which a program ends
SILENT = 120  # seconds without a round, which hangs then
HEAD = "| program | commit | date | processor | minutes | seeds | rounds | checks | findings | peak memory |"


class Result(NamedTuple):
    """What a program did."""

    name: str
    minutes: float
    seeds: range
    rounds: int
    counts: Counter[str]
    findings: list[str]
    peak: int  # bytes


def child(module: ModuleType, seed: int, at: int | None) -> int:
    """Runs a program for ever, or one round of it; a line of JSON says how each round ended."""
    if at is not None and hasattr(module, "one_round"):
        _tell(at, module.one_round(seed, at))
        return 0
    rounds = module.rounds(seed)
    for number in itertools.count() if at is None else range(at + 1):
        try:
            done = next(rounds)
        except Exception as error:
            if at is not None:
                raise
            print(json.dumps({"round": number, "finding": f"{type(error).__name__}: {error}"}), flush=True)
            return 1
        _tell(number, done)
    return 0


def _tell(number: int, done: Counter[str]) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"round": number, "counts": done, "peak": used}), flush=True)


def run(name: str, title: str, seed: int, seconds: float, silent: float = SILENT) -> Result:
    """Runs a program in fresh processes until the time is over. After a finding it goes on with the next seed."""
    end, counts, findings = time.monotonic() + seconds, Counter[str](), list[str]()
    first, rounds, peak = seed, 0, 0
    while time.monotonic() < end and len(findings) < MOST:
        command = [sys.executable, "-m", "tests.soak", name, "--child", "--seed", str(seed)]
        with (
            tempfile.TemporaryFile() as words,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=words, cwd=ROOT, start_new_session=True
            ) as process,
        ):
            at, finding, over = 0, "", False
            try:
                for line in _lines(process, end, silent):
                    told = json.loads(line)
                    at, finding = told["round"], told.get("finding", "")
                    if not finding:
                        at, rounds, peak = at + 1, rounds + 1, max(peak, told["peak"])
                        counts.update(told["counts"])
                over = time.monotonic() >= end
            except TimeoutError:
                finding = f"nothing came for {silent:.0f} seconds"
            finally:
                if process.poll() is None and (over or finding.startswith("nothing")):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            words.seek(0)
            said = words.read().decode(errors="replace")[-2000:]
        if not finding and not over:
            finding = f"the process ended with {process.returncode}: {said}"
        if finding:
            findings.append(f"{name} --seed {seed} --round {at}: {finding}")
            print(findings[-1], flush=True)
            seed += 1
    return Result(title, seconds / 60, range(first, seed + 1), rounds, counts, findings, peak)


def _lines(process: subprocess.Popen[bytes], end: float, silent: float) -> Iterator[str]:
    """The lines of a process, until it ends or the time is over.

    Raises:
        TimeoutError: It says nothing for too long.
    """
    assert process.stdout is not None
    got, heard = b"", time.monotonic()
    os.set_blocking(process.stdout.fileno(), False)
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 0.2)[0]:
            more = process.stdout.read()
            if more == b"":
                return
            got, heard = got + (more or b""), time.monotonic()
            *whole, got = got.split(b"\n")
            for line in whole:
                if line.startswith(b'{"round"'):
                    yield line.decode()
        elif time.monotonic() - heard > silent:
            raise TimeoutError


def row(result: Result) -> str:
    """A line of the table."""
    seeds = f"{result.seeds[0]}" + (f" to {result.seeds[-1]}" if len(result.seeds) > 1 else "")
    cells = [
        result.name, _commit(), time.strftime("%Y-%m-%d"), _processor(), f"{result.minutes:g}", seeds,
        f"{result.rounds:,}", f"{result.counts.total():,}", f"{len(result.findings)}",
        f"{result.peak / 2**20:,.0f} MiB",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def told(result: Result) -> str:
    """What was checked, by kind."""
    return f"{result.name}: " + ", ".join(f"{kind} {number:,}" for kind, number in sorted(result.counts.items())) + "."


def merged(page: str, results: list[Result]) -> str:
    """The page with these results in the places of those that their programs had."""
    heading, table, kinds = "## Programs", {}, {}
    before, _, rest = page.partition(heading)
    after = ""
    if rest:
        rest, mark, after = rest.partition("\n## ")
        after = mark + after
        table = {
            line.split("|")[1].strip(): line for line in rest.splitlines() if re.match(r"\| (?!program|---)", line)
        }
        kinds = {m[1]: m[0] for m in re.finditer(r"^([a-z ]+): .*\.$", rest, re.MULTILINE)}
    for result in results:
        table[result.name], kinds[result.name] = row(result), told(result)
    ruler = "|" + " --- |" * HEAD.count(" | ") + " --- |"
    lines = [heading, "", HEAD, ruler, *(table[name] for name in sorted(table)), "", "By kind of check:", ""]
    return before + "\n".join(lines) + "\n" + "\n\n".join(kinds[name] for name in sorted(kinds)) + "\n" + after


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT).stdout.strip()

    return git("rev-parse", "--short=7", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return f"{found[1] if found else platform.processor() or platform.machine()}, {os.cpu_count()} cores"
