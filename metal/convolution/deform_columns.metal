// columns[n,oh,ow,k,c] mixes four pixels of x around the place of tap k, which places[n,oh,ow,group,k] moves, times the
// mask, or is a derivative of that. A thread owns V channels of a tap. What has no weight does not count, not even
// infinity.
#include "convolution/deform.h"
#include "shared/vector_load.h"
const DeformParams p = params_as<DeformParams>(params);
const int images = places_shape[0], height = p.rows.n_out, width = p.cols.n_out, numbers = deform_numbers(p);
const int channels = x_shape[3], lanes = channels / V, taps = p.rows.size * p.cols.size;
const int tap = thread_position_in_grid.x / lanes, ow = tap / taps, k = tap % taps;
const int c = thread_position_in_grid.x % lanes * V, group = c / (channels / p.groups);
if (ow >= width) return;
const int across = strided(p.cols, ow) + k % p.cols.size * p.cols.dilation;
const long x_image = long(p.rows.n_in) * p.cols.n_in * channels;
const bool wide = aligned<V>(x);

for (int oh = thread_position_in_grid.y; oh < height; oh += threads_per_grid.y) {
  const int down = strided(p.rows, oh) + k / p.cols.size * p.rows.dilation;
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    const long output = (long(n) * height + oh) * width + ow;
    auto place = places + ((output * p.groups + group) * taps + k) * numbers;
    const auto rows = deform_taps<float>(p.rows.n_in, float(down) + place[0], p.order_y);
    const auto cols = deform_taps<float>(p.cols.n_in, float(across) + place[1], p.order_x);
    const float mask = p.masked != 0 && p.order_mask == 0 ? place[numbers - 1] : 1;
    auto from = x + n * x_image + c;
    Pack<T, V> in[4];
    float sum[V];
    for (int j = 0; j < V; ++j) sum[j] = 0;
    #pragma unroll
    for (int q = 0; q < 4; ++q) {
      in[q] = nothing<T, V>();
      if (rows.weight[q / 2] * cols.weight[q % 2] == 0) continue;
      in[q] = load<V>(from + ((rows.first + q / 2) * p.cols.n_in + cols.first + q % 2) * channels, wide);
    }
    #pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float weight = rows.weight[q / 2] * cols.weight[q % 2];
      for (int j = 0; j < V; ++j) sum[j] += weight * float(in[q].v[j]);
    }
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(mask == 0 ? 0 : mask * sum[j]);
    store(columns + (output * taps + k) * channels + c, out);
  }
}
