"""Data-parallel training: the example, and the watch over processes that go.

Groups are launched as users would, by mlx.launch; data_parallel_worker.py is what their processes run.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import train_across_gpus
from nn import data_parallel_worker as worker
from support.groups import PLENTY, launched, run

import mpsfunc as mf
from mpsfunc.nn import process_watch

pytestmark = [
    pytest.mark.needs_cpu_module,
    pytest.mark.skipif(sys.platform == "win32", reason="MLX's ring needs POSIX"),
]

WORKER = str(Path(__file__).with_name("data_parallel_worker.py"))


@pytest.mark.programs
def test_the_example_has_the_same_losses_with_two_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture, on_cpu: mx.Device
) -> None:
    losses = train_across_gpus.main([*worker.TRAINING, "--batch", "8"])
    assert losses[-1] < 0.7 * losses[0]
    assert re.match(r"1 processes: \d+ images/s, loss ", capsys.readouterr().out)
    output = run(2, WORKER, str(tmp_path), "train")
    assert "2 processes: " in output, output
    for rank in range(2):
        np.testing.assert_allclose(json.loads((tmp_path / f"{rank}.json").read_text()), losses, rtol=1e-3)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("how", "who", "said"),
    [
        ("killed", 1, "mpsfunc: rank 1 ended, says rank 0"),
        ("killed", 0, "mpsfunc: rank 0 ended, says rank 2"),
        ("raises", 1, "mpsfunc: rank 1 ended, says rank 0"),
        ("stopped", 2, "mpsfunc: rank 2 gave no sign of life in 3 s, says rank 0"),
        ("idles", 1, "took no step in 4.5 s"),
    ],
)
def test_a_process_that_goes_ends_all_others(how: str, who: int, said: str, tmp_path: Path) -> None:
    """Though they wait in what nothing interrupts. Nobody waits for mlx.launch, which waits for one that is stopped."""
    printed = ""
    with launched(3, WORKER, str(tmp_path), how, str(who), patience=PLENTY) as process:
        assert process.stdout
        begun = time.monotonic()
        for line in process.stdout:
            printed += line
            ended = len(re.findall("waits for it without end, and so ends|exited with code", printed))
            if ended >= 2 or time.monotonic() > begun + PLENTY:
                break
    left = float((tmp_path / "leaving").read_text())
    assert said in printed, printed
    assert time.monotonic() - left < worker.SECONDS + process_watch._GRACE + 10


@pytest.mark.programs
def test_a_process_that_takes_its_leave_ends_nobody(tmp_path: Path) -> None:
    assert "mpsfunc" not in run(3, WORKER, str(tmp_path), "leaves", "1")


# One process --------------------------------------------------------------------------------------------


def test_one_process_watches_nobody(on_cpu: mx.Device) -> None:
    with mf.nn.watch_processes() as watch:
        watch.step()


def test_what_is_no_group_or_time_is_refused() -> None:
    with pytest.raises(TypeError, match="watch_processes: not a group; got group='ring'"):
        mf.nn.watch_processes("ring")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="watch_processes: not a time; got seconds='soon'"):
        mf.nn.watch_processes(seconds="soon")  # type: ignore[arg-type]
    for seconds in (1, 51, float("nan")):
        with pytest.raises(ValueError, match="watch_processes: out of range; got seconds="):
            mf.nn.watch_processes(seconds=seconds)


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, 30), ("20", 20), ("300", 30), ("1", 30), ("nan", 30), ("soon", 30)]
)
def test_the_time_is_that_of_gathers_where_that_is_short(
    given: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(process_watch.VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(process_watch.VARIABLE, given)
    assert process_watch._given() == seconds
