"""The page of what waits for a GPU."""

from __future__ import annotations

from . import commits


def record(network: str, setting: str, ms: float, mb: float, ahead: float) -> dict[str, str]:
    values = (network, 128, "bfloat16", setting, ms, mb, ahead, "a GPU", "packages", "0" * 40, "today")
    return dict(zip(commits.COLUMNS, map(str, values), strict=True))


def test_times_are_beside_the_fastest_and_memory_beside_what_a_step_needs() -> None:
    records = [
        record("a", "100 launches", 20, 900, 1600),
        record("a", "10 %", 25, 420, 440),
        record("a", commits.ALIVE, 40, 400, 400),
        record("b", "100 launches", 10, 100, 900),
        record("b", "10 %", 10, 100, 110),
        record("b", commits.ALIVE, 16, 100, 100),
        record("c", "10 %", 1, 1, 1),  # one setting of three is no comparison
    ]
    time, ahead, evaluated = commits.page(records)[1::2]
    assert [line.split(" | ")[3:] for line in time.splitlines()[2:]] == [
        ["20.0", "25.0", "40.0 |"],
        ["10.0", "10.0", "16.0 |"],
        ["1.00", "1.12", "1.79 |"],
        ["1.00", "1.25", "2.00 |"],
    ]
    assert ahead.splitlines()[-1].endswith("| 9.00 | 1.10 | 1.00 |")
    assert evaluated.splitlines()[-1].endswith("| 2.25 | 1.05 | 1.00 |")
    assert not any("| c |" in part for part in (time, ahead, evaluated))
