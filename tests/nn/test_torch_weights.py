"""`from_torch` by its definition, in NumPy: where each number of PyTorch's arrays goes, and what is refused.

tests/nn/test_parity.py compares whole networks with PyTorch.
"""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from mlx.utils import tree_flatten
from support.hostile import HOSTILE, fault

import mpsfunc as mf
from mpsfunc.nn import from_torch

pytestmark = pytest.mark.usefixtures("on_cpu")


def counted(*shape: int) -> np.ndarray:
    """Other numbers everywhere."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def read(*args: Any, **more: Any) -> dict[str, np.ndarray]:
    return {name: np.array(a) for name, a in from_torch(*args, **more)}


# Layouts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(5,), (2, 3), (2, 3, 2)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions(size: tuple[int, ...], groups: int) -> None:
    theirs = counted(8, 4 // groups, *size)
    ours = read({"weight": theirs}, transposed={})["weight"]
    assert ours.shape == (8, *size, 4 // groups)
    for (o, i, *at), value in np.ndenumerate(theirs):
        assert ours[(o, *at, i)] == value


@pytest.mark.parametrize("size", [(5,), (2, 3), (2, 3, 2)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_convolutions(size: tuple[int, ...], groups: int) -> None:
    theirs = counted(4, 8 // groups, *size)  # (i, o / groups, ...)
    ours = read({"up.weight": theirs}, transposed={"up": groups})["up.weight"]
    assert ours.shape == (8, *size, 4 // groups)
    for (i, o, *at), value in np.ndenumerate(theirs):
        group, inside = divmod(i, 4 // groups)
        assert ours[(group * (8 // groups) + o, *at, inside)] == value


def test_groups_of_a_transposed_convolution_are_those_of_its_layer() -> None:
    theirs = counted(4, 3, 2, 2)
    model = stock.Sequential(mf.nn.ConvTranspose2d(4, 6, 2, groups=2, bias=False))
    (ours,) = read({"0.weight": theirs}, model).values()
    np.testing.assert_array_equal(ours, read({"up.weight": theirs}, transposed={"u*": 2})["up.weight"])


@pytest.mark.parametrize("channels", [1, 2, 3, 12])
def test_flattened_images(channels: int) -> None:
    """Column p * channels + c is PyTorch's c * pixels + p, and so are rows and vectors."""
    pixels = 12 // channels
    weight, vector = counted(5, 12), counted(12)
    state = {"norm.weight": vector, "norm.running_mean": 2 * vector, "fc.weight": weight, "fc.bias": counted(5)}
    ours = read(state, flattened={"norm": channels, "fc": channels})
    rows = read({"fc.weight": weight.T, "fc.bias": vector}, flattened={"fc": None}, unflattened={"fc": channels})
    for p in range(pixels):
        for c in range(channels):
            there, here = c * pixels + p, p * channels + c
            np.testing.assert_array_equal(ours["fc.weight"][:, here], weight[:, there])
            assert ours["norm.weight"][here] == vector[there]
            assert ours["norm.running_mean"][here] == 2 * vector[there]
            np.testing.assert_array_equal(rows["fc.weight"][here], weight.T[there])
            assert rows["fc.bias"][here] == vector[there]
    np.testing.assert_array_equal(ours["fc.bias"], state["fc.bias"])


class Tensor:
    """As much of one of PyTorch's as is asked of it."""

    def __init__(self, values: np.ndarray, dtype: str = "torch.float32") -> None:
        self.values, self.dtype = values, dtype

    def detach(self) -> Tensor:
        return Tensor(self.values, self.dtype + ", detached")

    def cpu(self) -> Tensor:
        return Tensor(self.values, self.dtype.removesuffix(", detached"))

    def float(self) -> Tensor:
        return Tensor(self.values.astype(np.float32))

    def numpy(self) -> np.ndarray:
        assert self.dtype == "torch.float32", "NumPy does not have it"
        return self.values


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.ones(3, np.float16), mx.float16),
        (np.ones(3), mx.float64),
        (np.arange(6, dtype=np.int64)[::2], mx.int64),
        (mx.ones(3, mx.bfloat16), mx.bfloat16),
        (Tensor(np.ones(3, np.float32)), mx.float32),
        (Tensor(np.ones(3, np.float32), "torch.bfloat16"), mx.bfloat16),
    ],
)
def test_dtypes_are_kept(value: Any, dtype: mx.Dtype) -> None:
    (found,) = from_torch({"weight": value})
    assert found[1].dtype == dtype and found[1].shape == (3,)


def test_arrays_lie_as_layers_read_them() -> None:
    ((_, ours),) = from_torch({"weight": counted(4, 3, 2, 2)}, transposed={})
    assert memoryview(ours).c_contiguous


def test_what_comes_out_shares_nothing_with_what_went_in() -> None:
    theirs = counted(3)
    ((_, ours),) = from_torch({"weight": theirs})
    theirs[:] = 7
    assert ours.tolist() == [0, 1, 2]


# Models -----------------------------------------------------------------------------------------------------


class Net(stock.Module):
    """A convolution in a Sequential in a list, a norm, and a linear layer behind images of 2x2 pixels."""

    def __init__(self, *, classes: int = 3) -> None:
        super().__init__()
        self.stages = [stock.Sequential(stock.Conv2d(2, 4, 3), stock.BatchNorm(4), stock.relu)]
        self.layers = {"fc": stock.Linear(16, classes)}
        self.offset = mx.zeros((1, 3))

    def __call__(self, x: mx.array) -> mx.array:
        return self.layers["fc"](self.stages[0](x).flatten(1)) + self.offset


def checkpoint() -> dict[str, np.ndarray]:
    norm = {f"stages.0.1.{name}": counted(4) for name in ("weight", "bias", "running_mean", "running_var")}
    return {
        "layers.fc.weight": counted(3, 16),
        "layers.fc.bias": counted(3),
        "offset": counted(1, 3),
        "stages.0.0.weight": counted(4, 2, 3, 3),
        "stages.0.0.bias": counted(4),
        **norm,
        "stages.0.1.num_batches_tracked": np.array(5),
    }


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType])
@pytest.mark.parametrize("converted", [False, True])
def test_names_are_those_of_the_model(kind: Any, converted: bool) -> None:
    """A dict's order does not matter, since the model has its own."""
    model = Net()
    if converted:
        mf.nn.convert(model)
    before = {name: np.array(a) for name, a in tree_flatten(model.parameters())}
    weights = from_torch(kind(checkpoint()), model, flattened={"layers.fc": 4})
    assert [name for name, _ in weights] == [name for name, _ in tree_flatten(model.parameters())]
    assert "stages.0.layers.1.running_var" in dict(weights)
    for name, a in tree_flatten(model.parameters()):
        np.testing.assert_array_equal(np.array(a), before[name])
    model.load_weights(weights)
    alone = read(checkpoint(), transposed={}, flattened={"*.fc": 4}, unflattened={"*.fc": None})
    np.testing.assert_array_equal(np.array(model.layers["fc"].weight), alone["layers.fc.weight"])
    np.testing.assert_array_equal(np.array(model.stages[0].layers[0].weight), alone["stages.0.0.weight"])


def test_a_head_may_be_left_out() -> None:
    state, model = checkpoint(), Net()
    state["head.weight"] = state.pop("layers.fc.weight")
    weights = from_torch(state, model, strict=False)
    assert "layers.fc.bias" in dict(weights) and len(weights) == 8
    model.load_weights(weights, strict=False)


# What is refused ------------------------------------------------------------------------------------------

CONV = stock.Conv2d(2, 4, 3, bias=False)


def without(*names: str, **more: Any) -> dict[str, Any]:
    return {name: a for name, a in (checkpoint() | more).items() if name not in names}


class OfItsOwn(stock.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = mx.ones(shape)


def of_linear(*sizes: tuple[str, tuple[int, ...]], **more: Any) -> Any:
    return from_torch({f"{name}.weight": counted(*shape) for name, shape in sizes}, transposed={}, **more)


REFUSED: dict[str, tuple[Any, str]] = {
    "another name": (
        lambda: from_torch(without("layers.fc.bias", **{"head.bias": counted(3)}), Net(), flattened={"layers.fc": 4}),
        "names do not fit the model; got 'head.bias', which it lacks and nothing for 'layers.fc.bias', expected",
    ),
    "many names": (
        lambda: from_torch({}, Net()),
        "got nothing for 'stages.0.0.weight', 'stages.0.0.bias', 'stages.0.1.weight' and 6 more, expected",
    ),
    "another shape": (
        lambda: from_torch({"weight": counted(4, 3, 3, 3)}, CONV),
        "shapes do not fit the model; got 'weight' with float32[4, 3, 3, 3], expected float32[4, 3, 3, 2]",
    ),
    "fewer classes": (
        lambda: from_torch(checkpoint() | {"layers.fc.weight": counted(2, 16)}, Net()),
        "got 'layers.fc.weight' with float32[2, 16], expected float32[3, 16]",
    ),
    "channels of no groups": (
        lambda: from_torch({"weight": counted(3, 3, 2, 2)}, mf.nn.ConvTranspose2d(4, 6, 2, groups=2, bias=False)),
        "got 'weight' with float32[3, 3, 2, 2], expected float32[6, 2, 2, 2]",
    ),
    "no images of these axes": (
        lambda: from_torch({"weight": counted(4, 18)}, CONV),
        "got 'weight' with float32[4, 18], expected float32[4, 3, 3, 2]",
    ),
    "a linear layer behind an image": (
        lambda: from_torch(checkpoint(), Net()),
        "layers may read flattened images; got 'layers.fc' of 16 features, expected them in flattened=",
    ),
    "the same without a model": (
        lambda: of_linear(("conv", (4, 2, 3, 3)), ("fc", (3, 16))),
        "layers may read flattened images; got 'fc' of 16 features, expected",
    ),
    "a norm of a flattened image": (
        lambda: of_linear(("conv", (4, 2, 3, 3)), ("norm", (16,)), ("fc", (3, 16))),
        "layers may read flattened images; got 'norm' of 16 features and 'fc' of 16 features, expected",
    ),
    "the second of two that read one": (
        lambda: of_linear(("conv", (4, 2, 3, 3)), ("mean", (3, 16)), ("log", (3, 16)), flattened={"mean": 4}),
        "layers may read flattened images; got 'log' of 16 features, expected",
    ),
    "as many as an earlier convolution made": (
        lambda: of_linear(("conv1", (16, 2, 3, 3)), ("conv2", (4, 16, 3, 3)), ("fc", (3, 16))),
        "layers may read flattened images; got 'fc' of 16 features, expected",
    ),
    "many of them": (
        lambda: of_linear(("conv", (4, 2, 3, 3)), *((name, (3, 16)) for name in "abcd")),
        "got 'a' of 16 features, 'b' of 16 features, 'c' of 16 features and 1 more, expected",
    ),
    "a linear layer ahead of an image": (
        lambda: of_linear(("fc", (16, 3)), ("norm", (16,)), ("conv", (4, 8, 3, 3)), flattened={"fc": None}),
        "layers may make flattened images; got 'fc' of 16 features and 'norm' of 16 features, expected",
    ),
    "transposed or not": (
        lambda: from_torch({"weight": counted(4, 4, 3, 3)}),
        "which convolutions are transposed is not known; got 'weight', expected a model, or transposed=",
    ),
    "transposed by the model": (
        lambda: from_torch({}, stock.ReLU(), transposed={}),
        "the model says it; got transposed={}, expected None",
    ),
    "groups of no divisor": (
        lambda: from_torch({"up.weight": counted(4, 4, 3, 3)}, transposed={"up": 3}),
        "groups do not divide the channels; got 'up.weight' with groups=3, expected a divisor of 4",
    ),
    "no such transposed convolution": (
        lambda: of_linear(("fc", (4, 4)), flattened={"fc": None}, unflattened={"up": 2}),
        "there is no such linear layer or normalization; got unflattened={'up': 2}, expected",
    ),
    "no such convolution": (
        lambda: from_torch({"up.weight": counted(4, 4, 3, 3)}, transposed={"down": 1}),
        "there is no such convolution; got 'down', expected",
    ),
    "no divisor": (
        lambda: of_linear(("fc", (4, 6)), flattened={"fc": 4}),
        "channels do not divide the features; got flattened={'fc': 4}, expected a divisor of 6 for 'fc'",
    ),
    "no channels": (
        lambda: of_linear(("fc", (4, 6)), flattened={"fc": 0}),
        "not a number of channels; got flattened={'fc': 0}, expected",
    ),
    "a norm of whole images": (
        lambda: from_torch({"norm.weight": counted(2, 3, 4), "norm.bias": counted(2, 3, 4)}, transposed={}),
        "not a convolution; got 'norm' and a bias with float32[2, 3, 4], expected",
    ),
    "axes that may go either way": (
        lambda: from_torch({"scale": counted(3, 3, 3)}, OfItsOwn(3, 3, 3)),
        "the order of axes cannot be told; got 'scale' with float32[3, 3, 3], expected",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_are_refused(case: str) -> None:
    call, said = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value).startswith("from_torch: ") and said in str(caught.value)


ACCEPTED: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "behind a mean of each channel": (("conv", (8, 2, 3, 3)), ("norm", (8,)), ("fc", (3, 8))),
    "behind another": (("conv", (8, 2, 3, 3)), ("fc1", (16, 8)), ("fc2", (3, 16))),
    "squeeze and excite": (("conv", (8, 2, 3, 3)), ("fc1", (2, 8)), ("fc2", (8, 2)), ("next", (4, 8, 1, 1))),
    "ahead of a depthwise convolution": (("conv", (8, 2, 3, 3)), ("fc", (8, 8)), ("next", (8, 1, 3, 3))),
    "behind a concatenation": (("conv", (8, 2, 3, 3)), ("norm", (24,)), ("next", (8, 24, 1, 1)), ("fc", (3, 8))),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_features_that_are_no_images_need_no_word(case: str) -> None:
    assert len(of_linear(*ACCEPTED[case])) == len(ACCEPTED[case])


def test_an_array_of_the_model_s_own_stays_as_it_is() -> None:
    for shape in ((1, 5, 3), (4, 1, 1), (3, 3), (2, 3, 2)):
        (ours,) = read({"scale": counted(*shape)}, OfItsOwn(*shape)).values()
        np.testing.assert_array_equal(ours, counted(*shape))


@pytest.mark.parametrize(
    "call",
    [
        lambda: from_torch([("weight", counted(3))]),  # type: ignore[arg-type]
        lambda: from_torch({3: counted(3)}),  # type: ignore[dict-item]
        lambda: from_torch({"model": {"weight": counted(3)}}),
        lambda: from_torch({"weight": np.array(["text"])}),
        lambda: from_torch({"weight": Tensor(counted(3), "torch.float8")}),
        lambda: from_torch({}, stock.relu),
        lambda: from_torch({}, strict=1),  # type: ignore[arg-type]
        lambda: of_linear(("fc", (4, 6)), flattened=["fc"]),
        lambda: of_linear(("fc", (4, 6)), flattened={"fc": 1.5}),
        lambda: from_torch({"weight": counted(4, 4, 3, 3)}, transposed={"weight": None}),  # type: ignore[dict-item]
    ],
)
def test_types_are_refused(call: Any) -> None:
    with pytest.raises(TypeError, match=r"^from_torch: .*; got .*, expected "):
        call()


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_is_too_odd_to_be_refused(hostile: str) -> None:
    make, linear = HOSTILE[hostile], {"fc.weight": counted(4, 6)}
    calls = {
        "array": lambda: from_torch({"weight": make()}),
        "channels": lambda: from_torch(linear, flattened={"fc": make()}),
        "groups": lambda: from_torch({"up.weight": counted(4, 4, 3, 3)}, transposed={"up": make()}),
    }
    assert not {case: said for case, call in calls.items() if (said := fault("from_torch", call))}
