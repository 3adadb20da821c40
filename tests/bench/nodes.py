"""Nodes of a training step that do nothing, with and without what spares them.

``python -m tests.bench.nodes`` writes nodes.md. It evaluates nothing but weights, so that images are few.
"""

from __future__ import annotations

import argparse
import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten

from mpsfunc.core import launch
from mpsfunc.nn import convert

from . import report, whole
from .rivals.networks_mlx import loss_of
from .whole import Cell

NETWORKS = ("ResNet-20", "MobileNetV2")
# By MLX's names, what hands on the memory of what it was given.
NOTHING = ("StopGradient", "CustomTransforms", "Copy", "Reshape", "ExpandDims", "Squeeze", "Flatten", "Unflatten")
_BATCH = 2
_METHOD = """Primitives of MLX in a training step of a converted network (forward, backward, SGD with momentum),
without `mx.compile`, which merges equal ones. *do nothing* are those that hand on memory: {nothing}.
Each is made anew and evaluated in every step. *before* is the same step with an `mx.stop_gradient` before each array
that a kernel reads, which MLX's `jvp` asks for and `mpsfunc.core.launch.read_directly` takes away. Counted on a CPU.
Written by `python -m tests.bench.nodes`."""


def nodes(arrays: Iterable[mx.array]) -> Counter[str]:
    """How many primitives of each name arrays are made of."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    return Counter(re.findall(r'label ?="([^"]+)", shape=rectangle', text.getvalue()))


def of_step(cell: Cell) -> Counter[str]:
    """Those of a training step."""
    model = whole.of_mlx(cell)
    model.set_dtype(getattr(mx, cell.dtype))
    model.train()
    images, classes = (mx.array(each) for each in whole.data(cell))
    mx.eval(model.parameters())
    convert(model)
    optimizer = optim.SGD(cell.spec.rate, momentum=whole.MOMENTUM)
    optimizer.init(model.trainable_parameters())
    mx.eval(model.parameters(), optimizer.state)

    def loss() -> mx.array:
        return loss_of(cell, model(images.astype(getattr(mx, cell.dtype))), classes)

    value, grads = nn.value_and_grad(model, loss)()
    optimizer.update(model, grads)
    made: Any = [value, model.trainable_parameters(), optimizer.state]
    return nodes(a for _, a in tree_flatten(made))


def line(network: str, dtype: str) -> list[str]:
    """A line of the table."""
    cell = next(
        each for each in whole.cells("cpu") if each.trains and (each.network, each.dtype) == (network, dtype)
    )._replace(batch=_BATCH)
    now = of_step(cell)
    with mock.patch.object(launch, "read_directly", lambda made, *_: made):
        before = of_step(cell)
    counts = [sum(found[name] for name in NOTHING) for found in (before, now)]
    return [network, dtype, *(str(each) for each in (*counts, before.total(), now.total()))]


def main(args: argparse.Namespace) -> None:
    """Counts and writes the page."""
    mx.set_default_device(mx.cpu)
    lines = [line(network, dtype) for network in args.only for dtype in whole.DTYPES]
    head = ["network", "dtype", "do nothing, before", "do nothing", "all, before", "all"]
    facts = {"MLX": mx.__version__, "commit": args.commit or report.commit()}
    parts = ["# Nodes of a training step", _METHOD.format(nothing=", ".join(f"`{name}`" for name in NOTHING))]
    print(report.save(args.out, "nodes", [*parts, report.table(["", ""], facts.items()), report.table(head, lines)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nodes", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=whole.NETWORKS, default=NETWORKS)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--commit", default="", help="what is counted, where there is no git")
    main(parser.parse_args())
