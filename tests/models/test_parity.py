"""The right values of three networks are PyTorch's: the converted models in float64, beside the same ones there."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from mlx.utils import tree_flatten
from models.comparison import converted, made
from models.exactly import FUNCTIONS, exactly
from models.registry import SMALL
from support import exact, numbers

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]

TWINS = {"CIFAR ResNet": (1, 8, 10), "U-Net": (8, (1, 2)), "ConvNeXt": ((1, 2), (16, 32), 10)}


def agree(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    assert ours.shape == theirs.shape, name
    assert np.linalg.norm(ours - theirs) <= 1e-10 * np.linalg.norm(theirs), name


def gradients(model: stock.Module, x: mx.array, dy: mx.array) -> tuple[mx.array, Any, mx.array]:
    """The result, and the gradients by parameters and by the example."""

    def forward(parameters: Any, x: mx.array) -> tuple[mx.array, mx.array]:
        model.update(parameters)
        y = model(x)
        return (y * dy).sum(), y

    (_, y), (grads, dx) = mx.value_and_grad(forward, argnums=(0, 1))(model.trainable_parameters(), x)
    mx.eval(y, grads, dx)
    return y, grads, dx


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fused", [False, True], ids=["converted", "fused"])
@pytest.mark.parametrize("name", TWINS)
def test_float64_is_pytorch_s(name: str, fused: bool, training: bool) -> None:
    from models import twins

    network = next(each for each in SMALL if each.name == name)
    model, x = made(network, 0, mx.float64)
    converted(model, x, fused=fused)
    model.train(training)
    held = {path: exact(a) for path, a in tree_flatten(model.parameters())}
    twin = twins.copied(getattr(twins, type(model).__name__)(*TWINS[name]).double(), held).train(training)

    dy = numbers(model(x).shape, mx.float64)
    model.load_weights([(path, mx.array(a, mx.float64)) for path, a in held.items()])  # statistics have moved
    with exactly():
        y, grads, dx = gradients(model, x, dy)

    source = torch.tensor(twins.ordered(exact(x)), requires_grad=True)
    theirs = twin(source)
    (theirs * torch.tensor(twins.ordered(exact(dy)))).sum().backward()
    agree(twins.ordered(exact(y)), theirs.detach().numpy(), "result")
    agree(twins.ordered(exact(dx)), source.grad.numpy(), "gradient of the example")
    wanted = {path: a.grad.numpy() for path, a in twin.named_parameters()}
    ours = {twins.renamed(path): twins.ordered(exact(a)) for path, a in tree_flatten(grads)}
    assert ours.keys() == wanted.keys()
    for path, gradient in ours.items():
        agree(gradient, wanted[path], path)


def test_what_stands_for_functions_of_mlx_is_exact() -> None:
    x = numbers((5, 7), mx.float64)
    source = torch.tensor(exact(x), requires_grad=True)
    right = {
        "exp": source.exp(),
        "sigmoid": source.sigmoid(),
        "rms_norm": torch.nn.functional.rms_norm(source, (7,), 2 * torch.ones(7, dtype=torch.float64), 1e-5),
        "silu": torch.nn.functional.silu(source),
        "softmax": source.softmax(-1),
        "log_softmax": source.log_softmax(-1),
        "log_sigmoid": torch.nn.functional.logsigmoid(source),
    }
    assert right.keys() == {name for _, name, _ in FUNCTIONS}
    dy = numbers((5, 7), mx.float64, 1)
    for _, name, function in FUNCTIONS:
        rest = (mx.full(7, 2, mx.float64), 1e-5) if name == "rms_norm" else ()
        (y,), (dx,) = mx.vjp(lambda x, function=function, rest=rest: function(x, *rest), [x], [dy])
        (theirs,) = torch.autograd.grad(right[name], source, torch.tensor(exact(dy)))
        agree(exact(y), right[name].detach().numpy(), name)
        agree(exact(dx), theirs.numpy(), name)
