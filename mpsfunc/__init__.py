"""Apple's MPSCNN kernels, forward and backward, as pure functions on MLX arrays."""

import typing as _typing
from importlib import import_module as _import_module

# First: refuses a foreign MLX before anything else loads.
from mpsfunc.core.versions import VERSION as _VERSION

# isort: split

from mpsfunc.core import launch as _launch  # noqa: F401  # its C++ module refuses wrong settings of the environment
from mpsfunc.core.mlx_settings import keep_buffers as _keep_buffers
from mpsfunc.core.mlx_settings import launch_one_by_one as _launch_one_by_one

__version__ = _VERSION

# The public names by the modules that have them. Such a module is imported when a name of it is first asked for: to
# import all takes long, and a program calls a few. For type checkers the same stands below, and a test compares.
_NAMES_OF = {
    "activation.activations": (
        "absolute elu exponential gelu hard_sigmoid linear logarithm power relu relun sigmoid softplus softsign tanh"
    ),
    "activation.beyond_mps": (
        "celu gelu_fast gelu_tanh glu hard_shrink hard_swish hard_tanh log_sigmoid mish relu2 relu6 selu silu "
        "soft_shrink step"
    ),
    "activation.fused": "Neuron",
    "activation.neuron": "neuron neuron_grad prelu prelu_grad",
    "convolution.along_a_line": "conv1d conv_transpose1d",
    "convolution.conv_transpose": (
        "ConvTransposeState conv_transpose conv_transpose_fwd conv_transpose_grad conv_transpose_grad_input "
        "conv_transpose_grad_weights"
    ),
    "convolution.convolution": "ConvState conv conv_fwd conv_state",
    "convolution.deform_conv": "DeformConvState deform_conv deform_conv_fwd deform_conv_state",
    "convolution.deform_gradients": (
        "deform_conv_grad_input deform_conv_grad_mask deform_conv_grad_offsets deform_conv_grad_weights"
    ),
    "convolution.fully_connected": "fully_connected fully_connected_fwd fully_connected_grad",
    "convolution.gradients": "conv_grad conv_grad_input conv_grad_weights",
    "convolution.gram_matrix": "gram_matrix gram_matrix_grad",
    "convolution.sub_pixel": "depth_to_space space_to_depth",
    "convolution.weights": "dequantize_weights fold_batch_norm",
    "core.checkpointing": "checkpoint",
    "core.threads": "get_num_threads set_num_threads",
    "elementwise.arithmetic": "add arithmetic arithmetic_grad compare divide multiply subtract",
    "elementwise.dropout": "DropoutState dropout dropout_fwd dropout_grad dropout_mask",
    "exporting.contents": "exported",
    "exporting.export": "export",
    "image.affine_grid": "affine_grid affine_grid_grad",
    "image.concatenation": "concatenate concatenate_grad slice_channels slice_channels_grad",
    "image.crop_and_resize": (
        "CropAndResizeState crop_and_resize crop_and_resize_fwd crop_and_resize_grad crop_and_resize_grad_boxes "
        "crop_and_resize_state"
    ),
    "image.grid_sample": (
        "GridSampleState grid_sample grid_sample_fwd grid_sample_grad grid_sample_grad_grid grid_sample_state"
    ),
    "image.local_correlation": "local_correlation local_correlation_grad",
    "image.padding": "PadState pad pad_fwd pad_grad pad_state",
    "image.resampling": "ResampleState",
    "image.resize": (
        "resize_bilinear resize_bilinear_fwd resize_bilinear_grad resize_bilinear_state resize_nearest "
        "resize_nearest_fwd resize_nearest_grad resize_nearest_state"
    ),
    "image.resize_area": "resize_area resize_area_fwd resize_area_grad resize_area_state",
    "image.resize_bicubic": "resize_bicubic resize_bicubic_fwd resize_bicubic_grad resize_bicubic_state",
    "image.roi_align": ("RoiAlignState roi_align roi_align_fwd roi_align_grad roi_align_grad_rois roi_align_state"),
    "image.upsample": (
        "upsample_bilinear upsample_bilinear_fwd upsample_bilinear_grad upsample_bilinear_state upsample_nearest "
        "upsample_nearest_fwd upsample_nearest_grad upsample_nearest_state"
    ),
    "losses.boxes": "box_iou box_iou_loss box_iou_loss_grad",
    "losses.dice": "dice_loss dice_loss_grad",
    "losses.focal": "focal_loss focal_loss_grad",
    "losses.loss": "LossState loss loss_fwd loss_grad loss_value",
    "losses.softmax": "log_softmax log_softmax_grad softmax softmax_grad softmin",
    "losses.suppression": "nms",
    "losses.yolo": "YoloLossState yolo_boxes yolo_loss yolo_loss_fwd yolo_loss_grad",
    "normalization.along_a_line": "batch_norm1d group_norm1d instance_norm1d",
    "normalization.batch": "batch_norm batch_norm_fwd bn_grad bn_normalize bn_stats_grad",
    "normalization.batch_state": "BatchNormState",
    "normalization.batch_statistics": "bn_frozen bn_merge bn_reset bn_running bn_stats",
    "normalization.cross_channel": (
        "CrossChannelNormState cross_channel_norm cross_channel_norm_fwd cross_channel_norm_grad"
    ),
    "normalization.instance": (
        "GroupNormState InstanceNormState group_norm group_norm_fwd group_norm_grad instance_norm instance_norm_fwd "
        "instance_norm_grad"
    ),
    "normalization.layer": "layer_norm layer_norm_grad",
    "normalization.spatial": (
        "LocalContrastNormState SpatialNormState local_contrast_norm local_contrast_norm_fwd local_contrast_norm_grad "
        "spatial_norm spatial_norm_fwd spatial_norm_grad"
    ),
    "pooling.along_a_line": "avg_pool1d l2_pool1d max_pool1d",
    "pooling.average": "AvgPoolState avg_pool avg_pool_fwd avg_pool_grad avg_pool_state",
    "pooling.extremes": "reduce_argmax reduce_argmin reduce_max reduce_max_grad reduce_min reduce_min_grad",
    "pooling.l2": "L2PoolState l2_pool l2_pool_fwd l2_pool_grad",
    "pooling.maximum": (
        "MaxPoolState max_pool max_pool_fwd max_pool_grad max_pool_grad_from_source max_pool_indices max_unpool"
    ),
    "pooling.reductions": (
        "reduce_mean reduce_mean_grad reduce_sum reduce_sum_grad reduce_weighted_sum reduce_weighted_sum_grad"
    ),
    "pooling.spatial_mean": "spatial_mean spatial_mean_grad",
    "saving.files": "load save",
    "windows.policy": "PaddingPolicy",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
# Folders are attributes of the package, whether or not something in them was imported.
_FOLDERS = {module.partition(".")[0] for module in _NAMES_OF} | {"channels", "graph", "nn"}

# Modules of earlier versions, and a name of theirs that is now under mpsfunc itself.
_MOVED = {
    "activations": "relu", "checkpointing": "checkpoint", "images": "concatenate", "l2_pooling": "l2_pool",
    "max_pooling": "max_pool", "padding": "pad", "resize": "resize_bilinear", "sub_pixel": "depth_to_space",
    "upsample": "upsample_bilinear", "weights": "fold_batch_norm", "window": "PaddingPolicy",
}  # fmt: skip

_keep_buffers()
_launch_one_by_one()


if _typing.TYPE_CHECKING:
    from mpsfunc import graph as graph
    from mpsfunc import nn as nn
    from mpsfunc.activation.activations import absolute as absolute
    from mpsfunc.activation.activations import elu as elu
    from mpsfunc.activation.activations import exponential as exponential
    from mpsfunc.activation.activations import gelu as gelu
    from mpsfunc.activation.activations import hard_sigmoid as hard_sigmoid
    from mpsfunc.activation.activations import linear as linear
    from mpsfunc.activation.activations import logarithm as logarithm
    from mpsfunc.activation.activations import power as power
    from mpsfunc.activation.activations import relu as relu
    from mpsfunc.activation.activations import relun as relun
    from mpsfunc.activation.activations import sigmoid as sigmoid
    from mpsfunc.activation.activations import softplus as softplus
    from mpsfunc.activation.activations import softsign as softsign
    from mpsfunc.activation.activations import tanh as tanh
    from mpsfunc.activation.beyond_mps import celu as celu
    from mpsfunc.activation.beyond_mps import gelu_fast as gelu_fast
    from mpsfunc.activation.beyond_mps import gelu_tanh as gelu_tanh
    from mpsfunc.activation.beyond_mps import glu as glu
    from mpsfunc.activation.beyond_mps import hard_shrink as hard_shrink
    from mpsfunc.activation.beyond_mps import hard_swish as hard_swish
    from mpsfunc.activation.beyond_mps import hard_tanh as hard_tanh
    from mpsfunc.activation.beyond_mps import log_sigmoid as log_sigmoid
    from mpsfunc.activation.beyond_mps import mish as mish
    from mpsfunc.activation.beyond_mps import relu2 as relu2
    from mpsfunc.activation.beyond_mps import relu6 as relu6
    from mpsfunc.activation.beyond_mps import selu as selu
    from mpsfunc.activation.beyond_mps import silu as silu
    from mpsfunc.activation.beyond_mps import soft_shrink as soft_shrink
    from mpsfunc.activation.beyond_mps import step as step
    from mpsfunc.activation.fused import Neuron as Neuron
    from mpsfunc.activation.neuron import neuron as neuron
    from mpsfunc.activation.neuron import neuron_grad as neuron_grad
    from mpsfunc.activation.neuron import prelu as prelu
    from mpsfunc.activation.neuron import prelu_grad as prelu_grad
    from mpsfunc.convolution.along_a_line import conv1d as conv1d
    from mpsfunc.convolution.along_a_line import conv_transpose1d as conv_transpose1d
    from mpsfunc.convolution.conv_transpose import ConvTransposeState as ConvTransposeState
    from mpsfunc.convolution.conv_transpose import conv_transpose as conv_transpose
    from mpsfunc.convolution.conv_transpose import conv_transpose_fwd as conv_transpose_fwd
    from mpsfunc.convolution.conv_transpose import conv_transpose_grad as conv_transpose_grad
    from mpsfunc.convolution.conv_transpose import conv_transpose_grad_input as conv_transpose_grad_input
    from mpsfunc.convolution.conv_transpose import conv_transpose_grad_weights as conv_transpose_grad_weights
    from mpsfunc.convolution.convolution import ConvState as ConvState
    from mpsfunc.convolution.convolution import conv as conv
    from mpsfunc.convolution.convolution import conv_fwd as conv_fwd
    from mpsfunc.convolution.convolution import conv_state as conv_state
    from mpsfunc.convolution.deform_conv import DeformConvState as DeformConvState
    from mpsfunc.convolution.deform_conv import deform_conv as deform_conv
    from mpsfunc.convolution.deform_conv import deform_conv_fwd as deform_conv_fwd
    from mpsfunc.convolution.deform_conv import deform_conv_state as deform_conv_state
    from mpsfunc.convolution.deform_gradients import deform_conv_grad_input as deform_conv_grad_input
    from mpsfunc.convolution.deform_gradients import deform_conv_grad_mask as deform_conv_grad_mask
    from mpsfunc.convolution.deform_gradients import deform_conv_grad_offsets as deform_conv_grad_offsets
    from mpsfunc.convolution.deform_gradients import deform_conv_grad_weights as deform_conv_grad_weights
    from mpsfunc.convolution.fully_connected import fully_connected as fully_connected
    from mpsfunc.convolution.fully_connected import fully_connected_fwd as fully_connected_fwd
    from mpsfunc.convolution.fully_connected import fully_connected_grad as fully_connected_grad
    from mpsfunc.convolution.gradients import conv_grad as conv_grad
    from mpsfunc.convolution.gradients import conv_grad_input as conv_grad_input
    from mpsfunc.convolution.gradients import conv_grad_weights as conv_grad_weights
    from mpsfunc.convolution.gram_matrix import gram_matrix as gram_matrix
    from mpsfunc.convolution.gram_matrix import gram_matrix_grad as gram_matrix_grad
    from mpsfunc.convolution.sub_pixel import depth_to_space as depth_to_space
    from mpsfunc.convolution.sub_pixel import space_to_depth as space_to_depth
    from mpsfunc.convolution.weights import dequantize_weights as dequantize_weights
    from mpsfunc.convolution.weights import fold_batch_norm as fold_batch_norm
    from mpsfunc.core.checkpointing import checkpoint as checkpoint
    from mpsfunc.core.threads import get_num_threads as get_num_threads
    from mpsfunc.core.threads import set_num_threads as set_num_threads
    from mpsfunc.elementwise.arithmetic import add as add
    from mpsfunc.elementwise.arithmetic import arithmetic as arithmetic
    from mpsfunc.elementwise.arithmetic import arithmetic_grad as arithmetic_grad
    from mpsfunc.elementwise.arithmetic import compare as compare
    from mpsfunc.elementwise.arithmetic import divide as divide
    from mpsfunc.elementwise.arithmetic import multiply as multiply
    from mpsfunc.elementwise.arithmetic import subtract as subtract
    from mpsfunc.elementwise.dropout import DropoutState as DropoutState
    from mpsfunc.elementwise.dropout import dropout as dropout
    from mpsfunc.elementwise.dropout import dropout_fwd as dropout_fwd
    from mpsfunc.elementwise.dropout import dropout_grad as dropout_grad
    from mpsfunc.elementwise.dropout import dropout_mask as dropout_mask
    from mpsfunc.exporting.contents import exported as exported
    from mpsfunc.exporting.export import export as export
    from mpsfunc.image.affine_grid import affine_grid as affine_grid
    from mpsfunc.image.affine_grid import affine_grid_grad as affine_grid_grad
    from mpsfunc.image.concatenation import concatenate as concatenate
    from mpsfunc.image.concatenation import concatenate_grad as concatenate_grad
    from mpsfunc.image.concatenation import slice_channels as slice_channels
    from mpsfunc.image.concatenation import slice_channels_grad as slice_channels_grad
    from mpsfunc.image.crop_and_resize import CropAndResizeState as CropAndResizeState
    from mpsfunc.image.crop_and_resize import crop_and_resize as crop_and_resize
    from mpsfunc.image.crop_and_resize import crop_and_resize_fwd as crop_and_resize_fwd
    from mpsfunc.image.crop_and_resize import crop_and_resize_grad as crop_and_resize_grad
    from mpsfunc.image.crop_and_resize import crop_and_resize_grad_boxes as crop_and_resize_grad_boxes
    from mpsfunc.image.crop_and_resize import crop_and_resize_state as crop_and_resize_state
    from mpsfunc.image.grid_sample import GridSampleState as GridSampleState
    from mpsfunc.image.grid_sample import grid_sample as grid_sample
    from mpsfunc.image.grid_sample import grid_sample_fwd as grid_sample_fwd
    from mpsfunc.image.grid_sample import grid_sample_grad as grid_sample_grad
    from mpsfunc.image.grid_sample import grid_sample_grad_grid as grid_sample_grad_grid
    from mpsfunc.image.grid_sample import grid_sample_state as grid_sample_state
    from mpsfunc.image.local_correlation import local_correlation as local_correlation
    from mpsfunc.image.local_correlation import local_correlation_grad as local_correlation_grad
    from mpsfunc.image.padding import PadState as PadState
    from mpsfunc.image.padding import pad as pad
    from mpsfunc.image.padding import pad_fwd as pad_fwd
    from mpsfunc.image.padding import pad_grad as pad_grad
    from mpsfunc.image.padding import pad_state as pad_state
    from mpsfunc.image.resampling import ResampleState as ResampleState
    from mpsfunc.image.resize import resize_bilinear as resize_bilinear
    from mpsfunc.image.resize import resize_bilinear_fwd as resize_bilinear_fwd
    from mpsfunc.image.resize import resize_bilinear_grad as resize_bilinear_grad
    from mpsfunc.image.resize import resize_bilinear_state as resize_bilinear_state
    from mpsfunc.image.resize import resize_nearest as resize_nearest
    from mpsfunc.image.resize import resize_nearest_fwd as resize_nearest_fwd
    from mpsfunc.image.resize import resize_nearest_grad as resize_nearest_grad
    from mpsfunc.image.resize import resize_nearest_state as resize_nearest_state
    from mpsfunc.image.resize_area import resize_area as resize_area
    from mpsfunc.image.resize_area import resize_area_fwd as resize_area_fwd
    from mpsfunc.image.resize_area import resize_area_grad as resize_area_grad
    from mpsfunc.image.resize_area import resize_area_state as resize_area_state
    from mpsfunc.image.resize_bicubic import resize_bicubic as resize_bicubic
    from mpsfunc.image.resize_bicubic import resize_bicubic_fwd as resize_bicubic_fwd
    from mpsfunc.image.resize_bicubic import resize_bicubic_grad as resize_bicubic_grad
    from mpsfunc.image.resize_bicubic import resize_bicubic_state as resize_bicubic_state
    from mpsfunc.image.roi_align import RoiAlignState as RoiAlignState
    from mpsfunc.image.roi_align import roi_align as roi_align
    from mpsfunc.image.roi_align import roi_align_fwd as roi_align_fwd
    from mpsfunc.image.roi_align import roi_align_grad as roi_align_grad
    from mpsfunc.image.roi_align import roi_align_grad_rois as roi_align_grad_rois
    from mpsfunc.image.roi_align import roi_align_state as roi_align_state
    from mpsfunc.image.upsample import upsample_bilinear as upsample_bilinear
    from mpsfunc.image.upsample import upsample_bilinear_fwd as upsample_bilinear_fwd
    from mpsfunc.image.upsample import upsample_bilinear_grad as upsample_bilinear_grad
    from mpsfunc.image.upsample import upsample_bilinear_state as upsample_bilinear_state
    from mpsfunc.image.upsample import upsample_nearest as upsample_nearest
    from mpsfunc.image.upsample import upsample_nearest_fwd as upsample_nearest_fwd
    from mpsfunc.image.upsample import upsample_nearest_grad as upsample_nearest_grad
    from mpsfunc.image.upsample import upsample_nearest_state as upsample_nearest_state
    from mpsfunc.losses.boxes import box_iou as box_iou
    from mpsfunc.losses.boxes import box_iou_loss as box_iou_loss
    from mpsfunc.losses.boxes import box_iou_loss_grad as box_iou_loss_grad
    from mpsfunc.losses.dice import dice_loss as dice_loss
    from mpsfunc.losses.dice import dice_loss_grad as dice_loss_grad
    from mpsfunc.losses.focal import focal_loss as focal_loss
    from mpsfunc.losses.focal import focal_loss_grad as focal_loss_grad
    from mpsfunc.losses.loss import LossState as LossState
    from mpsfunc.losses.loss import loss as loss
    from mpsfunc.losses.loss import loss_fwd as loss_fwd
    from mpsfunc.losses.loss import loss_grad as loss_grad
    from mpsfunc.losses.loss import loss_value as loss_value
    from mpsfunc.losses.softmax import log_softmax as log_softmax
    from mpsfunc.losses.softmax import log_softmax_grad as log_softmax_grad
    from mpsfunc.losses.softmax import softmax as softmax
    from mpsfunc.losses.softmax import softmax_grad as softmax_grad
    from mpsfunc.losses.softmax import softmin as softmin
    from mpsfunc.losses.suppression import nms as nms
    from mpsfunc.losses.yolo import YoloLossState as YoloLossState
    from mpsfunc.losses.yolo import yolo_boxes as yolo_boxes
    from mpsfunc.losses.yolo import yolo_loss as yolo_loss
    from mpsfunc.losses.yolo import yolo_loss_fwd as yolo_loss_fwd
    from mpsfunc.losses.yolo import yolo_loss_grad as yolo_loss_grad
    from mpsfunc.normalization.along_a_line import batch_norm1d as batch_norm1d
    from mpsfunc.normalization.along_a_line import group_norm1d as group_norm1d
    from mpsfunc.normalization.along_a_line import instance_norm1d as instance_norm1d
    from mpsfunc.normalization.batch import batch_norm as batch_norm
    from mpsfunc.normalization.batch import batch_norm_fwd as batch_norm_fwd
    from mpsfunc.normalization.batch import bn_grad as bn_grad
    from mpsfunc.normalization.batch import bn_normalize as bn_normalize
    from mpsfunc.normalization.batch import bn_stats_grad as bn_stats_grad
    from mpsfunc.normalization.batch_state import BatchNormState as BatchNormState
    from mpsfunc.normalization.batch_statistics import bn_frozen as bn_frozen
    from mpsfunc.normalization.batch_statistics import bn_merge as bn_merge
    from mpsfunc.normalization.batch_statistics import bn_reset as bn_reset
    from mpsfunc.normalization.batch_statistics import bn_running as bn_running
    from mpsfunc.normalization.batch_statistics import bn_stats as bn_stats
    from mpsfunc.normalization.cross_channel import CrossChannelNormState as CrossChannelNormState
    from mpsfunc.normalization.cross_channel import cross_channel_norm as cross_channel_norm
    from mpsfunc.normalization.cross_channel import cross_channel_norm_fwd as cross_channel_norm_fwd
    from mpsfunc.normalization.cross_channel import cross_channel_norm_grad as cross_channel_norm_grad
    from mpsfunc.normalization.instance import GroupNormState as GroupNormState
    from mpsfunc.normalization.instance import InstanceNormState as InstanceNormState
    from mpsfunc.normalization.instance import group_norm as group_norm
    from mpsfunc.normalization.instance import group_norm_fwd as group_norm_fwd
    from mpsfunc.normalization.instance import group_norm_grad as group_norm_grad
    from mpsfunc.normalization.instance import instance_norm as instance_norm
    from mpsfunc.normalization.instance import instance_norm_fwd as instance_norm_fwd
    from mpsfunc.normalization.instance import instance_norm_grad as instance_norm_grad
    from mpsfunc.normalization.layer import layer_norm as layer_norm
    from mpsfunc.normalization.layer import layer_norm_grad as layer_norm_grad
    from mpsfunc.normalization.spatial import LocalContrastNormState as LocalContrastNormState
    from mpsfunc.normalization.spatial import SpatialNormState as SpatialNormState
    from mpsfunc.normalization.spatial import local_contrast_norm as local_contrast_norm
    from mpsfunc.normalization.spatial import local_contrast_norm_fwd as local_contrast_norm_fwd
    from mpsfunc.normalization.spatial import local_contrast_norm_grad as local_contrast_norm_grad
    from mpsfunc.normalization.spatial import spatial_norm as spatial_norm
    from mpsfunc.normalization.spatial import spatial_norm_fwd as spatial_norm_fwd
    from mpsfunc.normalization.spatial import spatial_norm_grad as spatial_norm_grad
    from mpsfunc.pooling.along_a_line import avg_pool1d as avg_pool1d
    from mpsfunc.pooling.along_a_line import l2_pool1d as l2_pool1d
    from mpsfunc.pooling.along_a_line import max_pool1d as max_pool1d
    from mpsfunc.pooling.average import AvgPoolState as AvgPoolState
    from mpsfunc.pooling.average import avg_pool as avg_pool
    from mpsfunc.pooling.average import avg_pool_fwd as avg_pool_fwd
    from mpsfunc.pooling.average import avg_pool_grad as avg_pool_grad
    from mpsfunc.pooling.average import avg_pool_state as avg_pool_state
    from mpsfunc.pooling.extremes import reduce_argmax as reduce_argmax
    from mpsfunc.pooling.extremes import reduce_argmin as reduce_argmin
    from mpsfunc.pooling.extremes import reduce_max as reduce_max
    from mpsfunc.pooling.extremes import reduce_max_grad as reduce_max_grad
    from mpsfunc.pooling.extremes import reduce_min as reduce_min
    from mpsfunc.pooling.extremes import reduce_min_grad as reduce_min_grad
    from mpsfunc.pooling.l2 import L2PoolState as L2PoolState
    from mpsfunc.pooling.l2 import l2_pool as l2_pool
    from mpsfunc.pooling.l2 import l2_pool_fwd as l2_pool_fwd
    from mpsfunc.pooling.l2 import l2_pool_grad as l2_pool_grad
    from mpsfunc.pooling.maximum import MaxPoolState as MaxPoolState
    from mpsfunc.pooling.maximum import max_pool as max_pool
    from mpsfunc.pooling.maximum import max_pool_fwd as max_pool_fwd
    from mpsfunc.pooling.maximum import max_pool_grad as max_pool_grad
    from mpsfunc.pooling.maximum import max_pool_grad_from_source as max_pool_grad_from_source
    from mpsfunc.pooling.maximum import max_pool_indices as max_pool_indices
    from mpsfunc.pooling.maximum import max_unpool as max_unpool
    from mpsfunc.pooling.reductions import reduce_mean as reduce_mean
    from mpsfunc.pooling.reductions import reduce_mean_grad as reduce_mean_grad
    from mpsfunc.pooling.reductions import reduce_sum as reduce_sum
    from mpsfunc.pooling.reductions import reduce_sum_grad as reduce_sum_grad
    from mpsfunc.pooling.reductions import reduce_weighted_sum as reduce_weighted_sum
    from mpsfunc.pooling.reductions import reduce_weighted_sum_grad as reduce_weighted_sum_grad
    from mpsfunc.pooling.spatial_mean import spatial_mean as spatial_mean
    from mpsfunc.pooling.spatial_mean import spatial_mean_grad as spatial_mean_grad
    from mpsfunc.saving.files import load as load
    from mpsfunc.saving.files import save as save
    from mpsfunc.windows.policy import PaddingPolicy as PaddingPolicy
else:  # from these a type checker would learn that there is every name, and that `import *` brings none
    __all__ = sorted([*_MODULE_OF, "__version__", "graph", "nn"])

    def __getattr__(name: str) -> _typing.Any:
        """A public name or a folder, imported when it is first asked for; `graph` and `nn` sit on top."""
        if name in _MODULE_OF:
            value = globals()[name] = getattr(_import_module(f"mpsfunc.{_MODULE_OF[name]}"), name)
            return value
        if name in _FOLDERS:
            return _import_module(f"mpsfunc.{name}")
        now = f"; its public names are under mpsfunc itself, such as mpsfunc.{_MOVED[name]}" if name in _MOVED else ""
        raise AttributeError(f"module 'mpsfunc' has no attribute {name!r}{now}")

    def __dir__() -> list[str]:
        """The public names."""
        return __all__
