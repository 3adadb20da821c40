"""The picture of one training: loss, accuracy, and held-out digits with what the network made of them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROWS, COLS = 6, 15
CURVE, WRONG = "#2a6f97", "#d62828"


def save(
    path: str,
    images: np.ndarray,
    labels: np.ndarray,
    predicted: np.ndarray,
    losses: Sequence[float],
    accuracies: Sequence[float],
) -> None:
    """Writes the PNG. The grid shows the wrong digits first, in red, as "truth → prediction"."""
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    curves, grid = figure.subfigures(2, 1, height_ratios=(1, 1.7))

    left, right = curves.subplots(1, 2)
    left.semilogy(np.linspace(0, len(accuracies), len(losses)), losses, color=CURVE, linewidth=1)
    left.set(title="training loss", xlabel="epoch")
    right.plot(np.arange(1, len(accuracies) + 1), 100 * np.asarray(accuracies), color=CURVE, marker=".")
    right.set(title=f"held-out accuracy: {accuracies[-1]:.2%} after the last epoch", xlabel="epoch", ylabel="%")
    for axes in (left, right):
        axes.grid(alpha=0.3)

    wrong = predicted != labels
    grid.suptitle(f"{len(labels)} held-out digits, {wrong.sum()} wrong; here the wrong ones first")
    order = np.argsort(~wrong, kind="stable")
    for axes, i in zip(grid.subplots(ROWS, COLS).flat, order, strict=False):
        axes.imshow(images[i, :, :, 0], cmap="gray_r")
        axes.set_axis_off()
        title = f"{labels[i]} → {predicted[i]}" if wrong[i] else str(predicted[i])
        axes.set_title(title, color=WRONG if wrong[i] else "black", fontsize=9, pad=2)
    figure.savefig(path, dpi=110)
