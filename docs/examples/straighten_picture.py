"""The picture of straightened digits, and the page with the figures of some trainings."""

from __future__ import annotations

import platform
import re
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from straighten import Outcome

COLS = 16
ROWS = ("upright", "warped", "straightened")
WRONG = "#d62828"


def save(path: str, outcome: Outcome, labels: np.ndarray) -> None:
    """Writes the PNG: held-out digits in each of the three forms, with what the classifier took them for."""
    figure = Figure(figsize=(COLS * 0.62, 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    for row, (name, axes) in enumerate(zip(ROWS, figure.subplots(len(ROWS), COLS), strict=True)):
        for i, each in enumerate(axes):
            predicted = outcome.predicted[row, i]
            each.imshow(outcome.images[row, i], cmap="gray_r", vmin=0, vmax=1)
            each.set(xticks=[], yticks=[])
            each.set_title(str(predicted), color=WRONG if predicted != labels[i] else "black", fontsize=9, pad=2)
        axes[0].set_ylabel(name, fontsize=9)
    figure.savefig(path, dpi=100)


def beside(page: str) -> str:
    """Where the picture of a page goes."""
    return str(Path(page).with_suffix(".png"))


def write_page(page: str, outcomes: Mapping[int, Outcome], epochs: int) -> None:
    """Writes the page of all trainings. The picture is that of the first."""
    import mpsfunc as mf

    rows = [
        f"| {seed} | {one.upright:.1%} | {one.before:.1%} | {one.after:.1%} | {one.seconds:.0f} |"
        for seed, one in outcomes.items()
    ]
    means = [statistics.median(column) for column in zip(*[one[:4] for one in outcomes.values()], strict=True)]
    median = f"| median | {means[0]:.1%} | {means[1]:.1%} | {means[2]:.1%} | {means[3]:.0f} |"
    count, device = len(next(iter(outcomes.values())).predicted[0]), mx.default_device().type.name
    run = f"python docs/examples/straighten.py --seeds {len(outcomes)} --page {Path(page).name}"
    where = f"{device.upper()} of {processor()}, {mf.get_num_threads()} threads, MLX {mx.__version__}"
    text = f"""# Straightened digits

Written by `{run}`: {epochs} epochs, {count} held-out digits;
{where}.
Commit {commit()}.

Accuracies are those of a classifier that knows upright digits only. Seconds include its own training.

| seed | upright | warped | straightened | seconds |
| --- | --- | --- | --- | --- |
{chr(10).join([*rows, median])}

![Held-out digits upright, warped and straightened]({Path(beside(page)).name})

The number above each image is the classifier's answer, in red if it is wrong.
[Sampling](../families/image/sampling.md#an-example-straightening-digits) says how this works.
"""
    Path(page).write_text(text)


def commit() -> str:
    """That of the checkout that this file is in, and whether it has changes."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    known = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", known.read_text() if known.exists() else "", re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()
