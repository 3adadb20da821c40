// The gradients of scale and shift from the parts' sums, folded in a fixed order: up to 128 strided sums of eight, then two
// turns; and a, b and d of an image gradient a * g + b * (x - mean) + d whose statistics have gradients of their own.
#include "normalization/params.h"
#include "shared/moments.h"
#include "shared/norms.h"
const BnStatsGradFactorsLaunch launch = params_as<BnStatsGradFactorsLaunch>(params);
const int parts = partial_shape[0], columns = partial_shape[1] / 2;
const int width = launch.group.width, height = launch.group.height;
const int channels = launch.channels;  // of a statistics group; all groups share gamma
const float count = launch.pixels, eps = launch.eps;
const int c = thread_position_in_grid.x, row = thread_position_in_threadgroup.y;
const int top = thread_position_in_threadgroup.x, slot = row * width + top;
threadgroup float sums[256], dots[256];
const bool told = row == 0 && c < columns;
float root = 0, scaled = 0, of_mean = 0, of_var = 0;
if (told) {  // before the sums are folded, since a read takes as long
  root = slope_of(1, var[c], eps);
  scaled = float(gamma[c % channels]) * root;
  of_mean = dmean[c];
  of_var = dvar[c];
}

const TwoSums own = row_sums(partial, c < columns ? parts : 0, columns, c, row, height);
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
  const float grown = sum_of_rows(dots, top, width, 0, rows, 1) * root;
  const float sum = sum_of_rows(sums, top, width, 0, rows, 1), share = scaled / count;
  dgamma[c] = grown;
  dbeta[c] = sum;
  a[c] = scaled;
  b[c] = 2 * of_var / count - share * (root * grown);
  d[c] = of_mean / count - share * sum;
}
