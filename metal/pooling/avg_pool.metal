// y[n,oh,ow,c] = S / (N(oh) N(ow)), where S adds x up at those taps of (oh, ow) that hit the image.
// A thread owns V channels of one output pixel and takes B images at a time, so that geometry is worked out once, and U
// taps of a row: B * U loads are under way together. Results are of type O.
#include "pooling/params.h"
#include "shared/vector_load.h"
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = x_shape[0], channels = x_shape[3], lanes = channels / V;
const int ow = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (ow >= cols.n_out) return;
const int left = first(cols, ow), k_begin = tap_begin(cols, ow), k_end = tap_end(cols, ow);
const long x_image = long(rows.n_in) * cols.n_in * channels, y_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(x);

for (int oh = thread_position_in_grid.y; oh < rows.n_out; oh += threads_per_grid.y) {
  const int top = first(rows, oh), q_begin = tap_begin(rows, oh), q_end = tap_end(rows, oh);
  const bool live = selected(rows, oh) && selected(cols, ow);
  const float count = float(divisor(rows, oh)) * float(divisor(cols, ow));
  const float share = count > 0 ? 1.0f / count : 0.0f;
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    float sum[B * V];
    for (int j = 0; j < B * V; ++j) sum[j] = 0;
    auto from = x + n * x_image + c;
    for (int q = q_begin; live && q < q_end; ++q) {
      for (int k = k_begin; k < k_end; k += U) {
        const int at = ((top + q * rows.dilation) * cols.n_in + left + k * cols.dilation) * channels;
        Pack<T, V> in[B * U];
        #pragma unroll
        for (int i = 0; i < B * U; ++i) {
          in[i] = nothing<T, V>();
          if (k + i % U < k_end && n + i / U < images) {
            in[i] = load<V>(from + i / U * x_image + at + i % U * cols.dilation * channels, wide);
          }
        }
        #pragma unroll
        for (int i = 0; i < B * U * V; ++i) sum[i / (U * V) * V + i % V] += float(in[i / V].v[i % V]);
      }
    }
    for (int i = 0; i < B && n + i < images; ++i) {
      Pack<O, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = O(sum[i * V + j] * share);
      store(y + (n + i) * y_image + (oh * cols.n_out + ow) * channels + c, out);
    }
  }
}
