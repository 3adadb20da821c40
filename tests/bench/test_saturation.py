"""Gradients of softmaxes of 16 bits near saturation are no worse than MLX's."""

from __future__ import annotations

import mlx.core as mx
import pytest

from .saturation import DTYPES, GAPS, lines, of_mlx, of_torch


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_no_worse_than_mlx(name: str, gap: float, dtype: mx.Dtype) -> None:
    """The worst and the usual error, of the derivative and of the gradient function, which goes by a rounded result."""
    with mx.stream(mx.cpu):
        found = of_mlx(name, *lines(gap, dtype))
    for kind in ("ours", "by hand"):
        for ours, theirs in zip(found[kind], found["MLX"], strict=True):
            assert ours <= theirs * (1 + 1e-6)


@pytest.mark.parity
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_no_worse_than_pytorch(name: str, gap: float, dtype: mx.Dtype) -> None:
    pytest.importorskip("torch")
    with mx.stream(mx.cpu):
        given = lines(gap, dtype)
        found = {**of_mlx(name, *given), **of_torch(name, *given)}
    for kind in ("ours", "by hand"):
        for ours, theirs in zip(found[kind], found["PyTorch"], strict=True):
            assert ours <= theirs * (1 + 1e-6)


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_derivative_of_softmax_keeps_its_digits(dtype: mx.Dtype) -> None:
    """However near to 1 the largest is, as long as the gradients are no subnormal numbers."""
    rounding = 2.0**-11 if dtype == mx.float16 else 2.0**-8
    with mx.stream(mx.cpu):
        for gap in GAPS if dtype == mx.bfloat16 else GAPS[:4]:
            worst, usual = of_mlx("softmax", *lines(gap, dtype))["ours"]
            assert worst <= 5 * rounding and usual <= rounding / 3
