"""States in files that load for ever."""

from mpsfunc.core import moved as _moved

__getattr__ = _moved.pointing_to_public_names(__name__)
