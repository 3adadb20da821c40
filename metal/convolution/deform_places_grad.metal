// dplaces[n,oh,ow,group,k] is the sum over the group's channels of dcolumns times the derivative of the sample by y, by
// x, and by the mask where there is one, from derivatives of an order on. R threads of a simdgroup share a sample.
#include "convolution/deform.h"
#include "shared/vector_load.h"
const DeformParams p = params_as<DeformParams>(params);
const int height = p.rows.n_out, width = p.cols.n_out, numbers = deform_numbers(p);
const int taps = p.rows.size * p.cols.size, channels = x_shape[3], in_group = channels / p.groups;
const long of_image = long(height) * width * p.groups * taps, samples = places_shape[0] * of_image;
const long x_image = long(p.rows.n_in) * p.cols.n_in * channels;
const int lane = thread_position_in_grid.x % R;
const bool by_masks = p.masked != 0 && p.order_mask == 0;
const bool x_wide = aligned<V>(x), wide = aligned<V>(dcolumns);

// As often for all threads, which meet in the shuffles.
for (long some = 0; some < samples; some += threads_per_grid.x / R) {
  const long sample = some + thread_position_in_grid.x / R;
  float by_y = 0, by_x = 0, by_mask = 0, mask = 1;
  if (sample < samples) {
    const int k = sample % taps, group = sample / taps % p.groups;
    const long output = sample / (long(taps) * p.groups);
    const int ow = output % width, oh = output / width % height;
    auto place = places + sample * numbers;
    const float down = float(strided(p.rows, oh) + k / p.cols.size * p.rows.dilation) + place[0];
    const float right = float(strided(p.cols, ow) + k % p.cols.size * p.cols.dilation) + place[1];
    const auto rows = deform_taps<float>(p.rows.n_in, down, p.order_y), steep = deform_taps<float>(p.rows.n_in, down, p.order_y + 1);
    const auto cols = deform_taps<float>(p.cols.n_in, right, p.order_x);
    const auto sloping = deform_taps<float>(p.cols.n_in, right, p.order_x + 1);
    mask = p.masked != 0 && p.order_mask == 0 ? place[numbers - 1] : 1;
    auto from = x + sample / of_image * x_image + group * in_group;
    auto pulls_from = dcolumns + (output * taps + k) * channels + group * in_group;
    float products[4];
    for (int q = 0; q < 4; ++q) products[q] = 0;
    for (int c = lane * V; c < in_group; c += R * V) {
      const Pack<T, V> pulls = load<V>(pulls_from + c, wide);
      #pragma unroll
      for (int q = 0; q < 4; ++q) {
        const bool by_places = steep.weight[q / 2] * cols.weight[q % 2] != 0 || rows.weight[q / 2] * sloping.weight[q % 2] != 0;
        if (!by_places && (!by_masks || rows.weight[q / 2] * cols.weight[q % 2] == 0)) continue;
        const Pack<T, V> in = load<V>(from + ((rows.first + q / 2) * p.cols.n_in + cols.first + q % 2) * channels + c, x_wide);
        for (int j = 0; j < V; ++j) products[q] += float(in.v[j]) * float(pulls.v[j]);
      }
    }
    #pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float weight_y = steep.weight[q / 2] * cols.weight[q % 2];
      const float weight_x = rows.weight[q / 2] * sloping.weight[q % 2];
      const float weight_mask = rows.weight[q / 2] * cols.weight[q % 2];
      if (weight_y != 0) by_y += weight_y * products[q];
      if (weight_x != 0) by_x += weight_x * products[q];
      if (by_masks && weight_mask != 0) by_mask += weight_mask * products[q];
    }
  }
  for (int m = R / 2; m > 0; m /= 2) {
    by_y += simd_shuffle_xor(by_y, m);
    by_x += simd_shuffle_xor(by_x, m);
    by_mask += simd_shuffle_xor(by_mask, m);
  }
  if (lane == 0 && sample < samples) {
    dplaces[sample * numbers] = mask == 0 ? 0 : mask * by_y;
    dplaces[sample * numbers + 1] = mask == 0 ? 0 : mask * by_x;
    if (p.masked != 0) dplaces[sample * numbers + 2] = by_mask;
  }
}
