"""CUDA kernels on their way to a GPU: what text NVRTC is given, and what is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import mpsfunc as mf
from mpsfunc import __main__ as command
from mpsfunc.channels import launches
from mpsfunc.core import grids, launch, mlx_settings, texts
from mpsfunc.core import nvrtc as core_nvrtc
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.params import Threadgroup
from mpsfunc.selftest import calls

GPU = mx.Device(mx.gpu, 0)
INPUTS = (("x", mx.float16, 4), ("keys", mx.uint32, 1))
OUTPUTS = (("y", mx.bfloat16), ("winners", mx.int64))


class Fake:
    """A compiler that counts."""

    version = 13, 0
    options: tuple[str, ...] = ("--gpu-architecture=sm_90a",)

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def compile(self, source: str) -> bytes:
        self.compiled.append(source)
        if "no C++" in source:
            raise RuntimeError("mpsfunc.cu(1): error")
        return f"code of {source}".encode()


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setattr(core_nvrtc, "_kernels", {})
    monkeypatch.setenv("MPSFUNC_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


# The text -----------------------------------------------------------------------------------------------


def test_the_text_names_arrays_then_lengths_then_parameters_and_tells_constants() -> None:
    body = "for (int axis = 0; axis < x_ndim; ++axis) y[0] = T(keys_shape[0] * x_shape[3]);"
    constants = (("T", mx.bfloat16), ("V", 4), ("wide", True))
    text, sized = core_nvrtc.source("mpsfunc_body", body, "// words\n", INPUTS, OUTPUTS, constants, 3)
    assert sized == (0, 1)
    arrays = "const __half* x, const unsigned int* keys, __nv_bfloat16* y, long* winners"
    lengths = "int x_length_0, int x_length_1, int x_length_2, int x_length_3, int keys_length_0"
    params = "int param_0, int param_1, int param_2"
    assert f'extern "C" __global__ void mpsfunc_body({arrays}, {lengths}, {params})' in text
    told = text.partition(params)[2].partition(body)[0]
    assert "const int x_shape[] = {x_length_0, x_length_1, x_length_2, x_length_3};" in told
    assert "const int keys_shape[] = {keys_length_0};" in told
    assert "const int params[] = {param_0, param_1, param_2};" in told
    assert "constexpr int x_ndim = 4;" in told and "keys_ndim" not in told
    assert "using T = __nv_bfloat16;" in told and "constexpr int V = 4;" in told
    assert "constexpr bool wide = 1;" in told and text.index("// words") < text.index('extern "C"')


def test_a_kernel_that_is_to_have_company_is_compiled_for_fewer_registers() -> None:
    body, constants = "y[0] = T(V);", (("T", mx.bfloat16), ("RESIDENT", 2), ("V", 4))
    text, _ = core_nvrtc.source("mpsfunc_body", body, "", INPUTS, OUTPUTS, constants, 0)
    assert 'extern "C" __global__ void __launch_bounds__(256, 2) mpsfunc_body(' in text
    assert "RESIDENT" not in text and "constexpr int V = 4;" in text
    alone, _ = core_nvrtc.source("mpsfunc_body", body, "", INPUTS, OUTPUTS, constants[::2], 0)
    assert text == alone.replace("void mpsfunc", "void __launch_bounds__(256, 2) mpsfunc")


def test_statistics_are_to_have_company() -> None:
    first, _ = launches.bn_stats(mx.zeros((8, 56, 56, 64)), 1)
    assert dict(first.template)[grids.RESIDENT] == 2


def test_every_dtype_of_a_gpu_has_its_name() -> None:
    assert core_nvrtc.TYPES == {
        mx.bool_: "bool", mx.int8: "signed char", mx.int16: "short", mx.int32: "int", mx.int64: "long",
        mx.uint8: "unsigned char", mx.uint16: "unsigned short", mx.uint32: "unsigned int", mx.uint64: "unsigned long",
        mx.float16: "__half", mx.bfloat16: "__nv_bfloat16", mx.float32: "float",
    }  # fmt: skip


def test_a_word_that_ends_like_another_asks_for_nothing() -> None:
    inputs = (("y", mx.float32, 2), ("dy", mx.float32, 2))
    text, sized = core_nvrtc.source("mpsfunc_body", "z[0] = dy_shape[1] + dy_ndim;", "", inputs, OUTPUTS, (), 0)
    assert sized == (1,) and " y_shape" not in text and " y_ndim" not in text


# What is kept -------------------------------------------------------------------------------------------


def test_code_is_compiled_once_and_kept_on_disk(nothing_known: Path) -> None:
    fake: Any = Fake()
    first = core_nvrtc.machine_code("text", fake)
    assert first == b"code of text" and core_nvrtc.machine_code("text", fake) == first
    assert fake.compiled == ["text"]
    (kept,) = nothing_known.iterdir()
    assert kept.stat().st_mode & 0o077 == 0 and kept.parent.stat().st_mode & 0o077 == 0
    fake.options = ("--gpu-architecture=sm_80",)
    core_nvrtc.machine_code("text", fake)
    fake.version = 13, 1
    core_nvrtc.machine_code("text", fake)
    core_nvrtc.machine_code("other text", fake)
    assert len(fake.compiled) == 4 and len(list(nothing_known.iterdir())) == 4


@pytest.mark.parametrize("damage", [lambda b: b[:40], lambda b: b"", lambda b: b[:-1] + b"?", lambda b: b + b"?"])
def test_a_damaged_file_is_not_believed(nothing_known: Path, damage: Callable[[bytes], bytes]) -> None:
    fake: Any = Fake()
    core_nvrtc.machine_code("text", fake)
    (kept,) = nothing_known.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert core_nvrtc.machine_code("text", fake) == b"code of text"
    assert len(fake.compiled) == 2 and kept.read_bytes() == whole


def test_a_file_comes_into_being_whole_or_not_at_all(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def replace(source: str, target: Path) -> None:
        seen.append((Path(source).read_bytes()[32:], target.exists()))
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", replace)
    assert core_nvrtc.machine_code("text", Fake()) == b"code of text"  # type: ignore[arg-type]  # what stands in for a Compiler
    assert seen == [(b"code of text", False)] and list(nothing_known.iterdir()) == []


def test_nothing_is_kept_where_nothing_can_be(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_known.write_bytes(b"a file, where a folder should be")
    fake: Any = Fake()
    assert core_nvrtc.machine_code("text", fake) == b"code of text"
    monkeypatch.setenv("MPSFUNC_CACHE_DIR", "")
    assert core_nvrtc.cache_folder() is None and core_nvrtc.machine_code("text", fake) == b"code of text"
    assert nothing_known.read_bytes().startswith(b"a file")


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/this/user")
    monkeypatch.delenv("MPSFUNC_CACHE_DIR")
    assert core_nvrtc.cache_folder() == Path("/of/this/user/mpsfunc")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/of")
    assert core_nvrtc.cache_folder() == Path("/home/of/.cache/mpsfunc")

    monkeypatch.setenv("MPSFUNC_CACHE_DIR", "~/kept")
    assert core_nvrtc.cache_folder() == Path("/home/of/kept")
    monkeypatch.delenv("MPSFUNC_CACHE_DIR")

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert core_nvrtc.cache_folder() is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_that_others_may_write_to_is_refused(
    mode: int, linked: bool, nothing_known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake: Any = Fake()
    core_nvrtc.machine_code("text", fake)
    nothing_known.chmod(mode)
    if linked:
        nothing_known.with_name("link").symlink_to(nothing_known)
        monkeypatch.setenv("MPSFUNC_CACHE_DIR", str(nothing_known.with_name("link")))
    with pytest.raises(ValueError, match="^MPSFUNC_CACHE_DIR: open to others; got '.*', expected a folder that only"):
        core_nvrtc.machine_code("text", fake)
    nothing_known.chmod(0o755)
    assert core_nvrtc.machine_code("text", fake) == b"code of text" and len(fake.compiled) == 1


def test_somebody_elses_folder_is_refused(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = Fake()
    core_nvrtc.machine_code("text", fake)
    uid = nothing_known.stat().st_uid + 7
    with (
        monkeypatch.context() as patch,
        pytest.raises(ValueError, match="^MPSFUNC_CACHE_DIR: somebody else's; got '.*'"),
    ):
        patch.setattr(os, "stat", lambda path, **how: os.stat_result((0o40755, 1, 1, 1, uid, 1, 0, 0, 0, 0)))
        core_nvrtc.machine_code("text", fake)


@pytest.mark.parametrize("wrong", ["open to its group", "open to all", "somebody else's", "a pipe"])
def test_a_file_that_others_may_have_written_is_not_run(
    wrong: str, nothing_known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may have been open when it came there."""
    fake: Any = Fake()
    core_nvrtc.machine_code("text", fake)
    (kept,) = nothing_known.iterdir()
    evil = hashlib.sha256(b"evil").digest() + b"evil"
    kept.unlink()
    if wrong == "a pipe":
        os.mkfifo(kept)
    else:
        kept.write_bytes(evil)
        kept.chmod({"open to its group": 0o660, "open to all": 0o606}.get(wrong, 0o600))
    with monkeypatch.context() as patch:
        if wrong == "somebody else's":
            uid = kept.stat().st_uid + 7
            patch.setattr(os, "fstat", lambda file: os.stat_result((0o100600, 1, 1, 1, uid, 1, 0, 0, 0, 0)))
        assert core_nvrtc.machine_code("text", fake) == b"code of text"
    assert len(fake.compiled) == 2
    assert core_nvrtc.machine_code("text", fake) == b"code of text" and len(fake.compiled) == 2


@pytest.mark.parametrize("name", ["~nobody-is-called-so", f"~nobody{'-' * 5000}"], ids=["", "long"])
def test_a_folder_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("MPSFUNC_CACHE_DIR", f"{name}/kept")
    with pytest.raises(ValueError, match="^MPSFUNC_CACHE_DIR: no such home folder; got '~nobody-.*, expect") as caught:
        core_nvrtc.cache_folder()
    assert len(str(caught.value)) < 400


def test_a_usual_folder_that_others_may_write_to_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPSFUNC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake: Any = Fake()
    core_nvrtc.machine_code("text", fake)
    (kept,) = tmp_path.iterdir()
    kept.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=f"compiled kernels are not cached: {kept} is open to others"):
        core_nvrtc.machine_code("text", fake)
    assert len(fake.compiled) == 2


# Launches -----------------------------------------------------------------------------------------------


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What an NVIDIA GPU would be asked for, on the CPU."""
    asked: list[dict[str, Any]] = []

    def launched(**how: Any) -> list[mx.array]:
        asked.append(how)
        return [mx.zeros(shape, dtype) for shape, dtype in zip(how["output_shapes"], how["output_dtypes"], strict=True)]

    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", launched)
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda **made: lambda **how: launched(**made, **how))
    with mx.stream(mx.cpu):
        yield asked


def test_a_launch_hands_over_all_that_a_kernel_takes(on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: fake)
    x = mx.ones((2, 6, 4, 8))
    assert mf.avg_pool(x, 2).shape == (2, 3, 2, 8)
    (how,) = on_cuda
    assert how["name"] == "mpsfunc_avg_pool" and how["compiled_source"] == f"code of {fake.compiled[0]}".encode()
    assert [a.shape for a in how["inputs"]] == [x.shape]
    rows, columns = [6, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0], [4, 2, 2, 2, 1, 0, 0, 0, 0, 2, 0]  # where their windows lie
    assert how["scalars"] == [2, 6, 4, 8, *rows, *columns] and how["ensure_row_contiguous"] is True
    assert how["grid"][0] > 1 and how["threadgroup"][0] > 1 and how["stream"] == mx.default_stream(mx.cpu)
    mf.avg_pool(mx.ones((3, 8, 4, 8)), 2)
    assert len(fake.compiled) == 1 and on_cuda[1]["scalars"][:4] == [3, 8, 4, 8]  # one kernel for every size
    mf.avg_pool(x.astype(mx.float16), 2)
    assert len(fake.compiled) == 2


def test_a_launch_tells_the_lengths_that_a_kernel_asks_about_and_its_parameters(
    on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: Fake())
    total = ((5,), mx.float32)
    stage = KernelLaunch(
        "sum_partials", ("skipped", "partial"), ("total",), (total,), (5, 1, 1), (5, 1, 1), Threadgroup(7, -9)
    )
    launch.run_kernel(stage, [mx.ones((9, 9)), mx.ones((3, 5))], mx.default_stream(mx.cpu), init_value=0.5)
    assert on_cuda[0]["scalars"] == [3, 5, 7, -9] and on_cuda[0]["init_value"] == 0.5


@pytest.mark.needs_cpu_module
def test_machine_code_is_handed_to_the_module_once(on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: Fake())
    module, kept, asked = launch.optional_module(), [], []

    class Module:
        def __getattr__(self, name: str) -> Any:
            return getattr(module, name)

        def keep_cuda_kernel(self, name: str, code: bytes) -> int:
            kept.append((name, code))
            return len(kept) + 10

        def launched(self, made: list[mx.array], *how: Any) -> list[mx.array]:
            asked.append(how)
            return made

    launch._kept.cache_clear()
    monkeypatch.setattr(launch, "_primitives", Module())
    for images in (2, 3):
        mf.avg_pool(mx.ones((images, 6, 4, 8)), 2)
    launch._kept.cache_clear()
    assert kept == [("mpsfunc_avg_pool", on_cuda[0]["compiled_source"])] and len(asked) == len(on_cuda) == 2
    for how, mlx in zip(asked, on_cuda, strict=True):
        assert how == (11, mlx["scalars"], mlx["grid"], mlx["threadgroup"])
    stage = KernelLaunch("sum_partials", ("partial",), ("total",), (((5,), mx.float32),), (5, 1, 1), (5, 1, 1), None)
    launch.run_kernel(stage, [mx.ones((3, 5))], mx.default_stream(mx.cpu), init_value=0.5)
    assert len(asked) == 2  # only MLX fills outputs first


@pytest.mark.skipif(mx.cuda.is_available(), reason="with MLX's CUDA backend they are launched")
@pytest.mark.needs_cpu_module
def test_without_a_cuda_backend_outputs_stay_as_mlx_made_them() -> None:
    made = mx.ones((3,))
    module = launch.optional_module()
    (same,) = module.launched([made], module.keep_cuda_kernel("k", b"code"), [1], (1, 1, 1), (1, 1, 1))
    assert module.same(same, made)


def test_without_a_compiler_mlx_gets_the_text(on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: None)
    launch._kernel.cache_clear()
    mf.avg_pool(mx.ones((2, 6, 4, 8)), 2)
    launch._kernel.cache_clear()
    (how,) = on_cuda
    assert how["source"] == texts.body("avg_pool") and how["header"].startswith(texts.text("shared/cuda.h"))
    assert how["input_names"] == ["x", "params"] and how["template"][0] == ("T", mx.float32)


def test_kernels_are_compiled_ahead(on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: fake)
    x = mx.ones((2, 6, 4, 8))
    launch.compiled_ahead(lambda: [mf.avg_pool(x, 2), mf.avg_pool(x, 2)])
    assert len(fake.compiled) == 1 and not on_cuda
    mf.avg_pool(x, 2)
    assert len(fake.compiled) == 1 and len(on_cuda) == 1
    with pytest.raises(ZeroDivisionError):
        launch.compiled_ahead(lambda: 1 / 0)
    mf.avg_pool(x, 2)
    assert len(on_cuda) == 2


def test_the_self_test_compiles_ahead(on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: fake)
    monkeypatch.setenv("MPSFUNC_CACHE_DIR", "")  # which would hide a text that is compiled twice
    calls._compile_ahead(mx.Device(mx.cpu), calls.kept())
    compiled = len(fake.compiled)
    assert compiled > 100 and not on_cuda
    wanted = []
    real = core_nvrtc.kernel

    def kernel(*args: Any) -> Any:
        wanted.append(core_nvrtc.source(*args[:-1])[0])
        return real(*args)

    monkeypatch.setattr(core_nvrtc, "kernel", kernel)
    with calls._ours():
        for call in calls.kept():
            call.computed(mx.float32)
    assert len(fake.compiled) == compiled == len(set(fake.compiled)) and len(on_cuda) > 300
    assert [how["compiled_source"].decode() for how in on_cuda] == [f"code of {text}" for text in wanted]


def test_the_report_says_what_compiles_and_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: Fake())
    monkeypatch.setenv("MLX_USE_CUDA_GRAPHS", "1")
    told = command._cuda()
    assert told["kernels"].startswith("compiled by NVRTC 13.0, and kept in ")
    monkeypatch.setattr(mlx_settings, "chosen", {})
    assert told["launches"] == "in CUDA graphs (MLX_USE_CUDA_GRAPHS=1)"
    monkeypatch.setenv("MLX_USE_CUDA_GRAPHS", "0")
    monkeypatch.setenv("MPSFUNC_CACHE_DIR", "")
    told = command._cuda()
    assert told["kernels"] == "compiled by NVRTC 13.0, and kept nowhere" and told["launches"].startswith("without ")
    monkeypatch.setattr(mlx_settings, "chosen", {"MPSFUNC_RUN_AHEAD": "10"})
    assert command._cuda()["launches"].endswith(", ahead of the GPU by 10 % of memory (MPSFUNC_RUN_AHEAD=10)")
    monkeypatch.setattr(core_nvrtc, "compiler", lambda device: None)
    assert "by MLX in every process" in command._cuda()["kernels"]
