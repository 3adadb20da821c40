"""Data-parallel training: the example, and what the others do when a process stops.

Groups are launched as users would, by mlx.launch; data_parallel_worker.py is what their processes run.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import train_across_gpus
from nn import data_parallel_worker as worker
from support.groups import PLENTY, launched, run

pytestmark = [
    pytest.mark.needs_cpu_module,
    pytest.mark.programs,
    pytest.mark.skipif(sys.platform == "win32", reason="MLX's ring needs POSIX"),
]

WORKER = str(Path(__file__).with_name("data_parallel_worker.py"))


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


@pytest.mark.parametrize("others", [1, 2])
def test_a_process_that_stops_ends_all_others(others: int, tmp_path: Path) -> None:
    """Though they wait in an evaluation. Nobody waits for mlx.launch, which waits for the one that is stopped."""
    printed = ""
    with launched(others + 1, WORKER, str(tmp_path), "stopped", patience=PLENTY) as process:
        assert process.stdout
        late = threading.Timer(PLENTY, process.kill)  # which ends what is read here
        late.start()
        for line in process.stdout:
            printed += line
            if len(re.findall("exited with code 1", printed)) >= others:
                break
        late.cancel()
    left = float((tmp_path / "leaving").read_text())
    # What a process says after the first one has ended, mlx.launch may lose, and the ring may have told it before.
    said = rf"mpsfunc: rank \d took no step in 2 s and ends; it is at {re.escape(WORKER)}:"
    assert re.search(said, printed), printed
    assert len(re.findall("exited with code 1", printed)) == others, printed
    assert time.monotonic() - left < worker.SECONDS + 10
