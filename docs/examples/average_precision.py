"""Average precision of detections, by all-point interpolation, as the PASCAL VOC challenge computes it since 2010."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """What a detector found, or what there is, in all images together.

    Fields:
        image: (k,) the number of its image.
        kind: (k,) its class.
        box: (k, 4), each (x1, y1, x2, y2).
        score: (k,), which of the truth is not read.
    """

    image: np.ndarray
    kind: np.ndarray
    box: np.ndarray
    score: np.ndarray


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """IOU of a box (4,) and others (k, 4)."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    both = np.clip(high - low, 0, None).prod(1)
    areas = [np.clip(each[..., 2:] - each[..., :2], 0, None).prod(-1) for each in (box, others)]
    union = areas[0] + areas[1] - both
    return np.where(union > 0, both / np.where(union > 0, union, 1), 0)


def hits(found: Found, truth: Found, threshold: float) -> np.ndarray:
    """Which detections of one class are right, by descending score.

    Each is held against the object of its image that it overlaps most, and is right if it does so by the threshold at
    least and no better one was right about that object: finding an object twice is wrong once.
    """
    order = np.argsort(-found.score, kind="stable")
    objects = {image: np.flatnonzero(truth.image == image) for image in np.unique(truth.image)}
    taken, right = np.zeros(len(truth.image), bool), np.zeros(len(order), bool)
    for place, i in enumerate(order):
        near = objects.get(found.image[i], np.zeros(0, int))
        if len(near) == 0:
            continue
        shares = overlaps(found.box[i], truth.box[near])
        best = near[shares.argmax()]
        right[place] = shares.max() >= threshold and not taken[best]
        taken[best] |= right[place]
    return right


def area_under(right: np.ndarray, objects: int) -> float:
    """The area under precision as a function of recall, each precision the largest at this recall or a larger one.

    Args:
        right: Whether each detection is right, by descending score.
        objects: How many there are to find. Of none the result is NaN.
    """
    if objects == 0:
        return float("nan")
    found = np.cumsum(right)
    precision = found / np.arange(1, len(right) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(envelope[right].sum() / objects)  # recall grows by one object's share at each that is right


def average_precision(found: Found, truth: Found, kind: int, threshold: float = 0.5) -> float:
    """Of one class."""
    mine, there = (Found(*(field[each.kind == kind] for field in each)) for each in (found, truth))
    return area_under(hits(mine, there, threshold), len(there.image))


def mean_average_precision(found: Found, truth: Found, threshold: float = 0.5) -> float:
    """The mean over the classes that the truth has."""
    return float(np.mean([average_precision(found, truth, kind, threshold) for kind in np.unique(truth.kind)]))
