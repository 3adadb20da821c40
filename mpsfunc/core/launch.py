"""Runs one operation on the device a stream names; CPU, Metal and CUDA are told apart here and by no other module.

On the CPU an operation is the primitive ``_primitives.<name>``. On a GPU it is one or more `Stage`, each a kernel body
``<body>.metal``: Metal takes the text as it is (``mx.fast.metal_kernel``), CUDA takes it behind ``cuda.h``, as
machine code that was compiled before (`core.nvrtc`, ``mx.fast.precompiled_cuda_kernel``) or, where there is no
compiler for that, as text (``mx.fast.cuda_kernel``).
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import importlib.resources
import itertools
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import numpy as np

from mpsfunc.core import environment, nvrtc, printing
from mpsfunc.core.scalars import is_a

_primitives: Any = None
_why_no_primitives = ""
try:
    _primitives = importlib.import_module("mpsfunc._primitives")
except ModuleNotFoundError as error:  # a GPU-only install; launching on the CPU says so
    if error.name != "mpsfunc._primitives":
        raise
    _why_no_primitives = str(error)

StreamLike = mx.Stream | mx.ThreadLocalStream | mx.Device | mx.DeviceType | None
Output = tuple[tuple[int, ...], mx.Dtype]

CPU = mx.Device(mx.cpu)
# Elements that a grid may span along one axis, and blocks that CUDA allows along y and z.
_INT_MAX = 2**31 - 1
_MOST_YZ = 65535
# Blocks that a body which strides over y and z is given at most.
_BLOCKS_YZ = _MOST_YZ
_HEADERS = (
    *("geometry.h", "vector_load.h", "moments.h", "norms.h", "tile.h", "powers.h", "functions.h", "activations.h"),
    *("neuron.h", "broadcast.h", "philox.h", "online_softmax.h", "losses.h", "register_tile.h", "channel_sums.h"),
)
FILL = 528  # threadgroups of 256 that keep the largest GPU busy
_MERGING = 128  # threads that fold the parts of one sum
RESIDENT = nvrtc.RESIDENT  # a constant of a template: threadgroups for which a multiprocessor shall have registers


class Stage(NamedTuple):
    """One GPU kernel launch. The first stage reads the operation's arrays, each later one the results before it.

    The last one may read more arrays behind those. ``reads`` says otherwise.
    """

    body: str  # <body>.metal of a family
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    results: tuple[Output, ...]
    grid: tuple[int, int, int]  # threads
    threadgroup: tuple[int, int, int]
    params: tuple[int, ...] = ()
    template: tuple[tuple[str, mx.Dtype | int], ...] = ()
    # Which array each input is: the operation's, then the results of the stages so far, then finally_with's.
    reads: tuple[int, ...] = ()


def resolve(stream: StreamLike) -> mx.Stream:
    """The stream that ``stream=`` means at this moment; None is the current default."""
    if stream is not None:
        if is_a(stream, mx.Stream):
            return stream
        if is_a(stream, mx.ThreadLocalStream):
            with mx.stream(stream):  # MLX tells in no other way which one this thread has
                return mx.default_stream(stream.device)
        if not is_a(stream, (mx.Device, mx.DeviceType)):
            raise TypeError(f"stream: not a stream; got stream={printing.told(stream)}, expected a device or mx.Stream")
    try:
        return mx.default_stream(mx.default_device() if stream is None else stream)
    except ValueError as error:
        raise ValueError(f"stream: no such device here; got stream={stream!r}, expected one that MLX finds") from error


def backend(stream: mx.Stream) -> Literal["cpu", "metal", "cuda"]:
    """What runs the work of this resolved stream."""
    if stream.device == CPU:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def routed(stream: mx.Stream, *backends: str) -> bool:
    """Whether the stream's backend is one of these, where MLX reaches a vendor library that beats our kernel.

    ``MPSFUNC_DETERMINISTIC=1`` forbids every such route.
    """
    return backend(stream) in backends and not environment.switch("MPSFUNC_DETERMINISTIC", False)


def instruction_sets() -> tuple[str, ...]:
    """That of the CPU's kernels, then all that they were compiled for and that are here; none without the module."""
    return () if _primitives is None else (_primitives.isa(), *_primitives.isas())


def accumulator(dtype: mx.Dtype) -> mx.Dtype:
    """The dtype of sums, statistics and parameter gradients of an image: float32, or float64 for float64."""
    return mx.float64 if dtype == mx.float64 else mx.float32


def tracing() -> bool:
    """Whether a transformation may look on; without the C++ module nobody knows."""
    return _primitives is None or _primitives.tracing()


def after(image: mx.array, arrays: Sequence[mx.array]) -> mx.array:
    """The image, which is not made before the arrays are."""
    outputs: list[mx.array] = mx.depends([image], list(arrays))
    return outputs[0] if _primitives is None else _primitives.mappable(outputs)[0]


def cut(a: mx.array, index: Any) -> mx.array:
    """``a[index]``. Nothing, on a GPU, is zeros: what MLX has CUDA do for its gradient ends the process."""
    part: mx.array = a[index]
    return part if part.size or backend(resolve(None)) == "cpu" else mx.zeros(part.shape, a.dtype)


def launch(
    op: str,
    arrays: Sequence[mx.array],
    params: tuple[int, ...],
    outputs: tuple[Output, ...],
    stages: Callable[[], tuple[Stage, ...]],
    stream: mx.Stream,
    *,
    finally_with: Sequence[mx.array] = (),
    results_of: Sequence[int] = (),
) -> list[mx.array]:
    """Runs ``op`` on ``arrays`` and returns its outputs.

    Args:
        op: The operation's name.
        arrays: Its inputs, in the order of ``_primitives.<op>`` and of the first stage.
        params: Ints for the CPU primitive: spatial axes, all fields of each, then what the operation adds.
        outputs: Shape and dtype of each result.
        stages: Makes the GPU's launches, each with ints of its own; called only where a GPU runs them.
        stream: A resolved stream; everything runs there.
        finally_with: Arrays that the last stage reads behind the results before it; for a GPU only.
        results_of: Where a GPU's results are among its arrays, counted as for ``reads``. Default: the last stage's.
    """
    if backend(stream) == "cpu":
        shapes, dtypes = [list(s) for s, _ in outputs], [d for _, d in outputs]
        return list(getattr(module(op), op)(list(arrays), list(params), shapes, dtypes, stream))
    nothing = any(a.size == 0 for a in arrays) or any(0 in shape for shape, _ in outputs)
    if nothing:  # is read: images are empty, sums are zero
        return [mx.zeros(shape, dtype, stream=stream) for shape, dtype in outputs]
    results, known, made = list(arrays), list(arrays), stages()
    for stage in made:
        more = finally_with if stage is made[-1] else ()
        given = [[*known, *more][i] for i in stage.reads] if stage.reads else [*results, *more]
        results = run_stage(stage, given, stream)
        if _primitives is not None:  # without it mx.vmap says that MLX's kernels have none
            results = _primitives.mappable(results)
        known += results
    if results_of:
        return [known[i] for i in results_of]
    if len(results) < len(outputs):  # a flat last result holds the outputs one after the other
        ends = list(itertools.accumulate(math.prod(shape) for shape, _ in outputs))
        parts = mx.split(results[0], ends[:-1], stream=stream)
        results = [mx.reshape(part, shape, stream=stream) for part, (shape, _) in zip(parts, outputs, strict=True)]
    return results


def run_stage(
    stage: Stage,
    arrays: Sequence[mx.array],
    stream: mx.Stream,
    *,
    metal: bool | None = None,
    **options: Any,
) -> list[mx.array]:
    """Launches one kernel body on a GPU. ``metal`` is for tests that ask for the text on a machine without one."""
    on_metal = mx.metal.is_available() if metal is None else metal
    constants = (("T", arrays[0].dtype), *stage.template)
    how: dict[str, Any] = {
        "output_shapes": [shape for shape, _ in stage.results],
        "output_dtypes": [dtype for _, dtype in stage.results],
        "grid": stage.grid,
        "threadgroup": stage.threadgroup,
        "stream": stream,
        **options,
    }
    if not on_metal:
        wanted = _wanted(stage, arrays, constants, stream.device)
        if _ahead is not None:
            _ahead[wanted[:-1]] = wanted
            return [mx.zeros(shape, dtype) for shape, dtype in stage.results]
        compiled = nvrtc.kernel(*wanted)
        if compiled is not None:
            scalars = [length for i in compiled.sized for length in arrays[i].shape]
            scalars += _padded(stage.params)[: compiled.numbers]
            how |= {"inputs": list(arrays), "scalars": scalars, "ensure_row_contiguous": True}
            return list(mx.fast.precompiled_cuda_kernel(name=compiled.name, compiled_source=compiled.code, **how))
    kernel = _kernel(stage.body, stage.inputs, stage.outputs, on_metal)
    return list(kernel(inputs=[*arrays, packed(stage.params)], template=list(constants), **how))


_ahead: dict[Any, tuple[Any, ...]] | None = None  # what is wanted of NVRTC, while nothing is launched


def compiled_ahead(calls: Callable[[], object]) -> None:
    """Compiles what some calls would launch on an NVIDIA GPU, several kernels at a time; the calls get zeros.

    For programs with one thread of their own.
    """
    global _ahead
    _ahead = {}
    try:
        calls()
        wanted = list(_ahead.values())
    finally:
        _ahead = None
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda each: nvrtc.kernel(*each), wanted))


def _wanted(
    stage: Stage, arrays: Sequence[mx.array], constants: tuple[nvrtc.Constant, ...], device: mx.Device
) -> tuple[Any, ...]:
    body, numbers = text(f"{stage.body}.metal"), len(_padded(stage.params))
    named = zip(stage.inputs, arrays, strict=True)
    inputs = tuple((name, a.dtype, a.ndim if nvrtc.asks(body, name) else 0) for name, a in named)
    outputs = tuple((name, dtype) for name, (_, dtype) in zip(stage.outputs, stage.results, strict=True))
    return f"mpsfunc_{stage.body}", body, _header(body, metal=False), inputs, outputs, constants, numbers, device


@functools.cache
def _header(body: str, metal: bool) -> str:
    matrices = "simdgroup_" in body
    words = () if metal else ("cuda.h", "cuda_matrix.h")[: 1 + matrices]
    return "".join(map(text, (*words, *_HEADERS, *("simdgroup_mma.h",) * matrices)))


def watched(gathered: mx.array, sockets: list[int], seconds: float) -> mx.array:
    """What mx.distributed.all_gather makes, with a limit to its time where the CPU makes it; see timed_gather.h."""
    return gathered if _primitives is None else _primitives.watched(gathered, sockets, seconds)


def bits(number: float) -> tuple[int, ...]:
    """A float32 as an int parameter of a kernel; what is too large for one becomes the largest."""
    most = float(np.finfo(np.float32).max)
    return struct.unpack("i", struct.pack("f", max(-most, min(number, most))))


def signed(word: int) -> int:
    """32 bits as an int parameter."""
    return word - 2**32 if word >= 2**31 else word


def doubles(*numbers: float) -> tuple[int, ...]:
    """Numbers as int parameters of a CPU primitive, two each."""
    return struct.unpack(f"{2 * len(numbers)}i", struct.pack(f"{len(numbers)}d", *numbers))


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of small arrays as one GPU kernel, since a chain of them would cost more than an image.

    On the CPU it stays as it is: there MLX would call a compiler.
    """
    compiled = mx.compile(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return (function if mx.default_device() == CPU else compiled)(*args)

    return call


@functools.lru_cache(maxsize=4096)
def packed(params: tuple[int, ...]) -> mx.array:
    """The parameters as an int32 array of at least eight entries, so that Metal hands every body a device pointer."""
    return mx.array(_padded(params), dtype=mx.int32)


def _padded(params: tuple[int, ...]) -> list[int]:
    return [*params, *[0] * (8 - len(params))]


@functools.cache
def _kernel(body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], metal: bool) -> Any:
    make = mx.fast.metal_kernel if metal else mx.fast.cuda_kernel
    source = text(f"{body}.metal")
    return make(
        name=f"mpsfunc_{body}",
        input_names=[*inputs, "params"],
        output_names=list(outputs),
        source=source,
        header=_header(source, metal),
    )


@functools.cache
def text(name: str) -> str:
    """The one file of this name in a folder of ``metal/``: inside an installed package, or beside it in a checkout."""
    packaged = importlib.resources.files("mpsfunc") / "metal"
    root: Any = packaged if packaged.is_dir() else Path(__file__).parents[2] / "metal"
    files = (folder / name for folder in root.iterdir() if folder.is_dir())
    return str(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))


# Launch shapes ------------------------------------------------------------------------------------------


def lanes(dtype: mx.Dtype, channels: int, size: int) -> int:
    """Channels one thread owns: sixteen bytes of them where they divide evenly, else one.

    Metal hands arrays under eight elements over in another address space; those go one by one too.
    """
    wide = 16 // dtype.size
    return wide if channels % wide == 0 and size >= 8 else 1


def threads(x: int, y: int, z: int = 1) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid for x by y by z items and its threadgroup of 256; bodies stride over what y and z leave over."""
    if x > _INT_MAX:
        raise ValueError(f"launch: a row is too long for a GPU; got {x} elements, expected at most {_INT_MAX}")
    # CUDA rounds x up to whole threadgroups: of the widths that waste least, the widest.
    tx = min((256, 128, 64, 32), key=lambda t: -(-x // t) * t) if x > 32 else power_of_two(x)
    ty = min(256 // tx, power_of_two(y))
    return (x, min(y, _BLOCKS_YZ * ty), min(z, _BLOCKS_YZ)), (tx, ty, 1)


def image_threads(across: int, height: int, rounds: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid for bodies that work out geometry once and then go from image to image, in so many rounds.

    Geometry costs a thread as much as several images do, so it serves four rounds if the GPU stays full: eight leave it
    too few threads to hide what loads wait for.
    """
    deep = max(-(-rounds // 4), -(-FILL * 256 // (across * height)))
    return threads(across, height, min(rounds, deep))


def pointwise_threads(items: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that strides over so many items, four at a time, in whole threadgroups of 256."""
    return (min(8 * FILL, -(-items // 1024)) * 256, 1, 1), (256, 1, 1)


def sharing_threads(items: int, sharing: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that strides over items with ``sharing`` threads each, a power of two, in whole threadgroups of 256."""
    return (min(8 * FILL, -(-items * sharing // 256)) * 256, 1, 1), (256, 1, 1)


def column_threads(
    x: int, rows: int, sets: int = 1, *, laden: bool = False
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that sums x columns over many rows, in so many sets of rows: enough threadgroups to fill a large GPU.

    They have 256 threads, or as many as a short set can use. The columns of a set follow those of the one before. Where
    a thread is ``laden``, with sums of several columns in its registers, half as many threadgroups fill a GPU, and a
    thread has some eight rows, four at least, where there are as many: of one its mean is a poor pivot for the others.
    """
    each = 8 if laden else 1
    tx = min(256, power_of_two(x))
    ty = min(256 // tx, power_of_two(-(-rows // each)))
    across = -(-x * sets // tx)
    down = min(max(1, FILL // (2 if laden else 1) // across), -(-rows // (ty * each)))
    return (x * sets, down * ty, 1), (tx, ty, 1)


def merging_threads(columns: int, parts: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that folds a few parts of each column: 128 threads for one, or as many as it has parts."""
    height = min(_MERGING, power_of_two(parts))
    return (columns, height, 1), (256 // height, height, 1)


def tiles(x: int, y: int, z: int) -> tuple[int, int, int]:
    """A grid of x by y by z whole threadgroups of 256 threads."""
    if x * 256 > _INT_MAX or max(y, z) > _MOST_YZ:
        raise ValueError(
            f"launch: too many tiles for one GPU kernel; got ({x}, {y}, {z}), expected at most "
            f"({_INT_MAX // 256}, {_MOST_YZ}, {_MOST_YZ})"
        )
    return x * 256, y, z


def sum_partials(length: int, parts: int = 32) -> Stage:
    """The stage that adds rows of ``length`` partial sums in a fixed order; ``parts`` are few where they are known."""
    result = ((length,), mx.float32)
    grid, group = merging_threads(length, parts)
    return Stage("sum_partials", ("partial",), ("total",), (result,), grid, group, group[:2])


def power_of_two(n: int) -> int:
    """The least one that is not less."""
    return 1 << (n - 1).bit_length()


def optional_module() -> Any:
    """The C++ module, None where there is none."""
    return _primitives


def module(op: str) -> Any:
    """The C++ module; a RuntimeError that names the operation where there is none."""
    if _primitives is None:
        raise RuntimeError(
            f"{op}: this mpsfunc was built without its CPU module; got the CPU, expected a GPU stream or an install "
            f"with a C++ compiler ({_why_no_primitives})"
        )
    return _primitives
