"""States as values: through MLX's transforms, and told apart by what they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers, same_bits
from support.trees import same_tree

import mpsfunc as mf
from mpsfunc.channels import accumulation
from mpsfunc.core import lazy as core_lazy

pytestmark = pytest.mark.usefixtures("on_cpu")
IMAGE, WEIGHTS = (2, 5, 4, 3), (4, 3, 3, 3)
STATES: dict[str, Any] = {
    "loss": mf.LossState(mx.ones((2, 3)), "loss", "huber", "mean"),
    "yolo_loss": mf.yolo_loss_fwd(mx.zeros((1, 2, 2, 7)), mx.zeros((1, 2, 2, 7)), [(1, 2)])[1],
    "avg_pool": mf.avg_pool_state(IMAGE, 2),
    "max_pool": mf.MaxPoolState(mx.zeros((2, 2, 2, 3), mx.uint8), "max_pool", *mf.avg_pool_state(IMAGE, 2)[2:]),
    "l2_pool": mf.L2PoolState(mx.ones((2, 2, 2, 3)), "l2_pool", *mf.avg_pool_state(IMAGE, 2)[2:]),
    "conv": mf.conv_state(IMAGE, WEIGHTS),
    "deform_conv": mf.deform_conv_state(IMAGE, WEIGHTS, padding=1),
    "conv_transpose": mf.conv_transpose_fwd(mx.zeros(IMAGE), mx.zeros(WEIGHTS))[1],
    "batch_norm": mf.bn_frozen(mx.ones(3), mx.ones(3)),
    "instance_norm": mf.InstanceNormState(*[mx.ones((2, 3))] * 4, "instance_norm", 1e-5),
    "group_norm": mf.GroupNormState(*[mx.ones((2, 1))] * 2, *[mx.ones((2, 3))] * 2, "group_norm", 1e-5),
    "cross_channel_norm": mf.CrossChannelNormState("cross_channel_norm", 5, 1.0, 5.0, 1.0),
    "spatial_norm": mf.SpatialNormState("spatial_norm", 3, 1.0, 5.0, 1.0),
    "upsample_nearest": mf.upsample_nearest_state(IMAGE, 2),
    "upsample_bilinear": mf.upsample_bilinear_state(IMAGE, 2),
    "resize_nearest": mf.resize_nearest_state(IMAGE, 3),
    "resize_bilinear": mf.resize_bilinear_state(IMAGE, 3),
    "resize_bicubic": mf.resize_bicubic_state(IMAGE, scale=0.7, antialias=True),
    "resize_area": mf.resize_area_state(IMAGE, 3),
    "grid_sample": mf.grid_sample_state(IMAGE, "pixel", mode="bicubic", edge_mode="border"),
    "crop_and_resize": mf.crop_and_resize_state(IMAGE, 3, method="nearest", extrapolation_value=0.5),
    "roi_align": mf.roi_align_state(IMAGE, 2, 0.5, 3, True),
    "pad": mf.pad_state(IMAGE, 1, 2, "mirror"),
    "local_contrast_norm": mf.LocalContrastNormState("local_contrast_norm", 3, 0.0, 0.5, 1 / 1024, 1.0, 0.0, 1.0),
}
STATES |= {
    op: mf.DropoutState(mx.array([1, 2], mx.uint32), mx.ones(size, mx.uint8), op, 0.5, (1, 1, 1), IMAGE)
    for op, size in (("dropout", (0,)), ("dropout_by_mask", IMAGE))
}
each = pytest.mark.parametrize("name", STATES)


def test_every_state_is_here() -> None:
    kinds = {type(state) for state in STATES.values()}
    assert kinds == {getattr(mf, name) for name in mf.__all__ if name.endswith("State")}


@each
def test_leaves_are_arrays_first_then_the_name_then_statics(name: str) -> None:
    state = STATES[name]
    count = len(state.arrays)
    assert state[:count] == state.arrays and all(isinstance(a, mx.array) for a in state.arrays)
    assert state._fields[count] == "op" and state.op == name

    def plain(value: Any) -> bool:
        return all(map(plain, value)) if isinstance(value, tuple) else isinstance(value, (int, float, str))

    assert plain(state[count:])


def test_names_differ() -> None:
    """mx.compile keys on leaves and not on classes: the name is what keeps two equal states apart."""
    assert len({state.op for state in STATES.values()}) == len(STATES)


@each
def test_arrays_go_out_and_come_back(name: str) -> None:
    state = STATES[name]
    other = [a + 1 for a in state.arrays]
    made = state.with_arrays(other)
    assert type(made) is type(state) and made[len(other) :] == state[len(other) :]
    assert all(a is b for a, b in zip(made.arrays, other, strict=True))


# mx.compile ---------------------------------------------------------------------------------------------


def test_a_compiled_gradient_follows_the_statics_of_a_state() -> None:
    grad = mx.compile(mf.avg_pool_grad)
    dy = numbers((1, 2, 2, 3))
    for state in [mf.avg_pool_state((1, size, size, 3), 2) for size in (4, 5, 4)]:
        assert same_bits(grad(dy, state), mf.avg_pool_grad(dy, state))


def test_a_compiled_normalization_follows_eps_and_frozen() -> None:
    x, dy = numbers(IMAGE), numbers(IMAGE, seed=1)
    grad = mx.compile(mf.bn_grad)
    base = mf.bn_stats_grad(dy, x, mf.bn_stats(x))
    for state in (base, base._replace(frozen=True), base._replace(eps=1.0), base):
        np.testing.assert_allclose(exact(grad(dy, x, state)), exact(mf.bn_grad(dy, x, state)), rtol=1e-5, atol=1e-6)


def test_a_compiled_step_takes_and_returns_states() -> None:
    x, dy = numbers(IMAGE), numbers((2, 3, 2, 4), seed=1)
    traces = []

    @mx.compile
    def step(dy: mx.array, x: mx.array, conv: mf.ConvState, norm: mf.BatchNormState) -> tuple[Any, ...]:
        traces.append(1)
        return mf.conv_grad_weights(dy, x, conv).arrays, mf.bn_stats(x, norm).arrays

    conv, norm = mf.conv_state(IMAGE, WEIGHTS), mf.bn_reset(mf.bn_stats(x))
    for _ in range(3):
        arrays, statistics = step(dy, x, conv, norm)
        conv, norm = conv.with_arrays(arrays), norm.with_arrays(statistics)
    assert len(traces) == 1  # the count is an array, so it does not trace again
    assert norm.count.item() == 3 * 40
    once = mf.conv_grad_weights(dy, x, mf.conv_state(IMAGE, WEIGHTS))
    np.testing.assert_allclose(exact(conv.dw), 3 * exact(once.dw), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(exact(norm.var), exact(mf.bn_stats(x).var), rtol=1e-5)


# Gradients that begin at zero ----------------------------------------------------------------------------


def test_a_first_gradient_is_not_added_to_zeros() -> None:
    x, dy = numbers(IMAGE), numbers((2, 3, 2, 4), seed=1)
    fresh = mf.conv_state(IMAGE, WEIGHTS)
    with mock.patch.object(accumulation, "_added", side_effect=AssertionError) as added:
        once = mf.conv_grad_weights(dy, x, fresh)
        _, norm = mf.instance_norm_grad(x, x, mf.instance_norm_fwd(x)[1])
        compiled = mx.compile(lambda dy, x: mf.conv_grad_weights(dy, x, fresh).dw)(dy, x)
    assert not added.called and same_bits(compiled, once.dw)
    assert same_bits(mf.conv_grad_weights(dy, x, once).dw, once.dw + once.dw)
    _, norms = mf.instance_norm_grad(x, x, norm)
    assert same_bits(norms.dgamma, norm.dgamma + norm.dgamma)
    assert not mx.any(fresh.dw).item()


@pytest.mark.parametrize("evaluated", (False, True))
def test_zeros_that_were_changed_are_none(evaluated: bool) -> None:
    x, dy = numbers(IMAGE), numbers((2, 3, 2, 4), seed=1)
    once = mf.conv_grad_weights(dy, x, mf.conv_state(IMAGE, WEIGHTS))
    changed = mf.conv_state(IMAGE, WEIGHTS)
    if evaluated:
        mx.eval(changed.arrays)
    changed.dw[1] = 5.0
    changed.db[:] += 7.0
    more = mf.conv_grad_weights(dy, x, changed)
    assert same_bits(more.dw, once.dw.at[1].add(5.0)) and same_bits(more.db, once.db + 7)
    assert same_bits(mf.conv_grad_weights(dy, x, mf.conv_state(IMAGE, WEIGHTS)).dw, once.dw)


def test_zeros_that_were_written_to_through_a_view_are_none() -> None:
    x, dy = numbers(IMAGE), numbers((2, 3, 2, 4), seed=1)
    once = mf.conv_grad_weights(dy, x, mf.conv_state(IMAGE, WEIGHTS))
    seen = mf.conv_state(IMAGE, WEIGHTS)
    np.array(seen.dw, copy=False)[1, 2, 0, 1] = 5
    assert same_bits(mf.conv_grad_weights(dy, x, seen).dw, once.dw.at[1, 2, 0, 1].add(5.0))
    assert same_bits(mf.conv_grad_weights(dy, x, mf.conv_state(IMAGE, WEIGHTS)).dw, once.dw)


def test_only_zeros_are_taken_for_zeros() -> None:
    numbers_of = mx.full((2, 3), 1.0), mx.zeros((2, 3)) + 1, mx.ones((2, 3)), mx.broadcast_to(mx.array(2.0), (2, 3))
    lazy = mx.full((2, 3), mx.array(1.0) - 1)
    assert not any(core_lazy.is_lazy_zeros(a) for a in (*numbers_of, lazy, mx.zeros((2, 3), mx.int32)))
    assert core_lazy.is_lazy_zeros(mx.zeros((2, 3))) and core_lazy.is_lazy_zeros(mx.zeros((2, 3), mx.float64))
    made = mx.zeros((2, 3))
    mx.eval(made)
    assert not core_lazy.is_lazy_zeros(made)


def test_only_sums_are_taken_for_sums() -> None:
    a, b = mx.ones((2, 3)), mx.full((2, 3), 2.0)
    one, other = core_lazy.addends(a + b)
    assert core_lazy.same(one, a) and core_lazy.same(other, b)
    assert all(core_lazy.addends(c) is None for c in (a, a - b, a * b, mx.zeros((2, 3)), mx.maximum(a + b, 0)))
    assert core_lazy.addends(a + mx.ones((3,))) is None and core_lazy.addends(a + 1) is None
    cast = core_lazy.addends(a + b.astype(mx.float16))
    assert core_lazy.same(cast[0], a) and cast[1].dtype == mx.float32
    made = a + b
    mx.eval(made)
    assert core_lazy.addends(made) is None


def test_a_new_state_in_an_exported_function(tmp_path: Path) -> None:
    x, state, path = mx.ones((2,)), mf.conv_state(IMAGE, WEIGHTS), str(tmp_path / "sum.mlxfn")
    mx.export_function(path, lambda x: [state.dw + x.sum()], x)
    assert same_bits(mx.import_function(path)(x)[0], mx.full(WEIGHTS, 2.0))


def test_dtypes_of_a_first_gradient_are_those_of_the_next() -> None:
    arrays = [numbers(IMAGE), numbers((2, 3, 2, 4), seed=1)]
    for of_state in (mx.float32, mx.float64):
        for of_images in (mx.float16, mx.float32, mx.float64):
            x, dy = (a.astype(of_images) for a in arrays)
            once = mf.conv_grad_weights(dy, x, mf.conv_state(IMAGE, WEIGHTS, dtype=of_state))
            assert once.dw.dtype == mf.conv_grad_weights(dy, x, once).dw.dtype
            assert (once.dw.dtype == mx.float64) == (mx.float64 in (of_state, of_images))


# mx.checkpoint, mx.vmap, mx.grad ------------------------------------------------------------------------


def test_checkpoint_passes_states() -> None:
    x, frozen = numbers(IMAGE), mf.bn_frozen(mx.ones(3), mx.full((3,), 2.0))

    def loss(x: mx.array, state: mf.BatchNormState) -> mx.array:
        return (mf.bn_normalize(x, state) ** 3).sum()

    plain, kept = (mx.grad(f)(x, frozen) for f in (loss, mx.checkpoint(loss)))
    assert same_bits(plain, kept)


def test_vmap_over_the_arrays_of_a_state() -> None:
    x, dys = numbers(IMAGE), numbers((3, 2, 3, 2, 4), seed=1)
    state = mf.conv_state(IMAGE, WEIGHTS)
    many = [mx.stack([a, a + 1, a + 2]) for a in state.arrays]
    dws, dbs, *_ = mx.vmap(lambda dy, *arrays: mf.conv_grad_weights(dy, x, state.with_arrays(arrays)).arrays)(
        dys, *many
    )
    for i in range(3):
        one = mf.conv_grad_weights(dys[i], x, state.with_arrays([a[i] for a in many]))
        np.testing.assert_allclose(exact(dws[i]), exact(one.dw), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(exact(dbs[i]), exact(one.db), rtol=1e-5, atol=1e-5)


def test_statistics_of_several_batches_at_once() -> None:
    x = numbers((3, *IMAGE))
    mean, var, count, *_ = mx.vmap(lambda x: mf.bn_stats(x).arrays)(x)
    for i in range(3):
        one = mf.bn_stats(x[i])
        np.testing.assert_allclose(exact(mean[i]), exact(one.mean), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(exact(var[i]), exact(one.var), rtol=1e-5)
    assert np.broadcast_to(np.array(count), 3).tolist() == [40] * 3


def test_grad_with_respect_to_the_arrays_of_a_state() -> None:
    x = numbers(IMAGE)
    state = mf.bn_stats(x)

    def loss(mean: mx.array, var: mx.array) -> mx.array:
        return (mf.bn_normalize(x, state.with_arrays((mean, var, *state.arrays[2:]))) ** 3).sum()

    dmean, dvar = mx.grad(loss, argnums=(0, 1))(state.mean, state.var)
    assert exact(dmean).all() and exact(dvar).all()


def test_the_count_stays_out_of_derivatives() -> None:
    x = numbers(IMAGE)
    _, (tangent,) = mx.jvp(lambda x: mf.bn_stats(x, mf.bn_stats(x)).mean, [x], [mx.ones_like(x)])
    np.testing.assert_allclose(exact(tangent), np.ones(3), rtol=1e-5)


@each
def test_states_are_saved(name: str, tmp_path: Path) -> None:
    mf.save(tmp_path / "state", STATES[name])
    assert same_tree(mf.load(tmp_path / "state"), STATES[name])


# As people see them -------------------------------------------------------------------------------------


@each
def test_a_state_prints_without_numbers_of_its_arrays(name: str) -> None:
    state = STATES[name]
    told = repr(state)
    assert told.startswith(f"{type(state).__name__}(") and "\n" not in told and "array(" not in told
    assert [f"{field}=" in told for field in state._fields] == [True] * len(state)
    for field, a in zip(state._fields, state.arrays, strict=False):
        assert f"{field}={str(a.dtype).rpartition('.')[2]}{list(a.shape)}" in told


@each
def test_a_state_is_a_table_in_a_notebook(name: str) -> None:
    state = STATES[name]
    table = ElementTree.fromstring(state._repr_html_())
    rows = [[cell.text or cell.findtext("code") for cell in row] for row in table.iter("tr")]
    assert table.findtext("caption") == type(state).__name__
    assert [row[0] for row in rows] == list(state._fields)
    assert rows[len(state.arrays)][1] == repr(state.op)


def test_words_in_a_table_are_no_tags() -> None:
    table = STATES["loss"]._replace(type="<b> & co")._repr_html_()
    assert "<code>&#x27;&lt;b&gt; &amp; co&#x27;</code>" in table


def test_printing_computes_nothing() -> None:
    x = mx.ones((2, 4, 4, 3))
    mx.eval(x)
    mx.reset_peak_memory()
    before = mx.get_active_memory()  # also what other tests of this process left
    state = mf.bn_stats(x + mx.zeros((2 * 10**4, 4, 4, 3))[:2])
    assert "mean=float32[3]" in repr(state) and "float32[3]" in state._repr_html_()
    assert mx.get_peak_memory() < before + 10**6
    mx.eval(state)
    assert mx.get_peak_memory() > before + 10**6


_CALLS: dict[str, Callable[[Any], Any]] = {
    "avg_pool": lambda state: mf.avg_pool_grad(mx.ones((2, 2, 2, 3)), state),
    "max_pool": lambda state: mf.max_pool_indices(state),
    "l2_pool": lambda state: mf.l2_pool_grad(mx.ones((2, 2, 2, 3)), mx.ones(IMAGE), state),
    "conv": lambda state: mf.conv_grad_input(mx.ones((2, 3, 2, 4)), mx.ones(WEIGHTS), state),
}
_IMPOSSIBLE: dict[str, dict[str, int]] = {
    "no stride": {"stride": 0},
    "no taps": {"size": 0},
    "taps that go backwards": {"dilation": -1},
    "outputs that end before they begin": {"begin": 2, "end": 1},
    "outputs behind the last": {"end": 10**6},
    "another edge": {"edge": 9},
    "fewer zeros than none": {"zero_pad": -1},
    "fewer zeros behind than none": {"zero_pad_after": -1},
    "windows past what 32 bits can count": {"pad": 2**31},
    "windows too short to part the image": {"edge": 3, "size": 1},
    "windows a little too short for that": {"n_in": 5, "n_out": 3, "end": 3, "edge": 3, "size": 2},
}


@pytest.mark.parametrize("wrong", _IMPOSSIBLE)
@pytest.mark.parametrize("name", _CALLS)
def test_impossible_windows_are_refused(name: str, wrong: str) -> None:
    """As a file may have them."""
    state = STATES[name]
    mx.eval(_CALLS[name](state))
    with pytest.raises(ValueError, match=r"^\w+: the state's windows cannot be; got state\.cols="):
        _CALLS[name](state._replace(cols=state.cols._replace(**_IMPOSSIBLE[wrong])))


@pytest.mark.parametrize("name", ["avg_pool", "l2_pool", "conv"])
def test_the_edge_of_a_maximum_is_refused(name: str) -> None:
    state = STATES[name]
    with pytest.raises(ValueError, match=r"^\w+: the state's windows cannot be; got state\.cols="):
        _CALLS[name](state._replace(cols=state.cols._replace(edge=2)))


@pytest.mark.parametrize("name", _CALLS)
def test_what_are_no_windows_is_refused(name: str) -> None:
    state = STATES[name]
    for rows in (None, tuple(state.rows), state.rows._replace(pad=0.5)):
        with pytest.raises(TypeError, match=r"^\w+: the state has no windows; got state\.rows="):
            _CALLS[name](state._replace(rows=rows))
