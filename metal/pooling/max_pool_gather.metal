// y[n,oh,ow,c] is what the winning tap of window (oh, ow) reads in x, which need not be the image it won in; 0 where no
// tap won. A thread owns V channels of one output pixel, image by image.
#include "pooling/params.h"
#include "shared/vector_load.h"
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = x_shape[0], channels = x_shape[3], lanes = channels / V;
const int ow = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (ow >= cols.n_out) return;
const long x_image = long(rows.n_in) * cols.n_in * channels, y_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(winners);
const uint taps = rows.size * cols.size;

for (int oh = thread_position_in_grid.y; oh < rows.n_out; oh += threads_per_grid.y) {
  const bool live = selected(rows, oh) && selected(cols, ow);
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    const long at = n * y_image + (oh * cols.n_out + ow) * channels + c;
    const Pack<W, V> codes = load<V>(winners + at, wide);
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      int h = -1, w = -1;
      if (live && codes.v[j] < taps) {  // a state may hold anything
        const int q = codes.v[j] / cols.size, k = codes.v[j] % cols.size;
        h = edge_source(rows, oh, q);
        w = edge_source(cols, ow, k);
        if (h < 0 || w < 0 || edge_tap(rows, oh, h) != q || edge_tap(cols, ow, w) != k) h = -1;
      }
      out.v[j] = T(0);
      if (h >= 0 && w >= 0) out.v[j] = x[n * x_image + (h * cols.n_in + w) * channels + c + j];
    }
    store(y + at, out);
  }
}
