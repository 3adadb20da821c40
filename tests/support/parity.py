"""Our arrays as PyTorch's and back, for tests that compare; PyTorch is imported by those only that have it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from support import exact


def theirs(a: mx.array) -> Any:
    """An image as NCHW, weights as OIHW, a vector as it is; float64 and differentiable."""
    import torch

    values = exact(a)
    return torch.tensor(values.transpose(0, 3, 1, 2) if values.ndim == 4 else values, requires_grad=True)


def agree(ours: mx.array, tensor: Any) -> None:
    """Asserts that an array of ours holds what PyTorch's does, in its own order of axes."""
    values = tensor.detach().numpy()
    values = values.transpose(0, 2, 3, 1) if values.ndim == 4 else values
    np.testing.assert_allclose(exact(ours), values, rtol=1e-10, atol=1e-11)


def backward(output: Any, dy: mx.array, *inputs: Any) -> tuple[Any, ...]:
    """PyTorch's gradients by the inputs, for a dy of ours."""
    import torch

    return torch.autograd.grad(output, inputs, torch.tensor(exact(dy).transpose(0, 3, 1, 2)))  # type: ignore[no-any-return]
