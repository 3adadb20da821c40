"""Losses, softmax and log-softmax."""
