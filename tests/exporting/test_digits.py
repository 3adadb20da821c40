"""The digits network's training step from a file, run on the Metal host, beside the same step on the CPU."""

from __future__ import annotations

from pathlib import Path

import export_digits
import mlx.core as mx
import numpy as np
import pytest
from exporting import mlxfn, run_file
from metal_host.host import needs_clang

import mpsfunc as mf

BATCH = 16  # of the tests; a whole one takes the host four times as long

pytestmark = [pytest.mark.needs_cpu_module, pytest.mark.usefixtures("on_cpu")]


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with a bright spot where their label says, so that there is something to learn."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count).astype(np.int32)
    images = rng.uniform(0, 0.3, (count, 8, 8, 1)).astype(np.float32)
    images[np.arange(count), labels % 4 * 2, labels // 4 * 3] += 1
    return images, labels


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "step.mlxfn"
    images, labels = digits(BATCH)
    with mx.stream(mx.cpu):
        state = export_digits.packed(export_digits.new_state(0))
        mx.eval(state)
        mf.export(path, export_digits.step, state, mx.array(images), mx.array(labels), mx.array(0.1))
    return path


def both(path: Path, steps: int) -> tuple[list[tuple[float, float]], np.ndarray, np.ndarray]:
    """Losses of the file and of the CPU, and both states after the steps; the first runs under sanitizers."""
    file = mlxfn.read(path.read_bytes())
    images, labels = digits(BATCH * steps)
    state = mx.array(export_digits.packed(export_digits.new_state(0)))
    ours = np.array(state)
    losses = []
    for number in range(steps):
        chosen = slice(number * BATCH, (number + 1) * BATCH)
        arguments = [ours, images[chosen], labels[chosen], np.array(0.1, np.float32)]
        ours, loss = run_file.run(file, arguments, sanitizer="none" if number else "address")
        state, right = export_digits.step(state, mx.array(images[chosen]), mx.array(labels[chosen]), mx.array(0.1))
        losses.append((loss.item(), right.item()))
    return losses, ours, np.array(state)


def test_the_file_of_the_step(step: Path) -> None:
    file = mlxfn.read(step.read_bytes())
    (function,) = file.functions
    state = export_digits.packed(export_digits.LIKE)
    assert function.inputs == (
        ((state.size,), "float32"),
        ((BATCH, 8, 8, 1), "float32"),
        ((BATCH,), "int32"),
        ((), "float32"),
    )
    assert function.outputs == (((state.size,), "float32"), ((), "float32"))
    assert {stream.device for stream in file.streams} == {"gpu"} and len(file.streams) == 1
    texts: dict[str, set[str]] = {}
    for kernel in function.kernels:
        texts.setdefault(kernel.name, set()).add(kernel.text)
    assert all(len(each) == 1 for each in texts.values()), "MLX 0.31.1 compiles anew where a name has two texts"


@needs_clang
@pytest.mark.programs
def test_twenty_steps(step: Path) -> None:
    losses, ours, right = both(step, 20)
    assert losses[-1][0] < losses[0][0] / 2
    # Float32 rounding, which twenty steps carry on: one is 1e-7 of a loss, and of a parameter near one.
    np.testing.assert_allclose(*np.array(losses).T, rtol=3e-6)
    np.testing.assert_allclose(ours, right, rtol=0, atol=3e-6)
