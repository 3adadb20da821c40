"""Functions in files that MLX imports in Swift, C++ and Python: their operations and kernels, for one kind of GPU."""

import typing as _typing

from mpsfunc.core import moved as _moved

if not _typing.TYPE_CHECKING:
    __getattr__ = _moved.pointing_to_public_names(__name__)
