"""How much memory a training graph takes beside autodiff: ``python -m tests.bench.graph_memory``, from the root.

Three networks, each as a graph and as the same functions under mx.value_and_grad, plainly and within mx.compile, with
the same losses and running statistics. Each runs in processes of its own, which take three steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

import mpsfunc as mf
from mpsfunc import graph

from . import report
from .peak import given_back, peak, peak_from_now

SHAPE, QUICK_SHAPE = (8, 96, 96, 32), (2, 16, 16, 4)
SIDES = ("graph", "autodiff")
_STEPS = 3
_SAME = mf.PaddingPolicy()
_METHOD = """Peak memory of three training steps in MB, without parameters and inputs: gradient nodes of a graph
compared with `mx.value_and_grad` of the same functions. *Arrays* is `mx.get_peak_memory`, the most that arrays need
at a time. *Process* is how far the peak of the process (VmHWM) rises, which also counts fragmentation: memory that
malloc holds but cannot reuse. Figures are medians of {rounds} processes, with the least and the most. A ratio below 1
means that the graph takes less. Images are {shape}, float32. Written by `python -m tests.bench.graph_memory`."""

Tree = dict[str, Any]
Step = Callable[[Tree, Tree, Tree], Any]


class Network(NamedTuple):
    """A network in both ways: the nodes to train, and from parameters, inputs and states to the loss and new states."""

    nodes: Callable[[int], list[Any]]
    plain: Callable[[Tree, Tree, Tree], tuple[mx.array, Tree]]


def _norm(p: Tree, name: str, y: mx.array, states: Tree, after: Tree) -> mx.array:
    y, state = mf.batch_norm_fwd(y, p[name]["gamma"], p[name]["beta"])
    after[name] = mf.bn_running(states[name], state)
    return y


def _conv(p: Tree, name: str, x: mx.array) -> mx.array:
    return mf.conv(x, p[name]["w"], p[name].get("b"), padding=_SAME)


def _squares(y: mx.array, target: mx.array) -> mx.array:
    return mf.loss_value(y, target, "mean_squared_error", "sum")


def _chain(c: int) -> list[Any]:
    y: Any = graph.ImageNode("x")
    for i in range(6):
        y = graph.relu(graph.batch_norm(graph.conv(y, c, 3, bias=False, name=f"conv{i}"), name=f"norm{i}"))
    return [graph.loss(y, graph.ImageNode("target"), "mean_squared_error", "sum")]


def _chain_plainly(p: Tree, given: Tree, states: Tree) -> tuple[mx.array, Tree]:
    y, after = given["x"], {}
    for i in range(6):
        y = mf.relu(_norm(p, f"norm{i}", _conv(p, f"conv{i}", y), states, after))
    return _squares(y, given["target"]).sum(), after


def _residual(c: int) -> list[Any]:
    """Blocks with shortcuts, and a loss halfway beside the one at the end."""
    y: Any = graph.ImageNode("x")
    labels, losses = graph.ImageNode("labels"), []
    for i in range(4):
        z = graph.relu(graph.batch_norm(graph.conv(y, c, 3, bias=False, name=f"first{i}"), name=f"norm{i}"))
        z = graph.batch_norm(graph.conv(z, c, 3, bias=False, name=f"second{i}"), name=f"last{i}")
        y = graph.relu(graph.add(z, y))
        if i in (1, 3):
            scores = graph.fully_connected(graph.spatial_mean(y), 10, name=f"scores{i}")
            losses.append(graph.loss(scores, labels, "softmax_cross_entropy", "sum"))
    return losses


def _residual_plainly(p: Tree, given: Tree, states: Tree) -> tuple[mx.array, Tree]:
    y, after, total = given["x"], {}, mx.array(0.0)
    for i in range(4):
        z = mf.relu(_norm(p, f"norm{i}", _conv(p, f"first{i}", y), states, after))
        y = mf.relu(mf.add(_norm(p, f"last{i}", _conv(p, f"second{i}", z), states, after), y))
        if i in (1, 3):
            scores = mf.fully_connected(mf.spatial_mean(y), p[f"scores{i}"]["w"], p[f"scores{i}"]["b"])
            total = total + mf.loss_value(scores, given["labels"], "softmax_cross_entropy", "sum").sum()
    return total, after


def _u_net(c: int) -> list[Any]:
    """Down, up and side by side, with a sum of two losses of the result."""
    x, target = graph.ImageNode("x"), graph.ImageNode("target")
    wide = graph.relu(graph.instance_norm(graph.conv(x, c, 3, bias=False, name="down"), name="norm0"))
    low = graph.conv(graph.max_pool(wide, 2), c, 3, bias=False, name="low")
    low = graph.relu(graph.instance_norm(low, name="norm1"))
    both = graph.concatenate([graph.upsample_nearest(low, 2), wide])
    up = graph.instance_norm(graph.conv(both, c, 3, bias=False, name="up"), name="norm2")
    y = graph.conv(graph.relu(up), c, 1, name="last")
    second = graph.forward_loss(y, target, "mean_absolute_error", "mean")
    return [graph.add(graph.forward_loss(y, target, "mean_squared_error", "sum"), graph.linear(second, 0.5))]


def _u_net_plainly(p: Tree, given: Tree, states: Tree) -> tuple[mx.array, Tree]:
    def part(name: str, norm: str, x: mx.array) -> mx.array:
        return mf.relu(mf.instance_norm(_conv(p, name, x), p[norm]["gamma"], p[norm]["beta"]))

    wide = part("down", "norm0", given["x"])
    low = part("low", "norm1", mf.max_pool(wide, 2, padding=_SAME, edge_mode="clamp"))
    y = _conv(p, "last", part("up", "norm2", mf.concatenate([mf.upsample_nearest(low, 2), wide])))
    second = mf.loss_value(y, given["target"], "mean_absolute_error", "mean")
    return (_squares(y, given["target"]) + 0.5 * second).sum(), {}


NETWORKS = {
    "chain of convolutions": Network(_chain, _chain_plainly),
    "residual blocks, two losses": Network(_residual, _residual_plainly),
    "U-Net, a sum of losses": Network(_u_net, _u_net_plainly),
}


def step(name: str, side: str, shape: tuple[int, ...]) -> tuple[Step, tuple[Tree, Tree, Tree]]:
    """A step of a network, whose gradients are second in what it returns, and its arguments."""
    network = NETWORKS[name]
    nodes = network.nodes(shape[-1])
    values = [getattr(node, "loss_image", node) for node in nodes]
    f = graph.compile(values, gradients=graph.training_graph(nodes))
    key = mx.random.key(0)
    every = {"x": mx.random.normal(shape, key=key), "target": mx.random.normal(shape, key=mx.random.key(1))}
    every["labels"] = mx.arange(shape[0]).reshape(-1, 1, 1) % 10
    inputs = {each: every[each] for each in f.inputs}
    params, states = f.init(key, inputs)
    arguments = params, inputs, states
    mx.eval(arguments)
    return (f if side == "graph" else mx.value_and_grad(network.plain)), arguments


class Growth(NamedTuple):
    """Bytes: the most that new arrays took at a time, and how far the peak of the process rose."""

    arrays: int
    process: int


def growth(name: str, side: str, compiled: bool, shape: tuple[int, ...]) -> Growth:
    """What three steps add to this process, which should have done nothing else."""
    mx.set_default_device(mx.cpu)
    run, arguments = step(name, side, shape)
    run = mx.compile(run) if compiled else run
    given_back()
    mx.reset_peak_memory()
    known, before = mx.get_active_memory(), peak_from_now()
    for _ in range(_STEPS):
        mx.eval(run(*arguments))
    return Growth(mx.get_peak_memory() - known, peak() - before)


def in_fresh_processes(name: str, compiled: bool, shape: tuple[int, ...], rounds: int) -> dict[str, list[Growth]]:
    """The growth of each side, by turns."""
    found: dict[str, list[Growth]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            told = json.dumps([name, side, compiled, shape])
            command = [sys.executable, "-m", "tests.bench.graph_memory", "--child", told]
            made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[side].append(Growth(*json.loads(made)))
    return found


def row(name: str, compiled: bool, found: dict[str, list[Growth]]) -> list[str]:
    """A line of the table."""
    cells = []
    for measure in Growth._fields:
        each = [[getattr(one, measure) / 1e6 for one in found[side]] for side in SIDES]
        medians = [statistics.median(numbers) for numbers in each]
        cells += [f"{m:.0f} ({min(n):.0f} to {max(n):.0f})" for m, n in zip(medians, each, strict=True)]
        cells.append(f"{medians[0] / medians[1]:.2f}")
    return [name, "yes" if compiled else "no", *cells]


def main(rounds: int, folder: Path | None, shape: tuple[int, ...]) -> None:
    """Measures, and writes graph_memory.md."""
    from mpsfunc import _primitives

    rows = []
    for name in NETWORKS:
        for compiled in (False, True):
            rows.append(row(name, compiled, in_fresh_processes(name, compiled, shape, rounds)))
            print(*rows[-1], sep="\t", flush=True)
    if folder is not None:
        facts = report.cpu_facts(report.commit(), _primitives.isa(), threads=2)
        head = ["network", "mx.compile"]
        head += [each for measure in Growth._fields for each in (*(f"{measure}, {side}" for side in SIDES), "ratio")]
        told = _METHOD.format(rounds=rounds, shape="x".join(map(str, shape)))
        parts = ["# Memory of training graphs", told, report.table(["machine", ""], facts.items())]
        report.save(folder, "graph_memory", [*parts, report.table(head, rows)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.graph_memory", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small images, one round, no page: to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, side, compiled, shape = json.loads(args.child)
        print(json.dumps(growth(name, side, compiled, tuple(shape))))
    elif args.quick:
        main(1, None, QUICK_SHAPE)
    else:
        main(args.rounds, args.out, SHAPE)
