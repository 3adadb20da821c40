"""The bodies of convolutions as CUDA reads them, behind cuda.h, run on the Metal host: they do what they do on Metal.

This is no NVIDIA compiler, but the words of cuda.h are the same, the lanes of a warp are, and so is the alignment that
wide loads ask for, which the sanitizer checks.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernels.job import OUTPUT, values
from kernels.metal_host import Run, needs_clang
from kernels.msl_text import Kernel
from kernels.test_bodies import BODIES, launches
from mpsfunc import _launch

pytestmark = needs_clang


def on_cuda(run: Run) -> Kernel:
    """The text that a launch would have on CUDA, with its buffers in the same order."""
    buffers = [p for p in run.job.kernel.parameters if p.attribute.startswith("buffer")]
    metal = run.job.kernel.text
    header = metal[metal.index(_launch.text("geometry.h")) : metal.index("[[kernel]]")]
    header = header[: header.rindex("template")] if "<" in run.job.kernel.instance else header
    words = re.findall(r"(?<=[<, ])[\w:]+(?=[,>])", run.job.kernel.instance)
    names = ["T", *(name for name, _ in run.stage.template)]
    template = [
        f"constexpr int {name} = {word};" if word.isdigit() else f"using {name} = {word};"
        for name, word in zip(names, words, strict=True)
    ]
    signature = ", ".join(f"{re.sub('device|constant', '', p.type)} {p.name}" for p in buffers)
    text = (
        f'#include "cuda_host.h"\nnamespace on_cuda {{\n{_launch.text("cuda.h")}{header}\n'
        f"void body({signature}) {{\n{' '.join(template)}\n{_launch.text(run.stage.body + '.metal')}\n}}\n}}\n"
    )
    return Kernel(text, "on_cuda::body", tuple(buffers))


@pytest.mark.parametrize("body", [body for body in BODIES if body.startswith("conv")])
def test_cuda_words_mean_what_metal_means(body: str) -> None:
    widest = max(launches(body), key=lambda run: dict(run.stage.template).get("V", 1))
    for run in {id(r): r for r in (widest, launches(body)[0])}.values():
        job = run.job._replace(kernel=on_cuda(run))
        for disturbed in (False, True):
            outcome = job.once("address", rounded=True, disturbed=disturbed)
            for buffer in job.buffers:
                if buffer.role == OUTPUT:
                    seen, right = (values(buffer.dtype, o.results[buffer.name]) for o in (outcome, run.outcome))
                    np.testing.assert_allclose(seen, right, rtol=1e-5, atol=1e-5)
