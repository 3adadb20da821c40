"""What the kernels of Apple's MPSCNN compute, forward and backward, in pure functions on MLX arrays."""

from importlib import import_module as _import_module
from typing import Any as _Any

from mpsfunc import _version as _version  # first: refuses a foreign MLX before anything else loads
from mpsfunc._bn_state import BatchNormState as BatchNormState
from mpsfunc._bn_state import bn_frozen as bn_frozen
from mpsfunc._bn_state import bn_merge as bn_merge
from mpsfunc._bn_state import bn_reset as bn_reset
from mpsfunc._bn_state import bn_running as bn_running
from mpsfunc._bn_state import bn_stats as bn_stats
from mpsfunc._fused_neuron import Neuron as Neuron
from mpsfunc._mlx_settings import keep_buffers as _keep_buffers
from mpsfunc._mlx_settings import launch_one_by_one as _launch_one_by_one
from mpsfunc._resized import ResampleState as ResampleState
from mpsfunc._threads import get_num_threads as get_num_threads
from mpsfunc._threads import set_num_threads as set_num_threads
from mpsfunc.activations import absolute as absolute
from mpsfunc.activations import elu as elu
from mpsfunc.activations import exponential as exponential
from mpsfunc.activations import gelu as gelu
from mpsfunc.activations import hard_sigmoid as hard_sigmoid
from mpsfunc.activations import linear as linear
from mpsfunc.activations import logarithm as logarithm
from mpsfunc.activations import power as power
from mpsfunc.activations import relu as relu
from mpsfunc.activations import relun as relun
from mpsfunc.activations import sigmoid as sigmoid
from mpsfunc.activations import softplus as softplus
from mpsfunc.activations import softsign as softsign
from mpsfunc.activations import tanh as tanh
from mpsfunc.arithmetic import add as add
from mpsfunc.arithmetic import arithmetic as arithmetic
from mpsfunc.arithmetic import arithmetic_grad as arithmetic_grad
from mpsfunc.arithmetic import compare as compare
from mpsfunc.arithmetic import divide as divide
from mpsfunc.arithmetic import multiply as multiply
from mpsfunc.arithmetic import subtract as subtract
from mpsfunc.batch_norm import batch_norm as batch_norm
from mpsfunc.batch_norm import batch_norm_fwd as batch_norm_fwd
from mpsfunc.batch_norm import bn_grad as bn_grad
from mpsfunc.batch_norm import bn_normalize as bn_normalize
from mpsfunc.batch_norm import bn_stats_grad as bn_stats_grad
from mpsfunc.checkpointing import checkpoint as checkpoint
from mpsfunc.conv_transpose import ConvTransposeState as ConvTransposeState
from mpsfunc.conv_transpose import conv_transpose as conv_transpose
from mpsfunc.conv_transpose import conv_transpose_fwd as conv_transpose_fwd
from mpsfunc.conv_transpose import conv_transpose_grad as conv_transpose_grad
from mpsfunc.conv_transpose import conv_transpose_grad_input as conv_transpose_grad_input
from mpsfunc.conv_transpose import conv_transpose_grad_weights as conv_transpose_grad_weights
from mpsfunc.convolution import ConvState as ConvState
from mpsfunc.convolution import conv as conv
from mpsfunc.convolution import conv_fwd as conv_fwd
from mpsfunc.convolution import conv_grad as conv_grad
from mpsfunc.convolution import conv_grad_input as conv_grad_input
from mpsfunc.convolution import conv_grad_weights as conv_grad_weights
from mpsfunc.convolution import conv_state as conv_state
from mpsfunc.cross_channel_norm import CrossChannelNormState as CrossChannelNormState
from mpsfunc.cross_channel_norm import cross_channel_norm as cross_channel_norm
from mpsfunc.cross_channel_norm import cross_channel_norm_fwd as cross_channel_norm_fwd
from mpsfunc.cross_channel_norm import cross_channel_norm_grad as cross_channel_norm_grad
from mpsfunc.dropout import DropoutState as DropoutState
from mpsfunc.dropout import dropout as dropout
from mpsfunc.dropout import dropout_fwd as dropout_fwd
from mpsfunc.dropout import dropout_grad as dropout_grad
from mpsfunc.dropout import dropout_mask as dropout_mask
from mpsfunc.fully_connected import fully_connected as fully_connected
from mpsfunc.fully_connected import fully_connected_fwd as fully_connected_fwd
from mpsfunc.fully_connected import fully_connected_grad as fully_connected_grad
from mpsfunc.images import concatenate as concatenate
from mpsfunc.images import concatenate_grad as concatenate_grad
from mpsfunc.images import slice_channels as slice_channels
from mpsfunc.images import slice_channels_grad as slice_channels_grad
from mpsfunc.images import spatial_mean as spatial_mean
from mpsfunc.images import spatial_mean_grad as spatial_mean_grad
from mpsfunc.instance_norm import GroupNormState as GroupNormState
from mpsfunc.instance_norm import InstanceNormState as InstanceNormState
from mpsfunc.instance_norm import group_norm as group_norm
from mpsfunc.instance_norm import group_norm_fwd as group_norm_fwd
from mpsfunc.instance_norm import group_norm_grad as group_norm_grad
from mpsfunc.instance_norm import instance_norm as instance_norm
from mpsfunc.instance_norm import instance_norm_fwd as instance_norm_fwd
from mpsfunc.instance_norm import instance_norm_grad as instance_norm_grad
from mpsfunc.l2_pooling import L2PoolState as L2PoolState
from mpsfunc.l2_pooling import l2_pool as l2_pool
from mpsfunc.l2_pooling import l2_pool_fwd as l2_pool_fwd
from mpsfunc.l2_pooling import l2_pool_grad as l2_pool_grad
from mpsfunc.loss import LossState as LossState
from mpsfunc.loss import loss as loss
from mpsfunc.loss import loss_fwd as loss_fwd
from mpsfunc.loss import loss_grad as loss_grad
from mpsfunc.loss import loss_value as loss_value
from mpsfunc.max_pooling import MaxPoolState as MaxPoolState
from mpsfunc.max_pooling import max_pool as max_pool
from mpsfunc.max_pooling import max_pool_fwd as max_pool_fwd
from mpsfunc.max_pooling import max_pool_grad as max_pool_grad
from mpsfunc.max_pooling import max_pool_grad_from_source as max_pool_grad_from_source
from mpsfunc.max_pooling import max_pool_indices as max_pool_indices
from mpsfunc.max_pooling import max_unpool as max_unpool
from mpsfunc.neuron import neuron as neuron
from mpsfunc.neuron import neuron_grad as neuron_grad
from mpsfunc.neuron import prelu as prelu
from mpsfunc.neuron import prelu_grad as prelu_grad
from mpsfunc.padding import PadState as PadState
from mpsfunc.padding import pad as pad
from mpsfunc.padding import pad_fwd as pad_fwd
from mpsfunc.padding import pad_grad as pad_grad
from mpsfunc.padding import pad_state as pad_state
from mpsfunc.pooling import AvgPoolState as AvgPoolState
from mpsfunc.pooling import avg_pool as avg_pool
from mpsfunc.pooling import avg_pool_fwd as avg_pool_fwd
from mpsfunc.pooling import avg_pool_grad as avg_pool_grad
from mpsfunc.pooling import avg_pool_state as avg_pool_state
from mpsfunc.resize import resize_bilinear as resize_bilinear
from mpsfunc.resize import resize_bilinear_fwd as resize_bilinear_fwd
from mpsfunc.resize import resize_bilinear_grad as resize_bilinear_grad
from mpsfunc.resize import resize_bilinear_state as resize_bilinear_state
from mpsfunc.resize import resize_nearest as resize_nearest
from mpsfunc.resize import resize_nearest_fwd as resize_nearest_fwd
from mpsfunc.resize import resize_nearest_grad as resize_nearest_grad
from mpsfunc.resize import resize_nearest_state as resize_nearest_state
from mpsfunc.saving import load as load
from mpsfunc.saving import save as save
from mpsfunc.softmax import log_softmax as log_softmax
from mpsfunc.softmax import log_softmax_grad as log_softmax_grad
from mpsfunc.softmax import softmax as softmax
from mpsfunc.softmax import softmax_grad as softmax_grad
from mpsfunc.spatial_norm import LocalContrastNormState as LocalContrastNormState
from mpsfunc.spatial_norm import SpatialNormState as SpatialNormState
from mpsfunc.spatial_norm import local_contrast_norm as local_contrast_norm
from mpsfunc.spatial_norm import local_contrast_norm_fwd as local_contrast_norm_fwd
from mpsfunc.spatial_norm import local_contrast_norm_grad as local_contrast_norm_grad
from mpsfunc.spatial_norm import spatial_norm as spatial_norm
from mpsfunc.spatial_norm import spatial_norm_fwd as spatial_norm_fwd
from mpsfunc.spatial_norm import spatial_norm_grad as spatial_norm_grad
from mpsfunc.sub_pixel import depth_to_space as depth_to_space
from mpsfunc.sub_pixel import space_to_depth as space_to_depth
from mpsfunc.upsample import upsample_bilinear as upsample_bilinear
from mpsfunc.upsample import upsample_bilinear_fwd as upsample_bilinear_fwd
from mpsfunc.upsample import upsample_bilinear_grad as upsample_bilinear_grad
from mpsfunc.upsample import upsample_bilinear_state as upsample_bilinear_state
from mpsfunc.upsample import upsample_nearest as upsample_nearest
from mpsfunc.upsample import upsample_nearest_fwd as upsample_nearest_fwd
from mpsfunc.upsample import upsample_nearest_grad as upsample_nearest_grad
from mpsfunc.upsample import upsample_nearest_state as upsample_nearest_state
from mpsfunc.weights import dequantize_weights as dequantize_weights
from mpsfunc.weights import fold_batch_norm as fold_batch_norm
from mpsfunc.window import PaddingPolicy as PaddingPolicy

_keep_buffers()
_launch_one_by_one()


def __getattr__(name: str) -> _Any:
    """`graph` and `nn` sit on top, and are imported when they are first asked for."""
    if name in ("graph", "nn"):
        return _import_module(f"mpsfunc.{name}")
    raise AttributeError(f"module 'mpsfunc' has no attribute {name!r}")


__version__ = _version.VERSION
