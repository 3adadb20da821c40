"""What one process of several does for test_data_parallel.py, which launches this file.

``FOLDER train`` saves the losses of the example; ``FOLDER HOW WHO`` has one process go, while the others wait for it in
an all_sum.
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

SECONDS = 3.0
TRAINING = ["--steps", "20", "--pixels", "16", "--rate", "0.02"]


def train(folder: Path, group: mx.distributed.Group) -> None:
    """As many images in all as one process has alone."""
    losses = train_across_gpus.main([*TRAINING, "--batch", str(8 // group.size())])
    (folder / f"{group.rank()}.json").write_text(json.dumps(losses))


def survive(folder: Path, group: mx.distributed.Group, how: str, who: int) -> None:
    """Takes steps until one process goes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the launcher sends when one has ended
    with mf.nn.watch_processes(group, SECONDS) as watch:
        for i in range(20):
            mx.eval(mx.distributed.all_sum(mx.ones(3), group=group))
            watch.step()
            time.sleep(0.05)
            if i == 10 and group.rank() == who:
                (folder / "leaving").write_text(str(time.monotonic()))
                if how == "leaves":
                    break
                if how == "raises":
                    raise RuntimeError("raised by a test")
                if how == "idles":
                    time.sleep(60)
                os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how])
            if i == 10:  # in an evaluation that nothing interrupts, as in NCCL
                break
        if how != "leaves":
            _wait_without_end()


def _wait_without_end() -> None:
    time.sleep(60)


def main(folder: Path, *how: str) -> None:
    """Does what is asked for."""
    mx.set_default_device(mx.cpu)
    group = mx.distributed.init(strict=True, backend="ring")
    if how[0] == "train":
        train(folder, group)
    else:
        survive(folder, group, how[0], int(how[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
