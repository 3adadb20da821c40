"""Learns to straighten handwritten digits that were turned, sheared, stretched and moved at random.

    python straighten.py               one training, and a picture of held-out digits
    python straighten.py --seeds 5     five trainings and their median
    python straighten.py --seeds 5 --page straighten.md    and a page with their figures, beside the picture

A classifier, that of train_digits.py, learns upright digits and is then fixed. A small network predicts an affine map
for each warped digit, and `grid_sample` samples the digit through this map; the network then sees the result and may
correct the map. Its loss is the distance of the result from the digit before the warp, plus the classifier's loss. So
everything that it learns comes through the gradient of the samples with respect to their grid.

The digits are those of train_digits.py, and so is the fifth of them that is held out and warped once. It is not used to
select anything: the weights are those after the last epoch.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import digits_network as network
import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import train_digits
from tqdm import tqdm
from train_digits import BATCH, Digits

import mpsfunc as mf

ENLARGED, MARGIN = 2, 4  # pixels of an image for one of a digit, and pixels around it
SIDE = 8 * ENLARGED + 2 * MARGIN
TURN, SHEAR, STRETCH, MOVE = math.radians(60), 0.2, 1.2, 0.2  # at most
LOOKS = 2
CHANNELS, HIDDEN = (1, 24, 48, 96), 128
CLASSIFIER_EPOCHS = 30
LIKENESS, UNDERSTANDING = 20.0, 0.5  # what the two losses weigh
UNCHANGED = (1.0, 0, 0, 0, 1, 0)  # the affine map that changes nothing
Params = dict[str, Any]


class Outcome(NamedTuple):
    """One training: the classifier's accuracies on held-out digits, how long it took, and the images of the picture."""

    upright: float
    before: float
    after: float
    seconds: float
    images: np.ndarray  # (3, n, h, w): upright, warped, straightened
    predicted: np.ndarray  # (3, n)


def on_canvas(digits: np.ndarray) -> mx.array:
    """Digits of 8x8 pixels, enlarged, with a margin that they may turn in."""
    return mf.pad(mf.resize_bicubic(mx.array(digits), 8 * ENLARGED), MARGIN, MARGIN)


def of_canvas(images: mx.array) -> mx.array:
    """What the classifier sees of images: 8x8 pixels without the margin."""
    return mf.avg_pool(images[:, MARGIN:-MARGIN, MARGIN:-MARGIN], ENLARGED)


def random_maps(count: int, rng: np.random.Generator) -> mx.array:
    """Affine maps (n, 2, 3) for `mf.affine_grid`."""
    turn, shear = rng.uniform(-TURN, TURN, count), rng.uniform(-SHEAR, SHEAR, count)
    across, down = STRETCH ** rng.uniform(-1, 1, (2, count))
    cos, sin, zero = np.cos(turn), np.sin(turn), np.zeros(count)
    turned = np.array([[cos, -sin], [sin, cos]])
    sheared = np.array([[across, shear], [zero, down]])
    move = rng.uniform(-MOVE, MOVE, (count, 2, 1))
    maps = np.concatenate([np.einsum("ijn,jkn->nik", turned, sheared), move], axis=2)
    return mx.array(maps, mx.float32)


def seen_through(images: mx.array, maps: mx.array) -> mx.array:
    """Images at the places of affine maps; beyond them they are 0."""
    return mf.grid_sample(images, mf.affine_grid(maps, images.shape[1:3]))


def one_after_the_other(first: mx.array, then: mx.array) -> mx.array:
    """The affine map that shows what ``then`` shows of what ``first`` shows."""
    matrix, move = first[:, :, :2], first[:, :, 2:]
    return mx.concatenate([matrix @ then[:, :, :2], matrix @ then[:, :, 2:] + move], axis=2)


def new_params(seed: int) -> Params:
    """Weights with He's spread; the last ones are zero, so that images are unchanged at first."""
    *keys, last = mx.random.split(mx.random.key(seed), len(CHANNELS))
    convs = [_layer(o, 3, i, key) for i, o, key in zip(CHANNELS[:-1], CHANNELS[1:], keys, strict=True)]
    side = SIDE // 2 ** len(convs)
    maps = {"w": mx.zeros((6, 1, 1, HIDDEN)), "b": mx.array(UNCHANGED)}
    return {"convs": convs, "hidden": _layer(HIDDEN, side, CHANNELS[-1], last), "maps": maps}


def _layer(outs: int, size: int, inputs: int, key: mx.array) -> Params:
    spread = (2 / (size * size * inputs)) ** 0.5
    return {"w": mx.random.normal((outs, size, size, inputs), scale=spread, key=key), "b": mx.zeros(outs)}


def maps_for(params: Params, images: mx.array) -> mx.array:
    """The affine map through which to look at each image, at one look."""
    x = images
    for conv in params["convs"]:
        x = mf.max_pool(mf.conv(x, **conv, padding=1, neuron="relu"), 2)
    x = mf.fully_connected(x, **params["hidden"], neuron="relu")
    return mf.fully_connected(x, **params["maps"]).reshape(-1, 2, 3)


def straightened(params: Params, images: mx.array) -> mx.array:
    """Images as the network shows them. Each look is at the image itself, so that nothing is mixed twice."""
    maps = maps_for(params, images)
    for _ in range(1, LOOKS):
        maps = one_after_the_other(maps, maps_for(params, seen_through(images, maps)))
    return seen_through(images, maps)


def batches(images: mx.array, labels: mx.array, rng: np.random.Generator) -> Iterator[tuple[mx.array, ...]]:
    """One epoch in random order, each image with a map that it is warped by."""
    order = rng.permutation(len(labels))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = mx.array(order[start : start + BATCH])
        yield images[chosen], labels[chosen], random_maps(BATCH, rng)


def train(digits: Digits, scores: Callable[[mx.array], mx.array], epochs: int, seed: int) -> Params:
    """Trains the network from scratch; ``scores`` is what the classifier makes of images."""
    steps = epochs * (len(digits.labels) // BATCH)
    optimizer = optim.AdamW(optim.cosine_decay(1e-3, steps), weight_decay=0.01)
    model = {"params": new_params(seed)}
    optimizer.init(model["params"])
    state = [model, optimizer.state]

    def loss(params: Params, images: mx.array, labels: mx.array, maps: mx.array) -> mx.array:
        shown = straightened(params, seen_through(images, maps))
        likeness = (shown - images).square().mean()
        return LIKENESS * likeness + UNDERSTANDING * network.cross_entropy(scores(shown), labels)

    @functools.partial(mx.compile, inputs=state, outputs=state)
    def step(*batch: mx.array) -> mx.array:
        value, grads = mx.value_and_grad(loss)(model["params"], *batch)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        model["params"] = optimizer.apply_gradients(grads, model["params"])
        return value

    images, labels = on_canvas(digits.images), mx.array(digits.labels)
    mx.eval(images, state)
    rng = np.random.default_rng(seed)
    progress = tqdm(total=steps, desc=f"straightening, seed {seed}", unit="step")
    for _ in range(epochs):
        for batch in batches(images, labels, rng):
            value = step(*batch)
            mx.eval(value, state)
            progress.update()
        progress.set_postfix(loss=f"{value.item():.3f}")
    progress.close()
    return model["params"]


def run(epochs: int, classifier_epochs: int, seed: int) -> Outcome:
    """Trains both networks, and looks at held-out digits."""
    started = time.perf_counter()
    digits, held_out = train_digits.load()
    classifier = train_digits.train(digits, held_out, network.autodiff, classifier_epochs, seed)
    mx.eval(classifier.params, classifier.averages)

    def scores(images: mx.array) -> mx.array:
        return network.scores(classifier.params, classifier.averages, of_canvas(images))

    params = train(digits, scores, epochs, seed)
    upright = on_canvas(held_out.images)
    warped = seen_through(upright, random_maps(len(held_out.labels), np.random.default_rng(0)))
    all_images = [upright, warped, straightened(params, warped)]
    predicted = np.array([np.array(scores(images).argmax(axis=1)) for images in all_images])
    accuracies = (predicted == held_out.labels).mean(axis=1)
    seconds = time.perf_counter() - started
    return Outcome(*map(float, accuracies), seconds, np.array([im[..., 0] for im in all_images]), predicted)


def main(arguments: list[str] | None = None) -> float:
    """Trains as the command line says; returns the (median) held-out accuracy of straightened digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--classifier-epochs", type=int, default=CLASSIFIER_EPOCHS)
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the order and the warps")
    parser.add_argument("--seeds", type=int, default=1, help="train this many times, from --seed upwards")
    parser.add_argument("--out", default="straighten.png", help="where the picture goes, of the first training")
    parser.add_argument("--no-plot", action="store_true", help="make no picture")
    parser.add_argument("--page", help="write the figures to this Markdown file, and the picture beside it")
    options = parser.parse_args(arguments)

    outcomes: dict[int, Outcome] = {}
    for seed in range(options.seed, options.seed + options.seeds):
        one = outcomes[seed] = run(options.epochs, options.classifier_epochs, seed)
        told = f"upright {one.upright:.2%}, warped {one.before:.2%}, straightened {one.after:.2%}"
        print(f"seed {seed}: trained in {one.seconds:.1f} s, held-out accuracy of digits {told}")
    if options.page or not options.no_plot:
        import straighten_picture  # here, so that --no-plot needs no matplotlib

        labels = train_digits.load()[1].labels
        out = straighten_picture.beside(options.page) if options.page else options.out
        straighten_picture.save(out, outcomes[options.seed], labels)
        print(f"picture: {out}")
        if options.page:
            straighten_picture.write_page(options.page, outcomes, options.epochs)
            print(f"page: {options.page}")
    median = statistics.median(one.after for one in outcomes.values())
    print(f"held-out accuracy: {median:.2%}" + (f" (median of {options.seeds} seeds)" if options.seeds > 1 else ""))
    return median


if __name__ == "__main__":
    main()
