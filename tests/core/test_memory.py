"""What the import does to MLX's cache of CPU buffers."""

from __future__ import annotations

import subprocess
import sys

import mlx.core as mx
import pytest

# The import leaves such a build alone, which these tests would not see.
pytestmark = pytest.mark.skipif(mx.is_available(mx.gpu), reason="MLX keeps what it may where it has a GPU")


def limit_after(*lines: str) -> int:
    program = "\n".join(("import mlx.core as mx", *lines, "print(mx.set_cache_limit(0))"))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(done.stdout)


def test_the_import_lets_mlx_keep_what_a_step_frees() -> None:
    assert limit_after() == 32 << 20  # MLX's own, which the package looks for
    assert limit_after("import mpsfunc") == min(1 << 30, mx.get_memory_limit() // 8)


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
    assert limit_after(*lines) > 0
