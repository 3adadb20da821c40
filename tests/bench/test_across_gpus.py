"""The benchmark of training on several GPUs: its page of given figures, groups that fail, and a run on a CPU."""

from __future__ import annotations

import csv
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from mpsfunc.core import mlx_settings

from . import across_gpus, across_gpus_page
from .across_gpus_groups import MARK, Failed, Group, environment
from .across_gpus_page import EXAMPLES, OURS, Event, Measured, Side, Turn
from .across_gpus_ranks import OWN, SYNCHRONISED, Options

OPTIONS = Options("resnet50", 100, 224, "bfloat16", True)
AHEAD = (float(mlx_settings.PERCENT), float(EXAMPLES))


def measured(two: float = 0.021, synchronised: float = 0.024) -> Measured:
    """Three rounds; one GPU takes 20 ms, or 22 with the default limit."""
    found = Measured(OPTIONS, (1, 2), 20, {"commit": "abc"})
    for i in range(3):
        for ahead, more in zip(AHEAD, (0.002, 0.0), strict=True):
            for gpus, kind, seconds in ((1, OWN, 0.02), (2, OWN, two), (2, SYNCHRONISED, synchronised)):
                side, peaks = Side(OURS, gpus, kind, ahead), (2 * 10**9,) * gpus
                found.turns += [Turn(side, i, seconds + more + noise, 0.01, peaks) for noise in (0, 0.001, 0)]
    found.losses = {1: [2.0, 1.0], 2: [2.0, 1.0005]}
    found.events = [Event(2, "stopped", 0, 31.25, 1, "mpsfunc: rank 0 took no step in 30 s and ends")]
    return found


def targets(page: str) -> dict[str, str]:
    rows = [
        line.strip("| ").split(" | ")
        for line in page.partition("## Targets")[2].splitlines()
        if "least" in line or "most" in line
    ]
    return {row[0]: row[-1] for row in rows}


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    page = across_gpus_page.write(tmp_path, measured())
    assert page == (tmp_path / "distributed_2.md").read_text()
    assert "| mpsfunc | 2 | own | 50 | 21.0 | 10.0 | 9524 | 0.952 (0.952 to 0.952) | 1.048 (1.048 to 1.048) |" in page
    assert "| mpsfunc | 2 | synchronised | 50 | 24.0 |" in page and "1.143 (1.143 to 1.143)" in page
    assert "there were 3. In a turn" in page and "A group takes 3 turns of each kind" in page
    assert "| 2 | stopped | 0 | 31.2 | 1 | mpsfunc: rank 0 took no step in 30 s and ends |" in page
    assert set(targets(page).values()) == {"met"} and len(targets(page)) == 5
    assert "DistributedDataParallel" not in page  # which has no rows here
    records = list(csv.DictReader((tmp_path / "distributed_2.csv").read_text().splitlines()))
    assert len([each for each in records if each["unit"] == "s a step"]) == len(measured().turns)
    assert {"part": "fact", "kind": "commit", "value": "abc"}.items() <= records[-1].items()


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"two": 0.0213}, "speed of the example on 2 GPUs, of 2 times one"),
        ({"synchronised": 0.0245}, "step of the example with synchronised statistics, 2 GPUs, of one without"),
        ({"losses": [2.0, 1.002]}, "losses, 2 processes and one, largest difference"),
        ({"seconds": 60.5}, "seconds until all others have ended with an error, stopped"),
        ({"seconds": None}, "seconds until all others have ended with an error, stopped"),
        ({"returncode": 0}, "seconds until all others have ended with an error, stopped"),
    ],
)
def test_what_falls_short_is_told(changes: dict, missed: str, tmp_path: Path) -> None:
    found = measured(**{name: value for name, value in changes.items() if name in ("two", "synchronised")})
    if "losses" in changes:
        found.losses[2] = changes["losses"]
    event = {name: value for name, value in changes.items() if name in ("seconds", "returncode")}
    found.events = [found.events[0]._replace(**event)]
    said = targets(across_gpus_page.write(tmp_path, found))
    assert [what for what, how in said.items() if how == "**missed**"] == [missed]


def test_a_page_of_nothing_is_written(tmp_path: Path) -> None:
    found = Measured(OPTIONS, (1, 2), 20, {})
    found.notes.append("mpsfunc, 2 GPUs, round 0: rank 1 ended")
    page = across_gpus_page.write(tmp_path, found)
    assert "- mpsfunc, 2 GPUs, round 0: rank 1 ended" in page and "## Targets" not in page


def test_the_document_has_the_figures_of_the_page() -> None:
    docs = across_gpus.ROOT / "docs"
    page = (docs / "benchmarks/distributed_2.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "| mpsfunc |" in line]
    found = {(row[1], row[2], row[3]): row for row in rows}
    told = re.findall(r"^\| `MPSFUNC_RUN_AHEAD=(\d+)`(.*)\|$", (docs / "distributed.md").read_text(), re.MULTILINE)
    assert len(told) == 4
    for ahead, rest in told:
        what, one, two, ratio, memory = (cell.strip() for cell in rest.split("|"))
        here = found["2", "synchronised" if "synchronised" in what else "own", ahead]
        assert two.replace(",", "") == here[6] and ratio == here[7].partition(" ")[0]
        assert memory == f"{max(map(float, here[10].split(', '))):.1f} GB"
        if one:
            assert one.replace(",", "").removesuffix(" images/s") == found["1", "own", ahead][6]
    longer = float(found["2", "synchronised", "50"][9].partition(" ")[0])
    assert f"takes {longer:.2f} times as long" in (docs / "distributed.md").read_text()


# Groups -------------------------------------------------------------------------------------------------


def ranks(*lines: str, size: int = 2) -> Group:
    text = "import os, sys, time\nrank = int(os.environ['RANK'])\nprint('library: hello', flush=True)\n" + "\n".join(
        lines
    )
    return Group(["-c", text], [{"RANK": str(rank)} for rank in range(size)])


def test_a_group_answers_line_by_line() -> None:
    group = ranks("for line in sys.stdin:", f"    print('{MARK}' + '{{\"rank\": %d}}' % rank, flush=True)")
    try:
        assert group.ask(30, do="turn") == group.ask(30, do="turn") == [{"rank": 0}, {"rank": 1}]
    finally:
        group.end()
    assert [rank.returncode for rank in group.ranks] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raise ValueError('no such network')", "rank 0 ended with 1: ValueError: no such network"),
        ("time.sleep(60)", "rank 0 did not answer in 1 s"),
        ("os._exit(3) if rank else time.sleep(60)", "rank 0 did not answer in 1 s"),
    ],
)
def test_a_group_that_fails_is_ended(line: str, why: str) -> None:
    group, begun = ranks(line), time.monotonic()
    with pytest.raises(Failed, match=why):
        group.ask(1 if "sleep" in line else 30, do="turn")
    assert all(rank.returncode is not None for rank in group.ranks) and time.monotonic() - begun < 30


def test_how_the_others_end_is_noted() -> None:
    """Of three ranks the last one goes, the first ends by an error and the second stays."""
    last = "time.sleep(60 if rank else 1)", "os._exit(1)"
    group = ranks("print('5%| 13/100', 'mpsfunc: rank 0 took no step', file=sys.stderr, flush=True)", *last, size=3)
    try:
        assert across_gpus.takes_steps(group)
        group.ranks[0].wait(30)
        first, second = across_gpus.ends(group, "killed", time.monotonic() - across_gpus.GONE + 1)
    finally:
        group.end()
    assert (first.rank, first.returncode) == (0, 1) and first.seconds
    assert (second.rank, second.seconds, second.returncode) == (1, None, None)


def test_ranks_are_told_who_they_are(tmp_path: Path) -> None:
    alone, *_ = environment(1, True, tmp_path)
    assert alone["WORLD_SIZE"] == "1" and "MLX_RANK" not in alone
    first, second = environment(2, True, tmp_path)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in (first, second)] == ["0", "1"]
    assert first["NCCL_PORT"] == second["NCCL_PORT"] != first["MASTER_PORT"] and second["MLX_RANK"] == "1"
    on_cpu = environment(2, False, tmp_path)[0]
    assert Path(on_cpu["MLX_HOSTFILE"]).exists() and "NCCL_PORT" not in on_cpu


def test_sides_are_what_a_library_does(tmp_path: Path) -> None:
    program = across_gpus.Program(OPTIONS, (1, 2), (OURS, "PyTorch"), AHEAD, 0.0, tmp_path, 1, 1)
    assert across_gpus.sides(program, OURS, 1) == [Side(OURS, 1, OWN, ahead) for ahead in AHEAD]
    assert [side[2:] for side in across_gpus.sides(program, "PyTorch", 2)] == [(OWN, None), (SYNCHRONISED, None)]


def test_a_group_that_fails_is_noted_and_the_next_one_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_group(program: across_gpus.Program, found: Measured, number: int, sides: list[Side]) -> None:
        if sides[0].gpus == 2:
            raise Failed("rank 1 ended")
        found.turns.append(Turn(sides[0], number, 0.02, 0.01, (1,)))

    monkeypatch.setattr(across_gpus, "one_group", one_group)
    found = Measured(OPTIONS, (1, 2), 20, {})
    program = across_gpus.Program(OPTIONS, (1, 2), (OURS,), AHEAD, time.monotonic() + 1000, tmp_path, 2, 1)
    across_gpus.rounds(program, found)
    assert [turn.round for turn in found.turns] == [0, 1] and len(found.notes) == 2
    across_gpus.rounds(program._replace(end=time.monotonic()), found)  # without time the first round comes all the same
    assert len(found.turns) == 3


def test_the_example_has_the_setting_that_is_judged() -> None:
    text = (across_gpus.ROOT / "docs/examples/train_across_gpus.py").read_text()
    assert f'os.environ.setdefault("MPSFUNC_RUN_AHEAD", "{EXAMPLES}")' in text


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.skipif(sys.platform == "win32", reason="MLX's ring needs POSIX")
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(across_gpus, "events", lambda *_: None)
    assert across_gpus.main(["--quick", "--libraries", OURS, "--ahead", str(EXAMPLES), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "distributed_2.md").read_text()
    assert "## What failed" not in page, page
    command = f"python -m tests.bench.across_gpus --quick --libraries {OURS} --ahead {EXAMPLES}"
    assert f"| command | `{command}` |" in page
    assert targets(page)["losses, 2 processes and one, largest difference"] == "met"
    assert "round 0 took" in capsys.readouterr().out
