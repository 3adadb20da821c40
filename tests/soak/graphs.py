"""Random graphs: predicted shapes, results beside functions composed by hand, training graphs beside autodiff."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

import mpsfunc as mf
from mpsfunc import graph
from tests.soak import rounded

NAME = "graphs"
_NODES = 7  # at most
Plain = Callable[[Any, mx.array], mx.array]


def rounds(seed: int) -> Iterator[Counter[str]]:
    """For ever; each round counts the nodes of a graph by kind."""
    for at in itertools.count():
        yield one_round(seed, at)


def one_round(seed: int, at: int) -> Counter[str]:
    """One graph."""
    with mx.stream(mx.cpu):
        done: Counter[str] = Counter()
        try:
            _check(np.random.default_rng((seed, at)), done)
        except Exception as error:
            text = f"seed {seed}, round {at}: {dict(done)}: {type(error).__name__}: {error}"
            raise AssertionError(text) from error
        return done


def _check(rng: np.random.Generator, done: Counter[str]) -> None:
    shape = (int(rng.integers(1, 4)), *(int(v) for v in rng.integers(2, 7, 2)), int(rng.integers(1, 6)))
    x = graph.ImageNode("x")
    rough = [0.0]  # how large the roundings are that the functions composed by hand draw
    made: list[tuple[Any, Plain]] = [(x, lambda p, x: x)]
    for k in range(int(rng.integers(1, _NODES + 1))):
        name = f"n{k}"
        node, plain = made[-1]
        other, second = made[rng.integers(len(made))]
        c, w = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        s = int(rng.integers(1, 3))
        kinds = _kinds(node, name, c, w, s)
        if rng.random() < 0.3 and other is not node:
            a, b = (_shape(each, shape, x) for each in (node, other))
            kind = "add" if a == b else "concatenate" if a[:3] == b[:3] else "tanh"
            if kind == "add":
                made.append((graph.add(node, other), lambda p, x, f=plain, g=second: mf.add(f(p, x), g(p, x))))
            elif kind == "concatenate":
                joined = graph.concatenate([node, other])
                made.append((joined, lambda p, x, f=plain, g=second: mf.concatenate([f(p, x), g(p, x)])))
            else:
                made.append((graph.tanh(node), lambda p, x, f=plain: mf.tanh(f(p, x))))
        else:
            kind = list(kinds)[rng.integers(len(kinds))]
            if kind == "batch_norm" and np.prod(_shape(node, shape, x)[:3]) == 1:
                kind = "tanh"  # one element has no variance
            node_of, function = kinds[kind]
            made.append((node_of(), lambda p, x, f=plain, g=function: g(p, f(p, x))))
        done[kind] += 1
        axes = {"instance_norm": (1, 2), "batch_norm": (0, 1, 2)}.get(kind)
        made[-1] = (made[-1][0], _roughly(made[-1][1], rough, plain, name, axes))
    node, plain = made[-1]
    arrays = {"x": mx.array(rng.standard_normal(shape), mx.float32)}
    dy, target = graph.ImageNode("dy"), _shape(node, shape, x)
    arrays["dy"] = mx.array(rng.standard_normal(target), mx.float32)
    ends = graph.training_graph(node, dy)
    step = graph.compile(node, gradients=ends)
    params, states = step.init(mx.random.key(int(rng.integers(2**31))), arrays)
    assert step.draw(arrays) is not None and str(step.draw(arrays)), "nothing is drawn"
    y, gradients, _ = step(params, arrays, states)
    assert y.shape == target, f"the shape is {y.shape}, predicted {target}"
    got = _named(y, gradients)

    def run(size: float) -> dict[str, np.ndarray]:
        rough[0] = size

        def value(p: Any) -> tuple[mx.array, mx.array]:
            made = plain(p, arrays["x"])
            return (made * arrays["dy"]).sum(), made

        if not tree_flatten(params):
            return _named(value(params)[1], {})
        (_, made), expected = mx.value_and_grad(value)(params)
        return _named(made, expected)

    want = run(0.0)
    assert got.keys() <= want.keys(), f"gradients of others: {got.keys() - want.keys()}"
    mx.random.seed(int(rng.integers(2**31)))
    drawn = rounded.Drawn(lambda: run(rounded.SIZE[mx.float32]), want, mx.float32)
    for name, true in want.items():
        mine = got.get(name, np.zeros_like(true))
        assert mine.shape == true.shape, f"{name} has the shape {mine.shape}, expected {true.shape}"
        drawn.check(name, mine)


def _roughly(plain: Plain, rough: list[float], before: Plain, name: str, axes: tuple[int, ...] | None) -> Plain:
    """What a node stands for, off where roundings are drawn."""

    def run(p: Any, x: mx.array) -> mx.array:
        y = plain(p, x)
        if not rough[0]:
            return y
        if axes is None:
            return rounded.off(y, rough[0])
        given = before(p, x)
        return rounded.norm_off(given, y, rounded.slope(given, axes, 1e-2, p[name]["gamma"]), rough[0])

    return run


def _named(y: mx.array, gradients: Any) -> dict[str, np.ndarray]:
    every = [("the result", y), *((f"the gradient of {name}", a) for name, a in tree_flatten(gradients))]
    return {name: np.array(a, np.float64) for name, a in every}


def _kinds(
    node: Any, name: str, c: int, w: int, s: int
) -> dict[str, tuple[Callable[[], Any], Callable[[Any, mx.array], mx.array]]]:
    """What makes a node, and the function that it stands for."""
    same = mf.PaddingPolicy()
    return {
        "conv": (lambda: graph.conv(node, c, w, stride=s, name=name),
            lambda p, y: mf.conv(y, p[name]["w"], p[name]["b"], stride=s, padding=same)),
        "avg_pool": (lambda: graph.avg_pool(node, w),
            lambda p, y: mf.avg_pool(y, w, padding=same, edge_mode="clamp")),
        "l2_pool": (lambda: graph.l2_pool(node, w), lambda p, y: mf.l2_pool(y, w, padding=same, edge_mode="clamp")),
        "max_pool": (lambda: graph.max_pool(node, w), lambda p, y: mf.max_pool(y, w, padding=same, edge_mode="clamp")),
        "instance_norm": (lambda: graph.instance_norm(node, name=name, eps=1e-2),
            lambda p, y: mf.instance_norm(y, p[name]["gamma"], p[name]["beta"], eps=1e-2)),
        "batch_norm": (lambda: graph.batch_norm(node, name=name, eps=1e-2, statistics="always"),
            lambda p, y: mf.batch_norm(y, p[name]["gamma"], p[name]["beta"], eps=1e-2)),
        "upsample_bilinear": (lambda: graph.upsample_bilinear(node, s), 
            lambda p, y: mf.upsample_bilinear(y, s, coordinate="asymmetric", edge_mode="zero")),
        "pad": (lambda: graph.pad(node, s, w), lambda p, y: mf.pad(y, s, w)),
        "tanh": (lambda: graph.tanh(node), lambda p, y: mf.tanh(y)),
        "softplus": (lambda: graph.softplus(node), lambda p, y: mf.softplus(y)),
        "softmax": (lambda: graph.softmax(node), lambda p, y: mf.softmax(y)),
        "prelu": (lambda: graph.prelu(node, name=name), lambda p, y: mf.prelu(y, p[name]["slopes"])),
        "fully_connected": (lambda: graph.fully_connected(node, c, name=name),
            lambda p, y: mf.fully_connected(y, p[name]["w"], p[name]["b"])),
    }  # fmt: skip


def _shape(node: Any, shape: tuple[int, ...], x: Any) -> tuple[int, ...]:
    """As the graph predicts it."""
    return shape if node is x else tuple(_first(graph.compile(node).shapes({"x": shape})))


def _first(shapes: Any) -> tuple[int, ...]:
    while isinstance(shapes, dict) or (shapes and not isinstance(shapes[0], int)):
        shapes = list(shapes.values())[-1] if isinstance(shapes, dict) else shapes[0]
    return shapes
