"""Saved trees come back to the bit, a file is there whole or not at all, and a killed training goes on."""

from __future__ import annotations

import inspect
import math
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import VIEWS, numbers, primitives
from support.trees import raw, same_tree

import mpsfunc as mf
from mpsfunc.saving import safetensors
from mpsfunc.saving import trees as saving_trees

DTYPES = [dtype for dtype, _ in safetensors.DTYPES.values()]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).rpartition(".")[2])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved"


def bits(shape: tuple[int, ...], dtype: mx.Dtype, seed: int = 0) -> mx.array:
    """Any bits at all, NaNs of every kind among them."""
    most = 2 if dtype == mx.bool_ else 256
    values = np.random.default_rng([seed, *shape]).integers(0, most, math.prod(shape) * dtype.size, np.uint8)
    with mx.stream(mx.cpu):
        return mx.array(values).view(dtype).reshape(shape)


def saved(path: Path, tree: Any) -> Any:
    mf.save(path, tree)
    return mf.load(path)


# Round trips --------------------------------------------------------------------------------------------


def test_every_dtype_of_mlx_is_here() -> None:
    assert set(DTYPES) == {value for value in vars(mx).values() if isinstance(value, mx.Dtype)}


@each_dtype
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5, 3), (2, 1, 3, 4)], ids=str)
def test_an_array_comes_back_to_the_bit(dtype: mx.Dtype, shape: tuple[int, ...], path: Path) -> None:
    a = bits(shape, dtype)
    assert same_tree(saved(path, a), a)


@each_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_an_array_of_any_layout_comes_back(dtype: mx.Dtype, view: str, path: Path) -> None:
    with mx.stream(mx.cpu):
        a = mx.arange(12).reshape(3, 4).astype(dtype)
        viewed = mx.stack([a, a], axis=-1)[..., 0] if view == "strided" else VIEWS[view](a)  # theirs is floating
        assert same_tree(saved(path, viewed), a)
        assert same_tree(saved(path, mx.broadcast_to(a[:1], (5, 4))), mx.contiguous(mx.broadcast_to(a[:1], (5, 4))))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([2**63, -(2**64)])
arrays = st.builds(bits, st.lists(st.integers(0, 3), max_size=3).map(tuple), st.sampled_from(DTYPES), st.integers(0, 9))
keys = st.text() | st.sampled_from(["a", "a.b", "b", "__metadata__", "tree", "a~2", "\ud800"])
records = st.sampled_from([mf.PaddingPolicy(), mf.Neuron("elu", 0.5), mf.pad_state((1, 2, 3, 4), 1, 2)])
trees = st.recursive(
    scalars | arrays | records | arrays.map(lambda a: mf.Neuron("prelu", a)),
    lambda part: st.lists(part) | st.lists(part).map(tuple) | st.dictionaries(keys, part),
    max_leaves=12,
)


@given(trees)
def test_a_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "property"
    assert same_tree(saved(path, tree), tree)


@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        -math.inf,
        math.nan,
        -math.nan,
        -0.0,
        5e-324,
        0.1,
        1e308,
        2**4096,
        1 - 2**20000,
        -(2**63),
        True,
        "\0",
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_are_exact(value: Any, path: Path) -> None:
    assert same_tree(saved(path, [value]), [value])


def test_every_public_record_is_known() -> None:
    values = [getattr(mf, name) for name in mf.__all__]
    public = {value for value in values if inspect.isclass(value) and issubclass(value, tuple)}
    assert public < set(saving_trees.RECORDS.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.SGD(0.1, momentum=0.9),
        lambda: optim.SGD(0.1),
        lambda: optim.AdamW(optim.cosine_decay(1e-3, 10)),
        lambda: optim.Adafactor(),
        lambda: optim.Lion(1e-3),
        lambda: optim.Muon(1e-3),
        lambda: optim.MultiOptimizer([optim.Adam(1e-3), optim.SGD(0.1)], [lambda name, _: name == "w"]),
    ],
)
def test_an_optimizer_goes_on(make: Callable[[], Any], path: Path) -> None:
    params = {"w": numbers((4, 3)), "blocks": [{"b": numbers((3,))}]}
    grads = {"w": numbers((4, 3), seed=1), "blocks": [{"b": numbers((3,), seed=1)}]}
    one, other = make(), make()
    params = one.apply_gradients(grads, params)
    back = saved(path, {"params": params, "state": one.state})
    assert same_tree(back, {"params": params, "state": one.state})
    other.state = back["state"]
    for _ in range(2):
        params, back["params"] = one.apply_gradients(grads, params), other.apply_gradients(grads, back["params"])
    assert same_tree(back["params"], params)


def test_random_numbers_go_on(path: Path) -> None:
    mx.random.seed(2**63 + 5)
    mx.eval(mx.random.normal((3,)))
    ((key,),) = [saved(path, mx.random.state)]
    then = mx.random.normal((3,))
    mx.eval(then)
    high, low = key.tolist()
    mx.random.seed(high << 32 | low)
    assert same_tree(mx.random.normal((3,)), then)


def test_what_is_lazy_is_evaluated_and_what_is_loaded_is_too(path: Path) -> None:
    a = saved(path, numbers((64, 64)) + 1)
    assert not primitives(a, *saved(path.with_name("other"), [mx.ones((2, 3), mx.bfloat16)]))
    with path.open("r+b") as file:  # MLX's own arrays would be read from here
        file.truncate(0)
    assert same_tree(a, numbers((64, 64)) + 1)


def test_an_array_in_two_places_is_written_once(path: Path) -> None:
    a = numbers((1000,))
    back = saved(path, [a, {"again": a}, mx.array(a)])
    assert back[0] is back[1]["again"] and back[0] is not back[2]
    assert 2 * a.nbytes <= path.stat().st_size < 3 * a.nbytes


def test_equal_trees_make_equal_files(path: Path) -> None:
    tree = {"b": numbers((3,)), "a": mx.array(1, mx.uint8), "c": mx.zeros((2,), mx.float16)}
    mf.save(path, tree)
    first = path.read_bytes()
    mf.save(path, dict(tree))
    assert path.read_bytes() == first


def test_other_readers_find_the_arrays_by_their_places(path: Path) -> None:
    tree = {"conv": mf.conv_state((1, 4, 4, 2), (3, 3, 3, 2)), "a.b": mx.array(1), "a": [mx.array(2), {"b": 3.5}]}
    mf.save(path, tree | {"a": {"b": mx.array(2)}, "__metadata__": mx.array(3), "half": bits((3,), mx.bfloat16)})
    arrays, metadata = mx.load(str(path), format="safetensors", return_metadata=True)
    assert {"conv.dw", "conv.db", "a.b", "a.b~2", "__metadata__~2", "half"} < set(arrays)
    assert [arrays[name].item() for name in ("a.b", "a.b~2", "__metadata__~2")] == [1, 2, 3]
    assert raw(arrays["half"]) == raw(bits((3,), mx.bfloat16))
    assert metadata["mpsfunc.version"] == "4"
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert header % 8 == 0 and path.read_bytes()[8:9] == b"{"


def test_other_readers_find_aligned_arrays_and_names_of_characters(path: Path) -> None:
    with mx.stream(mx.cpu):
        mf.save(path, {"\ud800": [mx.array(0).astype(dtype) for dtype in DTYPES if dtype != mx.float64]})
    assert set(mx.load(str(path), format="safetensors")) == {f"?.{i}" for i in range(len(DTYPES) - 1)}
    with path.open("rb") as file:
        for tensor in safetensors.checked(safetensors.read_header(file)):
            assert tensor.begin % (tensor.end - tensor.begin) == 0


def test_one_array_is_a_tree(path: Path) -> None:
    mf.save(str(path), mx.array([1.0, 2.0]))
    assert list(mx.load(str(path), format="safetensors")) == ["tree"]


# What cannot be saved -----------------------------------------------------------------------------------


class Foreign(NamedTuple):
    a: int


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("tree", "error", "words"),
    [
        ({"a": [1, {2}]}, TypeError, r"save: cannot be saved; got tree\['a'\]\[1\]=\{2\}, a set"),
        ({"a": {1: 2}}, TypeError, r"save: a key is not a string; got tree\['a'\] with key 1,"),
        ([np.zeros(2)], TypeError, r"got tree\[0\]=numpy.float64\[2\], an ndarray"),
        ([np.float64(2)], TypeError, r"got tree\[0\]=.*, a float64"),
        ([signal.SIGINT], TypeError, r"got tree\[0\]=.*, a Signals"),
        ((Foreign(1),), TypeError, r"got tree\[0\]=Foreign\(a=1\), a Foreign"),
        (
            mf.Neuron("relu", 2**63),
            ValueError,
            r"save: an int of a record is too large; got tree\.a, expected at most 64 bits",
        ),
        (
            [mf.avg_pool_state((1, 2, 2, 1), 1)._replace(channels=(1, [2**80]))],
            ValueError,
            r"got tree\[0\]\.channels\[1\]\[0\]",
        ),
        (mf.Neuron("relu", object()), TypeError, r"got tree\.a=a value of type object"),
        (mx.float32, TypeError, r"got tree=mlx.core.float32, a Dtype"),
        (b"", TypeError, r"got tree=b'', a bytes"),
        (ITSELF, ValueError, r"save: nested too deep; got tree(\[0\])+.*\.\.\..*(\[0\])+, expected at most 100 levels"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_place(tree: Any, error: type, words: str, path: Path) -> None:
    mf.save(path, 1)
    with pytest.raises(error, match=words):
        mf.save(path, tree)
    assert mf.load(path) == 1 and os.listdir(path.parent) == [path.name]


def test_a_header_has_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.save(path, 1)
    monkeypatch.setattr(safetensors, "_LONGEST", 1000)
    with pytest.raises(
        ValueError, match="save: the tree is too large; got a header of [0-9]+ bytes, expected less than"
    ):
        mf.save(path, [1] * 500)
    assert mf.load(path) == 1 and os.listdir(path.parent) == [path.name]


def test_the_deepest_tree(path: Path) -> None:
    tree: Any = mx.array(1)
    for _ in range(99):
        tree = [tree]
    assert same_tree(saved(path, tree), tree)
    with pytest.raises(ValueError, match="nested too deep"):
        mf.save(path, [tree])


@pytest.mark.parametrize("wrong", [None, 3, b"bytes"])
def test_a_path_is_a_string_or_a_path(wrong: Any) -> None:
    with pytest.raises(TypeError, match="save: path is not a path; got path="):
        mf.save(wrong, 1)
    with pytest.raises(TypeError, match="load: path is not a path; got path="):
        mf.load(wrong)


def test_a_traced_array_has_nothing_to_save(path: Path) -> None:
    with pytest.raises(ValueError):
        mx.compile(lambda a: mf.save(path, a))(mx.array(1.0))
    assert not os.listdir(path.parent)


# The old file or the new one ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file_alone(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.save(path, "old")

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(os, name, fail)
        mf.save(path, numbers((100,)))
    assert mf.load(path) == "old" and os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(("when", "left"), [("before fsync", 0), ("before replace", 0), ("after replace", 1)])
def test_a_killed_save_leaves_the_old_file_or_the_new(when: str, left: int, path: Path) -> None:
    mf.save(path, 0)
    moment, _, name = when.partition(" ")
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    program = (
        "import os, signal, sys, mpsfunc as mf",
        f"whole = os.{name}",
        "def replaced(*a):",
        f"    {kill if moment == 'before' else 'whole(*a)'}",
        f"    {kill}",
        f"os.{name} = replaced",
        "mf.save(sys.argv[1], 1)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(program), str(path)], env=environment())
    assert done.returncode == -signal.SIGKILL
    assert mf.load(path) == left
    others = set(os.listdir(path.parent)) - {path.name}
    assert all(re.fullmatch(r"\.mpsfunc-\w{16}\.tmp", other) for other in others)
    assert len(others) == 1 - left


def test_a_file_has_the_usual_rights_and_a_link_stays_one(path: Path) -> None:
    path.parent.joinpath("plain").write_bytes(b"")
    mf.save(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(path.parent.joinpath("plain").stat().st_mode)
    link = path.parent / "link"
    link.symlink_to(path)
    mf.save(link, 2)
    assert link.is_symlink() and mf.load(path) == 2


# A training ---------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MPSFUNC_DETERMINISTIC": "1"}


@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.needs_cpu_module), pytest.param("gpu", marks=pytest.mark.gpu)],
)
def test_a_training_that_was_killed_goes_on_bit_for_bit(device: str, tmp_path: Path) -> None:
    program = f"import mlx.core as mx, resume; mx.set_default_device(mx.{device}); resume.main()"
    killed, whole = tmp_path / "killed", tmp_path / "whole"

    def command(path: Path, steps: int, every: int) -> list[str]:
        return [sys.executable, "-c", program, str(path), "--steps", str(steps), "--every", str(every)]

    def trained(path: Path, steps: int, every: int) -> str:
        return subprocess.run(
            command(path, steps, every), env=environment(), check=True, capture_output=True, text=True
        ).stdout

    with subprocess.Popen(command(killed, 10**9, 3), env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 12:"):
                break
        process.kill()
    assert process.returncode == -signal.SIGKILL
    reached = mf.load(killed)["step"]
    assert reached >= 12 and reached % 3 == 0

    steps = reached + 8
    assert trained(killed, steps, 5).startswith(f"going on from step {reached}\n")
    assert "going on" not in trained(whole, steps, 10**9)
    assert same_tree(mf.load(killed), mf.load(whole))
    assert killed.read_bytes() == whole.read_bytes()
