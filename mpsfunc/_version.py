"""Refuses a foreign MLX by name, before the C++ module could fail on it in a stranger way."""

import importlib.metadata

VERSION = "0.1.0"
MLX_VERSION = "0.32.4"

_found = importlib.metadata.version("mlx")
if _found != MLX_VERSION:
    raise ImportError(
        f"mpsfunc {VERSION} is built for mlx {MLX_VERSION}, but mlx {_found} is installed; "
        f"run: pip install mlx=={MLX_VERSION}"
    )
