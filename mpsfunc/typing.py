"""Types for your own annotations: the names that arguments may be, and trees, as `load` returns them.

Type checkers do not accept a str, such as a name from a settings file, for one of these; functions check names when
they are called.

Example:
    >>> import mlx.core as mx
    >>> import mpsfunc as mf
    >>> from mpsfunc.typing import NeuronName
    >>> def block(x: mx.array, w: mx.array, neuron: NeuronName = "relu") -> mx.array:
    ...     return mf.avg_pool(mf.conv(x, w, padding="same", neuron=neuron), 2)
    >>> block(mx.ones((1, 4, 4, 3)), mx.ones((8, 3, 3, 3))).shape
    (1, 2, 2, 8)
"""

from mpsfunc.channels.activation_spec import NeuronName as NeuronName
from mpsfunc.convolution.states import OptionName as OptionName
from mpsfunc.convolution.states import PaddingMode as PaddingMode
from mpsfunc.core.arguments import OperandName as OperandName
from mpsfunc.elementwise.arithmetic import ComparisonName as ComparisonName
from mpsfunc.elementwise.arithmetic import OperationName as OperationName
from mpsfunc.image.crop_and_resize import CropMethodName as CropMethodName
from mpsfunc.image.grid_sample import GridCoordinatesName as GridCoordinatesName
from mpsfunc.image.grid_sample import GridEdgeName as GridEdgeName
from mpsfunc.image.grid_sample import GridSampleModeName as GridSampleModeName
from mpsfunc.image.padding import PadMode as PadMode
from mpsfunc.image.resampling import CoordinateName as CoordinateName
from mpsfunc.image.resampling import NearestCoordinateName as NearestCoordinateName
from mpsfunc.image.resampling import ResizeCoordinateName as ResizeCoordinateName
from mpsfunc.losses.arguments import ReductionName as ReductionName
from mpsfunc.losses.boxes import OverlapName as OverlapName
from mpsfunc.losses.dice import SharesName as SharesName
from mpsfunc.losses.focal import OverallName as OverallName
from mpsfunc.losses.formulas import LossName as LossName
from mpsfunc.losses.yolo_arguments import ClassLossName as ClassLossName
from mpsfunc.losses.yolo_arguments import DistanceName as DistanceName
from mpsfunc.losses.yolo_arguments import YoloReductionName as YoloReductionName
from mpsfunc.pooling.reduced import ReducedName as ReducedName
from mpsfunc.saving.trees import Tree as Tree
from mpsfunc.windows.axis import EdgeMode as EdgeMode
from mpsfunc.windows.axis import MaxEdgeMode as MaxEdgeMode
from mpsfunc.windows.placement import WindowName as WindowName
from mpsfunc.windows.policy import Align as Align
from mpsfunc.windows.policy import Corner as Corner
from mpsfunc.windows.policy import PaddingName as PaddingName
from mpsfunc.windows.policy import SizeName as SizeName
from mpsfunc.windows.transposed import ReversePaddingName as ReversePaddingName
