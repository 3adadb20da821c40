"""The filters with the types of their arguments: python docs/graph_stub.py --write."""

from collections.abc import Sequence

from mpsfunc.activation.fused import Neuron
from mpsfunc.elementwise.dropout import Stride
from mpsfunc.elementwise.operands import Strides
from mpsfunc.graph.drawing import Drawing as Drawing
from mpsfunc.graph.kinds import StatisticsName
from mpsfunc.graph.nodes import FilterNode as FilterNode
from mpsfunc.graph.nodes import GradientFilterNode as GradientFilterNode
from mpsfunc.graph.nodes import ImageNode as ImageNode
from mpsfunc.graph.nodes import LossNode
from mpsfunc.graph.nodes import StateNode as StateNode
from mpsfunc.graph.program import Graph as Graph
from mpsfunc.graph.program import compile as compile
from mpsfunc.graph.training import training_graph as training_graph
from mpsfunc.image.padding import PadMode, Sizes
from mpsfunc.losses.arguments import ReductionName
from mpsfunc.normalization.across_processes import Group
from mpsfunc.typing import ComparisonName, CoordinateName, EdgeMode, LossName, MaxEdgeMode, NeuronName
from mpsfunc.windows.placement import IntOrPair, KernelSize, OutSize, Padding, Pixels

# fmt: off
def absolute(x: ImageNode | FilterNode, *, name: str | None = ...) -> FilterNode: ...
def add(
    x: ImageNode | FilterNode, y: ImageNode | FilterNode, *, primary_scale: float = ..., secondary_scale: float = ...,
    bias: float = ..., minimum: float | None = ..., maximum: float | None = ..., primary_stride: Strides = ...,
    secondary_stride: Strides = ..., clamp: bool = ..., name: str | None = ...,
) -> FilterNode: ...
def avg_pool(
    x: ImageNode | FilterNode, kernel_size: KernelSize, *, stride: IntOrPair | None = ..., padding: Padding = ...,
    dilation: IntOrPair = ..., ceil_mode: bool = ..., offset: IntOrPair | None = ..., out_size: OutSize | None = ...,
    edge_mode: EdgeMode = ..., zero_pad: Pixels = ..., name: str | None = ...,
) -> FilterNode: ...
def batch_norm(
    x: ImageNode | FilterNode, *, eps: float = ..., neuron: NeuronName | Neuron | None = ..., group: Group | None = ...,
    gamma: bool = ..., beta: bool = ..., momentum: float = ..., statistics: StatisticsName = ..., name: str,
    params: str | None = ...,
) -> FilterNode: ...
def compare(
    x: ImageNode | FilterNode, y: ImageNode | FilterNode, comparison: ComparisonName = ..., threshold: float = ..., *,
    primary_stride: Strides = ..., secondary_stride: Strides = ..., name: str | None = ...,
) -> FilterNode: ...
def concatenate(
    images: Sequence[ImageNode | FilterNode], *, pad_to_multiple: int = ..., name: str | None = ...,
) -> FilterNode: ...
def conv(
    x: ImageNode | FilterNode, out_channels: int, kernel_size: IntOrPair, *, stride: IntOrPair = ...,
    padding: Padding = ..., dilation: IntOrPair = ..., groups: int = ..., ceil_mode: bool = ...,
    offset: IntOrPair | None = ..., out_size: IntOrPair | None = ..., edge_mode: EdgeMode = ...,
    neuron: NeuronName | Neuron | None = ..., bias: bool = ..., name: str, params: str | None = ...,
) -> FilterNode: ...
def conv_transpose(
    x: ImageNode | FilterNode, out_channels: int, kernel_size: IntOrPair, *, stride: IntOrPair = ...,
    padding: Padding = ..., output_padding: IntOrPair = ..., dilation: IntOrPair = ..., groups: int = ...,
    offset: IntOrPair | None = ..., kernel_offset: IntOrPair | None = ..., out_size: IntOrPair | None = ...,
    state: StateNode | FilterNode | None = ..., neuron: NeuronName | Neuron | None = ..., bias: bool = ..., name: str,
    params: str | None = ...,
) -> FilterNode: ...
def cross_channel_norm(
    x: ImageNode | FilterNode, size: int = ..., *, alpha: float = ..., beta: float = ..., delta: float = ...,
    name: str | None = ...,
) -> FilterNode: ...
def depth_to_space(x: ImageNode | FilterNode, block_size: int, *, name: str | None = ...) -> FilterNode: ...
def depthwise_conv(
    x: ImageNode | FilterNode, kernel_size: IntOrPair, *, stride: IntOrPair = ..., padding: Padding = ...,
    dilation: IntOrPair = ..., ceil_mode: bool = ..., offset: IntOrPair | None = ..., out_size: IntOrPair | None = ...,
    edge_mode: EdgeMode = ..., neuron: NeuronName | Neuron | None = ..., multiplier: int = ..., bias: bool = ...,
    name: str, params: str | None = ...,
) -> FilterNode: ...
def divide(
    x: ImageNode | FilterNode, y: ImageNode | FilterNode, *, primary_scale: float = ..., secondary_scale: float = ...,
    bias: float = ..., minimum: float | None = ..., maximum: float | None = ..., primary_stride: Strides = ...,
    secondary_stride: Strides = ..., clamp: bool = ..., name: str | None = ...,
) -> FilterNode: ...
def dropout(
    x: ImageNode | FilterNode, *, keep_probability: float | None = ..., p: float | None = ...,
    mask_stride: Stride = ..., seed: int | None = ..., name: str,
) -> FilterNode: ...
def elu(x: ImageNode | FilterNode, a: float = ..., *, name: str | None = ...) -> FilterNode: ...
def exponential(
    x: ImageNode | FilterNode, a: float = ..., b: float = ..., c: float = ..., *, name: str | None = ...,
) -> FilterNode: ...
def fully_connected(
    x: ImageNode | FilterNode, out_channels: int, *, neuron: NeuronName | Neuron | None = ..., bias: bool = ...,
    name: str, params: str | None = ...,
) -> FilterNode: ...
def gelu(x: ImageNode | FilterNode, *, name: str | None = ...) -> FilterNode: ...
def group_norm(
    x: ImageNode | FilterNode, groups: int, *, eps: float = ..., gamma: bool = ..., beta: bool = ..., name: str,
    params: str | None = ...,
) -> FilterNode: ...
def hard_sigmoid(
    x: ImageNode | FilterNode, a: float = ..., b: float = ..., *, name: str | None = ...,
) -> FilterNode: ...
def instance_norm(
    x: ImageNode | FilterNode, *, eps: float = ..., gamma: bool = ..., beta: bool = ..., name: str,
    params: str | None = ...,
) -> FilterNode: ...
def l2_pool(
    x: ImageNode | FilterNode, kernel_size: KernelSize, *, stride: IntOrPair | None = ..., padding: Padding = ...,
    dilation: IntOrPair = ..., ceil_mode: bool = ..., offset: IntOrPair | None = ..., out_size: OutSize | None = ...,
    edge_mode: EdgeMode = ..., name: str | None = ...,
) -> FilterNode: ...
def linear(x: ImageNode | FilterNode, a: float = ..., b: float = ..., *, name: str | None = ...) -> FilterNode: ...
def local_contrast_norm(
    x: ImageNode | FilterNode, kernel_size: int, *, alpha: float = ..., beta: float = ..., delta: float = ...,
    p0: float = ..., pm: float = ..., ps: float = ..., name: str | None = ...,
) -> FilterNode: ...
def log_softmax(x: ImageNode | FilterNode, axis: int = ..., *, name: str | None = ...) -> FilterNode: ...
def logarithm(
    x: ImageNode | FilterNode, a: float = ..., b: float = ..., c: float = ..., *, name: str | None = ...,
) -> FilterNode: ...
def loss(
    y: ImageNode | FilterNode, target: ImageNode | FilterNode, type: LossName, reduction: ReductionName, *,
    weights: ImageNode | FilterNode | None = ..., weight: float = ..., label_smoothing: float = ...,
    number_of_classes: int = ..., epsilon: float = ..., delta: float = ..., divided: bool = ..., name: str | None = ...,
) -> LossNode: ...
def max_pool(
    x: ImageNode | FilterNode, kernel_size: KernelSize, *, stride: IntOrPair | None = ..., padding: Padding = ...,
    dilation: IntOrPair = ..., ceil_mode: bool = ..., offset: IntOrPair | None = ..., out_size: OutSize | None = ...,
    edge_mode: MaxEdgeMode | None = ..., name: str | None = ...,
) -> FilterNode: ...
def multiply(
    x: ImageNode | FilterNode, y: ImageNode | FilterNode, *, primary_scale: float = ..., secondary_scale: float = ...,
    bias: float = ..., minimum: float | None = ..., maximum: float | None = ..., primary_stride: Strides = ...,
    secondary_stride: Strides = ..., clamp: bool = ..., name: str | None = ...,
) -> FilterNode: ...
def pad(
    x: ImageNode | FilterNode, before: Sizes, after: Sizes, mode: PadMode = ..., value: float = ..., *,
    name: str | None = ...,
) -> FilterNode: ...
def power(
    x: ImageNode | FilterNode, a: float = ..., b: float = ..., c: float = ..., *, name: str | None = ...,
) -> FilterNode: ...
def prelu(x: ImageNode | FilterNode, *, name: str, params: str | None = ...) -> FilterNode: ...
def relu(x: ImageNode | FilterNode, a: float = ..., *, name: str | None = ...) -> FilterNode: ...
def relun(x: ImageNode | FilterNode, a: float = ..., b: float = ..., *, name: str | None = ...) -> FilterNode: ...
def reshape(x: ImageNode | FilterNode, shape: tuple[int, int, int], *, name: str | None = ...) -> FilterNode: ...
def resize_bilinear(
    x: ImageNode | FilterNode, out_size: IntOrPair, *, align_corners: bool = ..., edge_mode: EdgeMode = ...,
    coordinate: CoordinateName = ..., name: str | None = ...,
) -> FilterNode: ...
def resize_nearest(
    x: ImageNode | FilterNode, out_size: IntOrPair, *, coordinate: CoordinateName = ..., name: str | None = ...,
) -> FilterNode: ...
def sigmoid(x: ImageNode | FilterNode, *, name: str | None = ...) -> FilterNode: ...
def slice_channels(x: ImageNode | FilterNode, start: int, stop: int, *, name: str | None = ...) -> FilterNode: ...
def softmax(x: ImageNode | FilterNode, axis: int = ..., *, name: str | None = ...) -> FilterNode: ...
def softplus(x: ImageNode | FilterNode, a: float = ..., b: float = ..., *, name: str | None = ...) -> FilterNode: ...
def softsign(x: ImageNode | FilterNode, *, name: str | None = ...) -> FilterNode: ...
def space_to_depth(x: ImageNode | FilterNode, block_size: int, *, name: str | None = ...) -> FilterNode: ...
def spatial_mean(x: ImageNode | FilterNode, *, name: str | None = ...) -> FilterNode: ...
def spatial_norm(
    x: ImageNode | FilterNode, kernel_size: int, *, alpha: float = ..., beta: float = ..., delta: float = ...,
    name: str | None = ...,
) -> FilterNode: ...
def subtract(
    x: ImageNode | FilterNode, y: ImageNode | FilterNode, *, primary_scale: float = ..., secondary_scale: float = ...,
    bias: float = ..., minimum: float | None = ..., maximum: float | None = ..., primary_stride: Strides = ...,
    secondary_stride: Strides = ..., clamp: bool = ..., name: str | None = ...,
) -> FilterNode: ...
def tanh(x: ImageNode | FilterNode, a: float = ..., b: float = ..., *, name: str | None = ...) -> FilterNode: ...
def upsample_bilinear(
    x: ImageNode | FilterNode, scale: IntOrPair, *, align_corners: bool = ..., edge_mode: EdgeMode = ...,
    coordinate: CoordinateName = ..., name: str | None = ...,
) -> FilterNode: ...
def upsample_nearest(x: ImageNode | FilterNode, scale: IntOrPair, *, name: str | None = ...) -> FilterNode: ...
