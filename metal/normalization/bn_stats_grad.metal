// Sums of g and of g * (x - mean) of each channel over this threadgroup's share of a statistics group's pixels; groups
// follow one another. g is dy through the activation N of (x - mean) * scale + shift; R: all groups share scale and
// shift, and the scale is still to be divided by the root of var + eps. A thread owns V channels of a group and every
// grid-th pixel; a threadgroup adds up its rows of threads in order.
#include "shared/vector_load.h"
#include "shared/norms.h"
#include "normalization/channel_sums.h"
#include "normalization/params.h"
const BnStatsGradLaunch launch = params_as<BnStatsGradLaunch>(params);
const int channels = x_shape[3], lanes = channels / V;
const int width = launch.group.width, height = launch.group.height, stat_groups = launch.stat_groups;
const int kept = launch.kept;  // the first of a thread's pixels that stay in a cache
const int fewest = launch.fewest, longer = launch.longer;  // pixels of a thread, and how many rows of threads have one more
const float eps = launch.eps;
const ActivationParams known = launch.act;
const int column = thread_position_in_grid.x, columns = lanes * stat_groups;
const int stat_group = stat_groups == 1 ? 0 : column / lanes, c = (column - stat_group * lanes) * V;
const int row = thread_position_in_threadgroup.y, top = int(thread_position_in_threadgroup.x), slot = row * width + top;
const int from = thread_position_in_grid.y;
const int rows = threads_per_grid.y, hop = -rows * channels;  // which a grid keeps small
const long pixels = long(rows) * fewest + longer;
const int apart = 256 + min(width, 16);  // so that no two of a simdgroup wait for one bank of memory
threadgroup float folded[2 * V * 272];

const bool there = column < columns, wide = aligned<V>(x) && aligned<V>(dy);
const int many = int(there) * (fewest + int(from < longer));
// From the last pixel to the first, with which bn_grad begins; W of them are under way at any time. Few, and those that
// cannot be loaded at once, go one by one. Told which to keep, an H200 took 5 % longer in four bytes and an eighth less in
// two with an activation, when each load made its hint anew (commit ab65a84).
const int whole = int(wide && fewest >= W) * many;
const long start = ((stat_group + 1) * pixels - from - 1) * channels + c;
auto at = x + start;
auto at_dy = dy + start;
const auto keep = keeping<sizeof(T) == 2>();
Staged<T, V> in[W], in_dy[W];
if (whole > 0) {
  #pragma unroll
  for (int i = 0; i < W; ++i) {
    in_dy[i] = hold<V>(at_dy, keep, i < kept);
    in[i] = hold<V>(at, keep, i < kept);
    at_dy += hop;
    at += hop;
  }
}
const int own = R ? c / V : column;
Affine<V> by;
by.center = by.slope = by.level = nothing<float, V>();
if (there) by.center = entries<V>(mean, column);
if (N != 0 && there) {
  by.slope = entries<V>(scale, own);
  by.level = entries<V>(shift, own);
}
for (int j = 0; j < V * int(R && N != 0 && there); ++j) {
  by.slope.v[j] = slope_of(by.slope.v[j], var[long(column) * V + j], eps);
}
Pulls<V> all = no_pulls<V>();
for (int block = 0; block < many; block += 64) {  // sums of at most 64, so that the error of a long sum stays small
  const int until = min(many, block + 64);
  Pulls<V> s = no_pulls<V>();
  for (int k = block; k < min(whole, until); k += W) {
    #pragma unroll
    for (int i = 0; i < W; ++i) {
      if (k + i < whole) s = pulls_with<N, V>(s, in_dy[i], in[i], by, known);
      in_dy[i] = hold<V>(at_dy, keep, k + W < kept, k + W + i < whole, in_dy[i]);
      in[i] = hold<V>(at, keep, k + W < kept, k + W + i < whole, in[i]);
      at_dy += hop;
      at += hop;
    }
  }
  #pragma unroll 1
  for (int k = max(block, whole); k < until; ++k) {
    s = pulls_with<N, V>(s, hold<V>(at_dy, wide), hold<V>(at, wide), by, known);
    at_dy += hop;
    at += hop;
  }
  for (int j = 0; j < V; ++j) {
    all.sum[j] += s.sum[j];
    all.dot[j] += s.dot[j];
  }
}

for (int j = 0; j < V; ++j) {
  folded[j * apart + slot] = all.sum[j];
  folded[(V + j) * apart + slot] = all.dot[j];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int j = row; j < int(there) * V; j += height) {
  const int sums = j * apart + top, dots = sums + V * apart;
  float sum = 0, dot = 0;
  for (int i = 0; i < height; ++i) {
    sum += folded[sums + i * width];
    dot += folded[dots + i * width];
  }
  const long to = (long(threadgroup_position_in_grid.y) * 2 * columns + column) * V + j;
  partial[to] = sum;
  partial[to + long(columns) * V] = dot;
}
