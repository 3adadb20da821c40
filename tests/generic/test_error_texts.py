"""What errors say: values by one formatter, what was meant where a name or the order of axes is nearly right."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support.hostile import (
    HOSTILE,
    HUGE,
    Raises,
    RaisingClass,
    RaisingInt,
    RaisingList,
    RaisingNumPyInt,
    RaisingText,
    RaisingTuple,
    odd_classes,
)

import mpsfunc as mf
from mpsfunc.core.printing import a_kind, describe, name_of
from mpsfunc.graph.nodes import shown

pytestmark = pytest.mark.usefixtures("on_cpu")
PACKAGE = Path(__file__).parents[2] / "mpsfunc"

# The formatter -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (HUGE, "an int of 20001 bits"),
        (-HUGE, "a negative int of 20001 bits"),
        (2**512 - 1, str(2**512 - 1)[:200]),
        (True, "True"),
        (None, "None"),
        (1e-5, "1e-05"),
        (np.float32(0.5), "np.float32(0.5)"),
        ((1, 2), "(1, 2)"),
        ((1,), "(1,)"),
        ([], "[]"),
        (set(), "set()"),
        ({"a": [1.5]}, "{'a': [1.5]}"),
        (range(3), "range(0, 3)"),
        ("a\nb", r"'a\nb'"),
        (b"zero", "b'zero'"),
        (mx.zeros((2, 3)), "float32[2, 3]"),
        (np.ones((4, 1), np.int8), "numpy.int8[4, 1]"),
        ([[mx.zeros((2, 3)), {"k": np.ones(3)}]], "[[float32[2, 3], {'k': numpy.float64[3]}]]"),
        (mx.float16, "mlx.core.float16"),
        (int, "the class int"),
        (len, "the function len"),
        (Raises(), "a value of type Raises"),
        (RaisingInt(7), "7"),
        (RaisingText("zero"), "'zero'"),
        (RaisingList([2, RaisingText("a")]), "[2, 'a']"),
        (RaisingTuple((2,)), "(2,)"),
        (RaisingNumPyInt(2), "a value of type RaisingNumPyInt"),
        (RaisingClass(), "a value of type RaisingClass"),
        (HOSTILE["raising fields"](), "(1, 2)"),
        (odd_classes()[0], "the class RaisingFields"),
        (HOSTILE["no module"](), "0.5"),
        (np.timedelta64(2, "s"), "np.timedelta64(2,'s')"),
        (type("A" * 10**6, (), {})(), f"a value of type {'A' * 80}..."),
        (mf.PaddingPolicy(exclude_edges=Raises()), "exclude_edges=a value of type Raises)"),  # type: ignore[arg-type]
        (mf.avg_pool_state((1, 4, 4, 1), 2).rows, "Axis(n_in=4, n_out=2, size=2"),
    ],
    ids=lambda value: value if type(value) is str else name_of(type(value)),
)
def test_a_value_is_told(value: Any, expected: str) -> None:
    text = describe(value)
    assert expected in text if len(expected) > 20 else text == expected


def test_kinds_have_their_article() -> None:
    kinds = [a_kind(value) for value in (1, OrderedDict(), np.ones(1), np.int32(1), 1.5, {}, mx.zeros(1))]
    assert kinds == ["an int", "an OrderedDict", "an ndarray", "an int32", "a float", "a dict", "an array"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_is_too_much_for_the_formatter(hostile: str) -> None:
    value = HOSTILE[hostile]()
    for each in (value, [value] * 50, {"a": value}, (value, [value, [value, [value, [value]]]])):
        text = describe(each)
        assert 0 < len(text) <= 203 and "\n" not in text and "array(" not in text
        assert shown(each)


def test_a_huge_container_is_not_walked_through() -> None:
    class Counted(list):  # type: ignore[type-arg]
        asked = 0

        def __getitem__(self, at: Any) -> Any:
            Counted.asked += 1
            return super().__getitem__(at)

        __iter__ = __len__ = Raises._no  # type: ignore[assignment]

    deep: Any = 1
    for _ in range(10**5):
        deep = [deep]
    assert describe(Counted(range(10**6))).endswith("15, ...]") and Counted.asked == 0
    assert describe(deep) == "[[[[...]]]]"
    assert describe("x" * 10**8).endswith("...")
    while isinstance(deep, list):  # what is so deep may not be freed at once
        deep = deep.pop()


# No other way -------------------------------------------------------------------------------------------

# What f-strings of errors may hold beside the formatter's: our own words, and what arrays say of their shapes.
OWN_WORDS = frozenset(
    "op self.name name argument arg letter option what why wrong rule other known complaint kind expected got field "
    "error said owner readers names losses gradient least most".split()
)
FORMATTERS = frozenset(
    (
        "describe",
        "a_kind",
        "printing.describe",
        "shown",
        "name_of",
        "brief",
        "_either",
        "place",
        "len",
        "near",
        "_where",
    )
)
OF_ARRAYS = (".shape", ".dtype", "__name__", ".device", ".kind.name")


def _raised(tree: ast.AST) -> list[tuple[ast.JoinedStr, bool]]:
    """The f-strings of all errors, and whether they are about the contents of a file, which stand anywhere in them."""
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    calls += [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "refuse"]
    of_file = [ast.unparse(call.func) in ("Refused", "OSError") for call in calls]
    strings = zip(map(ast.walk, calls), of_file, strict=True)
    return [(each, of) for inside, of in strings for each in inside if isinstance(each, ast.JoinedStr)]


def _suspicious(text: ast.JoinedStr, behind: bool) -> list[str]:
    """What stands bare behind "got", up to "expected", or anywhere."""
    found = []
    for part in text.values:
        if isinstance(part, ast.Constant):
            behind = ("; got " in part.value or behind) and ", expected " not in part.value.rpartition("; got ")[2]
            continue
        assert isinstance(part, ast.FormattedValue)
        value = ast.unparse(part.value)
        if part.conversion == ord("r"):
            found.append(f"{value}!r")
        called = isinstance(part.value, ast.Call) and ast.unparse(part.value.func) in FORMATTERS
        if behind and not called and value not in OWN_WORDS and not value.removesuffix(")").endswith(OF_ARRAYS):
            found.append(value)
    return found


# Values that were checked before: numbers of ours, in ranges that print.
CHECKED = {
    "core/moved": {"module!r", "name!r"},
    "__init__": {"name!r"},
    "core/checks": {"dtype"},
    "losses/arguments": {"smoothing", "type", "shape", "given", "weight"},
    "losses/labels": {"type", "index", "at", "count"},
    "channels/broadcast": {"other", "shape"},
    "channels/activation_rules": {"made[2]"},
    "image/rules": {"made"},
    "losses/softmax_rules": {"shape"},
    "core/launch": {"stream!r", "stream"},
    "core/grids": {"strips", "x", "y", "z"},
    "elementwise/arithmetic": {"low"},
    "elementwise/operands": {"step"},
    "elementwise/dropout": {"strides"},
    "pooling/maximum": {"size", "why"},
    "convolution/weights": {"given"},
    "nn/conversion": {"more"},  # by the formatter
    "nn/torch_weights": {"_and(said)", "_shown(convolutions)", "shown"},  # likewise
    "exporting/finishing": {"step.name", "read"},  # operations of a table, and what they read in brief
    "exporting/kernels": {"of.body"},
    "exporting/layout": {  # numbers of at most 64 bits, and operations of a table
        *("length", "count", "size", "tag", "value", "siblings", "operation.name"),
        *("self.at", "self.at - 1", "self.at - 4", "self.at - 5", "reader.at"),
    },
    "exporting/tracing": {"_said(unwritten[1])", "i - 1"},
    "saving/files": {"version", "_VERSION"},
    "saving/trees": {"called", "DEEPEST"},
    "saving/places": {"done", "error.strerror", "_kind(about)"},
    "saving/safetensors": {  # numbers of at most 64 bits, and names by the formatter
        *("at", "size", "length", "begin", "end", "needed", "tensor.begin", "header.follow"),
        *("shown", "word", "', '.join(DTYPES)"),
    },
}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_errors_hold_values_by_the_formatter(path: Path) -> None:
    found = {each for text, of_file in _raised(ast.parse(path.read_text())) for each in _suspicious(text, of_file)}
    assert found <= CHECKED.get(str(path.relative_to(PACKAGE).with_suffix("")), set())


# Near names ---------------------------------------------------------------------------------------------

X, W = mx.ones((1, 4, 4, 3)), mx.ones((2, 1, 1, 3))


def _padded(mode: str) -> mx.array:
    """By a state whose rows say a name that a state does not keep."""
    state = mf.pad_state(X.shape, 0, 0)
    return mf.pad_grad(X, state._replace(rows=state.rows._replace(mode=mode)))


MEANT: list[tuple[Callable[[], Any], str]] = [
    (lambda: mf.conv(X, W, neuron="ReLU"), "'relu'"),
    (lambda: mf.conv(X, W, neuron="Sigmoid"), "'sigmoid'"),
    (lambda: mf.conv(X, W, neuron="sigmiod"), "'sigmoid'"),
    (lambda: mf.conv(X, W, neuron="leaky_relu"), "'relu' with its slope as a"),
    (lambda: mf.conv(X, W, neuron="LeakyReLU"), "'relu' with its slope as a"),
    (lambda: mf.conv(X, W, neuron="hard-sigmoid"), "'hard_sigmoid'"),
    (lambda: mf.conv_transpose(X, W, neuron=mf.Neuron("Tanh")), "'tanh'"),
    (lambda: mf.neuron(X, "swish"), "'silu'"),
    (lambda: mf.neuron(X, "HardSwish"), "'hard_swish'"),
    (lambda: mf.neuron(X, "logsigmoid"), "'log_sigmoid'"),
    (lambda: mf.neuron(X, "gelu_approx"), "'gelu_tanh'"),
    (lambda: mf.neuron_grad(X, X, "GELU"), "'gelu'"),
    (lambda: mf.conv(X, W, padding="SAME"), "'same'"),
    (lambda: mf.conv(X, W, padding="Valid"), "'valid'"),
    (lambda: mf.avg_pool(X, 2, padding="SAME_UPPER"), "'same'"),
    (lambda: mf.avg_pool(X, "Global"), "'global'"),
    (lambda: mf.avg_pool(X, 2, edge_mode="Clamp"), "'clamp'"),
    (lambda: mf.max_pool(X, 2, edge_mode="excluded"), "'exclude'"),
    (lambda: mf.conv(X, W, padding=mf.PaddingPolicy(size="SAME")), "'same'"),  # type: ignore[arg-type]
    (lambda: mf.conv(X, W, padding=mf.PaddingPolicy("center")), "'centered'"),  # type: ignore[arg-type]
    (lambda: mf.pad(X, 1, 1, "zeros"), "'zero'"),
    (lambda: mf.pad(X, 1, 1, "Symmetric"), "'symmetric'"),
    (lambda: _padded("replicate"), "'clamp'"),
    (lambda: _padded("reflect"), "'mirror'"),
    (lambda: _padded("symmetric"), "'mirror_with_edge'"),
    (lambda: _padded("wrap"), "'circular'"),
    (lambda: mf.pad(X, 1, 1, "CONSTANT"), "'constant'"),
    (lambda: mf.upsample_bilinear(X, 2, edge_mode="replicate"), "'clamp'"),
    (lambda: mf.upsample_bilinear(X, 2, coordinate="half-pixel"), "'half_pixel'"),
    (lambda: mf.loss(X, X, "mse", "sum"), "'mean_squared_error'"),
    (lambda: mf.loss(X, X, "L1", "sum"), "'mean_absolute_error'"),
    (lambda: mf.loss(X, X, "cross_entropy", "sum"), "'softmax_cross_entropy'"),
    (lambda: mf.loss(X, X, "hinge", "average"), "'mean'"),
    (lambda: mf.loss(X, X, "hinge", "Mean"), "'mean'"),
    (lambda: mf.arithmetic(X, X, "mul"), "'multiply'"),
    (lambda: mf.arithmetic_grad(X, X, X, "add", operand="Primary"), "'primary'"),
    (lambda: mf.compare(X, X, "ge"), "'greater_equal'"),
    (lambda: mf.conv_grad(X, X, W, mf.conv_state(X.shape, W.shape), option="All"), "'all'"),
]
UNLIKE: list[Callable[[], Any]] = [
    *(lambda name=name: mf.neuron(X, name) for name in ("maxout", "a" * 99)),
    lambda: mf.pad(X, 1, 1, "border"),
    lambda: mf.loss(X, X, "binary_cross_entropy", "sum"),
    lambda: mf.conv(X, W, edge_mode="reflect"),
]


@pytest.mark.parametrize(("call", "meant"), MEANT)
def test_a_near_name_is_said(call: Callable[[], Any], meant: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value).endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("call", UNLIKE)
def test_no_name_is_said_where_none_is_near(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert "did you mean" not in str(caught.value) and ", expected " in str(caught.value)


# The order of axes --------------------------------------------------------------------------------------

NCHW, C = mx.ones((2, 4, 6, 5)), mx.ones(4)
TURNED: dict[str, Callable[[mx.array], Any]] = {
    "conv": lambda x: mf.conv(x, mx.ones((3, 1, 1, 4))),
    "conv in groups": lambda x: mf.conv(x, mx.ones((4, 1, 1, 2)), groups=2),
    "conv_state": lambda x: mf.conv_state(x.shape, (3, 1, 1, 4)),
    "conv_transpose": lambda x: mf.conv_transpose(x, mx.ones((3, 2, 2, 4)), stride=2),
    "fully_connected": lambda x: mf.fully_connected(x, mx.ones((3, 6, 5, 4))),
    "batch_norm": lambda x: mf.batch_norm(x, C, C),
    "bn_stats": lambda x: mf.bn_stats(x, mf.bn_stats(mx.ones((2, 6, 5, 4)))),
    "bn_normalize": lambda x: mf.bn_normalize(x, mf.bn_frozen(C, C)),
    "instance_norm": lambda x: mf.instance_norm(x, C, C),
    "instance_norm, a shift only": lambda x: mf.instance_norm(x, beta=C),
    "group_norm": lambda x: mf.group_norm(x, 1, C, C),
    "group_norm of more groups": lambda x: mf.group_norm(x, 4, C, C),
    "group_norm's gradient": lambda x: mf.group_norm_grad(x, x, mf.group_norm_fwd(mx.ones((2, 6, 5, 4)), 1)[1]),
    "instance_norm's gradient": lambda x: mf.instance_norm_grad(x, x, mf.instance_norm_fwd(mx.ones((2, 6, 5, 4)))[1]),
    "prelu": lambda x: mf.prelu(x, C),
    "neuron": lambda x: mf.neuron(x, "prelu", C),
    "batch_norm's neuron": lambda x: mf.batch_norm(x, neuron=mf.Neuron("prelu", C)),
    "avg_pool_grad": lambda x: mf.avg_pool_grad(x, mf.avg_pool_state((2, 6, 5, 4), 1)),
    "conv_grad_weights": lambda x: mf.conv_grad_weights(
        mx.ones((2, 6, 5, 3)), x, mf.conv_state((2, 6, 5, 4), (3, 1, 1, 4))
    ),
    "target": lambda x: mf.loss(mx.ones((2, 6, 5, 4)), x, "hinge", "sum"),
}


@pytest.mark.parametrize("case", TURNED)
def test_images_in_another_order_of_axes(case: str) -> None:
    hint = "; images are (n, h, w, c), and these look like (n, c, h, w)"
    with pytest.raises(ValueError) as caught:
        TURNED[case](NCHW)
    assert str(caught.value).endswith(hint) and "; got " in str(caught.value)
    TURNED[case](NCHW.transpose(0, 2, 3, 1))
    with pytest.raises(ValueError) as caught:
        TURNED[case](mx.ones((2, 6, 5, 7)))
    assert "look like" not in str(caught.value)


def test_labels_tell_the_order_of_axes() -> None:
    labels = mx.zeros((2, 6, 5), mx.int32)
    for reduction, wrong, hint in (("sum", NCHW, True), ("none", mx.ones((2, 5, 6, 7)), False)):
        with pytest.raises(ValueError, match=r"^loss_value: the labels do not fit y; got ") as caught:
            mf.loss_value(wrong, labels, "softmax_cross_entropy", reduction)
        assert ("these look like (n, c, h, w)" in str(caught.value)) is hint


# An argument is named -----------------------------------------------------------------------------------

FAR: dict[str, Callable[[], Any]] = {
    "stride": lambda: mf.avg_pool(X, 2, stride=2**29, offset=0, out_size=9),
    "padding": lambda: mf.avg_pool(X, 2, padding=2**30),
    "dilation": lambda: mf.conv(X, mx.ones((1, 2, 2, 3)), dilation=2**30, offset=0, out_size=1),
    "kernel_size": lambda: mf.avg_pool(X, 2**30, offset=0, out_size=1),
    "zero_pad": lambda: mf.avg_pool(X, 2, edge_mode="clamp", zero_pad=2**30),
    "out_size": lambda: mf.avg_pool(X, 1, stride=1, offset=0, out_size=(2**30, 1)),
}


@pytest.mark.parametrize("argument", FAR)
def test_a_far_window_names_an_argument(argument: str) -> None:
    with pytest.raises(ValueError, match=f": windows reach too far; got {argument}=[0-9]+, expected windows within 2"):
        FAR[argument]()


def test_errors_of_the_gradient_from_a_source_name_it() -> None:
    op = "max_pool_grad_from_source"
    with pytest.raises(ValueError, match=f"^{op}: dy does not belong to this state; got "):
        mf.max_pool_grad_from_source(X, X, 2)
    with pytest.raises(ValueError, match=f"^{op}: window does not fit; got "):
        mf.max_pool_grad_from_source(X, X, 9)
    with pytest.raises(ValueError, match=f"^{op}: unknown edge_mode; got "):
        mf.max_pool_grad_from_source(X, X, 2, edge_mode="edges")


@pytest.mark.parametrize("field", [1, 0, "True", np.True_, None])
def test_exclude_edges_is_a_bool(field: Any) -> None:
    with pytest.raises(ValueError, match="^avg_pool: unknown exclude_edges in a PaddingPolicy; got exclude_edges="):
        mf.avg_pool(X, 2, padding=mf.PaddingPolicy(exclude_edges=field))


WHOLE: list[tuple[Callable[[], Any], str]] = [
    (lambda: mf.dropout_mask((-1,), seed=1), "shape=(-1,)"),
    (lambda: mf.dropout_mask((0, 2**40), seed=1), f"shape=(0, {2**40})"),
    (lambda: mf.dropout_mask((2, 1.5), seed=1), "shape=(2, 1.5)"),  # type: ignore[arg-type]
    (lambda: mf.avg_pool(X, 2, zero_pad=((0, 0), (1,))), "zero_pad=((0, 0), (1,))"),  # type: ignore[arg-type]
    (lambda: mf.avg_pool(X, 2, zero_pad=((0, 0), (1, None))), "zero_pad=((0, 0), (1, None))"),  # type: ignore[arg-type]
    (lambda: mf.avg_pool(X, 2, padding=((0, 0), (1, -1))), "padding=((0, 0), (1, -1))"),
    (lambda: mf.max_pool(X, 2, padding=((0, 0), (1, 2, 3))), "padding=((0, 0), (1, 2, 3))"),  # type: ignore[arg-type]
    (lambda: mf.conv_transpose(X, W, padding=((0,), 1)), "padding=((0,), 1)"),  # type: ignore[arg-type]
    (lambda: mf.nn.AdaptiveAvgPool2d(0)(X), "out_size=0"),
    (lambda: mf.nn.AdaptiveMaxPool2d((None, -1))(X), "out_size=(None, -1)"),
    (
        lambda: mf.avg_pool_grad(X, mf.avg_pool_state(X.shape, 1), source_window=((0, 0), (1,))),  # type: ignore[arg-type]
        "source_window=((0, 0), (1,))",
    ),
]


@pytest.mark.parametrize(("call", "said"), WHOLE)
def test_the_whole_argument_is_said(call: Callable[[], Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert f"; got {said}, expected " in str(caught.value)
