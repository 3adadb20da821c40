// Sum of dy of each channel over this threadgroup's share of the pixels; sum_partials adds the shares in order.
#include "shared/vector_load.h"
const int channels = dy_shape[3], lanes = channels / V;
const long pixels = long(dy_shape[0]) * dy_shape[1] * dy_shape[2];
const Threadgroup group = params_as<Threadgroup>(params);
const int width = group.width, height = group.height;
const int lane = thread_position_in_grid.x, c = lane * V;
const int row = thread_position_in_threadgroup.y;
const int slot = (row * width + int(thread_position_in_threadgroup.x)) * V;
threadgroup float sums[256 * V];

float own[V];
for (int j = 0; j < V; ++j) own[j] = 0;
const bool wide = aligned<V>(dy);
const long stride = threads_per_grid.y;
for (long p = thread_position_in_grid.y; lane < lanes && p < pixels; p += 64 * stride) {
  float sum_64[V];  // two levels, so that the error of a long sum stays small
  for (int j = 0; j < V; ++j) sum_64[j] = 0;
  for (int k = 0; k < 64 && p + k * stride < pixels; ++k) {
    const Pack<T, V> g = load<V>(dy + (p + k * stride) * channels + c, wide);
    for (int j = 0; j < V; ++j) sum_64[j] += float(g.v[j]);
  }
  for (int j = 0; j < V; ++j) own[j] += sum_64[j];
}
for (int j = 0; j < V; ++j) sums[slot + j] = own[j];
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    for (int j = 0; j < V; ++j) sums[slot + j] += sums[slot + half_height * width * V + j];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && lane < lanes) {
  for (int j = 0; j < V; ++j) partial[int(threadgroup_position_in_grid.y) * channels + c + j] = sums[slot + j];
}
