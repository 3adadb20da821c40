// y[n,oh,ow,c] = x[n,rows[oh],cols[ow],c], bit by bit; the filling where one of the two is negative.
// A thread owns V channels of one output pixel and has B images under way together.
#include "image/params.h"
#include "shared/vector_load.h"
const GatherPixelsLaunch p = params_as<GatherPixelsLaunch>(params);
const int height = p.height, width = p.width;
const int images = x_shape[0], n_rows = x_shape[1], n_cols = x_shape[2], channels = x_shape[3], lanes = channels / V;
const int ow = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (ow >= width) return;
const int w = int(cols[ow]);
const long x_image = long(n_rows) * n_cols * channels, y_image = long(height) * width * channels;
const bool wide = aligned<V>(x);

for (int oh = thread_position_in_grid.y; oh < height; oh += threads_per_grid.y) {
  const int h = int(rows[oh]);
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    Pack<T, V> out[B];
    if (h < 0 || w < 0) {
      const Pack<T, 1> value = load<1>(filling, false);
      for (int j = 0; j < B * V; ++j) out[j / V].v[j % V] = value.v[0];
    } else {
      const int at = (h * n_cols + w) * channels + c;
      for (int i = 0; i < B; ++i) out[i] = load<V>(x + (n + i < images ? n + i : n) * x_image + at, wide);
    }
    for (int i = 0; i < B && n + i < images; ++i) {
      store(y + (n + i) * y_image + (oh * width + ow) * channels + c, out[i]);
    }
  }
}
