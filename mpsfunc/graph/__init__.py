"""Networks as in MPSNNGraph: filter nodes and their gradient nodes.

Nodes are connected first and run later. `training_graph` goes backward from a loss node and makes the gradient nodes,
without autodiff except in the gradient of a `forward_loss`; `compile` turns the nodes into one pure function.

Example:
    >>> import mlx.core as mx
    >>> from mpsfunc import graph
    >>> x, labels = graph.ImageNode("x"), graph.ImageNode("labels")
    >>> scores = graph.fully_connected(graph.relu(x), 10, name="scores")
    >>> loss = graph.loss(scores, labels, "softmax_cross_entropy", "sum", weight=1 / 32)
    >>> step = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    >>> inputs = {"x": mx.ones((32, 4, 4, 3)), "labels": mx.zeros((32, 1, 1), mx.int32)}
    >>> params, states = step.init(mx.random.key(0), inputs)
    >>> value, gradients, states = step(params, inputs, states)
    >>> value.shape, gradients["scores"]["w"].shape
    ((32, 1, 1, 1), (10, 4, 4, 3))
"""

from mpsfunc.graph.drawing import Drawing as Drawing
from mpsfunc.graph.filters import absolute as absolute
from mpsfunc.graph.filters import add as add
from mpsfunc.graph.filters import avg_pool as avg_pool
from mpsfunc.graph.filters import batch_norm as batch_norm
from mpsfunc.graph.filters import celu as celu
from mpsfunc.graph.filters import compare as compare
from mpsfunc.graph.filters import concatenate as concatenate
from mpsfunc.graph.filters import conv as conv
from mpsfunc.graph.filters import conv_transpose as conv_transpose
from mpsfunc.graph.filters import crop as crop
from mpsfunc.graph.filters import crop_and_resize as crop_and_resize
from mpsfunc.graph.filters import cross_channel_norm as cross_channel_norm
from mpsfunc.graph.filters import depth_to_space as depth_to_space
from mpsfunc.graph.filters import depthwise_conv as depthwise_conv
from mpsfunc.graph.filters import divide as divide
from mpsfunc.graph.filters import dropout as dropout
from mpsfunc.graph.filters import elu as elu
from mpsfunc.graph.filters import exponential as exponential
from mpsfunc.graph.filters import forward_loss as forward_loss
from mpsfunc.graph.filters import fully_connected as fully_connected
from mpsfunc.graph.filters import gelu as gelu
from mpsfunc.graph.filters import gelu_fast as gelu_fast
from mpsfunc.graph.filters import gelu_tanh as gelu_tanh
from mpsfunc.graph.filters import gram_matrix as gram_matrix
from mpsfunc.graph.filters import grid_sample as grid_sample
from mpsfunc.graph.filters import group_norm as group_norm
from mpsfunc.graph.filters import hard_shrink as hard_shrink
from mpsfunc.graph.filters import hard_sigmoid as hard_sigmoid
from mpsfunc.graph.filters import hard_swish as hard_swish
from mpsfunc.graph.filters import hard_tanh as hard_tanh
from mpsfunc.graph.filters import initial_gradient as initial_gradient
from mpsfunc.graph.filters import instance_norm as instance_norm
from mpsfunc.graph.filters import l2_pool as l2_pool
from mpsfunc.graph.filters import linear as linear
from mpsfunc.graph.filters import local_contrast_norm as local_contrast_norm
from mpsfunc.graph.filters import local_correlation as local_correlation
from mpsfunc.graph.filters import log_sigmoid as log_sigmoid
from mpsfunc.graph.filters import log_softmax as log_softmax
from mpsfunc.graph.filters import logarithm as logarithm
from mpsfunc.graph.filters import loss as loss
from mpsfunc.graph.filters import max_pool as max_pool
from mpsfunc.graph.filters import mish as mish
from mpsfunc.graph.filters import multiply as multiply
from mpsfunc.graph.filters import pad as pad
from mpsfunc.graph.filters import power as power
from mpsfunc.graph.filters import prelu as prelu
from mpsfunc.graph.filters import relu as relu
from mpsfunc.graph.filters import relu2 as relu2
from mpsfunc.graph.filters import relu6 as relu6
from mpsfunc.graph.filters import relun as relun
from mpsfunc.graph.filters import reshape as reshape
from mpsfunc.graph.filters import resize_area as resize_area
from mpsfunc.graph.filters import resize_bicubic as resize_bicubic
from mpsfunc.graph.filters import resize_bilinear as resize_bilinear
from mpsfunc.graph.filters import resize_nearest as resize_nearest
from mpsfunc.graph.filters import selu as selu
from mpsfunc.graph.filters import sigmoid as sigmoid
from mpsfunc.graph.filters import silu as silu
from mpsfunc.graph.filters import slice_channels as slice_channels
from mpsfunc.graph.filters import slice_columns as slice_columns
from mpsfunc.graph.filters import slice_rows as slice_rows
from mpsfunc.graph.filters import soft_shrink as soft_shrink
from mpsfunc.graph.filters import softmax as softmax
from mpsfunc.graph.filters import softplus as softplus
from mpsfunc.graph.filters import softsign as softsign
from mpsfunc.graph.filters import space_to_depth as space_to_depth
from mpsfunc.graph.filters import spatial_mean as spatial_mean
from mpsfunc.graph.filters import spatial_norm as spatial_norm
from mpsfunc.graph.filters import step as step
from mpsfunc.graph.filters import subtract as subtract
from mpsfunc.graph.filters import tanh as tanh
from mpsfunc.graph.filters import upsample_bilinear as upsample_bilinear
from mpsfunc.graph.filters import upsample_nearest as upsample_nearest
from mpsfunc.graph.filters import yolo_loss as yolo_loss
from mpsfunc.graph.nodes import FilterNode as FilterNode
from mpsfunc.graph.nodes import GradientFilterNode as GradientFilterNode
from mpsfunc.graph.nodes import ImageNode as ImageNode
from mpsfunc.graph.nodes import StateNode as StateNode
from mpsfunc.graph.program import Graph as Graph
from mpsfunc.graph.program import compile as compile
from mpsfunc.graph.reduction_filters import reduce_argmax as reduce_argmax
from mpsfunc.graph.reduction_filters import reduce_argmin as reduce_argmin
from mpsfunc.graph.reduction_filters import reduce_max as reduce_max
from mpsfunc.graph.reduction_filters import reduce_mean as reduce_mean
from mpsfunc.graph.reduction_filters import reduce_min as reduce_min
from mpsfunc.graph.reduction_filters import reduce_sum as reduce_sum
from mpsfunc.graph.reduction_filters import reduce_weighted_sum as reduce_weighted_sum
from mpsfunc.graph.training import training_graph as training_graph
