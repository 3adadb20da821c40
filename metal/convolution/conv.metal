// y[n,oh,ow,o] = neuron(bias[o] + sum over taps t and channels c of x[n, source(oh), source(ow), c] * w[o,t,c]), a
// group at a time.
// A matrix product that is never laid out: 64 pixels by 64 output channels a threadgroup, 4 by 4 a thread, and 16
// steps of the sum over (tap, channel) at a time through threadgroup memory.
#include "convolution/neuron.h"
#include "convolution/params.h"
const ConvLaunch launch = params_as<ConvLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int groups = launch.groups;
const int in_channels = x_shape[3], out_channels = bias_shape[0];
const int in_width = in_channels / groups, out_width = out_channels / groups;
const int taps = rows.size * cols.size, depth = taps * in_width;
const int group = threadgroup_position_in_grid.z;
const long pixels = long(x_shape[0]) * rows.n_out * cols.n_out;
const long pixel0 = long(threadgroup_position_in_grid.x) * 64;
const int o0 = int(threadgroup_position_in_grid.y) * 64;
const int thread_id = thread_position_in_threadgroup.x;
const int step = thread_id % 16, line = thread_id / 16;  // what this thread loads, and which 4 by 4 it sums
threadgroup float left[16 * 64], right[16 * 64];

int oh[4], ow[4];
long image[4];
for (int i = 0; i < 4; ++i) {
  const long p = pixel0 + line + 16 * i;
  ow[i] = p % cols.n_out;
  oh[i] = p / cols.n_out % rows.n_out;
  image[i] = p < pixels ? p / cols.n_out / rows.n_out : -1;
}
float sum[16];
for (int i = 0; i < 16; ++i) sum[i] = 0;

for (int k0 = 0; k0 < depth; k0 += 16) {
  const int k = k0 + step, tap = k / in_width, c = k % in_width;
  for (int i = 0; i < 4; ++i) {
    const int h = source(rows, oh[i], tap / cols.size), w_in = source(cols, ow[i], tap % cols.size);
    const bool inside = k < depth && image[i] >= 0 && h >= 0 && w_in >= 0;
    const long at = ((image[i] * rows.n_in + h) * cols.n_in + w_in) * in_channels + group * in_width + c;
    left[step * 64 + line + 16 * i] = inside ? float(x[at]) : 0.0f;
    const int o = o0 + line + 16 * i;
    const long weight = long(group * out_width + o) * depth + k;
    right[step * 64 + line + 16 * i] = k < depth && o < out_width ? float(w[weight]) : 0.0f;
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
  const int o = o0 + step * 4 + i % 4;
  if (p < pixels && o < out_width) {
    const float z = sum[i] + float(bias[group * out_width + o]);
    y[p * out_channels + group * out_width + o] = T(activated_by(launch.kind, z, launch.activation));
  }
}
