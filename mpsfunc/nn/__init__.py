"""Layers for mlx.nn that run mpsfunc's functions: drop-ins for MLX's own, and some that MLX lacks.

A drop-in has the constructor, the parameters and the behaviour of the layer with the same name, so that models and
checkpoints load both ways. `convert` turns the layers of a model into drop-ins, `revert` turns them back.

Example:
    >>> import mlx.core as mx
    >>> import mlx.nn
    >>> from mpsfunc import nn
    >>> model = mlx.nn.Sequential(
    ...     mlx.nn.Conv2d(3, 8, 3),
    ...     mlx.nn.BatchNorm(8),
    ...     mlx.nn.ReLU(),
    ...     mlx.nn.MaxPool2d(2),
    ... )
    >>> print(nn.convert(model))
    4 layers: 4 replaced, 1 fused
      replaced   1 Conv2d, 1 BatchNorm, 1 ReLU, 1 MaxPool2d
      fused      1 BatchNorm with ReLU
    >>> model(mx.ones((1, 6, 6, 3))).shape
    (1, 2, 2, 8)
"""

from mpsfunc.nn.activations import ELU as ELU
from mpsfunc.nn.activations import GELU as GELU
from mpsfunc.nn.activations import LeakyReLU as LeakyReLU
from mpsfunc.nn.activations import LogSoftmax as LogSoftmax
from mpsfunc.nn.activations import PReLU as PReLU
from mpsfunc.nn.activations import ReLU as ReLU
from mpsfunc.nn.activations import ReLU6 as ReLU6
from mpsfunc.nn.activations import Sigmoid as Sigmoid
from mpsfunc.nn.activations import Softmax as Softmax
from mpsfunc.nn.activations import Softplus as Softplus
from mpsfunc.nn.activations import Softsign as Softsign
from mpsfunc.nn.activations import Tanh as Tanh
from mpsfunc.nn.activations_beyond_mps import CELU as CELU
from mpsfunc.nn.activations_beyond_mps import GLU as GLU
from mpsfunc.nn.activations_beyond_mps import SELU as SELU
from mpsfunc.nn.activations_beyond_mps import HardShrink as HardShrink
from mpsfunc.nn.activations_beyond_mps import Hardswish as Hardswish
from mpsfunc.nn.activations_beyond_mps import HardTanh as HardTanh
from mpsfunc.nn.activations_beyond_mps import LogSigmoid as LogSigmoid
from mpsfunc.nn.activations_beyond_mps import Mish as Mish
from mpsfunc.nn.activations_beyond_mps import ReLU2 as ReLU2
from mpsfunc.nn.activations_beyond_mps import SiLU as SiLU
from mpsfunc.nn.activations_beyond_mps import Softmin as Softmin
from mpsfunc.nn.activations_beyond_mps import Softshrink as Softshrink
from mpsfunc.nn.activations_beyond_mps import Step as Step
from mpsfunc.nn.checkpointing import checkpoint as checkpoint
from mpsfunc.nn.comparison import Comparison as Comparison
from mpsfunc.nn.conversion import convert as convert
from mpsfunc.nn.conversion import revert as revert
from mpsfunc.nn.convolutions import Conv1d as Conv1d
from mpsfunc.nn.convolutions import Conv2d as Conv2d
from mpsfunc.nn.convolutions import ConvTranspose1d as ConvTranspose1d
from mpsfunc.nn.convolutions import ConvTranspose2d as ConvTranspose2d
from mpsfunc.nn.drop_in import Sequential as Sequential
from mpsfunc.nn.extra_layers import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from mpsfunc.nn.extra_layers import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from mpsfunc.nn.extra_layers import CrossChannelNorm as CrossChannelNorm
from mpsfunc.nn.extra_layers import DeformConv2d as DeformConv2d
from mpsfunc.nn.extra_layers import GridSample as GridSample
from mpsfunc.nn.extra_layers import L2Pool2d as L2Pool2d
from mpsfunc.nn.extra_layers import LocalContrastNorm as LocalContrastNorm
from mpsfunc.nn.extra_layers import MaxUnpool2d as MaxUnpool2d
from mpsfunc.nn.extra_layers import RoIAlign as RoIAlign
from mpsfunc.nn.extra_layers import SpatialNorm as SpatialNorm
from mpsfunc.nn.layers import BatchNorm as BatchNorm
from mpsfunc.nn.layers import Dropout as Dropout
from mpsfunc.nn.layers import Dropout2d as Dropout2d
from mpsfunc.nn.layers import GroupNorm as GroupNorm
from mpsfunc.nn.layers import InstanceNorm as InstanceNorm
from mpsfunc.nn.layers import LayerNorm as LayerNorm
from mpsfunc.nn.layers import Linear as Linear
from mpsfunc.nn.layers import Upsample as Upsample
from mpsfunc.nn.poolings import AvgPool1d as AvgPool1d
from mpsfunc.nn.poolings import AvgPool2d as AvgPool2d
from mpsfunc.nn.poolings import MaxPool1d as MaxPool1d
from mpsfunc.nn.poolings import MaxPool2d as MaxPool2d
from mpsfunc.nn.report import Conversion as Conversion
from mpsfunc.nn.step_watch import StepWatch as StepWatch
from mpsfunc.nn.step_watch import watch_steps as watch_steps
from mpsfunc.nn.timing import compare as compare
from mpsfunc.nn.torch_weights import from_torch as from_torch
