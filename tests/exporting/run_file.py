"""Runs functions of .mlxfn files on a CPU: kernels on the Metal host, MLX's own operations in NumPy.

    file = mlxfn.read(path.read_bytes())
    loss, w = run(file, [w, images, labels])

Of mpsfunc nothing runs: each kernel is compiled from the file's own text and launched on the file's own grid, and its
arguments are bound as MLX's ``CustomKernel`` binds them. An array of bfloat16, which NumPy has not, is one of float32
with rounded values, in arguments and results too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from exporting import mlx_in_numpy
from exporting.mlx_in_numpy import from_bytes, to_bytes
from exporting.mlxfn import Array, BadFile, File, Function, Kernel, Step
from metal_host.job import CONSTANT, INPUT, OUTPUT, Buffer, Job
from metal_host.msl_text import parse

# What kernels call the dtypes, where that is another name.
_TYPES = {"float": "float32", "float16_t": "float16", "bfloat16_t": "bfloat16", "int": "int32"}


def run(
    file: File,
    arguments: Sequence[np.ndarray],
    keywords: Mapping[str, np.ndarray] | None = None,
    *,
    sanitizer: str = "address",
) -> list[np.ndarray]:
    """The results of the function whose signature these arguments fit.

    Args:
        file: Of Metal kernels.
        arguments: In the order of the call.
        keywords: Those that go by name.
        sanitizer: Which build of `metal_host.build` runs the kernels.

    Raises:
        BadFile: No signature fits, or something in it cannot be run here.
        KernelFault: A kernel did something wrong.
    """
    named = dict(sorted((keywords or {}).items()))
    given = [*arguments, *named.values()]
    found = [each for each in file.functions if each.keywords == tuple(named) and _fits(each, given)]
    if len(found) != 1:
        shapes = [(a.shape, a.dtype.name) for a in given]
        raise BadFile(f"{len(found)} of {len(file.functions)} signatures fit {shapes} with keywords {list(named)}")
    function = found[0]
    values = {each: from_bytes(file.constants[each].data, function.arrays[each]) for each in function.constants}
    values |= dict(zip(function.input_ids, given, strict=True))
    for step in function.steps:
        inputs = [values[each] for each in step.inputs]
        results = _results(step, inputs, [function.arrays[each] for each in step.inputs], sanitizer)
        values.update(zip(step.outputs, results, strict=True))
    return [values[each] for each in function.output_ids]


def _fits(function: Function, given: Sequence[np.ndarray]) -> bool:
    shapes = [(a.shape, "float32" if a.dtype == "bfloat16" else a.dtype) for a in function.inputs]
    return shapes == [(a.shape, a.dtype.name) for a in given]


def _results(step: Step, inputs: list[np.ndarray], read: list[Array], sanitizer: str) -> list[np.ndarray]:
    name, state = step.primitive.name, step.primitive.state
    if isinstance(state, Kernel):
        if step.primitive.stream.device != "gpu":
            raise BadFile(f"{state.name} is on the {step.primitive.stream.device}")
        made = _job(state, inputs, read, step.arrays).once(sanitizer).results.values()
        return [from_bytes(data, array) for data, array in zip(made, step.arrays, strict=True)]
    results = mlx_in_numpy.results(name, state, inputs, read, step.arrays)
    for result, array in zip(results, step.arrays, strict=True):
        if result.shape != array.shape:
            raise BadFile(f"{name} makes {result.shape} where the file says {array.shape}")
    return [mlx_in_numpy.cast(result, array.dtype) for result, array in zip(results, step.arrays, strict=True)]


def _job(kernel: Kernel, inputs: list[np.ndarray], read: list[Array], makes: Sequence[Array]) -> Job:
    """The kernel with its arguments, in the order in which MLX binds them."""
    if kernel.is_precompiled or kernel.scalars or kernel.shared_memory or kernel.init_value is not None:
        raise BadFile(f"{kernel.name} has what kernels for Metal, or those of mpsfunc, do not have")
    text = _parsed(kernel.text)
    host_name = f'host_name("{kernel.name}")' if "<" in text.instance else f"void {kernel.name}("
    if host_name not in kernel.text:
        raise BadFile(f"{kernel.name} is not in its own text")
    wanted = [*_arguments(kernel, inputs, read), *[(OUTPUT, each.dtype, each.bytes, b"") for each in makes]]
    declared = [each for each in text.parameters if each.attribute.startswith("buffer")]
    if len(declared) != len(wanted):
        raise BadFile(f"{kernel.name} has {len(declared)} arguments, and gets {len(wanted)}")
    buffers = []
    for place, (parameter, (role, dtype, size, data)) in enumerate(zip(declared, wanted, strict=True)):
        words = parameter.type.rstrip("*&").split()
        type_name = _TYPES.get(words[-1], words[-1].removesuffix("_t"))
        if (type_name, "const" in words, parameter.attribute) != (dtype, role != OUTPUT, f"buffer({place})"):
            raise BadFile(f"{kernel.name}: {' '.join(parameter)} gets {dtype} as buffer {place}")
        buffers.append(Buffer(parameter.name, role, dtype, size, data))
    group = [min(pair) for pair in zip(kernel.threadgroup, kernel.grid, strict=True)]
    return Job(text, tuple(buffers), kernel.grid, (group[0], group[1], group[2]))


def _arguments(kernel: Kernel, inputs: list[np.ndarray], read: list[Array]) -> list[tuple[int, str, int, bytes]]:
    """Role, dtype, size and memory of what a kernel reads: each array, then what it asks of its sizes."""
    found = []
    for value, array, sizes in zip(inputs, read, kernel.sizes_of, strict=True):
        data = to_bytes(value, array.dtype)
        found.append((INPUT, array.dtype, len(data), data))
        strides = [math.prod(array.shape[axis + 1 :]) for axis in range(value.ndim)]
        asked = (("int32", array.shape), ("int64", strides), ("int32", [value.ndim]))
        for wanted, (dtype, numbers) in zip(sizes, asked, strict=True):
            if wanted and value.ndim > 0:
                data = np.array(numbers, dtype).tobytes()
                found.append((CONSTANT, dtype, len(data), data))
    return found


_parsed = functools.lru_cache(parse)
