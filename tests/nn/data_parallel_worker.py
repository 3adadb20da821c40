"""What one process of several does for test_data_parallel.py, which launches this file.

``FOLDER train`` saves the losses of the example; ``FOLDER stopped`` has the last process stop while all take steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import mlx.core as mx
import train_across_gpus

import mpsfunc as mf

SECONDS, FIRST = 2.0, 60.0
TRAINING = ["--synchronised", "--steps", "20", "--pixels", "16", "--rate", "0.02"]


def train(folder: Path, group: mx.distributed.Group) -> None:
    """As many images in all as one process has alone."""
    losses = train_across_gpus.main([*TRAINING, "--batch", str(8 // group.size())])
    (folder / f"{group.rank()}.json").write_text(json.dumps(losses))


def stop(folder: Path) -> None:
    """Takes steps until the last process stops, and then waits for it in an evaluation."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the launcher sends when one has ended
    group = mx.distributed.init(strict=True, backend="ring")
    with mf.nn.watch_steps(SECONDS, first=FIRST) as watch:
        for i in range(20):
            mx.eval(mx.distributed.all_sum(mx.ones(3), group=group))
            watch.step()
            if i == 10 and group.rank() == group.size() - 1:
                (folder / "leaving").write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGSTOP)


def main(folder: Path, how: str) -> None:
    """Does what is asked for."""
    mx.set_default_device(mx.cpu)
    if how == "train":
        train(folder, mx.distributed.init(strict=True, backend="ring"))
    else:
        stop(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
