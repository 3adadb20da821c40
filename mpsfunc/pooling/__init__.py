"""Pooling: averages, maxima, L2 norms and means of whole images."""
