// dx[n,h,w,c] adds up dy[n,oh,ow,c] / (N(oh) N(ow)) over all (oh, ow) with a tap on (h, w).
// A thread owns V channels of one pixel of dx and collects all that goes there, always in the same order. It takes B
// images at a time as avg_pool.metal does.
#include "pooling/params.h"
#include "shared/vector_load.h"
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int w = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (w >= cols.n_in) return;
const int ow_begin = reader_begin(cols, w), ow_end = reader_end(cols, w);
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy);

for (int h = thread_position_in_grid.y; h < rows.n_in; h += threads_per_grid.y) {
  const int oh_begin = reader_begin(rows, h), oh_end = reader_end(rows, h);
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    float sum[B * V];
    for (int j = 0; j < B * V; ++j) sum[j] = 0;
    auto from = dy + n * dy_image + c;
    for (int oh = oh_begin; oh < oh_end; ++oh) {
      if (!reads(rows, oh, h)) continue;
      for (int ow = ow_begin; ow < ow_end; ++ow) {
        if (!reads(cols, ow, w)) continue;
        const float share = 1.0f / (float(divisor(rows, oh)) * float(divisor(cols, ow)));
        const int at = (oh * cols.n_out + ow) * channels;
        Pack<T, V> in[B];
        for (int i = 0; i < B; ++i) in[i] = load<V>(from + at + (n + i < images ? i * dy_image : 0), wide);
        for (int j = 0; j < B * V; ++j) sum[j] += float(in[j / V].v[j % V]) * share;
      }
    }
    for (int i = 0; i < B && n + i < images; ++i) {
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = T(sum[i * V + j]);
      store(dx + (n + i) * dx_image + (h * cols.n_in + w) * channels + c, out);
    }
  }
}
