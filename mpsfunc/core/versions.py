"""Refuses a foreign MLX by name, and a second interpreter, before the C++ module could fail in a stranger way."""

import ctypes
import importlib

VERSION = "0.1.0"
MLX_VERSION = "0.32.4"


def in_the_main_interpreter() -> bool:
    """Whether this is the interpreter that the process began with, by CPython's own account."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p)  # functions of our own: those of pythonapi are everybody's
    current, main = (pointer((f"PyInterpreterState_{which}", ctypes.pythonapi)) for which in ("Get", "Main"))
    return bool(current() == main())


if not in_the_main_interpreter():
    raise ImportError(
        f"mpsfunc {VERSION} runs in the main interpreter only: in another one its C++ module would wait for ever; "
        "use threads or processes"
    )

# Behind the refusal above, since MLX's module may not load there; and by its own word, which its stubs leave out.
_found: str = importlib.import_module("mlx.core").__version__
if _found != MLX_VERSION:
    raise ImportError(
        f"mpsfunc {VERSION} is built for mlx {MLX_VERSION}, but mlx {_found} is installed; "
        f"run: pip install mlx=={MLX_VERSION}"
    )
