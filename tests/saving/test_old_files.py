"""Files of earlier versions load for ever: tests/fixtures/states.safetensors, as commit b3fc197 wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, SMALLEST, TOLERANCE, exact, numbers, same_bits

import mpsfunc as mf
from mpsfunc.saving import earlier_files, files, safetensors, trees

FIXTURES = Path(__file__).parents[1] / "fixtures"
pytestmark = pytest.mark.needs_cpu_module


@pytest.fixture
def old(on_cpu: mx.Device) -> Any:
    return mf.load(FIXTURES / "states.safetensors")


def differences(value: Any, told: Any, place: str = "tree") -> Iterator[str]:
    """Where a tree is not what the JSON says; fields that the JSON does not know are not its business."""
    if isinstance(value, mx.array):
        same = {"dtype": str(value.dtype), "shape": list(value.shape)}
        wide = value.astype(mx.float32) if value.dtype == mx.bfloat16 else value
        if told.keys() != {*same, "values"} or any(told[key] != same[key] for key in same):
            yield f"{place}: {same}"
        elif np.array(wide).reshape(-1).tolist() != told["values"]:
            yield f"{place}: other values"
    elif hasattr(value, "_fields"):
        if type(value).__name__ != told.get("record"):
            yield f"{place}: a {type(value).__name__}"
            return
        for name, part in told["fields"].items():
            yield from differences(getattr(value, name), part, f"{place}.{name}")
    elif isinstance(value, dict):
        if list(value) != list(told.get("dict", {})):
            yield f"{place}: other keys"
            return
        for key, part in told["dict"].items():
            yield from differences(value[key], part, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        parts = told.get(type(value).__name__, [])
        if len(parts) != len(value):
            yield f"{place}: another length"
            return
        for i, part in enumerate(parts):
            yield from differences(value[i], part, f"{place}[{i}]")
    elif told != {"repr": repr(value)}:
        yield f"{place}: {value!r}"


def records(tree: Any) -> Iterator[Any]:
    """Every record in a tree."""
    if hasattr(tree, "_fields"):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ():
        yield from records(part)


# Version 1 kept what these returned; now it is what they were applied to.
TURNED_BACK = {
    f"tree['convolution']['{name}'].y: other values"
    for name in (
        *("sigmoid", "tanh", "elu", "tanh of two", "elu of half", "connected", "transposed tanh"),
        *("mlx.core.float16", "mlx.core.bfloat16", "mlx.core.float64"),
    )
}


def test_every_value_of_an_old_file_comes_back(old: Any) -> None:
    told = json.loads((FIXTURES / "states.json").read_text())
    assert set(differences(old, told)) == TURNED_BACK
    told["dict"]["pooling"]["dict"]["norm"]["fields"]["norms"]["values"][3] += 1.0
    assert len(list(differences(old, told))) == len(TURNED_BACK) + 1


def test_an_old_file_has_every_record(old: Any) -> None:
    later = {"CropAndResizeState", "DeformConvState", "GridSampleState", "RoiAlignState", "YoloLossState"}
    assert {type(record).__name__ for record in records(old)} == set(trees.RECORDS) - later


def test_an_old_file_saved_again_is_a_new_one(old: Any, tmp_path: Path) -> None:
    mf.save(tmp_path / "new", old)
    told = json.loads((FIXTURES / "states.json").read_text())
    assert set(differences(mf.load(tmp_path / "new"), told)) == TURNED_BACK
    for path, version in ((FIXTURES / "states.safetensors", "1"), (tmp_path / "new", str(files._VERSION))):
        with path.open("rb") as file:
            assert safetensors.read_header(file).metadata["mpsfunc.version"] == version


def test_old_states_have_their_gradients(old: Any) -> None:
    x, dy = numbers((2, 5, 4, 4)), numbers((2, 3, 2, 4), seed=1)
    pooling, normalization = old["pooling"], old["normalization"]
    for name, made in (
        ("average", mf.avg_pool_state(x.shape, 3, stride=2, padding=1)),
        ("average, clamped", mf.avg_pool_state(x.shape, 3, stride=2, padding=1, edge_mode="clamp", zero_pad=(1, 0))),
        ("average, policy", mf.avg_pool_state(x.shape, 3, stride=2, padding=mf.PaddingPolicy(exclude_edges=True))),
    ):
        assert pooling[name] == made, name
        assert mx.array_equal(mf.avg_pool_grad(dy, pooling[name]), mf.avg_pool_grad(dy, made)), name
    sums = normalization["plain sums"]
    r = 1 / np.sqrt(np.array(sums.var) + 1e-2)
    xhat = (np.array(x) - np.array(sums.mean)) * r
    expected = r * (np.array(x) - np.array(sums.dbeta) / 40 - xhat * np.array(sums.dgamma) / 40)
    assert np.allclose(np.array(mf.bn_grad(x, x, sums)), expected, atol=1e-5)


def told_by(y: np.ndarray, neuron: str) -> np.ndarray:
    """The slope of an activation that a result tells."""
    if neuron == "sigmoid":
        return y * (1 - y)
    if neuron == "tanh":
        return (1 - y) * (1 + y)
    return np.where(y < 0, y + 1, 1.0) if neuron == "elu" else (y > 0).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("neuron", ["sigmoid", "tanh", "elu", "relu"])
def test_old_states_of_convolutions_have_their_gradients(on_cpu: mx.Device, neuron: str, dtype: mx.Dtype) -> None:
    """Slopes are those that results of version 1 tell, but for the rounding of z."""
    z = np.array([-30.0, -9.0, -5.03, -1.0, -0.01, 0.5, 3.0, 9.1, 40.0])
    x = mx.array(z, mx.float64 if dtype == mx.float64 else mx.float32).astype(dtype).reshape(1, 3, 3, 1)
    w = mx.ones((1, 1, 1, 1))
    y, state = mf.conv_fwd(x, w.astype(dtype), neuron=neuron)
    fields = earlier_files.completed("ConvState", state._replace(y=y)._asdict(), 1)
    dx = exact(mf.conv_grad_input(mx.ones_like(x), w, mf.ConvState(**fields))).ravel()
    expected = told_by(exact(y).ravel(), neuron)
    smallest = SMALLEST if dtype == mx.float16 else 0
    assert (np.abs(dx - expected) <= (8 + abs(z)) * TOLERANCE[dtype] * expected + smallest).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_old_state_keeps_what_no_result_tells(on_cpu: mx.Device, dtype: mx.Dtype) -> None:
    """Version 1 kept what was activated wherever a result tells no slope."""
    x = numbers((1, 3, 3, 1), dtype)
    state = mf.conv_fwd(x, mx.ones((1, 1, 1, 1), dtype), neuron="gelu")[1]
    fields = earlier_files.completed("ConvState", state._asdict(), 1)
    assert same_bits(fields["y"], state.y)


def test_ints_of_any_size_come_back(tmp_path: Path) -> None:
    """The first `save` set no bound to those of plain metadata."""
    numbers = [2**4096, -(2**20000), 2**64 - 1]
    told = json.dumps({"list": [{"int": hex(number)} for number in numbers]}, separators=(",", ":"))
    assert mf.load(old_file(tmp_path / "old", told, 1)) == numbers
    mf.save(tmp_path / "new", mf.load(tmp_path / "old"))
    assert mf.load(tmp_path / "new") == numbers


# The table of later fields ------------------------------------------------------------------------------


def test_the_scale_of_a_state_of_version_3_is_not_known(on_cpu: mx.Device) -> None:
    """But its sums are, and a call of `bn_stats_grad` with them; of a file that commit 9e5286c wrote."""
    old: Any = mf.load(FIXTURES / "batch_norm_3.safetensors")
    x, dy, gamma = numbers((2, 3, 4, 5)), numbers((2, 3, 4, 5), seed=1), numbers((5,), seed=2)
    whole = mf.bn_stats(x)
    first = mf.bn_stats_grad(dy[:1], x[:1], whole, gamma)
    for state in old.values():
        assert state.summed in ("", "none")
        assert np.isnan(exact(state.gamma)).all() and state.gamma.dtype == mx.float32
    assert np.isnan(exact(mx.concatenate([old["first"].dmean, old["first"].dvar]))).all()
    assert np.allclose(exact(mf.bn_grad(dy, x, old["first"], gamma)), exact(mf.bn_grad(dy, x, first, gamma)), atol=1e-6)
    right = mf.bn_stats_grad(dy[1:], x[1:], first, gamma)
    for state in (old["first"], mf.bn_stats_grad(dy[:1], x[:1], old["before"], gamma)):
        state = mf.bn_stats_grad(dy[1:], x[1:], state, gamma)
        for name in ("gamma", "dmean", "dvar"):
            assert np.allclose(exact(getattr(state, name)), exact(getattr(right, name)), rtol=1e-5)


def _resampled(op: str, method: str, coordinate: str, edge: str) -> dict[str, Any]:
    """What version 2 wrote of an image of two by two pixels that becomes four by four."""
    axis = {"n_in": 2, "n_out": 4, "method": method, "coordinate": coordinate, "edge": edge}
    return {"ResampleState": {"op": op, "channels": 1, "rows": {"Resized": axis}, "cols": {"Resized": axis}}}


def test_states_of_version_2_have_their_gradients(on_cpu: mx.Device, tmp_path: Path) -> None:
    """Of images that were enlarged by what were the defaults; the checksum is that of commit 1f805db."""
    states = {
        "doubled": _resampled("upsample_bilinear", "bilinear", "asymmetric", "zero"),
        "corners": _resampled("upsample_bilinear", "bilinear", "align_corners", "zero"),
        "nearest": _resampled("resize_nearest", "nearest", "asymmetric", "clamp"),
        "resized": _resampled("resize_bilinear", "bilinear", "asymmetric", "clamp"),
    }
    tree = json.dumps({"dict": states}, separators=(",", ":"))
    assert files._checksum(tree, [], 2) == 0x8FF56E62
    old: Any = mf.load(old_file(tmp_path / "old", tree, 2))
    dy = mx.arange(16.0).reshape(1, 4, 4, 1)
    for made, expected in (
        (mf.upsample_bilinear_grad(dy, old["doubled"]), [3.75, 10, 25, 40]),
        (mf.upsample_bilinear_grad(dy, old["corners"]), [40 / 3, 20, 40, 140 / 3]),
        (mf.resize_nearest_grad(dy, old["nearest"]), [10, 18, 42, 50]),
        (mf.resize_bilinear_grad(dy, old["resized"]), [3.75, 13.25, 34.25, 68.75]),
    ):
        assert np.allclose(exact(made).ravel(), expected, rtol=1e-6)
    mf.save(tmp_path / "new", old)
    assert mf.load(tmp_path / "new") == old
    with pytest.raises(ValueError, match="a part of the tree is none that save writes"):  # of fields that came later
        mf.load(old_file(tmp_path / "old", tree, 3))


class Grown(NamedTuple):
    """A record that had one field in version 1, two in version 2, and has three."""

    a: int
    b: int
    c: str


def old_file(path: Path, tree: str, version: int) -> Path:
    """A file of a version, with every checksum right."""
    mf.save(path, None)
    crc = f"{files._checksum(tree, [], version):08x}"
    metadata = {"mpsfunc.version": str(version), "mpsfunc.tree": tree, "mpsfunc.crc32": crc}
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path


def test_fields_that_came_later_mean_what_the_earlier_ones_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trees.RECORDS, "Grown", Grown)
    later = {"b": (2, lambda fields: fields["a"] + 1), "c": (3, lambda fields: "none")}
    monkeypatch.setitem(earlier_files.LATER, "Grown", later)
    monkeypatch.setattr(files, "_VERSION", 3)
    bodies = {1: '"a":1', 2: '"a":1,"b":5', 3: '"a":1,"b":5,"c":"x"'}
    meant = {1: Grown(1, 2, "none"), 2: Grown(1, 5, "none"), 3: Grown(1, 5, "x")}
    for version, record in meant.items():
        path = old_file(tmp_path / "old", f'{{"Grown":{{{bodies[version]}}}}}', version)
        assert mf.load(path) == record
        for other in set(bodies) - {version}:
            with pytest.raises(ValueError, match="a part of the tree is none that save writes"):
                mf.load(old_file(path, f'{{"Grown":{{{bodies[other]}}}}}', version))


def test_later_fields_end_their_records_or_the_arrays_of_these_and_came_in_versions_there_are() -> None:
    for kind, later in earlier_files.LATER.items():
        fields = get_type_hints(trees.RECORDS[kind])
        for parts in ([name for name in fields if (fields[name] is mx.array) is arrays] for arrays in (True, False)):
            ours = [name for name in later if name in parts]
            assert parts[len(parts) - len(ours) :] == ours
        assert all(1 < since <= files._VERSION for since, _ in later.values())
