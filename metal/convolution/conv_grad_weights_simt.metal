// partial[part,o,t,c] = sum over this part's output pixels of dy[n,oh,ow,o] * x[n, source(oh), source(ow), c].
// conv_grad_weights.metal for GPUs without matrices of simdgroups, which are NVIDIA's: sums of one's own are simpler
// there than the words of cuda_matrix.h. Tiled as conv.metal: 64 output channels by 64 (tap, channel) pairs a
// threadgroup, 4 by 4 a thread, 16 pixels at a time. The pixels are cut into parts, so that few weights still fill the
// GPU; sum_partials adds the parts in order.
#include "convolution/params.h"
const ConvGradWeightsLaunch launch = params_as<ConvGradWeightsLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int groups = launch.groups, parts = launch.parts;
const int in_channels = x_shape[3], out_channels = dy_shape[3];
const int in_width = in_channels / groups, out_width = out_channels / groups;
const int taps = rows.size * cols.size, depth = taps * in_width;
const int group = int(threadgroup_position_in_grid.z) / parts, part = int(threadgroup_position_in_grid.z) % parts;
const long pixels = long(dy_shape[0]) * rows.n_out * cols.n_out;
const long share = ((pixels + parts - 1) / parts + 15) / 16 * 16;
const long pixel_end = part * share + share < pixels ? part * share + share : pixels;
const int o0 = int(threadgroup_position_in_grid.x) * 64, k0 = int(threadgroup_position_in_grid.y) * 64;
const int thread_id = thread_position_in_threadgroup.x;
const int column = thread_id % 64, step = thread_id / 64;  // what this thread loads
const int across = thread_id % 16, down = thread_id / 16;  // which 4 by 4 it sums
threadgroup float left[16 * 64], right[16 * 64];

const int o = o0 + column, k = k0 + column, tap = k / in_width, c = k % in_width;
float sum[16];
for (int i = 0; i < 16; ++i) sum[i] = 0;

for (long pixel0 = part * share; pixel0 < pixel_end; pixel0 += 16) {
  for (int i = 0; i < 4; ++i) {
    const int s = step + 4 * i;
    const long p = pixel0 + s;
    const int ow = p % cols.n_out, oh = p / cols.n_out % rows.n_out;
    const long image = p / cols.n_out / rows.n_out;
    const bool live = p < pixel_end;
    left[s * 64 + column] =
        live && o < out_width ? float(dy[p * out_channels + group * out_width + o]) : 0.0f;
    const int h = source(rows, oh, tap / cols.size), w = source(cols, ow, tap % cols.size);
    const long at = ((image * rows.n_in + h) * cols.n_in + w) * in_channels + group * in_width + c;
    right[s * 64 + column] = live && k < depth && h >= 0 && w >= 0 ? float(x[at]) : 0.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int s = 0; s < 16; ++s) {
    float a[4], b[4];
    for (int i = 0; i < 4; ++i) {
      a[i] = left[s * 64 + down * 4 + i];
      b[i] = right[s * 64 + across * 4 + i];
    }
    for (int i = 0; i < 16; ++i) sum[i] += a[i / 4] * b[i % 4];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
for (int i = 0; i < 16; ++i) {
  const int to_o = o0 + down * 4 + i / 4, to_k = k0 + across * 4 + i % 4;
  if (to_o < out_width && to_k < depth) {
    partial[(long(part) * out_channels + group * out_width + to_o) * depth + to_k] = sum[i];
  }
}
