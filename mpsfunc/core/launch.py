"""Runs one operation on the device a stream names; nothing else that runs distinguishes CPU, Metal and CUDA.

On the CPU an operation is the primitive ``_primitives.<name>``. On a GPU it is one or more `KernelLaunch`, each of a
kernel body ``metal/<family>/<body>.metal``: Metal takes the text as it is (``mx.fast.metal_kernel``), CUDA takes it
behind ``cuda.h``, as machine code that was compiled before (`core.nvrtc`, ``mx.fast.precompiled_cuda_kernel``) or,
where there is no compiler for that, as text (``mx.fast.cuda_kernel``).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import mlx.core as mx

from mpsfunc.core import environment, grids, native, printing, texts
from mpsfunc.core.arguments import is_a
from mpsfunc.core.params import Threadgroup, for_cpu, for_gpu

if TYPE_CHECKING:
    from mpsfunc.core.nvrtc import Constant, Kernel

_primitives: Any
_primitives, _why_no_primitives = native.load()

StreamLike = mx.Stream | mx.ThreadLocalStream | mx.Device | mx.DeviceType | None
Output = tuple[tuple[int, ...], mx.Dtype]
Name = str | tuple[str, str]

CPU = mx.Device(mx.cpu)
Gpu = Literal["metal", "cuda"]


class KernelLaunch(NamedTuple):
    """One launch of a GPU kernel, among those that make up an operation.

    It finds the arrays that it reads by their names, among those of the operation and what launches before it wrote. A
    name stands alone where the body has the same, else as a pair: the body's name, then that of the array.
    """

    body: str  # metal/<family>/<body>.metal
    reads: tuple[Name, ...]
    writes: tuple[Name, ...]
    results: tuple[Output, ...]
    grid: tuple[int, int, int]  # threads
    threadgroup: tuple[int, int, int]
    params: Any = None  # a record of the family's params.py
    template: tuple[tuple[str, mx.Dtype | int], ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the body calls the arrays that it reads."""
        return _names(self.reads, 0)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the body calls the arrays that it writes."""
        return _names(self.writes, 0)

    def renamed(self, **arrays: str) -> KernelLaunch:
        """This launch, where the body reads or writes other arrays: ``y="normalized"``."""
        reads, writes = ([(name, arrays.get(name, of)) for name, of in map(_pair, names)] for names in self[1:3])
        return self._replace(reads=tuple(reads), writes=tuple(writes))


def _pair(name: Name) -> tuple[str, str]:
    return (name, name) if isinstance(name, str) else name


def _names(names: tuple[Name, ...], which: int) -> tuple[str, ...]:
    return tuple(name if isinstance(name, str) else name[which] for name in names)


class _Exporting(NamedTuple):
    """For which GPU a thread makes a file instead of running anything, and what makes a kernel's node of it."""

    gpu: Gpu
    node: Callable[[KernelLaunch, Sequence[mx.array]], list[mx.array]]


_exporting: ContextVar[_Exporting | None] = ContextVar("exporting", default=None)  # each thread has its own


@contextlib.contextmanager
def exporting(gpu: Gpu, node: Callable[[KernelLaunch, Sequence[mx.array]], list[mx.array]]) -> Iterator[None]:
    """Within it every operation is made for this GPU, which need not be there, without routes to vendors' libraries.

    Args:
        gpu: The GPU.
        node: Called for each kernel of ours with its launch and the arrays that it reads, in place of launching it.
    """
    before = _exporting.set(_Exporting(gpu, node))
    try:
        yield
    finally:
        _exporting.reset(before)


def resolve(stream: StreamLike) -> mx.Stream:
    """The stream that ``stream=`` means at this moment; None is the current default."""
    if stream is not None and not is_a(stream, (mx.Stream, mx.ThreadLocalStream, mx.Device, mx.DeviceType)):
        raise TypeError(f"stream: not a stream; got stream={printing.describe(stream)}, expected a device or mx.Stream")
    if _exporting.get() is not None:  # nothing runs on it
        return mx.default_stream(mx.default_device())
    if stream is not None:
        if is_a(stream, mx.Stream):
            return stream
        if is_a(stream, mx.ThreadLocalStream):
            with mx.stream(stream):  # MLX tells in no other way which one this thread has
                return mx.default_stream(stream.device)
    try:
        return mx.default_stream(mx.default_device() if stream is None else stream)
    except (ValueError, IndexError) as error:  # of MLX: no such backend, or not so many devices
        raise ValueError(f"stream: no such device here; got stream={stream!r}, expected one that MLX finds") from error


def backend(stream: mx.Stream) -> Literal["cpu", "metal", "cuda"]:
    """What runs the work of this resolved stream."""
    file = _exporting.get()
    if file is not None:
        return file.gpu
    if stream.device == CPU:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def on_cpu() -> bool:
    """Whether the CPU runs what names no stream."""
    return _exporting.get() is None and mx.default_device() == CPU


def routed(stream: mx.Stream, *backends: str) -> bool:
    """Whether the stream's backend is one of these, where MLX reaches a vendor library that beats our kernel.

    ``MPSFUNC_DETERMINISTIC=1`` forbids every such route, and a file of an exported function has none.
    """
    return (
        backend(stream) in backends
        and _exporting.get() is None
        and not environment.switch("MPSFUNC_DETERMINISTIC", False)
    )


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
    return part if part.size or on_cpu() else mx.zeros(part.shape, a.dtype)


def launch(
    op: str,
    arrays: dict[str, mx.array],
    params: Any,
    outputs: tuple[Output, ...],
    launches: Callable[[], tuple[KernelLaunch, ...]],
    stream: mx.Stream,
    *,
    returns: tuple[str, ...] = (),
) -> list[mx.array]:
    """Runs ``op`` on ``arrays`` and returns its outputs.

    Args:
        op: The operation's name.
        arrays: Its inputs by name, in the order of ``_primitives.<op>``.
        params: The record of the CPU primitive's parameters, or None.
        outputs: Shape and dtype of each result.
        launches: Makes the GPU's launches, each with parameters of its own; called only where a GPU runs them.
        stream: A resolved stream; everything runs there.
        returns: Names of the results among what a GPU's launches wrote. Default: what the last one wrote.
    """
    if backend(stream) == "cpu":
        words = () if params is None else for_cpu(params)
        shapes, dtypes = zip(*outputs, strict=True)
        results: list[mx.array] = getattr(module(op), op)([*arrays.values()], words, shapes, dtypes, stream)
        return results
    nothing = any(a.size == 0 for a in arrays.values()) or any(0 in shape for shape, _ in outputs)
    if nothing:  # is read: images are empty, sums are zero
        return [mx.zeros(shape, dtype, stream=stream) for shape, dtype in outputs]
    known, results = dict(arrays), []
    for each in launches():
        results = run_kernel(each, [known[name] for name in _names(each.reads, 1)], stream)
        if _primitives is not None:  # without it mx.vmap says that MLX's kernels have none
            results = _primitives.mappable(results)
        known.update(zip(_names(each.writes, 1), results, strict=True))
    if returns:
        return [known[name] for name in returns]
    if len(results) < len(outputs):  # a flat last result holds the outputs one after the other
        ends = list(itertools.accumulate(math.prod(shape) for shape, _ in outputs))
        parts = mx.split(results[0], ends[:-1], stream=stream)
        results = [mx.reshape(part, shape, stream=stream) for part, (shape, _) in zip(parts, outputs, strict=True)]
    return results


def run_kernel(
    of: KernelLaunch,
    arrays: Sequence[mx.array],
    stream: mx.Stream,
    *,
    metal: bool | None = None,
    **options: Any,
) -> list[mx.array]:
    """Launches one kernel body on a GPU. ``metal`` is for tests that ask for the text on a machine without one."""
    file = _exporting.get()
    if file is not None:
        return file.node(of, arrays)
    on_metal = mx.metal.is_available() if metal is None else metal
    constants = constants_of(of, arrays)
    words = () if of.params is None else for_gpu(of.params)
    how: dict[str, Any] = {
        "output_shapes": [shape for shape, _ in of.results],
        "output_dtypes": [dtype for _, dtype in of.results],
        "grid": of.grid,
        "threadgroup": of.threadgroup,
        "stream": stream,
        **options,
    }
    if not on_metal:
        wanted = _wanted(of, arrays, constants, len(words), stream.device)
        if _ahead is not None:
            _ahead[wanted[:-1]] = wanted
            return [mx.zeros(shape, dtype) for shape, dtype in of.results]
        compiled = _nvrtc().kernel(*wanted)
        if compiled is not None:
            scalars = [length for i in compiled.sized for length in arrays[i].shape]
            numbers = [*scalars, *words]
            how |= {"inputs": list(arrays), "scalars": numbers, "ensure_row_contiguous": True}
            made = list(mx.fast.precompiled_cuda_kernel(name=compiled.name, compiled_source=compiled.code, **how))
            if _primitives is None or options:
                return made
            return list(_primitives.launched(made, _kept(compiled), numbers, of.grid, of.threadgroup))
    kernel = _kernel(of.body, (*of.inputs, *(("params",) if words else ())), of.outputs, on_metal)
    given = [*arrays, *((packed(words),) if words else ())]
    return list(kernel(inputs=given, template=list(constants), **how))


def constants_of(of: KernelLaunch, arrays: Sequence[mx.array]) -> tuple[Constant, ...]:
    """The constants of a kernel's text: T is the dtype of the first array."""
    return (("T", arrays[0].dtype), *of.template)


def _nvrtc() -> ModuleType:
    """The compiler for CUDA, whose import others are spared."""
    from mpsfunc.core import nvrtc

    return nvrtc


_ahead: dict[Any, tuple[Any, ...]] | None = None  # what is wanted of NVRTC, while nothing is launched


def compiled_ahead(calls: Callable[[], object]) -> None:
    """Compiles what some calls would launch on an NVIDIA GPU, several kernels at a time; the calls get zeros.

    For programs with one thread of their own.
    """
    import concurrent.futures

    global _ahead
    _ahead = {}
    try:
        calls()
        wanted = list(_ahead.values())
    finally:
        _ahead = None
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda each: _nvrtc().kernel(*each), wanted))


def _wanted(
    of: KernelLaunch,
    arrays: Sequence[mx.array],
    constants: tuple[Constant, ...],
    words: int,
    device: mx.Device,
) -> tuple[Any, ...]:
    body, asks = texts.body(of.body), _nvrtc().asks
    named = zip(of.inputs, arrays, strict=True)
    inputs = tuple((name, a.dtype, a.ndim if asks(body, name) else 0) for name, a in named)
    outputs = tuple((name, dtype) for name, (_, dtype) in zip(of.outputs, of.results, strict=True))
    header = texts.header(of.body, metal=False)
    return f"mpsfunc_{of.body}", body, header, inputs, outputs, constants, words, device


def watched(gathered: mx.array, sockets: list[int], seconds: float) -> mx.array:
    """What mx.distributed.all_gather makes, with a limit to its time where the CPU makes it; see timed_gather.h."""
    return gathered if _primitives is None else _primitives.watched(gathered, sockets, seconds)


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of small arrays as one GPU kernel, since a chain of them would cost more than an image.

    On the CPU it stays as it is: there MLX would call a compiler. So it does within an exported function: MLX cannot
    write what it fused of constants.
    """
    compiled = mx.compile(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        plain = mx.default_device() == CPU or _exporting.get() is not None
        return (function if plain else compiled)(*args)

    return call


@functools.cache
def _kept(compiled: Kernel) -> int:
    """The number of a kernel that the C++ module has taken."""
    return int(_primitives.keep_cuda_kernel(compiled.name, compiled.code))


@functools.lru_cache(maxsize=4096)
def packed(words: tuple[int, ...]) -> mx.array:
    """The words of parameters as an int32 array."""
    return mx.array(words, dtype=mx.int32)


@functools.cache
def _kernel(body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], metal: bool) -> Any:
    return kernel_of_text(f"mpsfunc_{body}", inputs, outputs, texts.header(body, metal=metal), texts.body(body), metal)


@functools.cache
def kernel_of_text(
    name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], header: str, source: str, metal: bool
) -> Any:
    """What MLX makes of a header and a body; those for Metal also where there is none."""
    make = mx.fast.metal_kernel if metal else mx.fast.cuda_kernel
    return make(name=name, input_names=list(inputs), output_names=list(outputs), source=source, header=header)


def sum_partials(length: int, parts: int = 32) -> KernelLaunch:
    """The launch that adds rows of ``length`` partial sums in a fixed order; ``parts`` are few where they are known."""
    grid, group = grids.merging_threads(length, parts)
    result = ((length,), mx.float32)
    return KernelLaunch("sum_partials", ("partial",), ("total",), (result,), grid, group, Threadgroup(*group[:2]))


def optional_module() -> Any:
    """The C++ module, None where there is none."""
    return _primitives


def without_module() -> str:
    """Why there is none, empty where there is."""
    return _why_no_primitives


def module(op: str) -> Any:
    """The C++ module; a RuntimeError that names the operation where there is none."""
    if _primitives is None:
        raise RuntimeError(f"{op}: {without_module()}; got the CPU, expected a GPU stream or {native.remedy()}")
    return _primitives
