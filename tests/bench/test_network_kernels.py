"""The table of kernels, of names as CUPTI gives them."""

from __future__ import annotations

from . import cupti, network_kernels
from .whole import Cell


def test_names_keep_what_tells_kernels_apart() -> None:
    hashed = "custom_kernel_mpsfunc_bn_grad_0123456789abcdef0"
    assert cupti.short(hashed) == cupti.short("mpsfunc_bn_grad") == "mpsfunc_bn_grad"
    name = "void mlx::core::cu::binary_vv<mlx::core::cu::Multiply, float>(float const*, float*)"
    assert cupti.short(name) == "binary_vv<Multiply, float>"
    assert len(cupti.short("k" * 200)) == 90


def test_a_table_adds_up_what_it_does_not_name() -> None:
    kernels = [[f"kernel {i}", 1.0 / (i + 1), 2.0] for i in range(20)]
    parts = network_kernels.table(
        Cell("small", "training", 512, "float32", 32, "gpu"), {"mpsfunc": {"wall": 5.0, "kernels": kernels}}
    )
    busy = sum(ms for _, ms, _ in kernels)
    assert f"| mpsfunc | 5.00 | {busy:.2f} | 40 |" in parts[1]
    assert f"| 4 others | {sum(ms for _, ms, _ in kernels[16:]):.3f} | 8.0 |" in parts[3]
    assert "kernel 15" in parts[3] and "kernel 16" not in parts[3]
