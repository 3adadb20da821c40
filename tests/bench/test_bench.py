"""The benchmark's arithmetic on known data, and one row of every program that runs without a GPU."""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.benchmarks import COPY, OURS, PYTORCH, Target

from . import clock, cupti, memory, report, rounds, stats
from .cupti import Kernel
from .problems import Problem, error
from .results import Row
from .rivals import Call, Refused

ROOT = Path(__file__).parents[2]
AVG_POOL_GRAD = Problem("avg_pool_grad", (2, 8, 8, 4), "float32", 3, 2, 1)


def _row(times: dict[str, list[float]], *targets: Target) -> Row:
    return Row(AVG_POOL_GRAD, times, dict.fromkeys(times, 1), {}, {}, targets)


def test_ratio_of_constant_pairs_has_no_width() -> None:
    assert stats.paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.0)


def test_ratio_is_of_pairs_and_not_of_medians() -> None:
    assert stats.paired([1.0, 10.0, 100.0], [1.0, 2.0, 200.0]).median == 1.0


def test_interval_covers_the_median_of_a_known_distribution() -> None:
    samples = np.random.default_rng(1).normal(1.5, 0.1, (200, 30))
    ratios = [stats.paired(row, np.ones(30)) for row in samples]
    assert 180 <= sum(r.low <= 1.5 <= r.high for r in ratios) < 200
    theory = 2 * 1.96 * math.sqrt(math.pi / 2) * 0.1 / math.sqrt(30)
    assert np.mean([r.high - r.low for r in ratios]) == pytest.approx(theory, rel=0.15)


def test_rounds_that_a_rival_sat_out_do_not_count() -> None:
    assert stats.paired([6.0, math.nan, 6.0], [2.0, 100.0, 2.0]).median == 3.0
    assert stats.median([1.0, math.nan, 3.0]) == 2.0


@pytest.mark.parametrize(
    ("ratio", "met"), [((1.0, 0.97, 1.1), True), ((1.0, 0.96, 1.1), False), ((0.99, 0.98, 1.1), False)]
)
def test_target_needs_the_median_and_97_percent_of_it_at_the_lower_end(
    ratio: tuple[float, float, float], met: bool
) -> None:
    assert stats.Ratio(*ratio).reaches(1.0) is met


def test_necessary_bytes_count_each_pass() -> None:
    image, pooled = 2 * 8 * 8 * 4 * 4, 2 * 4 * 4 * 4 * 4
    assert AVG_POOL_GRAD.necessary_bytes == image + pooled
    assert Problem("bn_backward", AVG_POOL_GRAD.shape, "float32").necessary_bytes == 5 * image
    outputs = AVG_POOL_GRAD.necessary_bytes - image
    assert AVG_POOL_GRAD._replace(op="max_pool_grad").necessary_bytes == image + outputs + outputs // 4  # a byte each
    assert AVG_POOL_GRAD._replace(op="l2_pool_grad").necessary_bytes == 2 * (image + outputs)
    assert AVG_POOL_GRAD._replace(dtype="bfloat16").necessary_bytes == (image + pooled) // 2


def test_bfloat16_inputs_are_numbers_that_bfloat16_has() -> None:
    wide = AVG_POOL_GRAD.inputs().x
    x = AVG_POOL_GRAD._replace(dtype="bfloat16").inputs().x
    assert not np.any(x.view(np.uint32) & 0xFFFF)
    np.testing.assert_allclose(x, wide, rtol=2**-8)


def test_error_sees_a_wrong_entry_a_missing_number_and_a_wrong_shape() -> None:
    right = np.ones(100)
    assert error([right], [right]) == 0
    assert error([right + 0.1 * (np.arange(100) == 3)], [right]) == pytest.approx(0.01)
    assert error([right * math.nan], [right]) == math.inf
    assert error([right.reshape(10, 10)], [right]) == math.inf


def test_slow_rivals_take_part_in_ten_rounds() -> None:
    times = clock.interleave({"fast": lambda: 0.001, "slow": lambda: 1.0}, 30)
    assert [sum(not math.isnan(t) for t in times[name]) for name in ("fast", "slow")] == [30, 10]


def test_calls_are_timed_one_by_one_and_their_results_dropped() -> None:
    alive: list[weakref.ref[np.ndarray]] = []
    kept: list[int] = []

    def call() -> np.ndarray:
        kept.append(sum(ref() is not None for ref in alive))
        result = np.zeros(3)
        alive.append(weakref.ref(result))
        return result

    def run(call: Call, times: int) -> None:
        results = [call() for _ in range(times)]
        del results

    side = SimpleNamespace(run=run)
    assert clock.one_by_one(side, call, 4)() >= 0 and kept == [0] * 5
    kept.clear()
    assert clock.wall(side, call, 4)() >= 0 and max(kept) == 3


def test_targets_are_of_calls_that_are_dropped_and_shares_of_those_that_are_kept(tmp_path: Path) -> None:
    times = {OURS: [2.0] * 9, PYTORCH[0]: [1.0] * 9}
    kept = {OURS: [1.0] * 9, PYTORCH[0]: [4.0] * 9, COPY: [0.5] * 9}
    row = Row(AVG_POOL_GRAD, times, dict.fromkeys(kept, 10), kept, {}, (Target(PYTORCH, 1.0),))
    assert row.measured(row.targets[0]).median == 0.5 and not row.meets(row.targets[0])
    scale = AVG_POOL_GRAD.necessary_bytes / (2 * AVG_POOL_GRAD.image_bytes)
    assert row.share().median == pytest.approx(0.5 * scale)
    text = report.write(tmp_path, "cpu", "Speed", {}, "By hand.", [row])
    (line,) = [line for line in text.splitlines() if line.startswith("| avg_pool_grad") and "to 50%" not in line][1:]
    assert "| 2000 | 1000 | 0.50 (0.50 to 0.50) | 1000 | 4000 |" in line
    table = csv.DictReader((tmp_path / "cpu.csv").read_text().splitlines())
    records = {record["rival"]: record for record in table}
    assert [records[name]["ms"] for name in (OURS, COPY)] == ["2000.0", "500.0"]
    assert records[COPY]["ours_is_faster"] == "0.5" and records[PYTORCH[0]]["kept_ms"] == "4000.0"


def test_target_is_measured_against_the_fastest_rival_it_names() -> None:
    row = _row({OURS: [1.0, 1.0], PYTORCH[0]: [3.0, 3.0], PYTORCH[1]: [2.0, 2.0], COPY: [0.8, 0.8]})
    assert row.measured(Target(PYTORCH, 1)) == (2.0, 2.0, 2.0)
    moved, copied = AVG_POOL_GRAD.necessary_bytes, 2 * AVG_POOL_GRAD.image_bytes
    assert row.measured(Target((COPY,), 0.6)) == pytest.approx([0.8 * moved / copied] * 3)
    assert row.measured(Target(("MLX",), 1)) is None


def test_tables_say_what_was_met_missed_and_wrong(tmp_path: Path) -> None:
    targets = Target(PYTORCH, 2), Target(PYTORCH, 3)
    row = _row({OURS: [1.0], PYTORCH[0]: [2.0], COPY: [0.5]}, *targets)._replace(wrong={"MLX": 0.5}, routed=True)
    text = report.write(tmp_path, "table", "Title", {"processor": "some"}, "How.", [row])
    assert (tmp_path / "table.md").read_text() == text
    assert "| avg_pool_grad 3x3 s2 p1 | float32 | 2x8x8x4 | 2 x PyTorch | 2.00 (2.00 to 2.00) | met | routed |" in text
    assert "| 3 x PyTorch | 2.00 (2.00 to 2.00) | **missed** |" in text
    assert "wrong by 0.5" in text
    said = "mpsfunc is at least as fast as PyTorch's faster layout in 1 of 1 rows, 2.00 times as fast in the median row"
    assert f"# Title\n\n![{said}; 1 of 2 targets are met, 1 missed](table.svg)\n\nHow.\n" in text
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert [line.split(",")[14] for line in lines] == ["rival", OURS, PYTORCH[0], COPY, "MLX"]


def test_the_same_kernels_are_as_fast(tmp_path: Path) -> None:
    target, launched = Target(("MLX",), 1), (Kernel("void wgrad(float*)", 1.0, 990.0),)
    row = _row({OURS: [1.0], "MLX": [0.992], COPY: [0.5]}, target)
    assert row.meets(target) is False
    assert row._replace(kernels={OURS: launched}).meets(target) is False
    tied = row._replace(kernels={OURS: launched, "MLX": launched})
    assert tied.meets(target) is True and tied.nearly(target) and tied.meets(Target(("PyTorch",), 1)) is None
    ahead = tied._replace(times={**tied.times, "MLX": [1.01]})
    assert ahead.meets(target) is True and not ahead.nearly(target)
    assert tied._replace(times={**tied.times, "MLX": [0.98]}).meets(target) is False
    assert tied.meets(Target(("MLX",), 1.3)) is False and tied.meets(Target(("MLX",), 0.9)) is True
    assert tied._replace(times={**tied.times, "MLX": [0.95]}).meets(Target(("MLX",), 0.9)) is True
    twice = (launched[0]._replace(launches=2.0),)
    assert tied._replace(kernels={OURS: launched, "MLX": twice}).meets(target) is False
    text = report.write(tmp_path, "table", "Title", {}, "How.", [tied])
    assert "| 0.99 (0.99 to 0.99) | met | same kernels |" in text and "Kernels behind" not in text
    assert "![1 of 1 targets are met, 0 missed; 1 of those met are 0.99 with the same kernels](table.svg)" in text


def test_what_is_missed_shows_its_kernels(tmp_path: Path) -> None:
    ours = Kernel("void cast(float*)", 1.0, 2.5), Kernel("void mlx::core::wgrad(float*)", 0.5, 20.0)
    kernels = {OURS: ours, "MLX": ours[1:], PYTORCH[0]: ours[:1]}
    times = {OURS: [1.0], "MLX": [0.9], PYTORCH[0]: [2.0]}
    targets = Target(("MLX",), 1), Target(("MLX",), 2), Target((COPY,), 2), Target(PYTORCH, 1)
    kernels[COPY] = ours[:1]
    row = _row({**times, COPY: [1.0]}, *targets)._replace(kernels=kernels)
    text = report.write(tmp_path, "table", "Title", {}, "How.", [row])
    lines = text[text.index("## Kernels behind what is missed") :].splitlines()[6:]
    known = "| avg_pool_grad 3x3 s2 p1 | float32 | 2x8x8x4 |"
    assert lines == [
        f"{known} {OURS} | `wgrad` | 0.5 | 20.0 |",
        f"{known} {OURS} | `cast` | 1 | 2.5 |",
        f"{known} MLX | `wgrad` | 0.5 | 20.0 |",
    ]


def test_kernels_are_counted_a_call() -> None:
    found = [SimpleNamespace(name=name, device_time=time) for name, time in (("b", 3.0), ("a", 1.0), ("b", 5.0))]
    assert cupti.kernels(found, 2) == (("a", 0.5, 0.5), ("b", 1.0, 4.0))


@pytest.mark.programs
@pytest.mark.parity
def test_quick_run_makes_a_row_for_each_dtype(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from . import cpu

    args = argparse.Namespace(only=["avg_pool_grad"], quick=True, rounds=2, jax=False, openblas=None)
    args.dtype, args.minutes, args.no_mlx = None, None, False
    rows = cpu.main(args)
    assert [(row.problem.title, row.problem.dtype) for row in rows] == [
        *(
            (f"avg_pool_grad {window}", kind)
            for window in ("3x3 s2 p1", "2x2 s2 p0")
            for kind in ("float32", "bfloat16")
        ),
        ("avg_pool_grad 3x3 s2 p1 clamp", "float32"),
    ]
    assert all({OURS, *PYTORCH} <= {*row.times, *row.wrong} and COPY in row.kept for row in rows)
    assert all("MLX" in {*row.times, *row.wrong} for row in rows[:4])  # which has no clamp
    text = report.write(tmp_path, "cpu", "Speed", {}, "", rows)
    assert "| avg_pool_grad 3x3 s2 p1 | bfloat16 |" in text


@pytest.mark.parity
def test_wrong_answers_are_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from . import cpu
    from .rivals import ours, stock

    right = ours.functions.avg_pool_grad

    def wrong(p: Problem, a: SimpleNamespace) -> Call:
        return lambda: [1.01 * right(p, a)()[0]]

    args = argparse.Namespace(rounds=1, jax=False, openblas=None, no_mlx=False)
    monkeypatch.setattr(stock.functions, "avg_pool_grad", wrong)
    row = cpu.measure(AVG_POOL_GRAD, (), args)
    assert row.wrong["MLX"] == pytest.approx(0.01, rel=1e-3) and "MLX" not in row.times

    def refusing(p: Problem, a: SimpleNamespace) -> Call:
        raise Refused

    monkeypatch.setattr(stock.functions, "avg_pool_grad", refusing)
    row = cpu.measure(AVG_POOL_GRAD, (), args)
    assert row.wrong["MLX"] is None and "MLX" not in row.times
    assert "| refused |" in report.write(tmp_path, "cpu", "Speed", {}, "", [row])
    monkeypatch.setattr(ours.functions, "avg_pool_grad", wrong)
    with pytest.raises(AssertionError, match="avg_pool_grad 3x3 s2 p1 float32: wrong"):
        cpu.measure(AVG_POOL_GRAD, (), args)


def test_memory_limit_is_for_ours(tmp_path: Path) -> None:
    problem = Problem("conv_grad_weights", (8, 224, 224, 64), "float32", 3, 1, 1)
    growths = [memory.Growth(problem, {OURS: n, "MLX": 10**9}, 147456) for n in (31 * 10**6, 33 * 10**6)]
    assert [growth.met for growth in growths] == [True, False]
    text = report.write_memory(tmp_path, {}, "How.", growths)
    assert "inputs and outputs: 33.0 for mpsfunc, 1000.0 for MLX; 1 of 2 limits are met, 1 missed](memory.svg)" in text
    assert "| 31.0 | 1000.0 | 32 MB, met |" in text and "| 33.0 | 1000.0 | 32 MB, missed |" in text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_that_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is told what the operation is given."""
    monkeypatch.chdir(ROOT)
    problem = AVG_POOL_GRAD._replace(shape=(1, 24, 24, 64))
    for side in (OURS, "MLX"):
        grown, outputs = memory._in_fresh_process(problem, side)
        assert outputs == problem.image_bytes <= grown


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        ("tests.bench.__main__", "mlx"),  # processors are chosen, and TensorFloat-32, before it is there
        ("tests.bench.memory, tests.bench.rivals.stock", "mpsfunc"),  # which changes how MLX keeps memory
        ("tests.bench.networks, tests.bench.peak, tests.bench.rivals.networks_mlx", "mpsfunc"),
    ],
)
def test_what_is_imported_too_early_would_change_what_is_measured(modules: str, without: str) -> None:
    program = f"import sys, {modules}; print({without!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_kept_rows_are_those_of_the_same_commit_and_come_back_whole(tmp_path: Path) -> None:
    kept = rounds.Kept(tmp_path / "made" / rounds.NAME, {"commit": "a"})
    assert kept.rows() == {}
    first, second = _row({OURS: [1.0, 2.0], COPY: [3.0, math.nan]}), _row({OURS: [4.0]})
    second = second._replace(problem=second.problem._replace(dtype="bfloat16"), wrong={"MLX": 0.5})
    for row in (first, second):
        kept.add(row)
    read = kept.rows()
    assert [*read] == [first.problem, second.problem] and read[second.problem] == second
    assert read[first.problem].times[OURS] == [1.0, 2.0] and math.isnan(read[first.problem].times[COPY][1])
    other = kept._replace(of={"commit": "b"})
    assert other.rows() == {}
    other.add(second)
    assert [*other.rows()] == [second.problem] and kept.rows() == {}


@pytest.mark.parity
def test_a_run_goes_on_where_the_one_before_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from . import cpu

    timed: list[Problem] = []

    def measure(problem: Problem, targets: tuple[Target, ...], args: argparse.Namespace) -> Row:
        timed.append(problem)
        return Row(problem, {OURS: [1.0]}, {OURS: 1}, {OURS: [1.0]}, {}, targets)

    monkeypatch.setattr(cpu, "measure", measure)
    kept = rounds.Kept(tmp_path / rounds.NAME, {})
    args = argparse.Namespace(only=["relu", "gelu"], quick=False, dtype=["float32"], minutes=None)
    first = cpu.main(argparse.Namespace(**{**vars(args), "only": ["relu"]}), kept)
    assert [row.problem.op for row in first] == ["relu"] and first[0].targets
    assert cpu.main(argparse.Namespace(**{**vars(args), "minutes": 1e-9}), kept) == first  # no time for gelu
    assert [row.problem.op for row in cpu.main(args, kept)] == ["relu", "gelu"]
    assert cpu.main(args, kept)[0] == first[0] and [p.op for p in timed] == ["relu", "gelu"]
