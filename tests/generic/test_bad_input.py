"""Bad arguments: each is told what it is told, before anything runs; what the records list, and what goes for all."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from generic.opinfo import Array, Call, OpInfo, Sample
from generic.ops import OPS
from support import exact, numbers
from support.matrix import OP_OF, SAMPLES, Stateful

import mpsfunc as mf
from mpsfunc.core import launch

pytestmark = pytest.mark.usefixtures("on_cpu")

X = numbers((2, 6, 5, 4))
W = numbers((6, 3, 3, 4))
POOL, CONV = mf.avg_pool_state(X.shape, 2), mf.conv_state(X.shape, W.shape, padding=1)
NORM = mf.bn_frozen(mx.zeros(4), mx.ones(4))
MAXIMA = mf.MaxPoolState(mx.zeros(POOL.rows.n_out, mx.uint8), "max_pool", *POOL[2:])
NORMS = mf.L2PoolState(mx.zeros(3), "l2_pool", *POOL[2:])
POOLED, CONVOLVED = mx.ones((2, 3, 2, 4)), mx.ones((2, 6, 5, 6))


def refuses(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    """The whole sentence: ``{op}: {what is wrong}; got {argument}={value}, expected {rule}``."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(message + "; got "), text
    assert ", expected " in text and text.count("; got ") == 1


def told_name(op: OpInfo) -> str:
    """A function that makes a state besides speaks in the name of the one that makes none; `loss` makes one, too."""
    return op.name if op.name == "loss_fwd" else op.name.removesuffix("_fwd")


# What the records list ----------------------------------------------------------------------------------


def listed(kind: str) -> list[Any]:
    return [
        pytest.param(op, told, call, id=f"{op.name}: {told} {i}")
        for op in OPS.values()
        for i, (told, call) in enumerate(getattr(op, kind))
    ]


@pytest.mark.smoke
@pytest.mark.parametrize(("op", "told", "call"), listed("wrong_values"))
def test_wrong_values(op: OpInfo, told: str, call: Callable[[], Any]) -> None:
    """Nothing of an array's size is allocated on the way."""
    mx.reset_peak_memory()
    refuses(ValueError, f"{told_name(op)}: {told}", call)
    assert mx.get_peak_memory() < mx.get_active_memory() + 2**24


@pytest.mark.smoke
@pytest.mark.parametrize(("op", "told", "call"), listed("wrong_types"))
def test_wrong_types(op: OpInfo, told: str, call: Callable[[], Any]) -> None:
    refuses(TypeError, f"{told_name(op)}: {told}", call)


def test_every_function_lists_refusals() -> None:
    without = {op.name for op in OPS.values() if not (op.wrong_values or op.wrong_types)}
    excused = {op.name for op in OPS.values() if op.name.removesuffix("_fwd") in OPS and op.name.endswith("_fwd")}
    assert without - excused == {"get_num_threads"}  # which takes nothing


# What goes for all --------------------------------------------------------------------------------------


def given_arrays(sample: Sample) -> dict[str, int | str]:
    """The arrays that a sample gives the function, by their names, and where they stand."""
    parameters = list(inspect.signature(getattr(mf, sample.call.function)).parameters)
    found: dict[str, int | str] = {}
    for at, each in (*enumerate(sample.call.args), *sample.call.how.items()):
        if isinstance(each, Array) and each.of != "bools":
            found[parameters[at] if isinstance(at, int) else at] = at
    return found


def with_another(sample: Sample, at: int | str, value: Any) -> Callable[[], Any]:
    """The sample's call in float32, with this for an argument."""
    call = sample.call
    if isinstance(at, int):
        call = call._replace(args=(*call.args[:at], value, *call.args[at + 1 :]))
    else:
        call = call._replace(how={**call.how, at: value})
    row = Stateful(sample._replace(call=call), mx.float32)
    states, others = row.given(0)
    return lambda: row.call(states, *others)


PLAIN = {op.name: next(iter(op.named_samples().values())) for op in OPS.values() if op.samples}
ARGUMENTS = [(op, name) for op in PLAIN if OPS[op].differentiable for name in given_arrays(PLAIN[op])]
NO_ARRAYS = {"a number": 3, "a list": [[1.0]], "numpy": np.ones((2, 6, 5, 4)), "none": None}
INSTEAD = [
    pytest.param(op, name, value, id=f"{op} {name} {told}")
    for op, name in ARGUMENTS
    for told, value in NO_ARRAYS.items()
    if not (told == "none" and "None" in str(inspect.signature(getattr(mf, op)).parameters[name].annotation))
    if not (told == "a number" and OPS[op].takes_numbers)
]
FLOATING = [argument for argument in ARGUMENTS if not OPS[argument[0]].takes_integers]
each_image = pytest.mark.parametrize("op", [op.name for op in OPS.values() if op.image])


def refuses_argument(kind: type[Exception], op: str, name: str, value: Any, told: str) -> None:
    call = with_another(PLAIN[op], given_arrays(PLAIN[op])[name], value)
    refuses(kind, f"{told_name(OPS[op])}: {told}", call)


@pytest.mark.parametrize(("op", "name", "value"), INSTEAD)
def test_not_an_array(op: str, name: str, value: Any) -> None:
    refuses_argument(TypeError, op, name, value, f"{name} is not an array")


@pytest.mark.parametrize(("op", "name"), FLOATING)
@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8, mx.bool_, mx.int64, mx.complex64])
def test_no_floating_dtype(op: str, name: str, dtype: mx.Dtype) -> None:
    refuses_argument(TypeError, op, name, mx.ones((2, 6, 5, 4)).astype(dtype), f"{name} has no floating dtype")


@each_image
@pytest.mark.parametrize("shape", [(), (4,), (6, 5, 4), (1, 2, 6, 5, 4)], ids=str)
def test_wrong_rank(op: str, shape: tuple[int, ...]) -> None:
    told = "dy does not belong to this state" if OPS[op].image == "dy" else "not an image batch"
    refuses_argument(ValueError, op, OPS[op].image, mx.ones(shape), told)


@each_image
@pytest.mark.parametrize("shape", [(2, 0, 5, 4), (2, 6, 0, 4), (2, 6, 5, 0)], ids=str)
def test_an_image_without_elements(op: str, shape: tuple[int, ...]) -> None:
    told = "dy does not belong to this state" if OPS[op].image == "dy" else "an image has no elements"
    refuses_argument(ValueError, op, OPS[op].image, mx.ones(shape), told)


@each_image
def test_an_image_past_int32_is_refused_unevaluated(op: str) -> None:
    """Nothing of the size may be allocated on the way."""
    told = "dy does not belong to this state" if OPS[op].image == "dy" else "an image is too large"
    huge = mx.broadcast_to(mx.zeros((1, 1, 1, 4)), (1, 2**15, 2**14, 4))
    call = with_another(PLAIN[op], given_arrays(PLAIN[op])[OPS[op].image], huge)
    mx.reset_peak_memory()
    refuses(ValueError, f"{told_name(OPS[op])}: {told}", call)
    assert mx.get_peak_memory() < mx.get_active_memory() + 2**24


def huge_zeros(*shape: int) -> mx.array:
    return mx.broadcast_to(mx.zeros((1,) * len(shape)), shape)


def test_a_batch_past_int32_is_accepted_unevaluated() -> None:
    x = huge_zeros(2**13, 2**10, 2**8, 1)
    assert mf.avg_pool(x, 2).shape == (2**13, 2**9, 2**7, 1)
    assert mf.bn_stats(x).count.item() == 2**31
    assert mf.conv(x, mx.zeros((1, 1, 1, 1))).shape == x.shape


# States -------------------------------------------------------------------------------------------------


def state_arguments(sample: Sample) -> dict[int | str, type]:
    """Where a sample gives the function a state, and of which class."""
    found = {}
    for at, each in (*enumerate(sample.call.args), *sample.call.how.items()):
        if isinstance(each, Call):
            given = Sample(each)
            made = given.run(given.inputs(mx.float32), mx.float32)
            if hasattr(made, "arrays"):
                found[at] = type(made)
    return found


with mx.stream(mx.cpu):
    TAKE_STATES = {name: found for name, sample in SAMPLES.items() if (found := state_arguments(sample))}


@pytest.mark.parametrize("name", TAKE_STATES)
def test_a_state_of_another_operation(name: str) -> None:
    op, sample = OP_OF[name], SAMPLES[name]
    for at, own in TAKE_STATES[name].items():
        for state in (POOL, MAXIMA, NORMS, CONV, NORM, tuple(CONV), "state"):
            if type(state) is not own:
                refuses(TypeError, f"{op.name}: not a state of this operation", with_another(sample, at, state))


KEEP_SUMS = mf.ConvState, mf.ConvTransposeState, mf.BatchNormState, mf.InstanceNormState, mf.GroupNormState


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """A refusal needs no GPU to be read: only the stream pretends."""
    there = SimpleNamespace(device=mx.Device(mx.gpu))
    with mock.patch.object(launch, "resolve", lambda stream: there):
        yield


@pytest.mark.parametrize("name", [name for name, op in OP_OF.items() if op.launches and given_arrays(SAMPLES[name])])
def test_float64_on_a_gpu(name: str) -> None:
    """Told of an array that the sample gives."""
    op, row, names = OP_OF[name], Stateful(SAMPLES[name]), "|".join(given_arrays(SAMPLES[name]))
    states, _ = row._replace(dtype=mx.float32).given(0)
    _, others = row.given(0)
    told = f"^{told_name(op)}: float64 runs on the CPU only; got ({names})"
    with pretended_gpu(), pytest.raises(TypeError, match=told):
        row.call(states, *others)


@pytest.mark.parametrize("name", [name for name, at in TAKE_STATES.items() if {*at.values()} & {*KEEP_SUMS}])
def test_a_float64_state_on_a_gpu(name: str) -> None:
    op, row = OP_OF[name], Stateful(SAMPLES[name], mx.float32)
    states, others = row.given(0)
    wide = [
        state.with_arrays([a.astype(mx.float64) if mx.issubdtype(a.dtype, mx.floating) else a for a in state.arrays])
        if isinstance(state, KEEP_SUMS)
        else state
        for state in states
    ]
    names = list(inspect.signature(getattr(mf, op.name)).parameters)
    given = [names[at] if isinstance(at, int) else at for at in TAKE_STATES[name]]
    told = f"^{op.name}: float64 runs on the CPU only; got ({'|'.join(given)})[.]"
    with pretended_gpu(), pytest.raises(TypeError, match=told):
        row.call(tuple(wide), *others)


def test_a_float64_state_made_for_a_gpu() -> None:
    with pretended_gpu(), pytest.raises(TypeError, match="conv_state: float64 runs on the CPU only; got dw"):
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
