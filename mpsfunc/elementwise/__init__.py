"""Arithmetic and comparison of images, and dropout."""
