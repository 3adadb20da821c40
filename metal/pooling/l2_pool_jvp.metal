// dnorms[n,oh,ow,c] adds up t[n,h,w,c] * x[n,h,w,c] / norms[n,oh,ow,c] over the pixels (h, w) that the taps of window
// (oh, ow) read, and is 0 where the norm is 0. A thread owns V channels of one output pixel, image by image.
#include "pooling/params.h"
#include "shared/vector_load.h"
#include "shared/norms.h"
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = x_shape[0], channels = x_shape[3], lanes = channels / V;
const int ow = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (ow >= cols.n_out) return;
const long x_image = long(rows.n_in) * cols.n_in * channels, y_image = long(rows.n_out) * cols.n_out * channels;
const int left = first(cols, ow), k_begin = edge_tap_begin(cols, ow), k_end = edge_tap_end(cols, ow);
const bool wide = aligned<V>(x), wide_t = aligned<V>(t), wide_norms = aligned<V>(norms);

for (int oh = thread_position_in_grid.y; oh < rows.n_out; oh += threads_per_grid.y) {
  const int top = first(rows, oh), q_begin = edge_tap_begin(rows, oh), q_end = edge_tap_end(rows, oh);
  const bool live = selected(rows, oh) && selected(cols, ow);
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    const long at = n * y_image + (oh * cols.n_out + ow) * channels + c;
    const Pack<float, V> norm = load<V>(norms + at, wide_norms);
    float sum[V];
    for (int j = 0; j < V; ++j) sum[j] = 0;
    for (int q = q_begin; live && q < q_end; ++q) {
      const int h = onto_image(rows, top + q * rows.dilation);
      for (int k = k_begin; k < k_end; ++k) {
        const int w = onto_image(cols, left + k * cols.dilation);
        const long from = n * x_image + (h * cols.n_in + w) * channels + c;
        const Pack<T, V> in = load<V>(x + from, wide), tangent = load<V>(t + from, wide_t);
        for (int j = 0; j < V; ++j) sum[j] += through(float(in.v[j]), norm.v[j], float(tangent.v[j]));
      }
    }
    Pack<float, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = sum[j];
    store(dnorms + at, out);
  }
}
