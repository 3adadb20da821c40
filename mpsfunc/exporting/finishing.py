"""Makes the file that MLX wrote one for a GPU: its kernels, its layout, and what the arrays are called."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.core.mlx_table import release
from mpsfunc.core.printing import brief
from mpsfunc.core.versions import VERSION
from mpsfunc.exporting.kernels import Kernels
from mpsfunc.exporting.layout import Constant, Operation, Whole
from mpsfunc.exporting.states import CPU_ONLY, KERNEL, letters

_MANY = 1 << 20  # bytes of constants that somebody may not have meant
_METAL_WORDS = "[[kernel]]"


def finished(
    whole: Whole,
    kernels: Kernels,
    version: str,
    inputs: Sequence[Sequence[str]],
    outputs: Sequence[Sequence[str]],
) -> Whole:
    """The file as it is to be.

    Args:
        whole: What MLX wrote.
        kernels: Those of ours in it.
        version: Of the MLX that is to read it.
        inputs: Names of the inputs of each signature.
        outputs: And of its outputs.
    """
    signatures = []
    for signature, names in zip(whole.signatures, inputs, strict=True):
        known = {number: f"the argument {name}" for number, name in zip(signature.inputs, names, strict=True)}
        steps = []
        for step in signature.steps:
            if isinstance(step, Operation):
                step = _finished(step, kernels, version, known)
                known |= {number: f"a result of {step.name}" for number in step.outputs}
            elif step.array.dtype == mx.float64:
                raise TypeError(
                    "export: no GPU has float64; got a constant of the function, "
                    f"float64{list(step.array.shape)}, expected another dtype"
                )
            steps.append(step)
        signatures.append(signature._replace(steps=tuple(steps)))
    named = [{"inputs": i, "outputs": o} for i, o in zip(inputs, outputs, strict=True)]
    about = json.dumps({"mpsfunc": VERSION, "device": kernels.gpu, "signatures": named}, separators=(",", ":"))
    return whole._replace(mlx=version, signatures=tuple(signatures), metadata=about)


def _finished(step: Operation, kernels: Kernels, version: str, known: dict[int, str]) -> Operation:
    read = brief(", ".join(known.get(number, "a constant") for number in step.inputs) or "nothing")
    if any(array.dtype == mx.float64 for array in step.arrays):
        raise TypeError(f"export: no GPU has float64; got {step.name} of {read}, expected another dtype")
    if step.name in CPU_ONLY:
        raise ValueError(f"export: MLX has no {step.name} on a GPU; got {step.name} of {read}, expected none")
    try:
        _, older = letters(step.name, release(version))
    except KeyError:
        older, lacks = None, True
    else:
        lacks = older is not None and step.state[older.at] != older.meant
    if lacks:
        raise ValueError(f"export: MLX {version} has no such {step.name}; got {step.name} of {read}, expected others")
    if step.name == KERNEL:
        name, source = kernels.finished(*step.state[:2])
        if (_METAL_WORDS in source) != (kernels.gpu == "metal"):
            raise ValueError(
                f"export: a kernel is written for another GPU; got {name} of {read}, expected one for {kernels.gpu}"
            )
        return step._replace(state=(name, source, *step.state[2:]))
    return step


def constants(whole: Whole) -> list[Constant]:
    """Those of all signatures, each once."""
    found = {step.number: step for s in whole.signatures for step in s.steps if isinstance(step, Constant)}
    return list(found.values())


def warn_of_constants(whole: Whole) -> None:
    """Says so where a file holds large arrays that no argument is."""
    found = constants(whole)
    total = sum(each.array.nbytes for each in found)
    if total > _MANY:
        largest = max(found, key=lambda each: each.array.nbytes).array
        warnings.warn(
            f"export: the file holds {total:,} bytes of arrays that the function takes from elsewhere, the largest "
            f"{str(largest.dtype).rpartition('.')[2]}{list(largest.shape)}; what is to change must be an argument",
            stacklevel=3,
        )
