// Mean and population variance of each statistics group's channels from the threadgroups' partial moments, folded in a
// fixed order. Their means are less the first pixel of the group; here they are added less the mean of the first part.
#include "normalization/params.h"
#include "shared/moments.h"
const BnStatsMergeLaunch launch = params_as<BnStatsMergeLaunch>(params);
const int parts = mean_shape[0], columns = mean_shape[1], channels = x_shape[3];
const int width = launch.group.width, height = launch.group.height;
// Rows of threads of a part, and what they had each.
const int tall = launch.tall, fewest = launch.fewest, longer = launch.longer;
const float share = launch.share;  // of a pixel in its statistics group
const int column = thread_position_in_grid.x, row = thread_position_in_threadgroup.y;
const int top = thread_position_in_threadgroup.x, slot = row * width + top;
threadgroup float sums[256], squares[256];

const bool there = column < columns, told = row == 0 && there;
const float first = there ? mean[column] : 0;
float sum = 0, m2_of_all = 0, pivot = 0;
for (int part = row; part < int(there) * parts; part += 4 * height) {
  float counts[4], offs[4], m2s[4];  // read before any is added, since each read takes longer than that
  for (int i = 0; i < 4; ++i) {
    const int which = part + i * height, at = which * columns + column;
    counts[i] = offs[i] = m2s[i] = 0;
    if (which < parts) {
      counts[i] = float(tall) * fewest + max(0, min(tall, longer - which * tall));
      offs[i] = mean[at] - first;
      m2s[i] = m2[at];
    }
  }
  for (int i = 0; i < 4; ++i) {
    sum += counts[i] * offs[i];
    m2_of_all += m2s[i] + counts[i] * offs[i] * offs[i];
  }
}
if (told) {  // while the others' sums come
  const long pixels = long(parts) * tall * fewest + longer;  // of a statistics group
  const int stat_group = column < channels ? 0 : column / channels;
  pivot = x[stat_group * (pixels - 1) * channels + column];
}
sums[slot] = sum;
squares[slot] = m2_of_all;
threadgroup_barrier(mem_flags::mem_threadgroup);
const int rows = min(8, height);
if (row < rows) {
  sums[slot] = sum_of_rows(sums, top, width, row, height, rows);
  squares[slot] = sum_of_rows(squares, top, width, row, height, rows);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (told) {
  sum = sum_of_rows(sums, top, width, 0, rows, 1);
  const float off = sum * share;
  m2_of_all = sum_of_rows(squares, top, width, 0, rows, 1) - sum * off;
  out_mean[column] = pivot + (first + off);
  out_var[column] = m2_of_all < 0 ? 0 : m2_of_all * share;
}
