"""Bad input: refused by name before MLX sees it, or answered right."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers
from support.bad import activation as bad_activation
from support.bad import elementwise as bad_elementwise
from support.bad import image as bad_image
from support.bad import losses as bad_losses
from support.bad import normalization as bad_normalization
from support.bad.normalization import NORM

import mpsfunc as mf
from mpsfunc.core import launch

pytestmark = pytest.mark.usefixtures("on_cpu")

# Families with a file of their own.
OTHERS = (bad_normalization, bad_activation, bad_elementwise, bad_image, bad_losses)
X = numbers((2, 6, 5, 4))
W = numbers((6, 3, 3, 4))
POOL = mf.avg_pool_state(X.shape, 2)
_, MAX_POOL = mf.max_pool_fwd(X, 2)
_, L2_POOL = mf.l2_pool_fwd(X, 2)
CONV = mf.conv_state(X.shape, W.shape, padding=1)
_, CONV_RELU = mf.conv_fwd(X, W, padding=1, neuron="relu")
_, BACK = mf.conv_transpose_fwd(X, W, padding=1)
_, CONNECTED = mf.fully_connected_fwd(X, mx.ones((3, 6, 5, 4)))
POOLED, CONVOLVED = mx.ones((2, 3, 2, 4)), mx.ones((2, 6, 5, 6))


ONES = mx.ones(6)


def _other(**fields: Any) -> mf.ConvState:
    return CONV._replace(**fields)


def _forged(**fields: Any) -> mf.ConvState:
    """A clamped state whose windows along y say something else."""
    state = mf.conv_state(X.shape, W.shape, padding=1, edge_mode="clamp")
    return state._replace(rows=state.rows._replace(**fields))


def refuses(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    """The whole sentence: ``{op}: {what is wrong}; got {argument}={value}, expected {rule}``."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(message + "; got "), text
    assert ", expected " in text and text.count("; got ") == 1


# The image argument of every function that takes one, with all else right.
IMAGES: dict[str, Callable[[Any], Any]] = {
    "avg_pool": lambda x: mf.avg_pool(x, 2),
    "avg_pool_grad": lambda x: mf.avg_pool_grad(x, POOL),
    "max_pool_grad": lambda x: mf.max_pool_grad(x, MAX_POOL),
    "l2_pool": lambda x: mf.l2_pool(x, 2),
    "l2_pool_grad": lambda x: mf.l2_pool_grad(POOLED, x, L2_POOL),
    "conv": lambda x: mf.conv(x, W),
    "conv_grad_input": lambda x: mf.conv_grad_input(x, W, CONV),
    "conv_grad_weights": lambda x: mf.conv_grad_weights(CONVOLVED, x, CONV),
    "conv_grad": lambda x: mf.conv_grad(CONVOLVED, x, W, CONV),
    "conv_transpose": lambda x: mf.conv_transpose(x, W),
    "conv_transpose_grad_input": lambda x: mf.conv_transpose_grad_input(x, W, BACK),
    "conv_transpose_grad_weights": lambda x: mf.conv_transpose_grad_weights(CONVOLVED, x, BACK),
    "conv_transpose_grad": lambda x: mf.conv_transpose_grad(CONVOLVED, x, W, BACK),
    "fully_connected": lambda x: mf.fully_connected(x, mx.ones((3, 6, 5, 4))),
    "fully_connected_grad": lambda x: mf.fully_connected_grad(
        mx.ones((2, 1, 1, 3)), x, mx.ones((3, 6, 5, 4)), CONNECTED
    ),
}
IMAGES |= bad_normalization.IMAGES | bad_image.IMAGES
GRADIENTS = {"avg_pool_grad", "max_pool_grad", "conv_grad_input", "conv_transpose_grad_input"} | bad_image.GRADIENTS
each = pytest.mark.parametrize("op", IMAGES)


@each
@pytest.mark.parametrize("value", [None, 3, [[1.0]], np.ones((2, 6, 5, 4))], ids=["none", "int", "list", "numpy"])
def test_not_an_array(op: str, value: Any) -> None:
    name = "dy" if op in GRADIENTS else "x"
    refuses(TypeError, f"{op}: {name} is not an array", lambda: IMAGES[op](value))


@each
@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8, mx.bool_, mx.int64, mx.complex64], ids=str)
def test_no_floating_dtype(op: str, dtype: mx.Dtype) -> None:
    name = "dy" if op in GRADIENTS else "x"
    refuses(TypeError, f"{op}: {name} has no floating dtype", lambda: IMAGES[op](X.astype(dtype)))


@each
@pytest.mark.parametrize("shape", [(), (4,), (6, 5, 4), (1, 2, 6, 5, 4)], ids=str)
def test_wrong_rank(op: str, shape: tuple[int, ...]) -> None:
    wrong = "dy does not belong to this state" if op in GRADIENTS else "not an image batch"
    refuses(ValueError, f"{op}: {wrong}", lambda: IMAGES[op](mx.ones(shape)))


@each
@pytest.mark.parametrize("shape", [(2, 0, 5, 4), (2, 6, 0, 4), (2, 6, 5, 0)], ids=str)
def test_an_image_without_elements(op: str, shape: tuple[int, ...]) -> None:
    wrong = "dy does not belong to this state" if op in GRADIENTS else "an image has no elements"
    refuses(ValueError, f"{op}: {wrong}", lambda: IMAGES[op](mx.ones(shape)))


@each
def test_an_image_past_int32_is_refused_unevaluated(op: str) -> None:
    """Nothing of the size may be allocated on the way."""
    mx.reset_peak_memory()
    huge = mx.broadcast_to(mx.zeros((1, 1, 1, 4)), (1, 2**15, 2**14, 4))
    wrong = "dy does not belong to this state" if op in GRADIENTS else "an image is too large"
    refuses(ValueError, f"{op}: {wrong}", lambda: IMAGES[op](huge))
    assert mx.get_peak_memory() < 2**24


def huge_zeros(*shape: int) -> mx.array:
    return mx.broadcast_to(mx.zeros((1,) * len(shape)), shape)


HUGE: dict[str, tuple[str, Callable[[], Any]]] = {
    "pool's output": ("avg_pool: an image is too large", lambda: mf.avg_pool(X, 1, offset=0, out_size=2**15)),
    "conv's output": (
        "conv: an image is too large",
        lambda: mf.conv(huge_zeros(1, 2**10, 2**10, 1), huge_zeros(2**11, 1, 1, 1)),
    ),
    "conv's weights": (
        "conv: the weights are too large",
        lambda: mf.conv(huge_zeros(1, 8, 8, 1), huge_zeros(1, 2**16, 2**15, 1), offset=0, out_size=1),
    ),
    "a state's image": ("avg_pool_state: an image is too large", lambda: mf.avg_pool_state((1, 2**16, 2**15, 1), 2)),
    "a convolution state's": (
        "conv_state: an image is too large",
        lambda: mf.conv_state((1, 2**16, 2**15, 1), (1, 1, 1, 1)),
    ),
    "a far window": (
        "avg_pool: windows reach too far",
        lambda: mf.avg_pool(X, 2, stride=2**29, offset=0, out_size=9),
    ),
}


@pytest.mark.parametrize("case", HUGE)
def test_what_is_past_int32_is_refused_unevaluated(case: str) -> None:
    mx.reset_peak_memory()
    message, call = HUGE[case]
    refuses(ValueError, message, call)
    assert mx.get_peak_memory() < 2**24


def test_a_batch_past_int32_is_accepted_unevaluated() -> None:
    x = huge_zeros(2**13, 2**10, 2**8, 1)
    assert mf.avg_pool(x, 2).shape == (2**13, 2**9, 2**7, 1)
    assert mf.bn_stats(x).count.item() == 2**31
    assert mf.conv(x, mx.zeros((1, 1, 1, 1))).shape == x.shape


# Arguments that do not fit each other -------------------------------------------------------------------

WRONG_VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("avg_pool_grad: dy does not belong to this state", lambda: mf.avg_pool_grad(mx.ones((2, 3, 3, 4)), POOL)),
    ("avg_pool_grad: dy does not belong to this state", lambda: mf.avg_pool_grad(mx.ones((2, 3, 2, 5)), POOL)),
    ("avg_pool_grad: kernel_offset has no meaning here", lambda: mf.avg_pool_grad(POOLED, POOL, kernel_offset=(0, 0))),
    ("avg_pool: window does not fit", lambda: mf.avg_pool(X, 7)),
    ("avg_pool: unknown edge_mode", lambda: mf.avg_pool(X, 2, edge_mode="mirror")),
    ("conv: the weights do not fit the images", lambda: mf.conv(X, W[..., :3])),
    ("conv: the weights do not fit the images", lambda: mf.conv(X, W[0])),
    ("conv: the weights do not fit the images", lambda: mf.conv(X, W[:0])),
    ("conv: window does not fit", lambda: mf.conv(X, mx.ones((1, 7, 3, 4)))),
    ("conv: groups do not divide the channels", lambda: mf.conv(X, W, groups=3)),
    ("conv: groups do not divide the channels", lambda: mf.conv(X, W, groups=0)),
    ("conv: groups do not divide the channels", lambda: mf.conv(X, W, groups=-2)),
    ("conv: the weights do not fit the images", lambda: mf.conv(X, W, groups=2)),
    ("conv: groups do not divide the output channels", lambda: mf.conv(X, W[:5, ..., :2], groups=2)),
    ("conv: the bias does not fit the weights", lambda: mf.conv(X, W, mx.ones(5))),
    ("conv: the bias does not fit the weights", lambda: mf.conv(X, W, mx.ones((1, 6)))),
    ("conv: unknown edge_mode", lambda: mf.conv(X, W, edge_mode="exclude")),
    ("conv: unknown neuron", lambda: mf.conv(X, W, neuron="swish")),
    (
        "conv_grad: windows reach too far",
        lambda: mf.conv_grad(CONVOLVED, X, W, CONV, option="weights_and_bias", kernel_offset=2**30),
    ),
    ("conv_grad_input: an image is too large", lambda: mf.conv_grad_input(CONVOLVED, W, _forged(n_in=2**31 - 1))),
    ("conv_grad_input: the state does not fit together", lambda: mf.conv_grad_input(CONVOLVED, W, _other(groups=-1))),
    ("conv_grad_input: the state does not fit together", lambda: mf.conv_grad_input(CONVOLVED, W, _other(groups="a"))),
    ("fold_batch_norm: eps is no variance", lambda: mf.fold_batch_norm(W, None, None, None, ONES, ONES, 10**400)),
    ("conv_grad: unknown option", lambda: mf.conv_grad(CONVOLVED, X, W, CONV, option="weights")),
    ("conv_grad: x does not belong to this state", lambda: mf.conv_grad(CONVOLVED, X[:1], W, CONV)),
    ("conv_grad: w does not belong to this state", lambda: mf.conv_grad(CONVOLVED, X, W[:5], CONV)),
    ("conv_grad_input: dy does not belong to this state", lambda: mf.conv_grad_input(CONVOLVED[:1], W, CONV_RELU)),
    (
        "conv: an image is too large",
        lambda: mf.conv(X, W, offset=0, out_size=2, stride=2**29, edge_mode="clamp"),
    ),
    ("conv: exclude_edges is for averages", lambda: mf.conv(X, W, padding=mf.PaddingPolicy(exclude_edges=True))),
    ("conv_grad_input: dy does not belong to this state", lambda: mf.conv_grad_input(CONVOLVED[:, 1:], W, CONV)),
    ("conv_grad_input: w does not belong to this state", lambda: mf.conv_grad_input(CONVOLVED, W[:, :2], CONV)),
    ("conv_grad_input: windows reach too far", lambda: mf.conv_grad_input(CONVOLVED, W, CONV, kernel_offset=2**30)),
    ("conv_grad_weights: x does not belong to this state", lambda: mf.conv_grad_weights(CONVOLVED, X[:, :5], CONV)),
    ("conv_grad_weights: x does not belong to this state", lambda: mf.conv_grad_weights(CONVOLVED, X[:1], CONV)),
    ("set_num_threads: not a number of threads", lambda: mf.set_num_threads(0)),
    ("set_num_threads: not a number of threads", lambda: mf.set_num_threads(2**40)),
    ("avg_pool_state: not an image batch", lambda: mf.avg_pool_state((6, 5, 4), 2)),
    ("avg_pool_state: not an image batch", lambda: mf.avg_pool_state((1, 6, 5.0, 4), 2)),
    ("conv_state: the weights do not fit the images", lambda: mf.conv_state(X.shape, (6, 3, 3))),
    ("conv_state: the weights do not fit the images", lambda: mf.conv_state(X.shape, (6.0, 3, 3, 4))),
]
WRONG_TYPES: list[tuple[str, Callable[[], Any]]] = [
    ("conv: groups is not an int", lambda: mf.conv(X, W, groups=2.0)),
    ("conv_grad_input: the state has no windows", lambda: mf.conv_grad_input(CONVOLVED, W, _other(rows=None))),
    ("conv_grad_input: the state has no windows", lambda: mf.conv_grad_input(CONVOLVED, W, _forged(edge="relu"))),
    (
        "conv_grad_weights: state.db has no floating dtype",
        lambda: mf.conv_grad_weights(CONVOLVED, X, _other(db=mx.zeros((6,), mx.complex64))),
    ),
    ("conv_state: x_shape is not a shape", lambda: mf.conv_state(3, W.shape)),
    ("conv_state: no dtype of gradients", lambda: mf.conv_state(X.shape, W.shape, dtype=None)),
    (
        "dequantize_weights: no dtype of weights",
        lambda: mf.dequantize_weights(mx.zeros((1, 1, 1, 1), mx.uint8), table=mx.zeros((1, 256)), dtype=[1]),
    ),
    ("conv: groups is not an int", lambda: mf.conv(X, W, groups=True)),
    ("conv: w is not an array", lambda: mf.conv(X, 3)),
    ("conv: w has no floating dtype", lambda: mf.conv(X, W.astype(mx.int32))),
    (
        "conv_grad_weights: dy and x differ in dtype",
        lambda: mf.conv_grad_weights(CONVOLVED.astype(mx.float16), X, CONV),
    ),
    ("conv_state: no dtype of gradients", lambda: mf.conv_state(X.shape, W.shape, dtype=mx.float16)),
    ("set_num_threads: not a number of threads", lambda: mf.set_num_threads(1.5)),
    ("checkpoint: function is not a function", lambda: mf.checkpoint(X)),
]


@pytest.mark.parametrize(("message", "call"), sum((f.WRONG_VALUES for f in OTHERS), WRONG_VALUES))
def test_wrong_values(message: str, call: Callable[[], Any]) -> None:
    refuses(ValueError, message, call)


@pytest.mark.parametrize(("message", "call"), sum((f.WRONG_TYPES for f in OTHERS), WRONG_TYPES))
def test_wrong_types(message: str, call: Callable[[], Any]) -> None:
    refuses(TypeError, message, call)


def test_every_function_is_among_the_refusals() -> None:
    """A function that makes a state besides has the arguments of the one that makes none."""
    tests = Path(__file__).parents[1]
    elsewhere = ("pooling/test_max.py", "convolution/test_weights.py", "saving/test_trees.py")
    paths = (Path(__file__), *tests.glob("support/bad/*.py"), *(tests / name for name in elsewhere))
    lists = "".join(path.read_text() for path in paths)
    public = {name for name, value in vars(mf).items() if inspect.isfunction(value) and not name.startswith("_")}
    takes_nothing = {"get_num_threads"}
    assert {name.removesuffix("_fwd") for name in public} - takes_nothing <= set(re.findall(r"\w+", lists))


OF_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "avg_pool_grad": ("AvgPoolState", lambda state: mf.avg_pool_grad(POOLED, state)),
    "max_pool_grad": ("MaxPoolState", lambda state: mf.max_pool_grad(POOLED, state)),
    "max_pool_indices": ("MaxPoolState", lambda state: mf.max_pool_indices(state)),
    "max_unpool": ("MaxPoolState", lambda state: mf.max_unpool(POOLED, state)),
    "l2_pool_grad": ("L2PoolState", lambda state: mf.l2_pool_grad(POOLED, X, state)),
    "conv_grad_input": ("ConvState", lambda state: mf.conv_grad_input(CONVOLVED, W, state)),
    "conv_grad_weights": ("ConvState", lambda state: mf.conv_grad_weights(CONVOLVED, X, state)),
    "conv_grad": ("ConvState", lambda state: mf.conv_grad(CONVOLVED, X, W, state)),
    "conv_transpose": ("ConvState", lambda state: mf.conv_transpose(X, W, state=state)),
    "conv_transpose_grad_input": (
        "ConvTransposeState",
        lambda state: mf.conv_transpose_grad_input(CONVOLVED, W, state),
    ),
    "conv_transpose_grad_weights": (
        "ConvTransposeState",
        lambda state: mf.conv_transpose_grad_weights(CONVOLVED, X, state),
    ),
    "conv_transpose_grad": ("ConvTransposeState", lambda state: mf.conv_transpose_grad(CONVOLVED, X, W, state)),
    "fully_connected_grad": (
        "ConvState",
        lambda state: mf.fully_connected_grad(mx.ones((2, 1, 1, 3)), X, mx.ones((3, 6, 5, 4)), state),
    ),
}


OF_STATES |= bad_normalization.OF_STATES | bad_elementwise.OF_STATES | bad_image.OF_STATES


@pytest.mark.parametrize("op", OF_STATES)
def test_a_state_of_another_operation(op: str) -> None:
    kind, call = OF_STATES[op]
    for state in (POOL, MAX_POOL, L2_POOL, CONV, NORM, tuple(CONV), "state"):
        if type(state).__name__ != kind:
            refuses(TypeError, f"{op}: not a state of this operation", lambda state=state: call(state))


@pytest.fixture
def on_a_pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal needs no GPU to be read: only the stream pretends."""
    there = SimpleNamespace(device=mx.Device(mx.gpu))
    monkeypatch.setattr(launch, "resolve", lambda stream: there)


@each
def test_float64_on_a_gpu(op: str, on_a_pretended_gpu: None) -> None:
    name = "dy" if op in GRADIENTS else "x"
    message = f"{op}: float64 runs on the CPU only; got {name}.dtype"
    with pytest.raises(TypeError, match=message):
        IMAGES[op](X.astype(mx.float64))


POINTWISE = {op: ("x", call) for op, call in bad_activation.POINTWISE.items()} | bad_losses.POINTWISE


@pytest.mark.parametrize("op", POINTWISE)
def test_pointwise_arrays(op: str, on_a_pretended_gpu: None) -> None:
    name, call = POINTWISE[op]
    with pytest.raises(TypeError, match=f"{op}: float64 runs on the CPU only; got {name}.dtype"):
        call(X.astype(mx.float64))
    for value in (None, 3, np.ones((2, 4))):
        refuses(TypeError, f"{op}: {name} is not an array", lambda value=value: call(value))
    for dtype in (mx.int32, mx.bool_, mx.complex64):
        refuses(TypeError, f"{op}: {name} has no floating dtype", lambda dtype=dtype: call(X.astype(dtype)))


@pytest.mark.parametrize("op", bad_elementwise.WIDE_DTYPES)
def test_float64_elements_on_a_gpu(op: str, on_a_pretended_gpu: None) -> None:
    with pytest.raises(TypeError, match=f"{op}: float64 runs on the CPU only; got "):
        bad_elementwise.WIDE_DTYPES[op](X.astype(mx.float64))


NARROW: dict[str, Any] = {"ConvState": CONV, **bad_normalization.STATES}


@pytest.mark.parametrize("op", [op for op, (kind, _) in OF_STATES.items() if kind in NARROW])
def test_a_float64_state_on_a_gpu(op: str, on_a_pretended_gpu: None) -> None:
    kind, call = OF_STATES[op]
    narrow = NARROW[kind]
    wide = narrow.with_arrays([a.astype(mx.float64) for a in narrow.arrays])
    with pytest.raises(TypeError, match=f"{op}: float64 runs on the CPU only; got state"):
        call(wide)


def test_a_float64_state_made_for_a_gpu(on_a_pretended_gpu: None) -> None:
    with pytest.raises(TypeError, match="conv_state: float64 runs on the CPU only; got dw"):
        mf.conv_state(X.shape, W.shape, dtype=mx.float64)


# Right answers ------------------------------------------------------------------------------------------


def test_an_empty_batch_has_empty_images_and_zero_gradients() -> None:
    x = mx.zeros((0, 6, 5, 4))
    assert mf.avg_pool(x, 2).shape == (0, 3, 2, 4)
    assert mf.avg_pool_grad(POOLED[:0], POOL).shape == (0, 6, 5, 4)
    assert mf.conv(x, W, padding=1).shape == (0, 6, 5, 6)
    assert mf.conv_grad_input(CONVOLVED[:0], W, CONV).shape == (0, 6, 5, 4)
    grown = mf.conv_grad_weights(CONVOLVED[:0], x, CONV)
    assert not exact(grown.dw).any() and not exact(grown.db).any()
    assert mf.bn_normalize(x, NORM).shape == mf.bn_grad(x, x, NORM).shape == x.shape
    done = mf.bn_stats_grad(x, x, NORM)
    assert not exact(done.dgamma).any() and not exact(done.dbeta).any()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.float64], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_reach_what_reads_them_and_nothing_else(dtype: mx.Dtype, bad: float) -> None:
    for channels in (3, 16):
        at = mx.zeros((1, 8, 8, channels), mx.bool_)
        at[0, 5, 2, channels - 1] = True
        x = mx.where(at, mx.array(bad, dtype), numbers((1, 8, 8, channels), dtype))
        last = np.arange(channels) == channels - 1

        y, state = mf.avg_pool_fwd(x, 2)
        assert hit(y).sum() == 1 and hit(y)[0, 2, 1, -1]
        dx = mf.avg_pool_grad(x[:, :4, :4] * 0 + x[:, 4:, :4], state)
        assert np.argwhere(hit(dx)[0, :, :, -1]).tolist() == [[2, 4], [2, 5], [3, 4], [3, 5]]

        w = mx.ones((2, 3, 3, channels), dtype)
        assert np.argwhere(hit(mf.conv(x, w, padding=1))[0, :, :, 0]).tolist() == [
            [row, col] for row in (4, 5, 6) for col in (1, 2, 3)
        ]
        stats = mf.bn_stats(x)
        assert (hit(stats.mean) == last).all() and (hit(stats.var) == last).all()
        done = mf.bn_stats_grad(x, mx.ones_like(x), mf.bn_frozen(mx.zeros(channels), mx.ones(channels)))
        assert (hit(done.dbeta) == last).all() and (hit(done.dgamma) == last).all()


def hit(a: mx.array) -> np.ndarray:
    return ~np.isfinite(exact(a))


def test_float64_with_float32_parameters() -> None:
    x = numbers((1, 4, 4, 2), mx.float64)
    assert mf.conv(x, numbers((3, 1, 1, 2))).dtype == mx.float64
    assert mf.bn_normalize(x, mf.bn_frozen(mx.zeros(2), mx.ones(2))).dtype == mx.float64
    assert mf.bn_stats(x, mf.bn_reset(mf.bn_stats(x.astype(mx.float32)))).mean.dtype == mx.float64


@pytest.mark.parametrize(
    "value", [[np.zeros((1, 40, 40, 3))] * 99, list(range(10**5)), "a\n" * 10**4], ids=["NumPy", "a list", "words"]
)
def test_a_long_argument_is_cut_off(value: Any) -> None:
    with pytest.raises(TypeError, match="^avg_pool: x is not an array; got x=.*, expected an mx.array$") as raised:
        mf.avg_pool(value, 2)
    assert len(str(raised.value)) < 300 and "\n" not in str(raised.value) and "..." in str(raised.value)


def test_an_array_in_the_wrong_place_is_told_by_its_shape() -> None:
    """Without its numbers, which may not be computed yet."""
    with pytest.raises(TypeError, match=r"^avg_pool: kernel_size is not an int; got kernel_size=float32\[2, 3\], "):
        mf.avg_pool(mx.zeros((1, 4, 4, 1)), mx.zeros((2, 3)))
