"""Convolutions: forward, transposed, fully connected and sub-pixel, and what becomes of their weights."""
