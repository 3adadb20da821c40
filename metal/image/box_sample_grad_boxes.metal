// partial[i,5r] and what follows it is the sum over row i of box r's bins, and over channels, of dy times the derivatives
// of the bin by the numbers of the box: by its image's 0, by what it says of rows first and second, and of columns, each
// from derivatives of an order on. A threadgroup of G threads owns a row, each of them V channels of every so many bins.
#include "image/boxes.h"
#include "shared/lanes.h"
#include "shared/vector_load.h"
const BoxSampleParams<float> p = params_as<BoxSampleParams<float> >(params);
const int channels = x_shape[3], lanes = channels / V, own = thread_position_in_threadgroup.x;
const int count = boxes_shape[0];
const long lines = long(count) * p.rows;
const bool x_wide = aligned<V>(x), dy_wide = aligned<V>(dy);
threadgroup float sums[4 * G / 32];

for (long line = threadgroup_position_in_grid.x; line < lines; line += threads_per_grid.x / G) {
  const int r = line / p.rows, row = line % p.rows;
  auto box = boxes + 5 * long(r);
  const int image = image_of(p, float(box[0]));
  const Span<float> down = span_of<float>(box, 0), across = span_of<float>(box, 1);
  const int tall = samples_of(p, down), broad = samples_of(p, across);
  const SampleRange on_rows = samples_near(p, p.height, p.rows, down, row, image < 0 ? 0 : tall);
  auto from = x + long(max_int(image, 0)) * p.height * p.width * channels;
  float by[4] = {0, 0, 0, 0};
  for (long item = own; item < long(p.cols) * lanes; item += G) {
    const int col = item / lanes, c = item % lanes * V;
    const Pack<T, V> pulls = load<V>(dy + (line * p.cols + col) * channels + c, dy_wide);
    const SampleRange on_cols = samples_near(p, p.width, p.cols, across, col, broad);
    for (int s = on_rows.begin; s < on_rows.end; ++s) {
      const BoxPlace<float> y = box_place(p, p.rows, down, row, s, tall);
      const auto rows = box_weights(p, p.height, y, p.order_y, tall);
      const auto steep = box_taps(p, p.height, y.at, true, (p.order_y == 0 ? 1.0f : 0.0f) / float(tall));
      for (int t = on_cols.begin; t < on_cols.end; ++t) {
        const BoxPlace<float> place = box_place(p, p.cols, across, col, t, broad);
        const auto cols = box_weights(p, p.width, place, p.order_x, broad);
        const auto sloping = box_taps(p, p.width, place.at, true, (p.order_x == 0 ? 1.0f : 0.0f) / float(broad));
        float by_y = 0, by_x = 0;
        #pragma unroll
        for (int q = 0; q < 4; ++q) {
          const float down_weight = steep.weight[q / 2] * cols.weight[q % 2];
          const float across_weight = rows.weight[q / 2] * sloping.weight[q % 2];
          const Pack<T, V> in = load<V>(from + (rows.index[q / 2] * p.width + cols.index[q % 2]) * channels + c, x_wide);
          float product = 0;
          for (int j = 0; j < V; ++j) product += float(in.v[j]) * float(pulls.v[j]);
          if (down_weight != 0) by_y += down_weight * product;
          if (across_weight != 0) by_x += across_weight * product;
        }
        if (y.by_first != 0) by[0] += y.by_first * by_y;
        if (y.by_second != 0) by[1] += y.by_second * by_y;
        if (place.by_first != 0) by[2] += place.by_first * by_x;
        if (place.by_second != 0) by[3] += place.by_second * by_x;
      }
    }
  }
  for (int k = 0; k < 4; ++k) by[k] = sum_of_lanes(by[k]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (own % 32 == 0) {
    for (int k = 0; k < 4; ++k) sums[own / 8 + k] = by[k];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (own < 5) {
    float sum = 0;
    for (int i = 0; i < G / 32 && own > 0; ++i) sum += sums[4 * i + own - 1];
    partial[(long(row) * count + r) * 5 + own] = sum;
  }
}
