"""Activations: by name, by their formula, with slopes, and fused with other operations."""
