"""`export`, which writes a function to a file that MLX imports on another machine, in another language."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import mlx.core as mx

from mpsfunc.core import arguments, launch, recomputing
from mpsfunc.core.launch import Gpu
from mpsfunc.exporting import finishing, layout, tracing
from mpsfunc.exporting.kernels import Kernels
from mpsfunc.saving import places

_GPUS: tuple[Gpu, ...] = ("metal", "cuda")
_OLDEST: Literal["0.31.1"] = "0.31.1"  # what MLX Swift carried last


class Function(Protocol):
    """A function of any arguments, by position."""

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Any result."""


def export(
    path: str | os.PathLike[str],
    function: Function,
    *args: object,
    device: Gpu = "metal",
    mlx: str | None = None,
    also: Sequence[tuple[object, ...]] = (),
) -> None:
    """Writes a function to a file, which MLX runs on a GPU without Python and without mpsfunc.

    The file holds the operations and the kernels' source that the function consists of for the shapes and dtypes of
    the arguments, also of ``mx.grad``, ``mx.vmap`` and the optimizers of MLX. MLX imports it: in Swift by
    ``importFunction(from:)``, in C++ and Python by ``import_function``. The machine that exports needs no GPU.
    `exported` lists what is in such a file.

    The imported function takes the arrays among the arguments one after the other, and returns those of the result in
    the same way: arguments in their order, lists, tuples and states by position, and dicts in the order of their sorted
    keys. So a training step that takes parameters and returns new ones, in a dict with the same keys, returns them in
    the order in which it takes them. Numbers, strings and None in the arguments keep the values that they have here,
    and those in the result are left out.

    Arrays that the function takes from elsewhere, such as weights of a model, are constants of the file, with the
    values that they have now; a warning says so where they take over 1 MiB. Evaluate them before, or the file repeats
    the computation that makes them. Random numbers need a key among the arguments.

    The file is replaced atomically, as by `save`, and the same function makes the same file.

    Args:
        path: A new name in an existing folder, or a file, or a link to either. MLX wants it to end in ``.mlxfn``.
        function: Of arrays, states, dicts and other trees of arrays, by position. It is called once for each
            signature, with arrays that have no values.
        args: Arguments, of which arrays give shapes and dtypes. They may be in lists, tuples, states and dicts.
        device: The GPU that runs the file: "metal", Apple's, or "cuda", NVIDIA's of compute capability 8.0 and newer.
        mlx: The version of MLX whose layout the file has, which is not the same in each: that of this process, the
            default, or "0.31.1", for MLX Swift.
        also: Tuples of other arguments, such as those of another batch size; each makes one more signature. The
            imported function selects one by the shapes and dtypes of its arguments.

    Raises:
        TypeError: function is not callable; an argument or the result holds an array in anything but the above; the
            result has no array; or something in the function has dtype float64.
        ValueError: Two signatures take the same shapes and dtypes; the function draws random numbers without a key; it
            uses an operation that MLX cannot write to a file, that no GPU has, or that the version of MLX lacks;
            device or mlx are others than the above; or the path leads to no file.
        OSError: The file cannot be written; a FileNotFoundError if there is no such folder.
        RuntimeError: mpsfunc was built without its C++ module.

    Example:
        >>> import os, tempfile
        >>> from mpsfunc import avg_pool, exported
        >>> def step(params, x):
        ...     loss = lambda params: (avg_pool(x, 2) * params["scale"]).sum()
        ...     value, grads = mx.value_and_grad(loss)(params)
        ...     return {"scale": params["scale"] - 0.1 * grads["scale"]}, value
        >>> path = os.path.join(tempfile.mkdtemp(), "step.mlxfn")
        >>> export(path, step, {"scale": mx.ones(3)}, mx.zeros((2, 4, 4, 3)))
        >>> signature = exported(path).signatures[0]
        >>> [array.name for array in signature.inputs]
        ['params.scale', 'x']
        >>> [array.name for array in signature.outputs]
        ['result.0.scale', 'result.1']
        >>> signature.kernels
        ('avg_pool',)
    """
    name = places.name_of("export", path)
    recomputing.callable_or_refused("export", "function", function)
    gpu = arguments.choice("export", "device", device, _GPUS)
    own = vars(mx)["__version__"]
    known = f"None, {own!r} or {_OLDEST!r}"
    version = own if mlx is None else arguments.choice("export", "mlx", mlx, (own, _OLDEST), known)
    launch.module("export")
    with places.errors("export", name):
        target, before = places.destination("export", name)
    calls = tracing.calls(function, args, also)
    kernels = Kernels(gpu)
    with tempfile.TemporaryDirectory() as folder:
        begun = os.path.join(folder, "begun")
        results = tracing.traced(begun, function, calls, kernels)
        whole = layout.read(memoryview(Path(begun).read_bytes()))
    whole = finishing.finished(whole, kernels, version, [call.names for call in calls], results)
    parts = list(layout.written(whole))
    finishing.warn_of_constants(whole)

    def write(file: io.BufferedWriter) -> None:
        file.writelines(parts)
        file.flush()

    with places.errors("export", name):
        places.put("export", name, target, before, write)
