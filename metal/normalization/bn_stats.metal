// Mean and M2 of each channel over this threadgroup's share of a statistics group's pixels; groups follow one another.
// Means are told less the group's first pixel, so that they keep their digits where the mean dwarfs the deviation. A
// thread owns V channels of a group and every grid-th pixel, and adds up how far they are from the first of them, or
// after 64 from their mean. That first one is among what varies, so the error is at most that of some 64 roundings.
#include "shared/vector_load.h"
#include "normalization/channel_sums.h"
#include "normalization/params.h"
const BnStatsLaunch launch = params_as<BnStatsLaunch>(params);
const int channels = x_shape[3], lanes = channels / V;
const int width = launch.group.width, height = launch.group.height, stat_groups = launch.stat_groups;
const int kept = launch.kept;  // the first of a thread's pixels that stay in a cache
const int fewest = launch.fewest, longer = launch.longer;  // pixels of a thread, and how many rows of threads have one more
const int column = thread_position_in_grid.x, columns = lanes * stat_groups;
const int stat_group = stat_groups == 1 ? 0 : column / lanes, c = (column - stat_group * lanes) * V;
const int row = thread_position_in_threadgroup.y, top = int(thread_position_in_threadgroup.x), slot = row * width + top;
const int from = thread_position_in_grid.y;
const int rows = threads_per_grid.y, hop = -rows * channels;  // which a grid keeps small
const long pixels = long(rows) * fewest + longer;
const int apart = 256 + min(width, 16);  // so that no two of a simdgroup wait for one bank of memory
threadgroup float folded[2 * V * 272];

const bool there = column < columns, wide = aligned<V>(x);
const int many = int(there) * (fewest + int(from < longer));
// The pixels go from the last to the first, which is the first that is read again when the image is normalized, so that
// a part of it is still in the cache. W of them are under way at any time: the next takes the place of each that has been
// added, or else the shift, which adds nothing. Few, and those that cannot be loaded at once, go one by one.
const int whole = int(wide && fewest >= W) * many;
const long end = (stat_group + 1) * pixels * channels + c;
auto at = x + (end - (from + 1) * long(channels));
const auto keep = keeping<1>();
Staged<T, V> in[W], first = none_held<T, V>(), pivot = first;
if (there) pivot = hold<V>(x + (end - pixels * channels), wide);
if (many > 0) first = hold<V>(at, wide);
if (whole > 0) {
  #pragma unroll
  for (int i = 0; i < W; ++i) {
    in[i] = hold<V>(at, keep, i < kept);
    at += hop;
  }
}
Spread<V> all = spread_from<V>(first);
for (int block = 0; block < many; block += 64) {  // sums of at most 64, so that their errors stay small
  const int until = min(many, block + 64);
  Spread<V> s = none_of<V>(all);
  for (int k = block; k < min(whole, until); k += W) {
    #pragma unroll
    for (int i = 0; i < W; ++i) {
      s = spread_with<V>(s, in[i]);
      in[i] = hold<V>(at, keep, k + W < kept, k + W + i < whole, shift_of<T>(s));
      at += hop;
    }
  }
  #pragma unroll 1
  for (int k = max(block, whole); k < until; ++k) {
    s = spread_with<V>(s, hold<V>(at, wide));
    at += hop;
  }
  all = shifted<T>(both(all, s), until, until < many);
}

// The sums of all rows of threads, taken from the mean of the first row, whose own sum is zero then. That row has pixels
// in every threadgroup (`column_threads`).
if (row == 0) {
  const float share = 1.0f / many;
  for (int j = 0; j < V; ++j) {
    folded[j * apart + top] = all.shift[j] - staged_value(pivot, j) + all.sum[j] * share;
    folded[(V + j) * apart + top] = all.squares[j] - all.sum[j] * (all.sum[j] * share);
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (row > 0) {
  for (int j = 0; j < V; ++j) {
    const float off = all.shift[j] - staged_value(pivot, j) - folded[j * apart + top];
    folded[j * apart + slot] = all.sum[j] + many * off;
    folded[(V + j) * apart + slot] = all.squares[j] + off * (2 * all.sum[j] + many * off);
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
const float count = float(height) * fewest + max(0, min(height, longer - from + row));
for (int j = row; j < int(there) * V; j += height) {
  const int sums = j * apart + top, squares = sums + V * apart;
  float sum = 0, m2_of_all = folded[squares];
  for (int i = 1; i < height; ++i) {
    sum += folded[sums + i * width];
    m2_of_all += folded[squares + i * width];
  }
  m2_of_all -= sum * (sum / count);
  const long to = (long(threadgroup_position_in_grid.y) * columns + column) * V + j;
  mean[to] = folded[sums] + sum / count;
  m2[to] = m2_of_all < 0 ? 0 : m2_of_all;
}
