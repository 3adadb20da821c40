# Written by docs/primitives_stub.py.
"""CPU kernels of mpsfunc as lazy MLX primitives."""

from collections.abc import Sequence

import mlx.core


def avg_pool(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def avg_pool_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def max_pool(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def max_pool_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def max_pool_gather(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def l2_pool(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def l2_pool_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def l2_pool_jvp(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def reduce_sum(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def reduce_weigh(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def reduce_extreme(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def reduce_place(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_stats(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_normalize(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_normalize_add(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_stats_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_normalize_by(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_stats_grad_by(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_grad_by(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def batch_norm(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def batch_norm_add(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def batch_norm_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_slope(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_composed_factors(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_running(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def group_moments(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def bn_group_sums(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def layer_norm(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def layer_norm_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def layer_norm_grad_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def conv(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def conv_layout(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def conv_laid_out(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def conv_grad_input(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def conv_grad_weights(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def conv_grad_bias(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def gram_matrix(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def gram_matrix_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def deform_columns(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def deform_columns_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def deform_places_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def neuron(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def neuron_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def neuron_grad_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def neuron_grad_from_output(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def glu(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def glu_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def softmax(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def softmax_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def log_softmax(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def log_softmax_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def softmin(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def loss(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def loss_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def dice_sums(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def dice_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def dice_loss_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def nms(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def dropout(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def dropout_mask(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def dropout_by_mask(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def arithmetic(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def arithmetic_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def compare(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def gather_pixels(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def resample(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def grid_sample(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def grid_sample_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def grid_sample_grad_grid(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def local_correlation(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def local_correlation_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def box_sample(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def box_sample_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def box_sample_grad_boxes(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def window_sum(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def power(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def cross_channel_norm(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def cross_channel_norm_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def spatial_norm(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def spatial_norm_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def local_contrast_norm(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def local_contrast_norm_grad(inputs: Sequence[mlx.core.array], params: Sequence[int], out_shapes: Sequence[Sequence[int]], out_dtypes: Sequence[mlx.core.Dtype], stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]: ...

def tracing() -> bool:
    """
    Whether this thread is inside mx.grad, mx.vmap, mx.compile or another transformation.
    """

def keep_cuda_kernel(name: str, code: bytes) -> int:
    """
    Keeps a kernel in an NVIDIA GPU's machine code, and gives the number by which to launch it.
    """

def launches_directly() -> bool:
    """
    Whether kernels in machine code are launched without MLX's primitive for them.
    """

def launched(outputs: Sequence[mlx.core.array], kernel: int, numbers: Sequence[int], grid: Sequence[int], threadgroup: Sequence[int]) -> list[mlx.core.array]:
    """
    The outputs of mx.fast.precompiled_cuda_kernel, launched without it where MLX has no CUDA graphs.
    """

def mappable(outputs: Sequence[mlx.core.array]) -> list[mlx.core.array]:
    """The outputs of one GPU kernel, so that mx.vmap can pass them by."""

def read_directly(outputs: Sequence[mlx.core.array], stopped: Sequence[mlx.core.array], arrays: Sequence[mlx.core.array]) -> None:
    """
    Has kernels in what was made of arrays behind mx.stop_gradient read the arrays themselves, in place.
    """

def same(a: mlx.core.array, b: mlx.core.array) -> bool:
    """
    Whether two objects hold one array; not so once either has been changed in place.
    """

def is_lazy_zeros(a: mlx.core.array) -> bool:
    """Whether an array is an mx.zeros that is not evaluated yet."""

def addends(a: mlx.core.array) -> tuple[mlx.core.array, mlx.core.array] | None:
    """The two arrays that a sum, which is not evaluated yet, is of, or None."""

def channel_factors(a: mlx.core.array) -> tuple[mlx.core.array, mlx.core.array] | None:
    """
    Images and the numbers of their channels whose product an array is, which is not evaluated yet, or None.
    """

def channel_scale(a: mlx.core.array) -> tuple[mlx.core.array, mlx.core.array] | None:
    """
    Images and a vector of their channels whose product an array is, which is not evaluated yet, or None.
    """

def become(a: mlx.core.array, b: mlx.core.array) -> None:
    """
    Has an object hold another array of the same shape and dtype, as an assignment to all of it does.
    """

def joined(a: mlx.core.array) -> list[mlx.core.array] | None:
    """
    The arrays that one, which is not evaluated yet, is the concatenation of along the last axis, or None.
    """

def join(parts: Sequence[mlx.core.array]) -> mlx.core.array:
    """What mx.concatenate along the last axis makes, in all threads."""

def hard_sigmoid_of(a: mlx.core.array) -> mlx.core.array | None:
    """
    What an array, not evaluated yet, is the hard sigmoid of, relu6(x + 3) / 6; None of others.
    """

def mean_of(a: mlx.core.array) -> mlx.core.array | None:
    """
    The images of whose pixels an array, not evaluated yet, is the mean, or None.
    """

def known_count(a: mlx.core.array) -> int | None:
    """The value of an int64 that is not to be computed, or None."""

def exportable(outputs: Sequence[mlx.core.array], inputs: Sequence[mlx.core.array]) -> list[mlx.core.array]:
    """
    What a traced function made of its inputs, as mx.export_function can write it.
    """

def watched(gathered: mlx.core.array, sockets: Sequence[int], seconds: float) -> mlx.core.array:
    """
    What mx.distributed.all_gather makes of a row of uint32 on the CPU, with a limit to how long it may take.
    """

def set_run_ahead(share: float) -> bool:
    """
    How much more memory than the work needs launches to an NVIDIA GPU may hold; False where MLX cannot tell.
    """

def keep_freed(bytes: int) -> bool:
    """
    Has malloc make all memory of one piece and keep what is freed; False where malloc is not glibc's.
    """

def get_num_threads() -> int: ...

def set_num_threads(threads: int) -> None: ...

def isas() -> list[str]:
    """Instruction sets compiled and present here, widest first."""

def isa() -> str:
    """The instruction set in use."""

def set_isa(name: str) -> None: ...

def isa_number() -> int:
    """By which laid out weights name the instruction set in use."""

def conv_layout_words(isa: int, weights: mlx.core.Dtype, shape: Sequence[int], groups: int) -> int:
    """
    Words that weights (o, rows, cols, c / groups) take when they are laid out for an instruction set, or 0.
    """
