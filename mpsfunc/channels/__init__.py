"""Kernels over images with one number per channel, on which activations and norms both stand."""
