"""Bodies as CUDA reads them, behind cuda.h, run on the Metal host: they do what they do on Metal.

This is no NVIDIA compiler, but the words of cuda.h are the same, the lanes of a warp are, and so is the alignment that
wide loads ask for, which the sanitizer checks.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from metal_host.host import Run, needs_clang
from metal_host.job import OUTPUT, values
from metal_host.msl_text import Kernel
from metal_host.runs import BODIES, launches
from metal_host.test_host import MATRICES, multiplied
from mpsfunc.core import texts

pytestmark = [needs_clang, pytest.mark.kernels]


def on_cuda(kernel: Kernel, body: str, names: tuple[str, ...], header: str = "") -> Kernel:
    """The text that a launch would have on CUDA, with its buffers in the same order."""
    buffers = tuple(p for p in kernel.parameters if p.attribute.startswith("buffer"))
    words = re.findall(r"(?<=[<, ])[\w:]+(?=[,>])", kernel.instance)
    template = " ".join(
        f"constexpr int {name} = {word};" if word.isdigit() else f"using {name} = {word};"
        for name, word in zip(names, words, strict=True)
    )
    signature = ", ".join(f"{re.sub('device|constant', '', p.type)} {p.name}" for p in buffers)
    words = texts.text("shared/cuda.h") + texts.text("shared/cuda_matrix.h")
    text = (
        f'#include "cuda_host.h"\nnamespace on_cuda {{\n{words}{header}\n'
        f"void body({signature}) {{\n{template}\n{body}\n}}\n}}\n"
    )
    return Kernel(text, "on_cuda::body", buffers)


def headers(kernel: Kernel) -> str:
    """What stands between MLX's own words and the kernel."""
    text = kernel.text[kernel.text.index(texts.text("shared/base.h")) : kernel.text.index("[[kernel]]")]
    return text[: text.rindex("template")]


@pytest.mark.parametrize(
    "body",
    [
        body
        for body in BODIES
        if body.startswith(("conv", "neuron", "bn_", "softmax", "loss", "grid_sample", "deform", "box_sample"))
        or any(word in body for word in ("norm", "moments", "window"))
    ],
)
def test_cuda_words_mean_what_metal_means(body: str) -> None:
    def wide(run: Run) -> tuple[int, int]:
        return dict(run.stage.template).get("V", 1), max(buffer.bytes for buffer in run.job.buffers)

    widest = max(launches(body), key=wide)
    for run in {id(r): r for r in (widest, launches(body)[0])}.values():
        text, names = texts.body(body), ("T", *(name for name, _ in run.stage.template))
        job = run.job._replace(kernel=on_cuda(run.job.kernel, text, names, headers(run.job.kernel)))
        outcomes = [job.once("address", rounded=True, disturbed=disturbed) for disturbed in (False, True)]
        assert outcomes[0].results == outcomes[1].results, "other bits where inputs are not aligned"
        for outcome in outcomes:
            for buffer in job.buffers:
                if buffer.role == OUTPUT:
                    seen, right = (values(buffer.dtype, o.results[buffer.name]) for o in (outcome, run.outcome))
                    np.testing.assert_allclose(seen, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("made", [made for kind, made in MATRICES.items() if kind != "at an origin"])
def test_simdgroup_matrices(made: str) -> None:
    body, work, right = multiplied(made)
    outcome = work._replace(kernel=on_cuda(work.kernel, body, ("N",))).run(rounded=True)
    y, z = (values("float32", outcome.results[name]).reshape(8, 8) for name in "yz")
    np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(z.T, y)
