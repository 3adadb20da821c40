"""Kernels over images with one number a channel, on which activations and norms both stand."""
