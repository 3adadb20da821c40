// For each channel the sums of b and of d over its group of `size` neighbouring channels. R threads of a simdgroup share
// a group.
#include "normalization/params.h"
const BnGroupLaunch launch = params_as<BnGroupLaunch>(params);
const int size = launch.size, lane = int(thread_position_in_grid.x) % R, groups = b_shape[0] * b_shape[1] / size;
// As often for all threads, which meet in the shuffles.
for (int first = 0; first < groups; first += threads_per_grid.x / R) {
  const int group = first + int(thread_position_in_grid.x) / R;
  const int at = min(group, groups - 1) * size, own = group < groups ? size : 0;
  float sum_b = 0, sum_d = 0;
  for (int c = lane; c < own; c += R) {
    sum_b += b[at + c];
    sum_d += d[at + c];
  }
  for (int m = R / 2; m > 0; m /= 2) {
    sum_b += simd_shuffle_xor(sum_b, m);
    sum_d += simd_shuffle_xor(sum_d, m);
  }
  for (int c = lane; c < own; c += R) {
    group_b[at + c] = sum_b;
    group_d[at + c] = sum_d;
  }
}
