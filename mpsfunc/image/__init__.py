"""Resizing, padding and concatenating images."""
