"""The operations as definitions: NumPy float64, from the formulas, with nothing in common with the kernels."""
