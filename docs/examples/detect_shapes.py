"""Learns to find circles, squares and triangles that overlap each other, with `mpsfunc.yolo_loss`.

    python detect_shapes.py               one training, and a picture of held-out images with boxes
    python detect_shapes.py --seeds 5     five trainings and their median
    python detect_shapes.py --seeds 5 --page detect_shapes.md    and a page with their figures, beside the picture

Each image has one to five shapes and is drawn from the seed when it is needed, so none is seen twice. The detector is a
small convolutional network over a grid of cells; `yolo_boxes` makes boxes of its predictions, and `nms` keeps one for
each object. Held-out images are always the same, and nothing is chosen by them: the weights are those after the last
step.
"""

import argparse
import functools
import statistics
import time
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import shapes
from average_precision import Found, average_precision
from tqdm import tqdm

import mpsfunc as mf

CELLS, ANCHORS = 8, ((1.7, 1.7), (2.5, 2.5), (3.2, 3.2))  # the anchors' sizes in cells
BATCH, STEPS, RATE = 32, 700, 2e-3
CHANNELS = (3, 24, 48, 96, 128, 128)
POOLED = (True, True, True, False, False)  # which convolutions a pooling follows
SCALES = {"scale_object": 20.0, "scale_no_object": 2.0, "scale_class": 20.0}  # a class is harder here than a place
MOMENTUM = 0.1  # share of a batch in the running statistics
IOU = 0.5  # from which a box is right
SUPPRESSED = 0.45  # overlap from which the worse of two boxes of a class goes
LEAST, MOST_BOXES = 0.01, 20  # score of a box, and boxes of an image
HELD_OUT = 500
Params = dict[str, Any]
Statistics = list[tuple[mx.array, mx.array]]  # mean and variance after each convolution


class Outcome(NamedTuple):
    """One training: average precisions on held-out images, how long it took, and what was found in which image."""

    precisions: tuple[float, ...]  # of each class
    seconds: float
    found: Found

    @property
    def mean(self) -> float:
        """Of the classes."""
        return statistics.mean(self.precisions)


def held_out(count: int = HELD_OUT) -> shapes.Shapes:
    """Images that no training sees."""
    return shapes.draw(count, np.random.default_rng([1, 0]))


def new_params(seed: int) -> Params:
    """Weights with He's spread; those of the last layer are small, so that all cells begin alike."""
    keys = mx.random.split(mx.random.key(seed), len(CHANNELS))
    convs = []
    for i, o, key in zip(CHANNELS[:-1], CHANNELS[1:], keys[:-1], strict=True):
        w = mx.random.normal((o, 3, 3, i), scale=(2 / (9 * i)) ** 0.5, key=key)
        convs.append({"w": w, "gamma": mx.ones(o), "beta": mx.zeros(o)})
    outs = len(ANCHORS) * (5 + len(shapes.CLASSES))
    head = {"w": mx.random.normal((outs, 1, 1, CHANNELS[-1]), scale=0.01, key=keys[-1]), "b": mx.zeros(outs)}
    return {"convs": convs, "head": head}


def new_averages() -> Statistics:
    """Running averages of the statistics, before the first batch."""
    return [(mx.zeros(c), mx.ones(c)) for c in CHANNELS[1:]]


def predictions(params: Params, averages: Statistics, images: mx.array) -> mx.array:
    """What the network says of each cell, (n, CELLS, CELLS, anchors * (5 + classes)), by the running averages."""
    x = images - 0.5
    for conv, pooled, (mean, var) in zip(params["convs"], POOLED, averages, strict=True):
        x = mf.conv(x, conv["w"], padding=1)
        x = mf.bn_normalize(x, mf.bn_frozen(mean, var), conv["gamma"], conv["beta"], neuron="relu")
        x = mf.max_pool(x, 2) if pooled else x
    return mf.conv(x, **params["head"])


def loss(params: Params, averages: Statistics, images: mx.array, labels: mx.array) -> tuple[mx.array, Statistics]:
    """The mean over a batch, and the averages after it."""
    x, updated = images - 0.5, []
    for conv, pooled, (mean, var) in zip(params["convs"], POOLED, averages, strict=True):
        x = mf.conv(x, conv["w"], padding=1)
        x, batch = mf.batch_norm_fwd(x, conv["gamma"], conv["beta"], neuron="relu")
        x = mf.max_pool(x, 2) if pooled else x
        running = mf.bn_running(mf.bn_frozen(mean, var), batch, MOMENTUM)
        updated.append((running.mean, running.var))
    return mf.yolo_loss(mf.conv(x, **params["head"]), labels, ANCHORS, **SCALES).mean(), updated


def detections(made: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Boxes in pixels, classes and scores of what is found in predictions; 0 is the score of nothing."""
    boxes, scores = mf.yolo_boxes(made, ANCHORS)
    boxes, kinds, best = boxes * (shapes.SIDE / CELLS), scores.argmax(axis=-1), scores.max(axis=-1)
    there = mx.where(best >= LEAST, best, -mx.inf)  # of -inf none is kept
    kept, count = mf.nms(boxes, there, SUPPRESSED, classes=kinds, max_outputs=MOST_BOXES)
    is_kept, kept = mx.arange(MOST_BOXES) < count[:, None], mx.maximum(kept, 0)
    kinds, best = (mx.take_along_axis(each, kept, axis=1) for each in (kinds, best))
    return mx.take_along_axis(boxes, kept[..., None], axis=1), kinds, mx.where(is_kept, best, 0)


def train(steps: int, seed: int) -> tuple[Params, Statistics]:
    """Trains the network from scratch."""
    optimizer = optim.AdamW(optim.cosine_decay(RATE, steps), weight_decay=0.01)
    model: dict[str, Any] = {"params": new_params(seed), "averages": new_averages()}
    optimizer.init(model["params"])
    state = [model, optimizer.state]
    mx.eval(state)

    @functools.partial(mx.compile, inputs=state, outputs=state)
    def step(images: mx.array, labels: mx.array) -> mx.array:
        (value, averages), grads = mx.value_and_grad(loss)(model["params"], model["averages"], images, labels)
        model["params"] = optimizer.apply_gradients(grads, model["params"])
        model["averages"] = averages
        return value

    rng = np.random.default_rng([0, seed])
    progress = tqdm(range(steps), desc=f"detecting, seed {seed}", unit="step")
    for i in progress:
        drawn = shapes.draw(BATCH, rng)
        labels = shapes.labels(drawn.boxes, drawn.classes, CELLS)
        value = step(mx.array(drawn.images), mx.array(labels))
        mx.eval(value, state)
        if i % 20 == 0:
            progress.set_postfix(loss=f"{value.item():.1f}")
    return model["params"], model["averages"]


def find(params: Params, averages: Statistics, images: np.ndarray) -> Found:
    """All that is found in some images."""
    look = mx.compile(lambda images: detections(predictions(params, averages, images)))
    made = []
    for start in range(0, len(images), BATCH):
        boxes, kinds, scores = (np.array(each) for each in look(mx.array(images[start : start + BATCH])))
        image, place = np.nonzero(scores)
        made.append((start + image, kinds[image, place], boxes[image, place], scores[image, place]))
    return Found(*(np.concatenate(parts) for parts in zip(*made, strict=True)))


def truth_of(drawn: shapes.Shapes) -> Found:
    """All that there is to find."""
    image, place = np.nonzero(drawn.classes >= 0)
    return Found(image, drawn.classes[image, place], drawn.boxes[image, place], np.ones(len(image)))


def run(steps: int, seed: int, drawn: shapes.Shapes) -> Outcome:
    """Trains, and looks at held-out images."""
    started = time.perf_counter()
    found = find(*train(steps, seed), drawn.images)
    truth = truth_of(drawn)
    each = tuple(average_precision(found, truth, kind, IOU) for kind in range(len(shapes.CLASSES)))
    return Outcome(each, time.perf_counter() - started, found)


def main(arguments: list[str] | None = None) -> float:
    """Trains as the command line says; returns the (median) mean average precision on held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="how many images are held out")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the images to train on")
    parser.add_argument("--seeds", type=int, default=1, help="train this many times, from --seed upwards")
    parser.add_argument("--out", default="detect_shapes.png", help="where the picture goes, of the first training")
    parser.add_argument("--no-plot", action="store_true", help="make no picture")
    parser.add_argument("--page", help="write the figures to this Markdown file, and the picture beside it")
    options = parser.parse_args(arguments)

    drawn = held_out(options.held_out)
    outcomes: dict[int, Outcome] = {}
    for seed in range(options.seed, options.seed + options.seeds):
        one = outcomes[seed] = run(options.steps, seed, drawn)
        each = ", ".join(f"{name}s {value:.3f}" for name, value in zip(shapes.CLASSES, one.precisions, strict=True))
        print(f"seed {seed}: trained in {one.seconds:.1f} s, average precision {one.mean:.3f} ({each})")
    if options.page or not options.no_plot:
        import detect_shapes_picture  # here, so that --no-plot needs no matplotlib

        out = detect_shapes_picture.beside(options.page) if options.page else options.out
        detect_shapes_picture.save(out, drawn, outcomes[options.seed].found)
        print(f"picture: {out}")
        if options.page:
            detect_shapes_picture.write_page(options.page, outcomes, drawn, options.steps)
            print(f"page: {options.page}")
    median = statistics.median(one.mean for one in outcomes.values())
    told = f" (median of {options.seeds} seeds)" if options.seeds > 1 else ""
    print(f"average precision at IOU {IOU}: {median:.3f}{told}")
    return median


if __name__ == "__main__":
    main()
