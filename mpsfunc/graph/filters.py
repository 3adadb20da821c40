"""The filters: a row for each. Calling one makes a node, with the arguments and defaults of its function.

Where the defaults of MPS's nodes are not those of its kernels, so it is here: a `PaddingPolicy` places windows, pooling
clamps, and local contrast normalization has an alpha of 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import mpsfunc as mf
from mpsfunc.graph import kinds
from mpsfunc.graph.nodes import FilterNode, ImageNode, Kind, LossNode, Shape, StateNode, as_image

_GIVEN = Parameter.empty
# Whoever says one of these places windows himself.
_PLACES = ("padding", "offset", "out_size", "output_padding", "state", "ceil_mode")

Filter = Callable[..., Any]


def _filter(
    kind: Kind,
    like: Callable[..., Any],
    mps: str,
    *,
    sources: Sequence[str] = ("x",),
    own: dict[str, Any] | None = None,
    without: Sequence[str] = (),
    made: type[FilterNode] = FilterNode,
    name: str = "",
    **defaults: Any,
) -> Filter:
    """What makes the nodes of a kind.

    Args:
        kind: The kind.
        like: The function whose arguments they take.
        mps: Their class.
        sources: The arguments that are images, or sequences of images.
        own: Arguments that the function does not have, with defaults; those without one follow the images.
        without: Arguments of the function that they do not have.
        made: Class of the nodes.
        name: Name of the filter, if it is not the kind's.
        defaults: Defaults that differ from the function's.
    """
    op = name or kind.name
    signature = _signature(kind, like, sources, own or {}, without, defaults)

    def make(*args: Any, **kwargs: Any) -> FilterNode:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{op}: {error}") from None
        said = set(bound.arguments)
        bound.apply_defaults()
        options = bound.arguments
        images = [image for source in sources for image in _images(op, source, options.pop(source))]
        called, parameters = _called(op, options.pop("name"), options.pop("params", None), kind)
        placed = said.intersection(_PLACES) or isinstance(options.get("kernel_size"), str)
        if placed and "padding" in options and "padding" not in said:
            options["padding"] = 0
        state = options.pop("state", None)
        states = [] if state is None else [_state(op, state)]
        return made(kind, images, options, name=called, parameters=parameters, states=states)

    make.__name__ = make.__qualname__ = op
    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__doc__ = _doc(like, mps, own or {}, defaults, signature)
    return make


def _signature(
    kind: Kind,
    like: Callable[..., Any],
    sources: Sequence[str],
    own: dict[str, Any],
    without: Sequence[str],
    defaults: dict[str, Any],
) -> inspect.Signature:
    named = {"name": _GIVEN if kind.parameters or kind.memory else None} | ({"params": None} if kind.parameters else {})
    theirs = [
        argument.replace(default=defaults.get(argument.name, argument.default), annotation=_GIVEN)
        for argument in inspect.signature(like).parameters.values()
        if argument.name not in (*own, *without, "stream")
    ]
    first = [argument for argument in theirs if argument.name in sources and argument.default is _GIVEN]
    given = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name, default in own.items() if default is _GIVEN]
    others = {name: default for name, default in own.items() if default is not _GIVEN} | named
    last = [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in others.items()]
    rest = [argument for argument in theirs if argument not in first]
    return inspect.Signature(sorted([*first, *given, *rest, *last], key=lambda argument: argument.kind))


def _doc(
    like: Callable[..., Any], mps: str, own: dict[str, Any], defaults: dict[str, Any], signature: inspect.Signature
) -> str:
    lines = [f"A node of `mpsfunc.{like.__name__}`, which has its formula, arguments and errors; images are nodes.", ""]
    if defaults:
        lines += [f"MPS's nodes differ in {', '.join(f'``{k}={v!r}``' for k, v in defaults.items())}.", ""]
    if own:
        lines += [f"Arguments of its own: {', '.join(f'``{name}``' for name in own)}.", ""]
    if signature.parameters["name"].default is _GIVEN:
        lines += ["Parameters and states go by its ``name``.", ""]
    return "\n".join([*lines, f"Source: ``{mps}``.", ""])


def _images(op: str, argument: str, given: Any) -> list[ImageNode]:
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return [as_image(f"{op}: {argument}[{i}]", each) for i, each in enumerate(given)]
    return [as_image(f"{op}: {argument}", given)]


def _state(op: str, given: Any) -> StateNode:
    if isinstance(given, FilterNode):
        return given.result_state
    if not isinstance(given, StateNode):
        raise TypeError(f"{op}: state is not a node; got state={given!r}, expected a StateNode or a FilterNode")
    return given


def _called(op: str, name: Any, params: Any, kind: Kind) -> tuple[str, str]:
    """The node's name, and that of its parameters."""
    for argument, value in (("name", name), ("params", params)):
        if value is not None and not (isinstance(value, str) and value):
            raise TypeError(f"{op}: {argument} is not a name; got {argument}={value!r}, expected a string")
    return name or op, (params or name) if kind.parameters else ""


# Rows -----------------------------------------------------------------------------------------------------------


def _weights(x: Shape, options: dict[str, Any]) -> Shape:
    return (options["out_channels"], *_pair(options["kernel_size"]), x[-1] // options["groups"])


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


_POLICY = mf.PaddingPolicy()
_WEIGHTS = {"out_channels": _GIVEN, "kernel_size": _GIVEN, "bias": True}

conv = _filter(
    kinds.by_weights("conv", mf.conv_fwd, mf.conv_grad, _weights),
    mf.conv,
    "MPSCNNConvolutionNode",
    own=_WEIGHTS,
    without=("w", "b"),
    padding=_POLICY,
)
depthwise_conv = _filter(
    kinds.by_weights(
        "conv",
        mf.conv_fwd,
        mf.conv_grad,
        lambda x, options: (x[-1] * options["multiplier"], *_pair(options["kernel_size"]), 1),
    ),
    mf.conv,
    "MPSCNNConvolutionNode with an MPSCNNDepthWiseConvolutionDescriptor",
    own={"kernel_size": _GIVEN, "multiplier": 1, "bias": True},
    without=("w", "b", "groups"),
    name="depthwise_conv",
    padding=_POLICY,
)
conv_transpose = _filter(
    kinds.by_weights("conv_transpose", mf.conv_transpose_fwd, mf.conv_transpose_grad, _weights),
    mf.conv_transpose,
    "MPSCNNConvolutionTransposeNode",
    own=_WEIGHTS,
    without=("w", "b"),
    padding=_POLICY,
)
fully_connected = _filter(
    kinds.by_weights(
        "fully_connected",
        mf.fully_connected_fwd,
        mf.fully_connected_grad,
        lambda x, options: (options["out_channels"], *x[1:]),
    ),
    mf.fully_connected,
    "MPSCNNFullyConnectedNode",
    own={"out_channels": _GIVEN, "bias": True},
    without=("w", "b"),
)

_SCALES = {"gamma": True, "beta": True}

batch_norm = _filter(
    kinds.batch_norm,
    mf.batch_norm,
    "MPSCNNBatchNormalizationNode",
    own=_SCALES | {"momentum": 0.1, "statistics": "automatic"},
)
instance_norm = _filter(
    kinds.by_image("instance_norm", mf.instance_norm_fwd, mf.instance_norm_grad),
    mf.instance_norm,
    "MPSCNNInstanceNormalizationNode",
    own=_SCALES,
)
group_norm = _filter(
    kinds.by_image("group_norm", mf.group_norm_fwd, mf.group_norm_grad),
    mf.group_norm,
    "MPSCNNGroupNormalizationNode",
    own=_SCALES,
)
cross_channel_norm = _filter(
    kinds.by_state_and_source("cross_channel_norm", mf.cross_channel_norm_fwd, mf.cross_channel_norm_grad),
    mf.cross_channel_norm,
    "MPSCNNCrossChannelNormalizationNode",
)
spatial_norm = _filter(
    kinds.by_state_and_source("spatial_norm", mf.spatial_norm_fwd, mf.spatial_norm_grad),
    mf.spatial_norm,
    "MPSCNNSpatialNormalizationNode",
)
local_contrast_norm = _filter(
    kinds.by_state_and_source("local_contrast_norm", mf.local_contrast_norm_fwd, mf.local_contrast_norm_grad),
    mf.local_contrast_norm,
    "MPSCNNLocalContrastNormalizationNode",
    alpha=1.0,
)

avg_pool = _filter(kinds.avg_pool, mf.avg_pool, "MPSCNNPoolingAverageNode", padding=_POLICY, edge_mode="clamp")
max_pool = _filter(
    kinds.by_state("max_pool", mf.max_pool_fwd, mf.max_pool_grad),
    mf.max_pool,
    "MPSCNNPoolingMaxNode, MPSCNNDilatedPoolingMaxNode",
    padding=_POLICY,
    edge_mode="clamp",
)
l2_pool = _filter(
    kinds.by_state_and_source("l2_pool", mf.l2_pool_fwd, mf.l2_pool_grad),
    mf.l2_pool,
    "MPSCNNPoolingL2NormNode",
    padding=_POLICY,
    edge_mode="clamp",
)

relu = _filter(kinds.neuron("relu", mf.relu), mf.relu, "MPSCNNNeuronReLUNode")
linear = _filter(kinds.neuron("linear", mf.linear), mf.linear, "MPSCNNNeuronLinearNode")
sigmoid = _filter(kinds.neuron("sigmoid", mf.sigmoid), mf.sigmoid, "MPSCNNNeuronSigmoidNode")
hard_sigmoid = _filter(kinds.neuron("hard_sigmoid", mf.hard_sigmoid), mf.hard_sigmoid, "MPSCNNNeuronHardSigmoidNode")
tanh = _filter(kinds.neuron("tanh", mf.tanh), mf.tanh, "MPSCNNNeuronTanHNode")
absolute = _filter(kinds.neuron("absolute", mf.absolute), mf.absolute, "MPSCNNNeuronAbsoluteNode")
softplus = _filter(kinds.neuron("softplus", mf.softplus), mf.softplus, "MPSCNNNeuronSoftPlusNode")
softsign = _filter(kinds.neuron("softsign", mf.softsign), mf.softsign, "MPSCNNNeuronSoftSignNode")
elu = _filter(kinds.neuron("elu", mf.elu), mf.elu, "MPSCNNNeuronELUNode")
relun = _filter(kinds.neuron("relun", mf.relun), mf.relun, "MPSCNNNeuronReLUNNode")
power = _filter(kinds.neuron("power", mf.power), mf.power, "MPSCNNNeuronPowerNode")
exponential = _filter(kinds.neuron("exponential", mf.exponential), mf.exponential, "MPSCNNNeuronExponentialNode")
logarithm = _filter(kinds.neuron("logarithm", mf.logarithm), mf.logarithm, "MPSCNNNeuronLogarithmNode")
gelu = _filter(kinds.neuron("gelu", mf.gelu), mf.gelu, "MPSCNNNeuronGeLUNode")
prelu = _filter(kinds.prelu, mf.prelu, "MPSCNNNeuronPReLUNode", without=("slopes",))
softmax = _filter(kinds.by_result("softmax", mf.softmax, mf.softmax_grad), mf.softmax, "MPSCNNSoftMaxNode")
log_softmax = _filter(
    kinds.by_result("log_softmax", mf.log_softmax, mf.log_softmax_grad), mf.log_softmax, "MPSCNNLogSoftMaxNode"
)
dropout = _filter(kinds.dropout, mf.dropout, "MPSCNNDropoutNode", own={"seed": 0}, without=("key", "mask"))

_BOTH = ("x", "y")
_CLAMP = {"clamp": False}

add = _filter(kinds.of_two("add"), mf.add, "MPSNNAdditionNode", sources=_BOTH, own=_CLAMP)
subtract = _filter(kinds.of_two("subtract"), mf.subtract, "MPSNNSubtractionNode", sources=_BOTH, own=_CLAMP)
multiply = _filter(kinds.of_two("multiply"), mf.multiply, "MPSNNMultiplicationNode", sources=_BOTH, own=_CLAMP)
divide = _filter(kinds.of_two("divide"), mf.divide, "MPSNNDivisionNode", sources=_BOTH, own=_CLAMP)
compare = _filter(kinds.without_gradient("compare", mf.compare), mf.compare, "MPSNNComparisonNode", sources=_BOTH)

upsample_nearest = _filter(
    kinds.by_state("upsample_nearest", mf.upsample_nearest_fwd, mf.upsample_nearest_grad),
    mf.upsample_nearest,
    "MPSCNNUpsamplingNearestNode",
)
upsample_bilinear = _filter(
    kinds.by_state("upsample_bilinear", mf.upsample_bilinear_fwd, mf.upsample_bilinear_grad),
    mf.upsample_bilinear,
    "MPSCNNUpsamplingBilinearNode",
)
resize_nearest = _filter(
    kinds.by_state("resize_nearest", mf.resize_nearest_fwd, mf.resize_nearest_grad),
    mf.resize_nearest,
    "MPSNNScaleNode",
)
resize_bilinear = _filter(
    kinds.by_state("resize_bilinear", mf.resize_bilinear_fwd, mf.resize_bilinear_grad),
    mf.resize_bilinear,
    "MPSNNBilinearScaleNode",
)
depth_to_space = _filter(
    kinds.by_adjoint("depth_to_space", mf.depth_to_space, mf.space_to_depth),
    mf.depth_to_space,
    "MPSCNNConvolutionNode with an MPSCNNSubPixelConvolutionDescriptor",
)
space_to_depth = _filter(
    kinds.by_adjoint("space_to_depth", mf.space_to_depth, mf.depth_to_space),
    mf.space_to_depth,
    "the gradient of depth_to_space",
)
pad = _filter(kinds.by_state("pad", mf.pad_fwd, mf.pad_grad), mf.pad, "MPSNNPadNode")
concatenate = _filter(kinds.concatenate, mf.concatenate, "MPSNNConcatenationNode", sources=("images",))
slice_channels = _filter(kinds.slice_channels, mf.slice_channels, "MPSNNSlice")
spatial_mean = _filter(kinds.spatial_mean, mf.spatial_mean, "MPSNNReductionSpatialMeanNode")


def _reshaped(x: Any, shape: Sequence[int]) -> Any:
    """Images of another (h, w, c) with the same elements, in the order height, width, channel."""


reshape = _filter(kinds.reshape, _reshaped, "MPSNNReshapeNode")
loss = _filter(
    kinds.loss,
    mf.loss,
    "MPSCNNLossNode",
    sources=("y", "target", "weights"),
    own={"divided": False},
    made=LossNode,
)
