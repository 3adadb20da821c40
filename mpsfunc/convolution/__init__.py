"""Convolutions: forward, transposed, fully connected and sub-pixel, and what becomes of their weights."""

from mpsfunc.core import moved as _moved

__getattr__ = _moved.pointing_to_public_names(__name__)
