"""Ten rows beside what is kept of them: intervals of several turns, and what left them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# Both import PyTorch, without which the module is skipped.
from tests.bench import compare, results, stats  # noqa: E402
from tests.bench.compare import ROWS, Measured, Ratio  # noqa: E402

pytestmark = pytest.mark.parity


def turn(ours: float, rival: float) -> dict[str, list[float]]:
    return {results.OURS: [ours] * 5, "PyTorch NCHW": [rival] * 5, "PyTorch NHWC": [2 * rival] * 5}


def test_the_interval_reaches_over_all_turns() -> None:
    found = compare._summary([turn(1e-3, 2e-3), turn(1e-3, 3e-3), turn(1e-3, 2.5e-3)])
    assert found.ratio == pytest.approx((2.5, 2.0, 3.0)) and found.ms == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("now", "said"),
    [((1.0, 0.9, 1.1), ""), ((1.3, 1.15, 1.4), ""), ((1.4, 1.25, 1.5), "faster"), ((0.7, 0.6, 0.75), "slower")],
)
def test_what_leaves_its_interval_is_said(now: tuple[float, float, float], said: str) -> None:
    table = {compare.key_of(ROWS[0]): Ratio(1.0, 0.8, 1.2)}
    (verdict,) = compare.compared([(ROWS[0], Measured(Ratio(*now), 1.0))], table)
    assert verdict.problem == ROWS[0] and verdict.said == said
    with pytest.raises(KeyError):
        compare.compared([(ROWS[1], Measured(Ratio(*now), 1.0))], table)


def options(out: Path, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(out=out, quick=True, **{"keep": False, **more})


def test_a_table_is_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    ratios = [1.0]
    monkeypatch.setattr(
        compare,
        "measured",
        lambda rows, rounds: [Measured(Ratio(*[ratios[-1] * f for f in (1, 0.9, 1.1)]), 2.0)] * len(rows),
    )
    assert compare.main(options(tmp_path), "x") == 1
    assert "no table for this kind of processor" in capsys.readouterr().out
    assert compare.main(options(tmp_path, keep=True), "x") == 0
    assert (tmp_path / "compare" / f"{compare.kind()}.csv").exists()
    for ratio, said, status in ((1.05, "no row moved", 0), (2.0, "is faster", 0), (0.5, "is slower", 1)):
        ratios.append(ratio)
        capsys.readouterr()
        assert compare.main(options(tmp_path), "x") == status
        assert said in capsys.readouterr().out


def test_a_table_that_does_not_fit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(compare, "measured", lambda rows, rounds: [Measured(Ratio(1, 1, 1), 1.0)] * len(rows))
    compare.main(options(tmp_path, keep=True), "x")
    path = tmp_path / "compare" / f"{compare.kind()}.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert compare.main(options(tmp_path), "x") == 1
    assert "the table lacks loss softmax_cross_entropy" in capsys.readouterr().out
    path.write_text("".join(lines).replace(torch.__version__, "1.0"))
    assert compare.main(options(tmp_path), "x") == 1
    assert "the table is beside PyTorch 1.0" in capsys.readouterr().out


def test_ten_rows_and_answers_that_are_right() -> None:
    assert len(ROWS) == len(set(ROWS)) == 10
    times = compare._times(ROWS[-1]._replace(shape=(16, 10)), 2)
    assert set(times) == {results.OURS, "PyTorch NCHW"} and all(stats.median(each) > 0 for each in times.values())
