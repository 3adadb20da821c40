"""Normalization: batch, instance, group, cross-channel, spatial and local contrast."""
