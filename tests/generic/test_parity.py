"""PyTorch's functions of sequences (n, c, l), where they are ours, with gradients and gradient penalties.

And what docs/defaults.md says of PyTorch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]
F: Any = torch.nn.functional


def theirs(a: mx.array) -> Any:
    """Sequences and weights with channels in the middle; a vector as it is."""
    values = exact(a)
    return torch.tensor(values.swapaxes(1, 2).copy() if values.ndim == 3 else values, requires_grad=True)


def agree(ours: mx.array, tensor: Any) -> None:
    values = tensor.detach().numpy()
    values = values.swapaxes(1, 2) if values.ndim == 3 else values
    np.testing.assert_allclose(exact(ours), values, rtol=1e-9, atol=1e-10)


def compare(function: Callable[..., mx.array], other: Callable[..., Any], *arrays: mx.array) -> None:
    """Results, gradients of all arguments, and those of the norm of a gradient."""
    tensors = [theirs(a) for a in arrays]
    agree(function(*arrays), other(*tensors))
    every = tuple(range(len(arrays)))

    def slopes(f: Callable[..., mx.array]) -> tuple[mx.array, ...]:
        made = mx.grad(f, argnums=every)(*arrays)
        return made if isinstance(made, tuple) else (made,)

    def penalty(*arrays: mx.array) -> mx.array:
        slope = mx.grad(lambda *a: (function(*a) ** 3).sum())(*arrays)
        return (slope * slope).sum()

    first = torch.autograd.grad((other(*tensors) ** 3).sum(), tensors, create_graph=True)
    for mine, tensor in zip(slopes(lambda *a: (function(*a) ** 3).sum()), first, strict=True):
        agree(mine, tensor)
    second = torch.autograd.grad((first[0] ** 2).sum(), tensors, allow_unused=True, materialize_grads=True)
    for mine, tensor in zip(slopes(penalty), second, strict=True):
        values = tensor.numpy().swapaxes(1, 2) if tensor.ndim == 3 else tensor.numpy()
        np.testing.assert_allclose(exact(mine), values, rtol=1e-8, atol=1e-8 * max(1.0, abs(values).max()))


X, B = numbers((2, 11, 4), mx.float64), numbers((6,), mx.float64, 2)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"padding": 2, "stride": 3},
        {"padding": 1, "dilation": 2, "groups": 2},
        {"stride": 2, "groups": 2},
    ],
    ids=str,
)
def test_conv1d(how: dict[str, Any]) -> None:
    w = numbers((6, 3, 4 // how.get("groups", 1)), mx.float64, 1)
    compare(lambda *a: mf.conv1d(*a, **how), lambda *a: F.conv1d(*a, **how), X, w, B)


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch warns that an even kernel makes it copy
def test_conv1d_of_the_same_length(kernel: int) -> None:
    w = numbers((6, kernel, 4), mx.float64, 1)
    how: dict[str, Any] = {"padding": "same", "dilation": 3}
    compare(lambda *a: mf.conv1d(*a, **how), lambda *a: F.conv1d(*a, **how), X, w, B)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_modes_of_layers(mode: Any) -> None:
    layer = torch.nn.Conv1d(4, 6, 3, stride=2, padding=3, padding_mode=mode, dtype=torch.float64)
    w = mx.array(layer.weight.detach().numpy().swapaxes(1, 2), mx.float64)
    b = mx.array(layer.bias.detach().numpy(), mx.float64)
    agree(mf.conv1d(X, w, b, stride=2, padding=3, padding_mode=mode), layer(theirs(X)))
    ours = mf.nn.Conv1d(4, 6, 3, stride=2, padding=3, padding_mode=mode)
    ours.update({"weight": w, "bias": b})
    agree(ours(X), layer(theirs(X)))


@pytest.mark.parametrize(
    "how",
    [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 3, "dilation": 2}, {"groups": 2, "stride": 2}],
    ids=str,
)
def test_conv_transpose1d(how: dict[str, Any]) -> None:
    """PyTorch's weights (i, o / groups, k) are ours (o, k, i / groups) with both exchanged in each group."""
    groups = how.get("groups", 1)
    w = numbers((6, 3, 4 // groups), mx.float64, 1)

    def other(x: Any, w: Any, b: Any) -> Any:  # w is (o, i / groups, k) here
        split = w.reshape(groups, 6 // groups, 4 // groups, 3)
        return F.conv_transpose1d(x, split.transpose(1, 2).reshape(4, 6 // groups, 3), b, **how)

    compare(lambda *a: mf.conv_transpose1d(*a, **how), other, X, w, B)
    layer = mf.nn.ConvTranspose1d(4, 6, 3, **how)
    layer.update({"weight": w, "bias": B})
    agree(layer(X), other(*map(theirs, (X, w, B))))


POOLINGS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True},
]


@pytest.mark.parametrize("how", POOLINGS, ids=str)
@pytest.mark.parametrize("counted", [True, False], ids=["count_include_pad", "exclude"])
def test_avg_pool1d(how: dict[str, Any], counted: bool) -> None:
    edges: dict[str, Any] = {"edge_mode": "clamp", "zero_pad": how.get("padding", 0) if counted else 0}
    compare(
        lambda x: mf.avg_pool1d(x, **how, **edges),
        lambda x: F.avg_pool1d(x, **how, count_include_pad=counted),
        X,
    )


@pytest.mark.parametrize("how", POOLINGS, ids=str)
def test_max_pool1d(how: dict[str, Any]) -> None:
    compare(lambda x: mf.max_pool1d(x, **how), lambda x: F.max_pool1d(x, **how), X)


def test_dilated_maxima() -> None:
    how: dict[str, Any] = {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}
    compare(lambda x: mf.max_pool1d(x, **how), lambda x: F.max_pool1d(x, **how), X)


@pytest.mark.parametrize("how", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2}], ids=str)
def test_l2_pool1d(how: dict[str, Any]) -> None:
    compare(lambda x: mf.l2_pool1d(x, **how), lambda x: F.lp_pool1d(x, 2.0, **how), X)


@pytest.mark.parametrize("length", [1, 3, 11, 13])
def test_adaptive_pools(length: int) -> None:
    compare(lambda x: mf.avg_pool1d(x, "adaptive", out_size=length), lambda x: F.adaptive_avg_pool1d(x, length), X)
    compare(lambda x: mf.max_pool1d(x, "adaptive", out_size=length), lambda x: F.adaptive_max_pool1d(x, length), X)


def test_norms() -> None:
    gamma, beta = numbers((4,), mx.float64, 2), numbers((4,), mx.float64, 3)
    compare(
        lambda *a: mf.batch_norm1d(*a, eps=1e-3),
        lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True, eps=1e-3),
        *(X, gamma, beta),
    )
    compare(
        lambda *a: mf.instance_norm1d(*a, eps=1e-3),
        lambda x, g, b: F.instance_norm(x, weight=g, bias=b, eps=1e-3),
        *(X, gamma, beta),
    )
    compare(
        lambda x, g, b: mf.group_norm1d(x, 2, g, b, eps=1e-3),
        lambda x, g, b: F.group_norm(x, 2, g, b, eps=1e-3),
        *(X, gamma, beta),
    )


def test_layers_of_norms_take_sequences() -> None:
    batch, other = mf.nn.BatchNorm(4, momentum=0.3), torch.nn.BatchNorm1d(4, momentum=0.3, dtype=torch.float64)
    batch.set_dtype(mx.float64)
    for _ in range(2):
        agree(batch(X), other(theirs(X)))
    agree(batch["running_mean"], other.running_mean)
    agree(batch["running_var"], other.running_var)
    agree(batch.eval()(X), other.eval()(theirs(X)))
    agree(mf.nn.InstanceNorm(4)(X), torch.nn.InstanceNorm1d(4, dtype=torch.float64)(theirs(X)))
    agree(mf.nn.GroupNorm(2, 4, pytorch_compatible=True)(X), torch.nn.GroupNorm(2, 4, dtype=torch.float64)(theirs(X)))


def slope(function: Callable[..., Any], at: float) -> float:
    x = torch.tensor([at], requires_grad=True)
    (made,) = torch.autograd.grad(function(x).sum(), x)
    return round(made.item(), 4)


def error(function: Callable[[], Any]) -> str:
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        function()
    return "an error"


def maxima() -> str:
    x = torch.ones(1, 1, 1, 2, requires_grad=True)
    F.max_pool2d(x, (1, 2)).sum().backward()
    return "the first: " + ", ".join(f"{value:g}" for value in x.grad.reshape(-1).tolist())


def default_axis(rank: int) -> int:
    """The axis along which softmax adds up to 1 if none is given."""
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        made = F.softmax(torch.rand([2] * rank))
    (axis,) = (i for i in range(rank) if torch.allclose(made.sum(i), torch.ones(())))
    return axis


def average() -> float:
    row = torch.arange(1.0, 5.0).reshape(1, 1, 1, 4)
    return F.avg_pool2d(row, (1, 3), (1, 2), (0, 1), ceil_mode=True).reshape(-1)[2].item()


def channel_first() -> bool:
    shuffled = F.pixel_shuffle(torch.arange(8).reshape(1, 8, 1, 1), 2)
    return bool(shuffled[0, :, 0, 0].tolist() == [0, 4])


def neighbours() -> bool:
    made = F.group_norm(torch.tensor([1.0, 3, 2, 6]).reshape(1, 4, 1, 1), 2)
    return [round(value, 2) for value in made.reshape(-1).tolist()] == [-1, 1, -1, 1]


def half_gradient() -> Any:
    w = torch.ones(1, 1, 1, 1, dtype=torch.float16, requires_grad=True)
    F.conv2d(torch.ones(1, 1, 1, 1).half(), w).sum().backward()
    return w.grad.dtype


ROWS: dict[int, tuple[str, Callable[[], Any]]] = {
    1: ("0", lambda: slope(F.relu, 0.0)),
    2: ("0", lambda: slope(F.relu6, 0.0)),
    3: ("0.5", lambda: slope(lambda x: F.elu(x, 0.5), 0.0)),
    4: ("0.1", lambda: slope(lambda x: F.leaky_relu(x, 0.1), 0.0)),
    5: ("0.25", lambda: slope(lambda x: F.prelu(x, torch.tensor([0.25])), 0.0)),
    6: ("0", lambda: slope(F.hardsigmoid, 3.0)),
    7: ("0.6667: x / 6 + 0.5", lambda: round(F.hardsigmoid(torch.tensor(1.0)).item(), 4)),
    10: ("2: divided by the number of pixels in image and padding", average),
    11: ("the first: 1, 0", maxima),
    13: ("an error", lambda: error(lambda: F.max_pool2d(torch.ones(1, 1, 1, 2), (1, 3)))),
    14: ("drops 10 %", lambda: abs((F.dropout(torch.ones(10000), 0.1) == 0).float().mean().item() - 0.1) < 0.03),
    15: ('"mean"', lambda: F.mse_loss(torch.ones(2), torch.zeros(2)).shape == ()),
    16: ("one number", lambda: F.cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1])).shape == ()),
    17: ("0.5", lambda: slope(lambda x: F.mse_loss(x.repeat(4), torch.zeros(4)), 1.0) / 4),
    18: (
        "0.6931",
        lambda: round(F.cross_entropy(torch.zeros(1, 2), torch.tensor([0]), label_smoothing=0.2).item(), 4),
    ),
    19: ("an error", lambda: error(lambda: F.cross_entropy(torch.zeros(1, 2), torch.tensor([7])))),
    21: ("an error", lambda: error(lambda: F.batch_norm(torch.ones(1, 1, 1, 1), None, None, training=True))),
    20: ("1e-4 and 0.75", lambda: inspect.signature(F.local_response_norm).parameters["beta"].default == 0.75),
    22: ("neighbours", neighbours),
    23: ("an error", lambda: error(lambda: F.conv2d(torch.ones(1, 1, 1, 1).half(), torch.ones(1, 1, 1, 1)))),
    24: ("float32", lambda: (torch.ones(2) + torch.ones(2).half()).dtype),
    25: ("float16", half_gradient),
    26: ("ONNX's CRD: the channel varies slowest (`pixel_shuffle`)", channel_first),
    27: ("0 for a vector, 1 for an image, with a warning", lambda: (default_axis(1), default_axis(4)) == (0, 1)),
    28: ("`(1, 2)`", lambda: F.pad(torch.ones(1, 1, 1, 1), (1, 2)).reshape(-1).tolist() == [0, 1, 0, 0]),
    29: ("1, with `clamp`", lambda: slope(lambda x: (x + 1).clamp(max=1.0), 0.0)),
    31: ("an error", lambda: error(lambda: F.avg_pool2d(torch.ones(1, 1, 2, 2, dtype=torch.int32), 2))),
    32: ("NaN", lambda: str(F.silu(torch.tensor(-np.inf)).item())),
}


@pytest.mark.parametrize("number", ROWS)
def test_the_page_of_defaults_knows_pytorch(number: int) -> None:
    page = (Path(__file__).parents[2] / "docs/defaults.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {number} |"))
    said, measure = ROWS[number]
    assert row.split(" | ")[3] == said
    found = measure()
    if found is not True:
        first = said.partition(":")[0].partition(",")[0]
        assert found == said or str(found).removeprefix("torch.").lower() == first.lower() or found == float(first)
