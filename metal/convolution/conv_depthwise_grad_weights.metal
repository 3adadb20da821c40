// partial[part,o,t] = sum over this part's output pixels of dy[n,oh,ow,o] * x[n, source(oh), source(ow), o / each],
// where each channel of x has `each` outputs of its own; sum_partials adds the parts in order.
// A thread owns V output channels at U taps and every grid-th pixel; a threadgroup folds its rows of threads in a fixed
// order.
#include "convolution/params.h"
#include "shared/vector_load.h"
const ConvDepthwiseGradWeightsLaunch launch = params_as<ConvDepthwiseGradWeightsLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int groups = launch.groups, width = launch.threadgroup_size.width, height = launch.threadgroup_size.height;
const int out_channels = dy_shape[3], each = out_channels / groups, lanes = out_channels / V;
const int taps = rows.size * cols.size;
const long pixels = long(dy_shape[0]) * rows.n_out * cols.n_out;
const int lane = thread_position_in_grid.x, o = lane * V, c = o / each;
const int row = thread_position_in_threadgroup.y, part = threadgroup_position_in_grid.y;
const int slot = (row * width + int(thread_position_in_threadgroup.x)) * V;
threadgroup float sums[256 * V];

int tap_row[U], tap_col[U];
const int t0 = int(threadgroup_position_in_grid.z) * U;
for (int u = 0; u < U; ++u) {
  tap_row[u] = (t0 + u) / cols.size;
  tap_col[u] = (t0 + u) % cols.size;
}
float own[U * V];
for (int i = 0; i < U * V; ++i) own[i] = 0;
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);

// From pixel to pixel without a division.
const int stride = threads_per_grid.y;
const int on_w = stride % cols.n_out, on_h = stride / cols.n_out % rows.n_out, on_n = stride / cols.n_out / rows.n_out;
const int start = thread_position_in_grid.y;
int ow = start % cols.n_out, oh = start / cols.n_out % rows.n_out, n = start / cols.n_out / rows.n_out;
for (long p = start; lane < lanes && p < pixels; p += stride) {
  const Pack<T, V> g = load<V>(dy + p * out_channels + o, wide_dy);
  #pragma unroll
  for (int u = 0; u < U; ++u) {
    const int h = source(rows, oh, tap_row[u]), w = source(cols, ow, tap_col[u]);
    if (t0 + u < taps && h >= 0 && w >= 0) {
      const Pack<T, V> in = load<V>(x + ((long(n) * rows.n_in + h) * cols.n_in + w) * groups + c, wide);
      for (int j = 0; j < V; ++j) own[u * V + j] += float(g.v[j]) * float(in.v[j]);
    }
  }
  ow += on_w;
  oh += on_h + int(ow >= cols.n_out);
  n += on_n + int(oh >= rows.n_out);
  ow -= ow >= cols.n_out ? cols.n_out : 0;
  oh -= oh >= rows.n_out ? rows.n_out : 0;
}
#pragma unroll
for (int u = 0; u < U; ++u) {
  for (int j = 0; j < V; ++j) sums[slot + j] = own[u * V + j];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int half_height = height / 2; half_height > 0; half_height /= 2) {
    if (row < half_height) {
      for (int j = 0; j < V; ++j) sums[slot + j] += sums[slot + half_height * width * V + j];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (row == 0 && lane < lanes && t0 + u < taps) {
    for (int j = 0; j < V; ++j) partial[(long(part) * out_channels + o + j) * taps + t0 + u] = sums[slot + j];
  }
}
