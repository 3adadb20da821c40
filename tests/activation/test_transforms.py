"""Activations under transforms: of single numbers, and of slopes that are mapped where the image is not."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from support import close, exact, numbers, same_bits
from support.oracle import activation as oracle

import mpsfunc as mf


def test_a_number_has_all_transforms(device: mx.Device) -> None:
    x = mx.array(0.5)
    assert mf.sigmoid(x).shape == () and mf.neuron_grad(x, x, "gelu").shape == ()
    close(mx.grad(mx.grad(mf.sigmoid))(x), oracle.curvature(exact(x), "sigmoid"), 1)
    many = mx.array([0.25, 0.5])
    assert same_bits(mx.vmap(mf.sigmoid)(many), mf.sigmoid(many))
    assert same_bits(mx.vmap(mx.grad(mf.sigmoid))(many), mf.neuron_grad(mx.ones(2), many, "sigmoid"))
    pulled = mx.vmap(lambda dy, x: mf.neuron_grad(dy, x, "elu"), in_axes=(0, None))(many, x)
    assert same_bits(pulled, mf.neuron_grad(many, mx.array([0.5, 0.5]), "elu"))


def test_slopes_mapped_over_an_image_that_is_not(device: mx.Device) -> None:
    x, slopes = numbers((2, 3, 4)), numbers((5, 4), seed=1)
    y = mx.vmap(mf.prelu, in_axes=(None, 0))(x, slopes)
    for i in range(5):
        assert same_bits(y[i], mf.prelu(x, slopes[i]))
    dx, dslopes = mx.vmap(mf.prelu_grad, in_axes=(0, None, 0))(numbers((5, 2, 3, 4), seed=2), x, slopes)
    for i in range(5):
        one = mf.prelu_grad(numbers((5, 2, 3, 4), seed=2)[i], x, slopes[i])
        assert same_bits(dx[i], one[0])
        np.testing.assert_allclose(exact(dslopes[i]), exact(one[1]), rtol=1e-5, atol=1e-6)
