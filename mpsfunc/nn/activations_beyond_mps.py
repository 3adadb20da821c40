"""Drop-ins for the activations of mlx.nn that MPS does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.nn.activations import OfOneNumber, single
from mpsfunc.nn.drop_in import Activation, DropIn

if TYPE_CHECKING:
    from mpsfunc.channels.activation_spec import NeuronName


class _Shrink(OfOneNumber, Activation):
    """A type with a lambda."""

    parameter = "lambd", "a lambda"
    kind: ClassVar[NeuronName]
    lambd: Any

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """MLX's takes arrays of lambdas, and negative ones."""
        if not single(layer.lambd):
            return "an array of lambdas"
        return "a negative lambda" if layer.lambd < 0 else ""

    @property
    def neuron(self) -> mf.Neuron:
        """With its lambda."""
        return mf.Neuron(self.kind, float(self.lambd))


class SiLU(Activation, stock.SiLU):
    """`mlx.nn.SiLU` by `mpsfunc.silu`.

    Example:
        >>> SiLU()(mx.array([-200.0, 200.0]))
        array([0, 200], dtype=float32)
    """

    neuron = mf.Neuron("silu")


class Hardswish(Activation, stock.Hardswish):
    """`mlx.nn.Hardswish` by `mpsfunc.hard_swish`.

    Example:
        >>> Hardswish()(mx.array([-4.0, 1.5]))
        array([0, 1.125], dtype=float32)
    """

    neuron = mf.Neuron("hard_swish")


class Mish(Activation, stock.Mish):
    """`mlx.nn.Mish` by `mpsfunc.mish`.

    Example:
        >>> Mish()(mx.array([-200.0, 200.0]))
        array([0, 200], dtype=float32)
    """

    neuron = mf.Neuron("mish")


class CELU(OfOneNumber, Activation, stock.CELU):
    """`mlx.nn.CELU` by `mpsfunc.celu`.

    Example:
        >>> CELU(0.5)(mx.array([-100.0, 3.0]))
        array([-0.5, 3], dtype=float32)
    """

    parameter = "_alpha", "an alpha"

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """MLX's takes arrays of alphas, and negative ones."""
        if not single(layer._alpha):
            return "an array of alphas"
        return "an alpha that is not positive" if layer._alpha <= 0 else ""

    @property
    def neuron(self) -> mf.Neuron:
        """With its alpha."""
        return mf.Neuron("celu", float(self._alpha))


class SELU(Activation, stock.SELU):
    """`mlx.nn.SELU` by `mpsfunc.selu`, whose factors MLX rounds to six digits.

    Example:
        >>> SELU()(mx.array([0.0, 2.0]))
        array([0, 2.1014], dtype=float32)
    """

    neuron = mf.Neuron("selu")


class HardTanh(Activation, stock.HardTanh):
    """`mlx.nn.HardTanh` by `mpsfunc.hard_tanh`.

    Example:
        >>> HardTanh()(mx.array([-2.0, 0.5]))
        array([-1, 0.5], dtype=float32)
    """

    neuron = mf.Neuron("hard_tanh")


class HardShrink(_Shrink, stock.HardShrink):
    """`mlx.nn.HardShrink` by `mpsfunc.hard_shrink`.

    Example:
        >>> HardShrink()(mx.array([-2.0, 0.5]))
        array([-2, 0], dtype=float32)
    """

    kind = "hard_shrink"


class Softshrink(_Shrink, stock.Softshrink):
    """`mlx.nn.Softshrink` by `mpsfunc.soft_shrink`.

    Example:
        >>> Softshrink()(mx.array([-2.0, 0.5]))
        array([-1.5, 0], dtype=float32)
    """

    kind = "soft_shrink"


class ReLU2(Activation, stock.ReLU2):
    """`mlx.nn.ReLU2` by `mpsfunc.relu2`.

    Example:
        >>> ReLU2()(mx.array([-2.0, 3.0]))
        array([0, 9], dtype=float32)
    """

    neuron = mf.Neuron("relu2")


class LogSigmoid(Activation, stock.LogSigmoid):
    """`mlx.nn.LogSigmoid` by `mpsfunc.log_sigmoid`.

    Example:
        >>> LogSigmoid()(mx.array([-200.0, 0.0]))
        array([-200, -0.693147], dtype=float32)
    """

    neuron = mf.Neuron("log_sigmoid")


class Step(OfOneNumber, stock.Step):
    """`mlx.nn.Step` by `mpsfunc.step`; the result is of integers, as MLX's.

    Example:
        >>> Step()(mx.array([-2.0, 0.0]))
        array([0, 1], dtype=int32)
    """

    parameter = "threshold", "a threshold"

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """MLX's takes arrays of thresholds."""
        return "" if single(layer.threshold) else "an array of thresholds"

    def run(self, x: mx.array) -> mx.array:
        return mf.step(x, float(self.threshold)).astype(mx.int32)


class GLU(DropIn, stock.GLU):
    """`mlx.nn.GLU` by `mpsfunc.glu`.

    Example:
        >>> GLU()(mx.array([2.0, 4.0, 0.0, 200.0]))
        array([1, 4], dtype=float32)
    """

    def run(self, x: mx.array) -> mx.array:
        return mf.glu(x, self.axis)


class Softmin(DropIn, stock.Softmin):
    """`mlx.nn.Softmin` by `mpsfunc.softmin`.

    Example:
        >>> Softmin()(mx.zeros((1, 4)))
        array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """

    def run(self, x: mx.array) -> mx.array:
        return mf.softmin(x)
