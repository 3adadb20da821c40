"""Activations: by name, by their formula, with slopes, and fused behind other operations."""
