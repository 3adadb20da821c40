"""Training steps in files: by losses of this library, with MLX's optimizers, of graphs and of converted models."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import digits_network
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from exporting.imported import exported, on_the_cpu
from mlx.utils import tree_map
from support import numbers

import mpsfunc as mf

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.needs_cpu_module]

OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "SGD": lambda: optim.SGD(0.1, momentum=0.9),
    "Adam": lambda: optim.Adam(1e-3),
}
WAYS = {"autodiff": digits_network.autodiff, "explicit": digits_network.explicit}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "step.mlxfn"


def names(arrays: Any) -> list[str]:
    return [a.name for a in arrays]


# The digits ---------------------------------------------------------------------------------------------


def digits_step(new: Callable[[], optim.Optimizer], grads: Callable[..., Any]) -> Callable[..., Any]:
    """A step that takes and returns parameters, the optimizer's state and running statistics."""

    def step(params: Any, state: Any, averages: Any, images: mx.array, labels: mx.array) -> Any:
        optimizer = new()
        optimizer.state = state
        value, statistics, found = grads(params, images, labels)
        params = optimizer.apply_gradients(found, params)
        return params, optimizer.state, digits_network.updated(averages, statistics), value

    return step


def digits_arguments(new: Callable[[], optim.Optimizer]) -> tuple[Any, ...]:
    params, averages = digits_network.new_params(0), digits_network.new_averages()
    optimizer = new()
    optimizer.init(params)
    return params, optimizer.state, averages, mx.zeros((32, 8, 8, 1)), mx.zeros((32,), mx.int32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_the_digits(optimizer: str, way: str, path: Path) -> None:
    new = OPTIMIZERS[optimizer]
    found = exported(path, digits_step(new, WAYS[way]), *digits_arguments(new))
    (signature,) = found.signatures
    took = [name.partition(".") for name in names(signature.inputs)]
    gave = [name.removeprefix("result.").partition(".") for name in names(signature.outputs)]
    # What comes back is in the order of what went in, so that it can go in again.
    assert [rest for root, _, rest in gave[:-1]] == [rest for root, _, rest in took[:-2]]
    assert [root for root, _, _ in took[-2:]] == ["images", "labels"] and gave[-1] == ("3", "", "")
    assert [a[1:] for a in signature.outputs[:-1]] == [a[1:] for a in signature.inputs[:-2]]
    assert found.nbytes <= 300_000
    assert max(math.prod(a.shape) for a in found.constants) <= 128  # no weights


def test_a_step_for_cuda_and_for_mlx_swift(path: Path) -> None:
    step, arguments = digits_step(OPTIMIZERS["SGD"], WAYS["autodiff"]), digits_arguments(OPTIMIZERS["SGD"])
    metal = exported(path, step, *arguments)
    swift = exported(path, step, *arguments, mlx="0.31.1")
    assert swift.signatures == metal.signatures and swift.mlx == "0.31.1"
    cuda = exported(path, step, *arguments, device="cuda")
    assert (cuda.signatures[0].inputs, cuda.signatures[0].outputs) == metal.signatures[0][:2]


# Losses -------------------------------------------------------------------------------------------------


LOSSES: dict[str, Callable[[mx.array, mx.array], mx.array]] = {
    "cross entropy": lambda y, t: mf.loss_value(y, t, "softmax_cross_entropy", "mean").mean(),
    "squares": lambda y, t: mf.loss_value(y, t, "mean_squared_error", "mean").mean(),
    "focal": lambda y, t: mf.focal_loss(y, t).mean(),
    "dice": lambda y, t: mf.dice_loss(mf.softmax(y), t).mean(),
    "MLX's": lambda y, t: nn.losses.cross_entropy(y.reshape(-1, 4), t.reshape(-1, 4), reduction="mean"),
}
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": mx.grad,
    "value_and_grad": mx.value_and_grad,
    "a compiled one": lambda f: mx.compile(mx.value_and_grad(f)),
    "one that computes again": lambda f: mx.value_and_grad(mf.checkpoint(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_losses(loss: str, transform: str, path: Path) -> None:
    def of(w: dict[str, mx.array], x: mx.array, target: mx.array) -> mx.array:
        return LOSSES[loss](mf.batch_norm(mf.conv(x, w["w"], padding=1), w["gamma"], w["beta"]), target)

    w = {"w": numbers((4, 3, 3, 3), mx.float32), "gamma": mx.ones(4), "beta": mx.zeros(4)}
    target = mx.zeros((2, 5, 5, 4))
    (signature,) = exported(path, TRANSFORMS[transform](of), w, numbers((2, 5, 5, 3), mx.float32), target).signatures
    grads = [a for a in signature.outputs if not a.shape == ()]
    assert [a.shape for a in grads] == [a.shape for a in signature.inputs[:3]]
    assert {"bn_normalize", "conv"} <= set(signature.kernels)


def test_mapped_functions(path: Path) -> None:
    """With rules of its own, an operation is one kernel for all that is mapped."""
    call = mx.vmap(lambda x, w: mf.conv(x, w), in_axes=(0, None))
    found = exported(path, call, mx.ones((5, 2, 6, 6, 3)), mx.ones((4, 3, 3, 3)))
    assert found.signatures[0].kernels == ("conv",) and found.signatures[0].outputs[0].shape == (5, 2, 4, 4, 4)


def test_random_numbers_of_a_key(path: Path) -> None:
    call = lambda x, key: mf.dropout(x, keep_probability=0.5, key=key)  # noqa: E731
    found = exported(path, call, mx.ones((1, 4, 4, 2)), mx.random.key(0))
    assert names(found.signatures[0].inputs) == ["x", "key"] and "dropout" in found.signatures[0].kernels


# Graphs and models --------------------------------------------------------------------------------------


def test_a_step_of_a_graph(path: Path) -> None:
    graph = mf.graph
    x, labels = graph.ImageNode("x"), graph.ImageNode("labels")
    norm = graph.batch_norm(graph.conv(x, 8, 3, name="conv"), name="norm")
    scores = graph.fully_connected(graph.max_pool(graph.relu(norm), 2), 10, name="scores")
    loss = graph.loss(scores, labels, "softmax_cross_entropy", "sum", weight=1 / 4)
    network = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    inputs = {"x": mx.ones((4, 8, 8, 3)), "labels": mx.zeros((4, 1, 1), mx.int32)}
    params, states = network.init(mx.random.key(0), inputs)
    (signature,) = exported(path, network, params, inputs, states).signatures
    took, gave = names(signature.inputs), names(signature.outputs)
    gradients = [name.removeprefix("result.1.") for name in gave if name.startswith("result.1.")]
    assert gradients == [name.removeprefix("params.") for name in took if name.startswith("params.")]
    memories = [name.removeprefix("result.2.") for name in gave if name.startswith("result.2.")]
    assert memories == [name.removeprefix("states.") for name in took if name.startswith("states.")] != []
    assert {"conv", "max_pool", "bn_stats", "softmax_cross_entropy"} <= set(signature.kernels)


class Block(nn.Module):
    """A small network with what `mpsfunc.nn.convert` replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm(8), nn.MaxPool2d(2)
        self.linear = nn.Linear(8, 4)

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear(self.pool(nn.relu(self.norm(self.conv(x)))).mean(axis=(1, 2)))


def test_a_converted_model_trains(path: Path) -> None:
    model = Block()
    mf.nn.convert(model)
    optimizer = optim.SGD(0.1, momentum=0.9)
    optimizer.init(model.trainable_parameters())

    def loss(x: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(x), labels, reduction="mean")

    def step(params: Any, state: Any, x: mx.array, labels: mx.array) -> Any:
        model.update(params)
        optimizer.state = state
        value, grads = nn.value_and_grad(model, loss)(x, labels)
        optimizer.update(model, grads)
        return model.parameters(), optimizer.state, value

    params = tree_map(lambda a: a + 0, model.parameters())
    mx.eval(params, optimizer.state)
    arguments = params, optimizer.state, mx.zeros((2, 8, 8, 3)), mx.zeros((2,), mx.int32)
    (signature,) = exported(path, step, *arguments).signatures
    took, gave = names(signature.inputs), names(signature.outputs)
    assert [name.partition(".")[2] for name in took[:-2]] == [name.split(".", 2)[2] for name in gave[:-1]]
    assert {"params.norm.running_mean", "params.norm.running_var"} <= set(took)
    assert {"conv", "bn_normalize", "max_pool"} <= set(signature.kernels)
    model.update(params)  # what the trace left in it is nothing outside


@pytest.mark.parametrize("inference", [False, True])
def test_a_converted_model_predicts(inference: bool, path: Path) -> None:
    """Weights that were laid out for the CPU's kernels are not what the file has."""
    model = Block()
    model.eval()
    x = numbers((2, 8, 8, 3), mx.float32)
    mf.nn.convert(model, inference=inference)
    mx.eval(model.parameters(), model(x))
    (signature,) = exported(path, lambda x: model(x), x).signatures
    assert {"conv", "max_pool"} <= set(signature.kernels)
    assert [a.shape for a in mf.exported(path).constants].count((8, 3, 3, 3)) == 1


def test_what_is_mlxs_own_runs_anywhere(path: Path) -> None:
    """An export without kernels gives MLX's results, on the CPU too."""
    x, w = numbers((3, 4), mx.float32), numbers((4, 4), mx.float32)
    step = mx.value_and_grad(lambda w, x: nn.losses.mse_loss(mx.tanh(x @ w), x))
    exported(path, step, w, x)
    for made, expected in zip(on_the_cpu(path)(w, x), step(w, x), strict=True):
        assert mx.allclose(made, expected, 1e-5, 1e-6)
