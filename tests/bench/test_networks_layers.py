"""A network's convolutions one by one, and the peaks that they are compared with."""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from pathlib import Path

import pytest

from . import flops
from .networks_csv import Machine
from .problems import Problem
from .stats import Ratio
from .whole import INFERENCE, Cell

pytestmark = pytest.mark.parity
pytest.importorskip("torch", reason="PyTorch is not installed")
ZEN = Machine("amd", "a Zen", "avx512", "avx512_bf16", "mlx 1, torch 2", "c0ffee", "2026-11-27 10:00 UTC")


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize(("network", "layers", "different"), [("ResNet-50", 53, 23), ("MobileNetV2", 52, 30)])
def test_every_convolution_is_found_where_the_network_runs_it(network: str, layers: int, different: int) -> None:
    from . import networks_layers

    found, others = networks_layers.geometries(Cell(network, INFERENCE, 2, "float32", 224))
    assert sum(found.values()) == layers and len(found) == different and not others
    first = {"ResNet-50": (64, 7, 3), "MobileNetV2": (32, 3, 1)}[network]
    assert found[Problem("conv", (2, 224, 224, 3), "float32", first[1], 2, first[2], outs=first[0])] == 1
    if network == "ResNet-50":
        assert found[Problem("conv", (2, 14, 14, 256), "float32", 3, 1, 1)] == 5
    # The well-known numbers, less the linear layers.
    multiplied = sum(count * networks_layers.products(problem) for problem, count in found.items()) / 2
    assert multiplied == pytest.approx({"ResNet-50": 4.087e9, "MobileNetV2": 0.2995e9}[network], rel=2e-3)


@pytest.mark.needs_cpu_module
def test_layers_that_no_row_has_are_named() -> None:
    from . import networks_layers

    found, others = networks_layers.geometries(Cell("DCGAN generator", INFERENCE, 2, "float32", 64))
    assert sum(found.values()) + sum(others.values()) == 5


@pytest.mark.needs_cpu_module
def test_the_page_has_sums_of_layers_and_shares_of_the_peak(tmp_path: Path) -> None:
    from . import networks_layers
    from .networks_layers import Measured

    one, two = (Problem("conv", (1, 10, 10, channels), "float32", 1, 1, 0) for channels in (100, 50))
    found = [
        Measured(one, 3, 0.1, "PyTorch NHWC", 0.05, Ratio(0.5, 0.4, 0.6)),
        Measured(two, 1, 0.1, "PyTorch NCHW", 0.4, Ratio(4, 4, 4)),
        Measured(one._replace(dtype="bfloat16"), 3, 0.1, "PyTorch NHWC", 0.1, Ratio(1, 1, 1)),
    ]
    args = argparse.Namespace(layers="U-Net", out=tmp_path)
    text = networks_layers.write(args, ZEN, found, {"fma": 40.0}, Counter(ConvTranspose2d=2), 30, [1])
    assert "| 1 | float32 | forward | 0.4 | 0.6 | 1.38 | met | 0.50 | **missed** |" in text
    assert "| 1x10x10x100 | float32 | 3 | 0.1 | 0.05 | NHWC | 0.50 (0.40 to 0.60) | 20 | 50% |" in text
    assert "| NHWC | 1.00 (1.00 to 1.00) | 20 | not measured |" in text
    assert "2 ConvTranspose2d" in text and "40 GFLOP/s by fma" in text
    assert (tmp_path / "layers" / "u-net_amd.md").exists()


@pytest.mark.needs_cpu_module
def test_a_layer_is_measured_in_all_its_passes() -> None:
    from . import networks_layers

    for ending in networks_layers.PASSES:
        problem = Problem(f"conv{ending}", (1, 8, 8, 16), "bfloat16", 3, 2, 1, outs=8)
        of = networks_layers.measured(problem, 2, 2)
        assert of.layers == 2 and of.rival.startswith("PyTorch") and of.ms > 0 < of.rival_ms
        assert of.gflops == pytest.approx(2 * 4 * 4 * 8 * 9 * 16 / (1e6 * of.ms))


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no compiler")
def test_two_kinds_of_multiplication_have_peaks_in_their_order() -> None:
    found = flops.peaks(1)
    assert found["fma"] > 1
    assert all(found["fma"] < peak for name, peak in found.items() if name != "fma")


def test_without_a_compiler_there_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    from . import networks_layers

    monkeypatch.setenv("CXX", "no-such-compiler")
    assert flops.peaks(1) == {}
    assert networks_layers.peak_of("float32", {}) is None
    assert networks_layers.peak_of("bfloat16", {"fma": 1.0, "avx512_bf16": 2.0}) == 2.0
    assert networks_layers.peak_of("bfloat16", {"fma": 1.0}) is None
