"""The filters: a row for each. Calling one makes a node, with the arguments and defaults of its function.

Where MPS's nodes have other defaults than its kernels, nodes have them here too: a `PaddingPolicy` places windows,
pooling clamps, and local contrast normalization has an alpha of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpsfunc as mf
from mpsfunc.core import checks
from mpsfunc.core.arguments import pair, refuse
from mpsfunc.elementwise.dropout import by_name
from mpsfunc.graph import cropping, kinds, regions
from mpsfunc.graph.factory import GIVEN, Filter, Own, filter_of
from mpsfunc.graph.loss_nodes import ForwardLossNode, InitialGradientNode, LossNode
from mpsfunc.graph.nodes import Options, Shape
from mpsfunc.typing import NeuronName, OperationName


def _weights(x: Shape, options: Options) -> Shape:
    groups = checks.whole("conv", "groups", options["groups"])
    return (checks.whole("conv", "out_channels", options["out_channels"]), *_window(options), x[-1] // groups)


def _depthwise(x: Shape, options: Options) -> Shape:
    return (x[-1] * checks.whole("conv", "multiplier", options["multiplier"]), *_window(options), 1)


def _connected(x: Shape, options: Options) -> Shape:
    return (checks.whole("fully_connected", "out_channels", options["out_channels"]), *x[1:])


def _window(options: Options) -> tuple[int, int]:
    given = options["kernel_size"]
    size = pair("conv", "kernel_size", given, least=1)
    if max(size) >= 2**31:
        refuse("conv", "kernel_size is too large", "kernel_size", given, "ints below 2**31")
    return size


_POLICY = mf.PaddingPolicy()
_BIAS: Own = {"bias": (True, "bool", "Whether there is one. Default True.")}
_WINDOW: Own = {"kernel_size": (GIVEN, "IntOrPair", "Window (y, x) of the weights, an int or a pair.")}
_OUT: Own = {"out_channels": (GIVEN, "int", "Channels of the result.")}

conv = filter_of(
    kinds.by_weights("conv", mf.conv_fwd, mf.conv_grad, _weights),
    mf.conv,
    "MPSCNNConvolutionNode",
    'conv(x, 16, 3, stride=2, name="conv1")',
    own=_OUT | _WINDOW | _BIAS,
    without=("w", "b"),
    padding=_POLICY,
)
depthwise_conv = filter_of(
    kinds.by_weights("conv", mf.conv_fwd, mf.conv_grad, _depthwise),
    mf.conv,
    "MPSCNNConvolutionNode, MPSCNNDepthWiseConvolutionDescriptor",
    'depthwise_conv(x, 3, name="depthwise1")',
    own=_WINDOW | {"multiplier": (1, "int", "Channels of the result for each of x. Default 1.")} | _BIAS,
    without=("w", "b", "groups"),
    name="depthwise_conv",
    padding=_POLICY,
)
conv_transpose = filter_of(
    kinds.by_weights("conv_transpose", mf.conv_transpose_fwd, mf.conv_transpose_grad, _weights),
    mf.conv_transpose,
    "MPSCNNConvolutionTransposeNode",
    'conv_transpose(x, 16, 2, stride=2, name="up1")',
    own=_OUT | _WINDOW | _BIAS,
    without=("w", "b"),
    padding=_POLICY,
)
fully_connected = filter_of(
    kinds.by_weights("fully_connected", mf.fully_connected_fwd, mf.fully_connected_grad, _connected),
    mf.fully_connected,
    "MPSCNNFullyConnectedNode",
    'fully_connected(x, 10, name="scores")',
    own=_OUT | _BIAS,
    without=("w", "b"),
)

_SCALES: Own = {
    "gamma": (True, "bool", "Whether there is a scale. Default True."),
    "beta": (True, "bool", "Whether there is a shift. Default True."),
}

batch_norm = filter_of(
    kinds.batch_norm,
    mf.batch_norm,
    "MPSCNNBatchNormalizationNode",
    'batch_norm(x, neuron="relu", name="norm1")',
    own=_SCALES
    | {
        "momentum": (
            *(0.1, "float"),
            "Share of a batch in the running statistics, as in `mpsfunc.bn_running`. Default 0.1.",
        ),
        "statistics": (
            *("automatic", "StatisticsName"),
            'Which statistics are used: "automatic" (default), those of the batch in a training graph and running ones '
            'elsewhere; "always", those of the batch; "never", running ones.',
        ),
    },
    without=("add",),
)
instance_norm = filter_of(
    kinds.by_image("instance_norm", mf.instance_norm_fwd, mf.instance_norm_grad),
    mf.instance_norm,
    "MPSCNNInstanceNormalizationNode",
    'instance_norm(x, name="norm1")',
    own=_SCALES,
)
group_norm = filter_of(
    kinds.by_image("group_norm", mf.group_norm_fwd, mf.group_norm_grad),
    mf.group_norm,
    "MPSCNNGroupNormalizationNode",
    'group_norm(x, 4, name="norm1")',
    own=_SCALES,
)
cross_channel_norm = filter_of(
    kinds.by_state_and_source("cross_channel_norm", mf.cross_channel_norm_fwd, mf.cross_channel_norm_grad),
    mf.cross_channel_norm,
    "MPSCNNCrossChannelNormalizationNode",
    "cross_channel_norm(x, 5)",
)
spatial_norm = filter_of(
    kinds.by_state_and_source("spatial_norm", mf.spatial_norm_fwd, mf.spatial_norm_grad),
    mf.spatial_norm,
    "MPSCNNSpatialNormalizationNode",
    "spatial_norm(x, 3)",
)
local_contrast_norm = filter_of(
    kinds.by_state_and_source("local_contrast_norm", mf.local_contrast_norm_fwd, mf.local_contrast_norm_grad),
    mf.local_contrast_norm,
    "MPSCNNLocalContrastNormalizationNode",
    "local_contrast_norm(x, 3)",
    alpha=1.0,
)

_POOLS: dict[str, Any] = {"padding": _POLICY, "edge_mode": "clamp"}

avg_pool = filter_of(kinds.avg_pool, mf.avg_pool, "MPSCNNPoolingAverageNode", "avg_pool(x, 2)", **_POOLS)
max_pool = filter_of(
    kinds.by_state("max_pool", mf.max_pool_fwd, mf.max_pool_grad),
    mf.max_pool,
    "MPSCNNPoolingMaxNode, MPSCNNDilatedPoolingMaxNode",
    "max_pool(x, 2)",
    **_POOLS,
)
l2_pool = filter_of(
    kinds.by_state_and_source("l2_pool", mf.l2_pool_fwd, mf.l2_pool_grad),
    mf.l2_pool,
    "MPSCNNPoolingL2NormNode",
    "l2_pool(x, 2)",
    **_POOLS,
)


def _neuron(name: NeuronName, function: Callable[..., Any], mps: str) -> Filter:
    return filter_of(kinds.neuron(name, function), function, f"MPSCNNNeuron{mps}Node", f"{name}(x)")


relu = _neuron("relu", mf.relu, "ReLU")
linear = _neuron("linear", mf.linear, "Linear")
sigmoid = _neuron("sigmoid", mf.sigmoid, "Sigmoid")
hard_sigmoid = _neuron("hard_sigmoid", mf.hard_sigmoid, "HardSigmoid")
tanh = _neuron("tanh", mf.tanh, "TanH")
absolute = _neuron("absolute", mf.absolute, "Absolute")
softplus = _neuron("softplus", mf.softplus, "SoftPlus")
softsign = _neuron("softsign", mf.softsign, "SoftSign")
elu = _neuron("elu", mf.elu, "ELU")
relun = _neuron("relun", mf.relun, "ReLUN")
power = _neuron("power", mf.power, "Power")
exponential = _neuron("exponential", mf.exponential, "Exponential")
logarithm = _neuron("logarithm", mf.logarithm, "Logarithm")
gelu = _neuron("gelu", mf.gelu, "GeLU")


def _beyond_mps(name: NeuronName, function: Callable[..., Any]) -> Filter:
    return filter_of(kinds.neuron(name, function), function, "none of MPS's", f"{name}(x)")


silu = _beyond_mps("silu", mf.silu)
hard_swish = _beyond_mps("hard_swish", mf.hard_swish)
mish = _beyond_mps("mish", mf.mish)
gelu_tanh = _beyond_mps("gelu_tanh", mf.gelu_tanh)
gelu_fast = _beyond_mps("gelu_fast", mf.gelu_fast)
celu = _beyond_mps("celu", mf.celu)
selu = _beyond_mps("selu", mf.selu)
hard_tanh = _beyond_mps("hard_tanh", mf.hard_tanh)
hard_shrink = _beyond_mps("hard_shrink", mf.hard_shrink)
soft_shrink = _beyond_mps("soft_shrink", mf.soft_shrink)
relu2 = _beyond_mps("relu2", mf.relu2)
relu6 = _beyond_mps("relu6", mf.relu6)
log_sigmoid = _beyond_mps("log_sigmoid", mf.log_sigmoid)
step = _beyond_mps("step", mf.step)
prelu = filter_of(kinds.prelu, mf.prelu, "MPSCNNNeuronPReLUNode", 'prelu(x, name="slopes1")', without=("slopes",))
softmax = filter_of(
    kinds.by_result("softmax", mf.softmax, mf.softmax_grad), mf.softmax, "MPSCNNSoftMaxNode", "softmax(x)"
)
log_softmax = filter_of(
    kinds.by_result("log_softmax", mf.log_softmax, mf.log_softmax_grad),
    mf.log_softmax,
    "MPSCNNLogSoftMaxNode",
    "log_softmax(x)",
)
dropout = by_name("dropout", "x")(
    filter_of(
        kinds.dropout,
        mf.dropout,
        "MPSCNNDropoutNode",
        'dropout(x, keep_probability=0.8, name="drop1")',
        own={
            "seed": (
                *(None, "int | None"),
                "Seed of the first step's mask; nodes take neither a key nor a mask. Default: a key for each node, "
                "from the key of `Graph.init`.",
            ),
        },
        without=("key", "mask"),
    )
)


def _arithmetic(name: OperationName, function: Callable[..., Any], mps: str) -> Filter:
    where = "Whether gradients are 0 where the result is clamped to a limit. Default False, as in MPS."
    clamp: Own = {"clamp": (False, "bool", where)}
    kind = kinds.of_two(name)
    return filter_of(
        kind, function, f"MPSNN{mps}Node", f'{name}(x, graph.ImageNode("y"))', sources=("x", "y"), own=clamp
    )


add = _arithmetic("add", mf.add, "Addition")
subtract = _arithmetic("subtract", mf.subtract, "Subtraction")
multiply = _arithmetic("multiply", mf.multiply, "Multiplication")
divide = _arithmetic("divide", mf.divide, "Division")
compare = filter_of(
    kinds.without_gradient("compare", mf.compare),
    mf.compare,
    "MPSNNComparisonNode",
    'compare(x, graph.ImageNode("y"), "less")',
    sources=("x", "y"),
)

_MPS_BILINEAR: dict[str, Any] = {"coordinate": "asymmetric", "edge_mode": "zero"}

upsample_nearest = filter_of(
    kinds.by_state("upsample_nearest", mf.upsample_nearest_fwd, mf.upsample_nearest_grad),
    mf.upsample_nearest,
    "MPSCNNUpsamplingNearestNode",
    "upsample_nearest(x, 2)",
)
upsample_bilinear = filter_of(
    kinds.bilinear("upsample_bilinear", mf.upsample_bilinear_fwd, mf.upsample_bilinear_grad),
    mf.upsample_bilinear,
    "MPSCNNUpsamplingBilinearNode",
    "upsample_bilinear(x, 2)",
    **_MPS_BILINEAR,
)
resize_nearest = filter_of(
    kinds.by_state("resize_nearest", mf.resize_nearest_fwd, mf.resize_nearest_grad),
    mf.resize_nearest,
    "none; beside MPSNNBilinearScaleNode",
    "resize_nearest(x, (7, 7))",
)
resize_bilinear = filter_of(
    kinds.bilinear("resize_bilinear", mf.resize_bilinear_fwd, mf.resize_bilinear_grad),
    mf.resize_bilinear,
    "MPSNNBilinearScaleNode",
    "resize_bilinear(x, (7, 7))",
    **_MPS_BILINEAR,
)
resize_bicubic = filter_of(
    kinds.by_state("resize_bicubic", mf.resize_bicubic_fwd, mf.resize_bicubic_grad),
    mf.resize_bicubic,
    "none; beside MPSNNLanczosScaleNode, whose filter Apple does not say",
    "resize_bicubic(x, scale=1.5)",
)
resize_area = filter_of(
    kinds.by_state("resize_area", mf.resize_area_fwd, mf.resize_area_grad),
    mf.resize_area,
    "none; beside MPSNNBilinearScaleNode",
    "resize_area(x, (7, 7))",
)
grid_sample = filter_of(
    kinds.grid_sample,
    mf.grid_sample,
    "MPSNNGridSample",
    'grid_sample(x, graph.ImageNode("grid"))',
    sources=("x", "grid"),
    coordinates="pixel",
)
local_correlation = filter_of(
    kinds.local_correlation,
    mf.local_correlation,
    "MPSNNLocalCorrelation",
    'local_correlation(x, graph.ImageNode("y"), 4)',
    sources=("x", "y"),
)
gram_matrix = filter_of(
    kinds.gram_matrix, mf.gram_matrix, "MPSNNGramMatrixCalculationNode", "gram_matrix(x, alpha=0.5)"
)
crop_and_resize = filter_of(
    kinds.crop_and_resize,
    regions.crop_and_resize,
    "MPSNNCropAndResizeBilinear",
    "crop_and_resize(x, [(0.25, 0.25, 0.5, 0.5)], 7)",
)
depth_to_space = filter_of(
    kinds.by_adjoint("depth_to_space", mf.depth_to_space, mf.space_to_depth),
    mf.depth_to_space,
    "MPSCNNConvolutionNode, MPSCNNSubPixelConvolutionDescriptor",
    "depth_to_space(x, 2)",
)
space_to_depth = filter_of(
    kinds.by_adjoint("space_to_depth", mf.space_to_depth, mf.depth_to_space),
    mf.space_to_depth,
    "none; the gradient of depth_to_space",
    "space_to_depth(x, 2)",
)
pad = filter_of(kinds.by_state("pad", mf.pad_fwd, mf.pad_grad), mf.pad, "MPSNNPadNode", "pad(x, 1, 1)")
concatenate = filter_of(
    kinds.concatenate,
    mf.concatenate,
    "MPSNNConcatenationNode",
    'concatenate([x, graph.ImageNode("y")])',
    sources=("images",),
)
slice_channels = filter_of(kinds.slice_channels, mf.slice_channels, "MPSNNSlice", "slice_channels(x, 0, 3)")
crop = filter_of(
    kinds.of_part("crop", cropping.crop, cropping.crop_parts),
    cropping.crop,
    "none; offset and clipRect of MPSCNNKernel",
    "crop(x, (8, 8), offset=(2, 1))",
)
slice_rows = filter_of(
    kinds.of_part("slice_rows", cropping.slice_rows, cropping.row_parts),
    cropping.slice_rows,
    "MPSNNSlice",
    "slice_rows(x, 0, 3)",
)
slice_columns = filter_of(
    kinds.of_part("slice_columns", cropping.slice_columns, cropping.column_parts),
    cropping.slice_columns,
    "MPSNNSlice",
    "slice_columns(x, 0, 3)",
)
spatial_mean = filter_of(kinds.spatial_mean, mf.spatial_mean, "MPSNNReductionSpatialMeanNode", "spatial_mean(x)")
reshape = filter_of(kinds.reshape, kinds.reshaped, "MPSNNReshapeNode", "reshape(x, (1, 1, 64))")

_LISTS: Own = {
    name: (None, "Sequence[float] | None", f"The function's {name}, as a list of numbers. Default: none.")
    for name in ("class_weights", "pos_weight")
}

_DIVIDED: Own = {
    "divided": (
        *(False, "bool"),
        "Whether the gradient is the exact derivative of the reduced value. Default False, as in MPS.",
    ),
}

loss = filter_of(
    kinds.loss,
    mf.loss,
    "MPSCNNLossNode",
    'loss(x, graph.ImageNode("labels"), "softmax_cross_entropy", "sum")',
    sources=("y", "target", "weights"),
    own=_LISTS | _DIVIDED,
    made=LossNode,
)
yolo_loss = filter_of(
    kinds.yolo_loss,
    mf.yolo_loss,
    "MPSCNNYOLOLossNode",
    'yolo_loss(x, graph.ImageNode("labels"), [(1, 1), (2, 2)])',
    sources=("y", "target"),
    own=_DIVIDED,
    made=LossNode,
)
forward_loss = filter_of(
    kinds.forward_loss,
    mf.loss_value,
    "MPSNNForwardLossNode",
    'forward_loss(x, graph.ImageNode("t"), "mean_squared_error", "mean")',
    sources=("y", "target", "weights"),
    own=_LISTS
    | {
        "label_gradients": (
            *(False, "bool"),
            "Whether the target has a gradient node, too, as ``computeLabelGradients`` asks for. Default False.",
        ),
    },
    made=ForwardLossNode,
)
initial_gradient = filter_of(
    kinds.initial_gradient,
    kinds.ones_of,
    "MPSNNInitialGradientNode",
    "initial_gradient(x)",
    made=InitialGradientNode,
)
