"""What is read of ``python -X importtime``."""

from __future__ import annotations

from tests.bench.import_time import Module, after_mlx

TOLD = """import time: self [us] | cumulative | imported package
import time:       900 |        900 |   sys
import time:       700 |       1600 | mlx.core
import time:        20 |         20 |   mpsfunc.core
import time:        50 |         70 | mpsfunc
"""


def test_what_mlx_brought_is_left_out_and_the_longest_is_first() -> None:
    assert after_mlx(TOLD) == [Module("mpsfunc", 50), Module("mpsfunc.core", 20)]
