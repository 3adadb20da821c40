"""The networks of the benchmark learn, and all sides learn the same."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from . import networks, networks_report


@pytest.fixture(autouse=True)
def device_back() -> object:
    """The program makes the CPU the default device."""
    before = mx.default_device()
    yield
    mx.set_default_device(before)


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("network", networks.NETWORKS)
def test_converted_steps_learn(network: str) -> None:
    step = networks.side(networks.CONVERTED, networks.Setting(network, 4), {})
    losses = [step.times(1) for _ in range(3)] + [step.times(3)]
    assert losses[-1] < losses[0]
    convolutions = {"small": 6, "resnet20": 19 + 2}[network]
    assert len(step.parameters()["conv"]) == convolutions


@pytest.mark.parity
@pytest.mark.needs_cpu_module
def test_all_sides_learn_the_same_and_are_written_down(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    names = (networks.CONVERTED, *networks.EAGER)
    results = [networks.measure(networks.Setting(network, 8), 2, names, 1) for network in networks.NETWORKS]
    for result in results:
        for curve in result.curves.values():
            np.testing.assert_allclose(curve, result.curves[networks.CONVERTED], rtol=1e-2)
    text = networks_report.write(tmp_path, results, 2)
    assert text.count("| small | 8 | mpsfunc |") == 2 and text.count("no more") == 2
    assert len((tmp_path / "networks.csv").read_text().splitlines()) == 1 + 2 * 3 * 2


def test_the_result_names_the_faster_layout_and_stock_mlx() -> None:
    times = [["small", 8, name, ms] for name, ms in (("mpsfunc", "1.0"), ("PyTorch NCHW", "3.0"), ("MLX", "9.0"))]
    times += [["small", 8, "PyTorch NHWC", "2.0"], ["small", 8, "JAX", "4.0"]]
    targets = [["small", 8, name, "1 x", "", verdict] for name, verdict in (("PyTorch NHWC", "met"), ("JAX", ""))]
    said = networks_report.result(times, [*targets, ["small", 8, "MLX", "60 x", "", "**missed**"]], 2)
    assert said == (
        "Milliseconds a training step: small, 8 images: mpsfunc 1.0, MLX 9.0, PyTorch NHWC 2.0; "
        "1 of 2 targets are met, 1 missed"
    )
