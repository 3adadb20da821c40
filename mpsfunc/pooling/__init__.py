"""Pooling: averages, maxima, L2 norms and means of whole images."""

from mpsfunc.core import moved as _moved

__getattr__ = _moved.pointing_to_public_names(__name__)
