// The operations. No kernel includes this: a new line compiles what chooses, checks and binds, and its own family.
#pragma once

// One line an operation: a function of this name exists in every instruction set's namespace, in _primitives, and (but
// for the CPU's choice of stages, arithmetic on vectors of which MLX makes the GPU's kernel, normalization by a state,
// as a whole and with another image added, which a GPU makes of bn_normalize and the other parts, as it does the sums
// of the Dice loss, layer normalization, for which MLX has kernels there, and softmin, log_softmax and its gradient,
// which are template arguments of softmax's bodies, weights that are laid out ahead, Gram matrices, which a GPU makes
// as gradients of weights, and reductions and suppression, for which MLX has kernels there) under metal/.
#define MPSF_KERNELS(X)      \
  X(avg_pool)                \
  X(avg_pool_grad)           \
  X(max_pool)                \
  X(max_pool_grad)           \
  X(max_pool_gather)         \
  X(l2_pool)                 \
  X(l2_pool_grad)            \
  X(l2_pool_jvp)             \
  X(reduce_sum)              \
  X(reduce_weigh)            \
  X(reduce_extreme)          \
  X(reduce_place)            \
  X(bn_stats)                \
  X(bn_normalize)            \
  X(bn_normalize_add)        \
  X(bn_stats_grad)           \
  X(bn_grad)                 \
  X(bn_normalize_by)         \
  X(bn_stats_grad_by)        \
  X(bn_grad_by)              \
  X(batch_norm)              \
  X(batch_norm_add)          \
  X(batch_norm_grad)         \
  X(bn_slope)                \
  X(bn_composed_factors)     \
  X(bn_running)              \
  X(group_moments)           \
  X(bn_group_sums)           \
  X(layer_norm)              \
  X(layer_norm_grad)         \
  X(layer_norm_grad_grad)    \
  X(conv)                    \
  X(conv_layout)             \
  X(conv_laid_out)           \
  X(conv_grad_input)         \
  X(conv_grad_weights)       \
  X(conv_grad_bias)          \
  X(gram_matrix)             \
  X(gram_matrix_grad)        \
  X(deform_columns)          \
  X(deform_columns_grad)     \
  X(deform_places_grad)      \
  X(neuron)                  \
  X(neuron_grad)             \
  X(neuron_grad_grad)        \
  X(neuron_grad_from_output) \
  X(glu)                     \
  X(glu_grad)                \
  X(softmax)                 \
  X(softmax_grad)            \
  X(log_softmax)             \
  X(log_softmax_grad)        \
  X(softmin)                 \
  X(loss)                    \
  X(loss_grad)               \
  X(dice_sums)               \
  X(dice_grad)               \
  X(dice_loss_grad)          \
  X(nms)                     \
  X(dropout)                 \
  X(dropout_mask)            \
  X(dropout_by_mask)         \
  X(arithmetic)              \
  X(arithmetic_grad)         \
  X(compare)                 \
  X(gather_pixels)           \
  X(resample)                \
  X(grid_sample)             \
  X(grid_sample_grad)        \
  X(grid_sample_grad_grid)   \
  X(local_correlation)       \
  X(local_correlation_grad)  \
  X(box_sample)              \
  X(box_sample_grad)         \
  X(box_sample_grad_boxes)   \
  X(window_sum)              \
  X(power)                   \
  X(cross_channel_norm)      \
  X(cross_channel_norm_grad) \
  X(spatial_norm)            \
  X(spatial_norm_grad)       \
  X(local_contrast_norm)     \
  X(local_contrast_norm_grad)
