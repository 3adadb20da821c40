"""Losses, softmax and log-softmax; overlaps of boxes and their suppression."""
