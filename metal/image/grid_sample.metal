// y[n,oh,ow,c] mixes the pixels of x around the place that grid[n,oh,ow] tells, in K rows and columns, or is a derivative
// of that by the grid. A thread owns V channels of a sample. What has no weight does not count, not even infinity.
#include "image/sampling.h"
#include "shared/vector_load.h"
const GridSampleParams p = params_as<GridSampleParams>(params);
const int images = grid_shape[0], height = grid_shape[1], width = grid_shape[2];
const int channels = x_shape[3], lanes = channels / V;
const int ow = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (ow >= width) return;
const long x_image = long(p.height) * p.width * channels;
const bool wide = aligned<V>(x);

for (int oh = thread_position_in_grid.y; oh < height; oh += threads_per_grid.y) {
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    const long sample = (long(n) * height + oh) * width + ow;
    const auto rows = sample_taps<K>(p, p.height, place_of(p, p.height, grid[2 * sample + 1], oh), p.order_y);
    const auto cols = sample_taps<K>(p, p.width, place_of(p, p.width, grid[2 * sample], ow), p.order_x);
    auto from = x + n * x_image + c;
    float sum[V];
    for (int j = 0; j < V; ++j) sum[j] = 0;
    #pragma unroll
    for (int i = 0; i < K; ++i) {
      Pack<T, V> in[K];
      #pragma unroll
      for (int k = 0; k < K; ++k) {
        in[k] = nothing<T, V>();
        if (rows.weight[i] * cols.weight[k] == 0) continue;
        in[k] = load<V>(from + (rows.index[i] * p.width + cols.index[k]) * channels, wide);
      }
      #pragma unroll
      for (int k = 0; k < K; ++k) {
        for (int j = 0; j < V; ++j) sum[j] += rows.weight[i] * cols.weight[k] * float(in[k].v[j]);
      }
    }
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(sum[j]);
    store(y + sample * channels + c, out);
  }
}
