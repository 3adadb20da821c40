"""Trains a small network on the handwritten digits that come with scikit-learn (1,797 scans of 8x8 pixels).

    python train_digits.py               gradients by mx.grad
    python train_digits.py --explicit    gradients by hand: states go from forward to backward functions
    python train_digits.py --graph       gradients by the gradient nodes of a graph
    python train_digits.py --seeds 5     five trainings and their median

A fifth of the digits, stratified and always the same, is held out. Nothing is chosen by it: the weights are those after
the last epoch. The network is in digits_network.py, and as a graph in digits_graph.py.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import digits_network as network
import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from digits_graph import graphed
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

BATCH = 64


class Digits(NamedTuple):
    """Images (n, 8, 8, 1) between 0 and 1, and their labels."""

    images: np.ndarray
    labels: np.ndarray


class Run(NamedTuple):
    """One training: losses of all steps, accuracies after all epochs, the last predictions, and what was trained."""

    losses: list[float]
    accuracies: list[float]
    predicted: np.ndarray
    params: network.Params
    averages: network.Statistics


def load() -> tuple[Digits, Digits]:
    """The digits to train on, and those that are held out."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    train, test, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return Digits(train, train_labels), Digits(test, test_labels)


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images, each moved by up to one pixel along y and x."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    top, left = rng.integers(0, 3, (2, len(images), 1))
    rows, cols = top + np.arange(8), left + np.arange(8)
    return padded[np.arange(len(images))[:, None, None], rows[:, :, None], cols[:, None, :]]


def batches(digits: Digits, rng: np.random.Generator) -> Iterator[tuple[mx.array, mx.array]]:
    """One epoch in random order, in full batches."""
    order = rng.permutation(len(digits.labels))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield mx.array(shifted(digits.images[chosen], rng)), mx.array(digits.labels[chosen])


def train(digits: Digits, held_out: Digits, gradients: Callable, epochs: int, seed: int) -> Run:
    """Trains from scratch; ``gradients`` is `autodiff`, `explicit` or `graphed`."""
    steps = epochs * (len(digits.labels) // BATCH)
    optimizer = optim.AdamW(optim.cosine_decay(3e-3, steps), weight_decay=0.01)
    model = {"params": network.new_params(seed), "averages": network.new_averages()}
    optimizer.init(model["params"])
    state = [model, optimizer.state]

    @functools.partial(mx.compile, inputs=state, outputs=state)
    def step(images: mx.array, labels: mx.array) -> mx.array:
        loss, batch, grads = gradients(model["params"], images, labels)
        model["params"] = optimizer.apply_gradients(grads, model["params"])
        model["averages"] = network.updated(model["averages"], batch)
        return loss

    rng = np.random.default_rng(seed)
    test_images = mx.array(held_out.images)
    losses, accuracies = [], []
    progress = tqdm(total=steps, desc=f"seed {seed}", unit="step")
    for _ in range(epochs):
        for images, labels in batches(digits, rng):
            losses.append(step(images, labels))
            mx.eval(losses[-1], state)
            progress.update()
        predicted = np.array(network.predict(model["params"], model["averages"], test_images))
        accuracies.append(float((predicted == held_out.labels).mean()))
        progress.set_postfix(loss=f"{losses[-1].item():.3f}", accuracy=f"{accuracies[-1]:.2%}")
    progress.close()
    return Run([loss.item() for loss in losses], accuracies, predicted, model["params"], model["averages"])


def main(arguments: list[str] | None = None) -> float:
    """Trains as the command line says; returns the (median) held-out accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--explicit", action="store_true", help="no autodiff: pass states by hand, as on MPS")
    way.add_argument("--graph", action="store_true", help="no autodiff: a graph's gradient nodes, as in MPSNNGraph")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the order and the shifts")
    parser.add_argument("--seeds", type=int, default=1, help="train this many times, from --seed upwards")
    parser.add_argument("--out", default="digits.png", help="where the picture goes")
    parser.add_argument("--no-plot", action="store_true", help="make no picture")
    options = parser.parse_args(arguments)

    digits, held_out = load()
    gradients = graphed if options.graph else network.explicit if options.explicit else network.autodiff
    accuracies = []
    for seed in range(options.seed, options.seed + options.seeds):
        started = time.perf_counter()
        run = train(digits, held_out, gradients, options.epochs, seed)
        seconds = time.perf_counter() - started
        accuracies.append(run.accuracies[-1])
        print(f"seed {seed}: trained in {seconds:.1f} s, held-out accuracy {run.accuracies[-1]:.2%}")
    if not options.no_plot:
        from digits_picture import save  # here, so that --no-plot needs no matplotlib

        save(options.out, held_out.images, held_out.labels, run.predicted, run.losses, run.accuracies)
        print(f"picture: {options.out}")
    median = statistics.median(accuracies)
    print(f"held-out accuracy: {median:.2%}" + (f" (median of {options.seeds} seeds)" if options.seeds > 1 else ""))
    return median


if __name__ == "__main__":
    main()
