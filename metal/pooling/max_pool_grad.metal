// dx[n,h,w,c] adds up dy[n,oh,ow,c] over all (oh, ow) whose window the pixel (h, w) won, always in the same order.
// A thread owns V channels of one pixel of dx, image by image.
#include "pooling/params.h"
#include "shared/vector_load.h"
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int w = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (w >= cols.n_in) return;
const int ow_begin = edge_reader_begin(cols, w), ow_end = edge_reader_end(cols, w);
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy), wide_winners = aligned<V>(winners);

for (int h = thread_position_in_grid.y; h < rows.n_in; h += threads_per_grid.y) {
  const int oh_begin = edge_reader_begin(rows, h), oh_end = edge_reader_end(rows, h);
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    float sum[V];
    for (int j = 0; j < V; ++j) sum[j] = 0;
    for (int oh = oh_begin; oh < oh_end; ++oh) {
      const int q = edge_tap(rows, oh, h);
      if (q < 0) continue;
      for (int ow = ow_begin; ow < ow_end; ++ow) {
        const int k = edge_tap(cols, ow, w);
        if (k < 0) continue;
        const long at = n * dy_image + (oh * cols.n_out + ow) * channels + c;
        const Pack<T, V> in = load<V>(dy + at, wide);
        const Pack<W, V> codes = load<V>(winners + at, wide_winners);
        for (int j = 0; j < V; ++j) sum[j] += codes.v[j] == W(q * cols.size + k) ? float(in.v[j]) : 0.0f;
      }
    }
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(sum[j]);
    store(dx + n * dx_image + (h * cols.n_in + w) * channels + c, out);
  }
}
