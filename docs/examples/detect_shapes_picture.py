"""The picture of what was found in held-out images, and the page with the figures of some trainings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import shapes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from straighten_picture import beside as beside
from straighten_picture import commit, processor

if TYPE_CHECKING:
    from average_precision import Found
    from detect_shapes import Outcome

ROWS, COLS = 2, 6
SURE = 0.4  # score of the boxes that are drawn
COLOURS = {"circle": "#d62828", "square": "#1d4ed8", "triangle": "#15803d"}
LETTERS = {name: name[0] for name in COLOURS}


def save(path: str, drawn: shapes.Shapes, found: Found) -> None:
    """Writes the PNG: the first held-out images, each with the boxes that the detector is rather sure of."""
    figure = Figure(figsize=(COLS * 1.4, ROWS * 1.48), layout="constrained")
    FigureCanvasAgg(figure)
    for i, axes in enumerate(figure.subplots(ROWS, COLS).flat):
        axes.set(xticks=[], yticks=[])
        if i >= len(drawn.images):
            continue
        axes.imshow(np.clip(drawn.images[i], 0, 1), extent=(0, shapes.SIDE, shapes.SIDE, 0))
        for k in np.flatnonzero((found.image == i) & (found.score >= SURE)):
            x1, y1, x2, y2 = found.box[k]
            name = shapes.CLASSES[found.kind[k]]
            axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, color="white", linewidth=2.2))
            axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, color=COLOURS[name], linewidth=1.2))
            label = {"facecolor": COLOURS[name], "edgecolor": "white", "linewidth": 0.5, "pad": 0.8}
            axes.text(x1, y1, f"{LETTERS[name]} {found.score[k]:.2f}", color="white", fontsize=5, bbox=label)
    figure.savefig(path, dpi=100)


def write_page(page: str, outcomes: Mapping[int, Outcome], drawn: shapes.Shapes, steps: int) -> None:
    """Writes the page of all trainings. The picture is that of the first."""
    import mpsfunc as mf

    def row(name: str, values: list[float], seconds: float) -> str:
        return f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} | {seconds:.0f} |"

    columns = [[one.mean, *one.precisions] for one in outcomes.values()]
    rows = [row(str(seed), values, one.seconds) for (seed, one), values in zip(outcomes.items(), columns, strict=True)]
    medians = [statistics.median(column) for column in zip(*columns, strict=True)]
    rows.append(row("median", medians, statistics.median(one.seconds for one in outcomes.values())))
    device = mx.default_device().type.name
    run = f"python docs/examples/detect_shapes.py --seeds {len(outcomes)} --page {Path(page).name}"
    where = f"{device.upper()} of {processor()}, {mf.get_num_threads()} threads, MLX {mx.__version__}"
    objects = int((drawn.classes >= 0).sum())
    names = " | ".join(f"{name}s" for name in shapes.CLASSES)
    text = f"""# Detected shapes

Written by `{run}`: {steps} steps,
{len(drawn.images)} held-out images with {objects} shapes; {where}.
Commit {commit()}.

Average precision at an IOU of 0.5, with all-point interpolation: the mean of the three classes, and each. Seconds
include the search in held-out images.

| seed | mean | {names} | seconds |
| --- | --- | --- | --- | --- | --- |
{chr(10).join(rows)}

![Held-out images with the boxes that were found]({Path(beside(page)).name})

Boxes with a score of {SURE} and more: c, s and t are circles, squares and triangles.
[Detection](../families/losses/detection.md#an-example-a-detector-of-shapes) says how this works.
"""
    Path(page).write_text(text)
