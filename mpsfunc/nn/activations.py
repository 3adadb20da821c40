"""Drop-ins for the activations of mlx.nn that MPS has too, and softmax."""

from __future__ import annotations

from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.nn.drop_in import Activation, DropIn


class OfOneNumber(DropIn):
    """With a parameter, which float32 has to hold."""

    parameter: ClassVar[tuple[str, str]]  # the attribute, and what errors call it

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """What is infinite in float32, or NaN."""
        attribute, called = cls.parameter
        return "" if finite(getattr(layer, attribute)) else f"{called} that is not a number of float32"


class ReLU(Activation, stock.ReLU):
    """`mlx.nn.ReLU` by `mpsfunc.relu`, whose slope at 0 is 1.

    Example:
        >>> ReLU()(mx.array([-2.0, 3.0]))
        array([0, 3], dtype=float32)
    """

    neuron = mf.Neuron("relu")


class LeakyReLU(OfOneNumber, Activation, stock.LeakyReLU):
    """`mlx.nn.LeakyReLU` by `mpsfunc.relu`.

    Example:
        >>> LeakyReLU(0.5)(mx.array([-2.0, 3.0]))
        array([-1, 3], dtype=float32)
    """

    parameter = "_negative_slope", "a slope"

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """MLX's is ``max(slope * x, x)``, which turns round beyond a slope of 1, and takes arrays of slopes."""
        if not single(layer._negative_slope):
            return "an array of slopes"
        return "a slope beyond 1" if layer._negative_slope > 1 else ""

    @property
    def neuron(self) -> mf.Neuron:
        """With its slope."""
        return mf.Neuron("relu", float(self._negative_slope))


class ReLU6(Activation, stock.ReLU6):
    """`mlx.nn.ReLU6` by `mpsfunc.relu6`.

    Example:
        >>> ReLU6()(mx.array([-2.0, 3.0, 7.0]))
        array([0, 3, 6], dtype=float32)
    """

    neuron = mf.Neuron("relu6")


class ELU(OfOneNumber, Activation, stock.ELU):
    """`mlx.nn.ELU` by `mpsfunc.elu`.

    Example:
        >>> round(ELU(2.0)(mx.array(-1.0)).item(), 4)
        -1.2642
    """

    parameter = "_alpha", "an alpha"

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """MLX's takes arrays of alphas."""
        return "" if single(layer._alpha) else "an array of alphas"

    @property
    def neuron(self) -> mf.Neuron:
        """With its alpha."""
        return mf.Neuron("elu", float(self._alpha))


class GELU(Activation, stock.GELU):
    """`mlx.nn.GELU` by `mpsfunc.gelu`, and its approximations by `gelu_tanh` and `gelu_fast`.

    Example:
        >>> round(GELU()(mx.array(1.0)).item(), 4)
        0.8413
    """

    @property
    def neuron(self) -> mf.Neuron:
        """The exact one, or one of the approximations."""
        if self._approx == "none":
            return mf.Neuron("gelu")
        return mf.Neuron("gelu_fast" if self._approx == "fast" else "gelu_tanh")


class Sigmoid(Activation, stock.Sigmoid):
    """`mlx.nn.Sigmoid` by `mpsfunc.sigmoid`.

    Example:
        >>> Sigmoid()(mx.array([0.0]))
        array([0.5], dtype=float32)
    """

    neuron = mf.Neuron("sigmoid")


class Tanh(Activation, stock.Tanh):
    """`mlx.nn.Tanh` by `mpsfunc.tanh`.

    Example:
        >>> Tanh()(mx.array([0.0]))
        array([0], dtype=float32)
    """

    neuron = mf.Neuron("tanh")


class Softplus(Activation, stock.Softplus):
    """`mlx.nn.Softplus` by `mpsfunc.softplus`.

    Example:
        >>> round(Softplus()(mx.array(0.0)).item(), 4)
        0.6931
    """

    neuron = mf.Neuron("softplus")


class Softsign(Activation, stock.Softsign):
    """`mlx.nn.Softsign` by `mpsfunc.softsign`.

    Example:
        >>> Softsign()(mx.array([1.0]))
        array([0.5], dtype=float32)
    """

    neuron = mf.Neuron("softsign")


class PReLU(DropIn, stock.PReLU):
    """`mlx.nn.PReLU` by `mpsfunc.prelu`, with a slope for each channel or one for all.

    Example:
        >>> PReLU(2)(mx.array([[-1.0, -2.0]]))
        array([[-0.25, -0.5]], dtype=float32)
    """

    def takes(self, x: mx.array) -> bool:
        """Channels are an axis."""
        return super().takes(x) and x.ndim > 0

    def run(self, x: mx.array) -> mx.array:
        return mf.prelu(x, mx.broadcast_to(self.weight, x.shape[-1:]))


class Softmax(DropIn, stock.Softmax):
    """`mlx.nn.Softmax` by `mpsfunc.softmax`.

    Example:
        >>> Softmax()(mx.zeros((1, 4)))
        array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """

    def run(self, x: mx.array) -> mx.array:
        return mf.softmax(x)


class LogSoftmax(DropIn, stock.LogSoftmax):
    """`mlx.nn.LogSoftmax` by `mpsfunc.log_softmax`.

    Example:
        >>> LogSoftmax()(mx.zeros((1, 1)))
        array([[0]], dtype=float32)
    """

    def run(self, x: mx.array) -> mx.array:
        return mf.log_softmax(x)


def single(parameter: Any) -> bool:
    """Whether an argument of MLX's layer is one number."""
    return not isinstance(parameter, mx.array) or parameter.size == 1


def finite(parameter: Any) -> bool:
    """Whether float32 has it, if it is one number."""
    return not single(parameter) or bool(abs(parameter) <= mx.finfo(mx.float32).max)
