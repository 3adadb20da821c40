// The scale's and the shift's gradients, grown by the parts' sums in a fixed order: up to 128 strided sums of
// eight, then two turns.
#include "normalization/params.h"
#include "shared/moments.h"
#include "shared/norms.h"
const BnStatsGradMergeLaunch launch = params_as<BnStatsGradMergeLaunch>(params);
const int parts = partial_shape[0], channels = partial_shape[1] / 2;
const int width = launch.group.width, height = launch.group.height;
const int c = thread_position_in_grid.x, row = thread_position_in_threadgroup.y;
const int top = thread_position_in_threadgroup.x, slot = row * width + top;
threadgroup float sums[256], dots[256];
const bool told = row == 0 && c < channels;
float root = 0, gamma_before = 0, beta_before = 0;
if (told) {  // before the sums are folded, since a read takes as long
  root = slope_of(1, var[c], launch.eps);
  gamma_before = dgamma[c];
  beta_before = dbeta[c];
}

const TwoSums own = row_sums(partial, c < channels ? parts : 0, channels, c, row, height);
sums[slot] = own.of_g;
dots[slot] = own.of_products;
threadgroup_barrier(mem_flags::mem_threadgroup);
const int rows = min(8, height);
if (row < rows) {
  sums[slot] = sum_of_rows(sums, top, width, row, height, rows);
  dots[slot] = sum_of_rows(dots, top, width, row, height, rows);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (told) {
  new_dgamma[c] = gamma_before + sum_of_rows(dots, top, width, 0, rows, 1) * root;
  new_dbeta[c] = beta_before + sum_of_rows(sums, top, width, 0, rows, 1);
}
