"""What becomes of the CPU's memory: what the import has malloc and MLX keep, and how much arrays take."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable

import mlx.core as mx
import pytest

import mpsfunc as mf

# The import leaves such a build alone, which these tests would not see.
pytestmark = pytest.mark.skipif(mx.is_available(mx.gpu), reason="MLX keeps what it may where it has a GPU")


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")
MEGABYTE = 1 << 20
WITHOUT = {"MALLOC_MMAP_MAX_": "65536"}  # what glibc does by itself, so that the import leaves it alone


def limit_after(*lines: str, env: dict[str, str] | None = None) -> int:
    return printed_by(*lines, "print(mx.set_cache_limit(0))", env=env)


def printed_by(*lines: str, env: dict[str, str] | None = None) -> int:
    program = "\n".join(("import mlx.core as mx", *lines))
    told = {**os.environ, **(env or {})}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=told)
    return int(done.stdout)


def test_the_import_lets_mlx_keep_what_a_step_frees() -> None:
    assert limit_after() == 32 << 20  # MLX's own, which the package looks for
    assert limit_after("import mpsfunc", env=WITHOUT) == min(1 << 30, mx.get_memory_limit() // 8)


@glibc
def test_where_malloc_keeps_memory_mlx_need_not() -> None:
    assert limit_after("import mpsfunc") == MEGABYTE


@glibc
@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_user_told_malloc_stays(name: str) -> None:
    value = "glibc.malloc.mmap_max=65536" if name == "GLIBC_TUNABLES" else "131072"
    assert limit_after("import mpsfunc", env={name: value}) == min(1 << 30, mx.get_memory_limit() // 8)


def test_a_limit_of_the_users_stays() -> None:
    assert limit_after("mx.set_cache_limit(5 << 20)", "import mpsfunc") == 5 << 20
    assert limit_after("import mpsfunc", "mx.set_cache_limit(7 << 20)") == 7 << 20


def test_a_loop_reuses_the_buffers_of_the_round_before() -> None:
    lines = (
        "import mpsfunc as mf",
        "x = mx.ones((8, 64, 64, 64))",
        "for _ in range(3): mx.eval([mf.avg_pool(x, 3, stride=1, padding=1) for _ in range(10)])",
        "kept = mx.get_cache_memory()",
        "for _ in range(20): mx.eval([mf.avg_pool(x, 3, stride=1, padding=1) for _ in range(10)])",
        "assert mx.get_cache_memory() == kept > 10 * x.nbytes, kept",
    )
    assert limit_after(*lines, env=WITHOUT) > 0


@glibc
def test_new_arrays_of_any_size_lie_where_dead_ones_did() -> None:
    """Twenty of 8 MB, and then two of 34 MB, for which MLX has no buffer.

    Up to three small allocations between the twenty, which threads make at any time, leave room for the two.
    """
    lines = (
        "import mpsfunc as mf, pathlib, re",
        "def peak():",
        "    lines = pathlib.Path('/proc/self/status').read_text()",
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', lines)[1]) << 10",
        "def pool(x): return mf.avg_pool(x, 3, stride=1, padding=1)",
        "x = mx.ones((8, 64, 64, 64))",  # 8 MB
        "mx.eval([pool(x) for _ in range(20)])",
        "before = peak()",
        "mx.eval(pool(mx.ones((32, 64, 64, 64))))",  # twice 34 MB
        "print(peak() - before)",
    )
    assert printed_by(*lines) < 20 * MEGABYTE
    assert printed_by(*lines, env=WITHOUT) > 60 * MEGABYTE


# The most that arrays take -------------------------------------------------------------------------------


def arrays_at_most(make: Callable[[], mx.array]) -> int:
    """Bytes beyond what there was, at the peak of an evaluation."""
    made = make()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(made)
    return mx.get_peak_memory() - before


@pytest.mark.parametrize(("channels", "results"), [(64, 6), (8, 8)])
def test_results_are_not_made_far_ahead_of_their_use(channels: int, results: int) -> None:
    """Of forty poolings one after the other, three results have room at any time, and what they are made of.

    Of results of a megabyte, four megabytes of them.
    """
    x = mx.random.normal((8, 64, 64, channels))
    mx.eval(x)

    def pooled() -> mx.array:
        y = x
        for _ in range(40):
            y = mf.avg_pool(y, 3, stride=1, padding=1)
        return y

    assert arrays_at_most(pooled) < results * x.nbytes
