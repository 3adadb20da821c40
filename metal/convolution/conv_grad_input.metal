// dx[n,h,w,c] = neuron(bias[c] + sum over taps t and output channels o of dy[n, target(h), target(w), o] * w[o,t,c]), a
// group at a time.
// Tiled as conv.metal: 64 input pixels by 64 input channels a threadgroup, 4 by 4 a thread, 16 steps of the sum over
// (tap, output channel) at a time.
#include "convolution/neuron.h"
#include "convolution/params.h"
const ConvLaunch launch = params_as<ConvLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int groups = launch.groups;
const int in_channels = bias_shape[0], out_channels = dy_shape[3];
const int in_width = in_channels / groups, out_width = out_channels / groups;
const int taps = rows.size * cols.size, depth = taps * out_width;
const int group = threadgroup_position_in_grid.z;
const long pixels = long(dy_shape[0]) * rows.n_in * cols.n_in;
const long pixel0 = long(threadgroup_position_in_grid.x) * 64;
const int c0 = int(threadgroup_position_in_grid.y) * 64;
const int thread_id = thread_position_in_threadgroup.x;
const int step = thread_id % 16, line = thread_id / 16;
threadgroup float left[16 * 64], right[16 * 64];

int h[4], w_in[4];
long image[4];
for (int i = 0; i < 4; ++i) {
  const long p = pixel0 + line + 16 * i;
  w_in[i] = p % cols.n_in;
  h[i] = p / cols.n_in % rows.n_in;
  image[i] = p < pixels ? p / cols.n_in / rows.n_in : -1;
}
float sum[16];
for (int i = 0; i < 16; ++i) sum[i] = 0;

for (int k0 = 0; k0 < depth; k0 += 16) {
  const int k = k0 + step, tap = k / out_width, o = group * out_width + k % out_width;
  for (int i = 0; i < 4; ++i) {
    const int oh = target(rows, h[i], tap / cols.size), ow = target(cols, w_in[i], tap % cols.size);
    const bool inside = k < depth && image[i] >= 0 && oh >= 0 && ow >= 0;
    const long at = ((image[i] * rows.n_out + oh) * cols.n_out + ow) * out_channels + o;
    left[step * 64 + line + 16 * i] = inside ? float(dy[at]) : 0.0f;
    // The weights of one (tap, o) lie along c, so here neighbouring threads take neighbouring channels.
    const int s = thread_id / 64 + 4 * i, c = c0 + thread_id % 64, k_s = k0 + s;
    const long weight =
        (long(group * out_width + k_s % out_width) * taps + k_s / out_width) * in_width + c;
    right[s * 64 + thread_id % 64] = k_s < depth && c < in_width ? float(w[weight]) : 0.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int s = 0; s < 16; ++s) {
    float a[4], b[4];
    for (int i = 0; i < 4; ++i) {
      a[i] = left[s * 64 + line * 4 + i];
      b[i] = right[s * 64 + step * 4 + i];
    }
    for (int i = 0; i < 16; ++i) sum[i] += a[i / 4] * b[i % 4];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
for (int i = 0; i < 16; ++i) {
  const long p = pixel0 + line * 4 + i / 4;
  const int c = c0 + step * 4 + i % 4;
  if (p < pixels && c < in_width) {
    const float z = sum[i] + float(bias[group * in_width + c]);
    dx[p * in_channels + group * in_width + c] = T(activated_by(launch.kind, z, launch.activation));
  }
}
