// dgrid[n,oh,ow] is the sum over channels of dy times the derivative of the sample by x, and by y, from derivatives of an
// order on. R threads of a simdgroup share a sample, which reads K rows and columns of x.
#include "image/sampling.h"
#include "shared/vector_load.h"
const GridSampleParams p = params_as<GridSampleParams>(params);
const int height = grid_shape[1], width = grid_shape[2], channels = x_shape[3];
const long samples = long(grid_shape[0]) * height * width, x_image = long(p.height) * p.width * channels;
const int lane = thread_position_in_grid.x % R;
const bool x_wide = aligned<V>(x), dy_wide = aligned<V>(dy);

// As often for all threads, which meet in the shuffles.
for (long first = 0; first < samples; first += threads_per_grid.x / R) {
  const long sample = first + thread_position_in_grid.x / R;
  float by_x = 0, by_y = 0;
  if (sample < samples) {
    const int ow = sample % width, oh = sample / width % height;
    const Place<float> down = place_of(p, p.height, grid[2 * sample + 1], oh);
    const Place<float> across = place_of(p, p.width, grid[2 * sample], ow);
    const auto rows = sample_taps<K>(p, p.height, down, p.order_y), steep = sample_taps<K>(p, p.height, down, p.order_y + 1);
    const auto cols = sample_taps<K>(p, p.width, across, p.order_x);
    const auto sloping = sample_taps<K>(p, p.width, across, p.order_x + 1);
    auto from = x + sample / (long(height) * width) * x_image;
    float products[K * K];
    for (int q = 0; q < K * K; ++q) products[q] = 0;
    for (int c = lane * V; c < channels; c += R * V) {
      const Pack<T, V> pulls = load<V>(dy + sample * channels + c, dy_wide);
      #pragma unroll
      for (int q = 0; q < K * K; ++q) {
        const int i = q / K, k = q % K;
        if (rows.weight[i] * sloping.weight[k] == 0 && steep.weight[i] * cols.weight[k] == 0) continue;
        const Pack<T, V> in = load<V>(from + (rows.index[i] * p.width + cols.index[k]) * channels + c, x_wide);
        for (int j = 0; j < V; ++j) products[q] += float(in.v[j]) * float(pulls.v[j]);
      }
    }
    #pragma unroll
    for (int q = 0; q < K * K; ++q) {
      const float weight_x = rows.weight[q / K] * sloping.weight[q % K];
      const float weight_y = steep.weight[q / K] * cols.weight[q % K];
      if (weight_x != 0) by_x += weight_x * products[q];
      if (weight_y != 0) by_y += weight_y * products[q];
    }
  }
  for (int m = R / 2; m > 0; m /= 2) {
    by_x += simd_shuffle_xor(by_x, m);
    by_y += simd_shuffle_xor(by_y, m);
  }
  if (lane == 0 && sample < samples) {
    dgrid[2 * sample] = by_x;
    dgrid[2 * sample + 1] = by_y;
  }
}
