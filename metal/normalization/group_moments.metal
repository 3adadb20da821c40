// Mean and variance of groups of `size` neighbouring channels together, from those of channels; for each channel its
// group's. R threads of a simdgroup share a group. Sums are of how far means are from the group's first, so that equal
// ones have no variance.
#include "normalization/params.h"
const BnGroupLaunch launch = params_as<BnGroupLaunch>(params);
const int size = launch.size, lane = int(thread_position_in_grid.x) % R, groups = mean_shape[0] * mean_shape[1] / size;
// As often for all threads, which meet in the shuffles.
for (int first = 0; first < groups; first += threads_per_grid.x / R) {
  const int group = first + int(thread_position_in_grid.x) / R;
  const int at = min(group, groups - 1) * size, own = group < groups ? size : 0;
  const float pivot = mean[at];
  float off = 0, spread = 0;
  for (int c = 1 + lane; c < own; c += R) off += mean[at + c] - pivot;
  for (int m = R / 2; m > 0; m /= 2) off += simd_shuffle_xor(off, m);
  off /= size;
  for (int c = lane; c < own; c += R) {
    const float apart = (mean[at + c] - pivot) - off;
    spread += var[at + c] + apart * apart;
  }
  for (int m = R / 2; m > 0; m /= 2) spread += simd_shuffle_xor(spread, m);
  for (int c = lane; c < own; c += R) {
    group_mean[at + c] = pivot + off;
    group_var[at + c] = spread / size;
  }
}
