"""What Python cannot see of the C++ code: the symbols of its objects, its thread pool, and its environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from native.cxx import HERE, PRIMITIVES, ROOT, SANITIZED, compile_, drive, isa_flags, needs_compiler

OPS = re.findall(r"X\((\w+)\)", (PRIMITIVES / "runtime" / "operations.h").read_text())
WORDS = "mpsf::tested::layout_words(mpsf::Type, int const*, int)"  # that weights take, which is no operation


# Objects of one instruction set ---------------------------------------------------------------------------


def shared_symbols(source: Path, to: Path, isa: str = "avx512") -> list[str]:
    """What the linker may take from this source's object for another one. Unoptimised, so nothing hides by inlining."""
    flags = ["-DMPSF_ISA=tested", "-DMPSF_BELOW=below", "-ffp-contract=fast", *isa_flags(isa)]
    built = compile_(source, to, "-c", "-O0", *flags)
    listing = subprocess.run(["nm", "-C", "--defined-only", str(built)], check=True, capture_output=True, text=True)
    symbols = [line.split(maxsplit=2)[1:] for line in listing.stdout.splitlines()]
    # DW.ref is the compiler's pointer to the unwinder, in every object alike.
    return [name for kind, name in symbols if (kind.isupper() or kind in "uvw") and not name.startswith("DW.ref.")]


def sources(of: str) -> list[Path]:
    """The files that CMakeLists.txt compiles for each instruction set: those of "kernels", or of what some add."""
    text = (PRIMITIVES / "runtime" / "CMakeLists.txt").read_text()
    found = re.search(rf"file\(GLOB {of} CONFIGURE_DEPENDS ([^)]*)\)", text)
    assert found
    return sorted((PRIMITIVES / "runtime").glob(found[1]))


@pytest.mark.kernels
@needs_compiler
def test_objects_share_nothing_but_their_operations(tmp_path: Path) -> None:
    families = sources("kernels")
    assert len(families) > 10
    shared = [symbol for source in families for symbol in shared_symbols(source, tmp_path / "family.o")]
    assert sorted(shared) == sorted([WORDS, *(f"mpsf::tested::{op}(mpsf::Call const&)" for op in OPS)])


@pytest.mark.kernels
@needs_compiler
@pytest.mark.skipif(os.uname().machine not in ("x86_64", "AMD64"), reason="instructions of x86-64")
@pytest.mark.parametrize("isa", ("avx512_bf16", "amx"))
def test_objects_of_levels_share_nothing_but_what_they_do_otherwise(tmp_path: Path, isa: str) -> None:
    levels = sources("bfloat16_kernels")
    shared = [symbol for source in levels for symbol in shared_symbols(source, tmp_path / "level.o", isa)]
    replaced = ("conv", "conv_layout", "conv_laid_out", "conv_grad_input", "conv_grad_weights")
    assert sorted(shared) == sorted([WORDS, *(f"mpsf::tested::{op}(mpsf::Call const&)" for op in replaced)])


@needs_compiler
@pytest.mark.parametrize(
    "leak",
    (
        "inline int leak(int a) { return a + 1; } int use() { return leak(1); }",
        "#include <algorithm>\nint use(int a, int b) { return std::max(a, b); }",
        "template <typename T> T leak(T a) { return a; } int use() { return leak(1); }",
    ),
)
def test_a_leak_would_be_seen(tmp_path: Path, leak: str) -> None:
    source = tmp_path / "leak.cpp"
    source.write_text(f"{leak}\n")
    assert len(shared_symbols(source, tmp_path / "leak.o")) > 1


# The pool -------------------------------------------------------------------------------------------------


def pool_driver(to: Path, *flags: str, source: Path = PRIMITIVES / "runtime" / "parallel.cpp") -> Path:
    return compile_(HERE / "pool_driver.cpp", to, "-pthread", *flags, str(source))


@pytest.mark.kernels
@needs_compiler
@pytest.mark.parametrize("mode", ("stress", "nested", "exceptions", "shares", "forks", "leaves"))
def test_pool(tmp_path: Path, mode: str) -> None:
    done = drive(pool_driver(tmp_path / "pool", "-O2"), mode)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.kernels
@needs_compiler
def test_pool_has_no_races(tmp_path: Path) -> None:
    driver = pool_driver(tmp_path / "pool", *SANITIZED)
    for mode in ("stress", "nested", "exceptions", "shares", "leaves"):
        done = drive(driver, mode)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.kernels
@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    (
        ("fetch_sub(1, std::memory_order_release)", "fetch_sub(1, std::memory_order_relaxed)"),
        ("if (!spin_until(alone))", "if (false)"),
    ),
    ids=("weak order", "no wait"),
)
def test_the_sanitizer_would_see_a_race(tmp_path: Path, right: str, wrong: str) -> None:
    source = (PRIMITIVES / "runtime" / "parallel.cpp").read_text()
    assert source.count(right) == 1
    faulty = tmp_path / "parallel.cpp"
    faulty.write_text(source.replace(right, wrong))
    done = drive(pool_driver(tmp_path / "pool", *SANITIZED, source=faulty), "stress")
    assert done.returncode != 0


# The environment ------------------------------------------------------------------------------------------


def ask(code: str, before: str = "", **changes: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in (os.environ | changes).items() if v is not None}
    program = f"{before}\nfrom mpsfunc import _primitives as p\nprint({code})"
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.needs_cpu_module
def test_an_instruction_set_can_be_forced() -> None:
    here = ask("*p.isas()").stdout.split()
    assert here[-1] in ("baseline", "neon")
    for isa in here:
        assert ask("p.isa()", MPSFUNC_ISA=isa).stdout.strip() == isa


@pytest.mark.needs_cpu_module
def test_threads_can_be_set() -> None:
    assert ask("p.get_num_threads()", MPSFUNC_NUM_THREADS="7").stdout.strip() == "7"


@pytest.mark.needs_cpu_module
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks on this system")
def test_threads_default_to_the_affinity_mask() -> None:
    all_of_them = os.sched_getaffinity(0)
    unset = {"MPSFUNC_NUM_THREADS": None}
    assert ask("p.get_num_threads()", **unset).stdout.strip() == str(len(all_of_them))
    one = min(all_of_them)
    pinned = ask("p.get_num_threads()", before=f"import os; os.sched_setaffinity(0, {{{one}}})", **unset)
    assert pinned.stdout.strip() == "1"


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize(
    ("name", "value", "message"),
    (
        ("MPSFUNC_ISA", "sse9", r"MPSFUNC_ISA: not an instruction set .* got 'sse9', expected one of: "),
        ("MPSFUNC_NUM_THREADS", "two", r"MPSFUNC_NUM_THREADS: not a number of threads; got 'two'"),
        ("MPSFUNC_NUM_THREADS", "0", r"MPSFUNC_NUM_THREADS: not a number of threads; got '0', expected 1 to 1024"),
    ),
)
def test_a_wrong_setting_is_an_error_of_the_import(name: str, value: str, message: str) -> None:
    for before in ("", "import mpsfunc; raise SystemExit(0)"):
        done = ask("p.isa()", before, **{name: value})
        assert done.returncode != 0
        assert re.search(f"^ValueError: {message}", done.stderr, re.MULTILINE) and "mpsfunc build" not in done.stderr


@pytest.mark.needs_cpu_module
def test_wrong_settings_at_run_time() -> None:
    from mpsfunc import _primitives

    with pytest.raises(ValueError, match="set_num_threads: not a number of threads; got threads=0, expected 1 to 1024"):
        _primitives.set_num_threads(0)
    with pytest.raises(ValueError, match="set_isa: not an instruction set .* got 'mmx', expected one of: "):
        _primitives.set_isa("mmx")
