"""Writes the digits network's training step to a file that programs in Swift and C++ train with, and the digits.

    python export_digits.py FOLDER                    for an Apple GPU and MLX Swift
    python export_digits.py FOLDER --device cuda      for an NVIDIA GPU and this version of MLX

step.mlxfn takes (state, images, labels, rate) and returns (state, loss). predict.mlxfn takes (state, images) and
returns digits. The state is one array of parameters, running averages and momentum, since MLX Swift cannot pass a list
of arrays. digits.safetensors has the first state, the digits, and the losses of the first steps on this CPU.
"""

import argparse
import pathlib
from typing import Any

import digits_network as network
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

import mpsfunc as mf

BATCH, CHECKED, RATE = 64, 20, 0.1


def new_state(seed: int) -> dict[str, Any]:
    """Parameters, running averages, and momentum that is zero."""
    params = network.new_params(seed)
    return {"params": params, "averages": network.new_averages(), "momentum": tree_map(mx.zeros_like, params)}


def packed(tree: Any) -> mx.array:
    """All arrays of a tree, one after the other."""
    return mx.concatenate([array.reshape(-1) for _, array in tree_flatten(tree)])


def unpacked(flat: mx.array, like: Any) -> Any:
    """The tree that was packed, with the shapes of another."""
    names, arrays = zip(*tree_flatten(like), strict=True)
    ends = np.cumsum([array.size for array in arrays])
    parts = mx.split(flat, ends[:-1].tolist())
    shaped = [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]
    return tree_unflatten(list(zip(names, shaped, strict=True)))


LIKE = new_state(0)


def step(state: mx.array, images: mx.array, labels: mx.array, rate: mx.array) -> tuple[mx.array, mx.array]:
    """A step of gradient descent with momentum: the next state, and the loss before it."""
    now = unpacked(state, LIKE)
    loss, statistics, grads = network.autodiff(now["params"], images, labels)
    momentum = tree_map(lambda m, g: 0.9 * m + g, now["momentum"], grads)
    after = {
        "params": tree_map(lambda p, m: p - rate * m, now["params"], momentum),
        "averages": network.updated(now["averages"], statistics),
        "momentum": momentum,
    }
    return packed(after), loss


def predict(state: mx.array, images: mx.array) -> mx.array:
    """The most likely digit of each image."""
    now = unpacked(state, LIKE)
    return network.predict(now["params"], now["averages"], images)


def losses(state: mx.array, images: mx.array, labels: mx.array) -> tuple[mx.array, list[float]]:
    """The state after the first steps through the digits in their order, and the losses."""
    found = []
    for number in range(CHECKED):
        start = number * BATCH % (len(labels) - BATCH + 1)
        chosen = slice(start, start + BATCH)
        state, loss = step(state, images[chosen], labels[chosen], mx.array(RATE))
        found.append(loss.item())
    return state, found


def write(folder: pathlib.Path, device: Any, mlx: Any) -> None:
    """Writes the three files."""
    from train_digits import load  # here, so that the step alone needs no scikit-learn

    train, test = load()
    images, labels = mx.array(train.images), mx.array(train.labels.astype(np.int32))
    test_images, test_labels = mx.array(test.images), mx.array(test.labels.astype(np.int32))
    state = packed(new_state(0))
    mx.eval(state)
    options = {"device": device, "mlx": mlx}
    mf.export(folder / "step.mlxfn", step, state, images[:BATCH], labels[:BATCH], mx.array(RATE), **options)
    mf.export(folder / "predict.mlxfn", predict, state, test_images, **options)
    with mx.stream(mx.cpu):
        _, found = losses(state, images, labels)
    arrays = {"state": state, "train_images": images, "train_labels": labels, "losses": mx.array(found)}
    arrays |= {"test_images": test_images, "test_labels": test_labels}
    mx.save_safetensors(str(folder / "digits.safetensors"), arrays)


def main(arguments: list[str] | None = None) -> None:
    """Writes what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", choices=["metal", "cuda"], default="metal")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder, options.device, "0.31.1" if options.device == "metal" else None)
    for name in ("step.mlxfn", "predict.mlxfn"):
        print(mf.exported(options.folder / name))


if __name__ == "__main__":
    main()
