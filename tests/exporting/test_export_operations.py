"""Every public function in a file, forward and backward, for both kinds of GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exporting.imported import exported, on_the_cpu, shapes
from generic.opinfo import OpInfo, Sample
from generic.ops import OPS
from support.matrix import same

from mpsfunc.core import texts
from mpsfunc.selftest.expressions import results

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.needs_cpu_module]

NAMES = sorted(name for name, op in OPS.items() if op.samples)
# What is a state of sizes alone, and nothing for a file.
NO_ARRAYS = {
    *("avg_pool_state", "crop_and_resize_state", "grid_sample_state", "pad_state", "resize_area_state"),
    *("resize_bicubic_state", "resize_bilinear_state", "resize_nearest_state", "roi_align_state"),
    *("upsample_bilinear_state", "upsample_nearest_state"),
}
# What MLX's operations compute on a GPU, and kernels of ours on the CPU.
BY_MLX = {
    *("layer_norm", "layer_norm_grad", "nms", "reduce_argmax", "reduce_argmin", "reduce_max", "reduce_max_grad"),
    *("reduce_mean", "reduce_min", "reduce_min_grad", "reduce_sum", "reduce_weighted_sum", "reduce_weighted_sum_grad"),
}
WITH_ARRAYS = [name for name in NAMES if name not in NO_ARRAYS]


def both_ways(op: OpInfo, sample: Sample) -> Any:
    """The sample as a function that also returns the gradients of a loss, where it has derivatives."""

    def forward(*arrays: mx.array) -> tuple[mx.array, ...]:
        return results(sample.run(arrays, mx.float32))

    def loss(*arrays: mx.array) -> mx.array:
        outs = sample.outs(arrays, mx.float32)
        return sum(((y * y).sum() for y in outs), mx.array(0.0))

    floating = [i for i, a in enumerate(sample.inputs(mx.float32)) if mx.issubdtype(a.dtype, mx.floating)]

    def called(*arrays: mx.array) -> tuple[Any, ...]:
        outs = forward(*arrays)
        return (outs, mx.grad(loss, argnums=floating)(*arrays)) if op.differentiable and floating else outs

    return called


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_on_metal(name: str, tmp_path: Path) -> None:
    op = OPS[name]
    for sample in op.named_samples().values():
        inputs = sample.inputs(mx.float32)
        function = both_ways(op, sample)
        found = exported(tmp_path / "f.mlxfn", function, *inputs)
        (signature,) = found.signatures
        assert shapes(signature.inputs) == shapes(inputs)
        outs = results(function(*inputs))
        assert shapes(signature.outputs) == shapes(outs)
        assert set(signature.kernels) <= set(texts.bodies())
        if not signature.kernels:  # all of it is MLX's, which runs it here
            same(on_the_cpu(tmp_path / "f.mlxfn")(*inputs), outs, 1e-5)  # sums in another order
        assert bool(signature.kernels) or not op.launches or name in BY_MLX


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_on_cuda(name: str, tmp_path: Path) -> None:
    op = OPS[name]
    sample = op.plain_sample()
    found = exported(tmp_path / "f.mlxfn", both_ways(op, sample), *sample.inputs(mx.float32), device="cuda")
    assert found.device == "cuda" and set(found.signatures[0].kernels) <= set(texts.bodies())


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_for_mlx_swift(name: str, tmp_path: Path) -> None:
    op = OPS[name]
    sample = op.plain_sample()
    found = exported(tmp_path / "f.mlxfn", both_ways(op, sample), *sample.inputs(mx.float32), mlx="0.31.1")
    assert found.mlx == "0.31.1" and found.device == "metal"


@pytest.mark.parametrize("name", sorted(NO_ARRAYS & set(NAMES)))
def test_what_makes_no_array(name: str, tmp_path: Path) -> None:
    sample = OPS[name].plain_sample()
    with pytest.raises(TypeError, match="^export: the function returns no array; got result="):
        exported(tmp_path / "f.mlxfn", both_ways(OPS[name], sample), *sample.inputs(mx.float32))
