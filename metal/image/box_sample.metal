// y[r,i,j,c] adds up the samples of bin (i, j) of box r, each mixed from two rows and two columns of its image by their
// weights, or is a derivative of that by the box; where no sample is inside, what is outside. A thread owns V channels
// of a column of bins. K is how many samples a bin has along an axis, 0 if the parameters or the box say so. What has no
// weight does not count, not even infinity.
#include "image/boxes.h"
#include "shared/vector_load.h"
const BoxSampleParams<float> p = params_as<BoxSampleParams<float> >(params);
const int count = boxes_shape[0], channels = x_shape[3], lanes = channels / V;
const int col = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (col >= p.cols) return;
const bool wide = aligned<V>(x);

for (int r = thread_position_in_grid.z; r < count; r += threads_per_grid.z) {
  auto box = boxes + 5 * long(r);
  const int image = image_of(p, float(box[0]));
  const Span<float> down = span_of<float>(box, 0), across = span_of<float>(box, 1);
  const int tall = K > 0 ? K : samples_of(p, down), broad = K > 0 ? K : samples_of(p, across);
  SampleRange on_cols = samples_near(p, p.width, p.cols, across, col, broad);
  if (K > 0) on_cols.end = K;
  auto from = x + long(max_int(image, 0)) * p.height * p.width * channels + c;
  for (int row = thread_position_in_grid.y; row < p.rows; row += threads_per_grid.y) {
    SampleRange on_rows = samples_near(p, p.height, p.rows, down, row, tall);
    if (K > 0) on_rows.end = K;
    if (image < 0) on_rows.end = 0;
    bool any = false;
    float sum[V];
    for (int j = 0; j < V; ++j) sum[j] = 0;
    for (int s = on_rows.begin; s < on_rows.end; ++s) {
      const auto rows = box_weights(p, p.height, box_place(p, p.rows, down, row, s, tall), p.order_y, tall);
      if (!rows.inside) continue;
      for (int t = on_cols.begin; t < on_cols.end; ++t) {
        const auto cols = box_weights(p, p.width, box_place(p, p.cols, across, col, t, broad), p.order_x, broad);
        if (!cols.inside) continue;
        any = true;
        Pack<T, V> in[4];
        #pragma unroll
        for (int q = 0; q < 4; ++q) {
          in[q] = nothing<T, V>();
          if (rows.weight[q / 2] * cols.weight[q % 2] == 0) continue;
          in[q] = load<V>(from + (rows.index[q / 2] * p.width + cols.index[q % 2]) * channels, wide);
        }
        #pragma unroll
        for (int q = 0; q < 4; ++q) {
          for (int j = 0; j < V; ++j) sum[j] += rows.weight[q / 2] * cols.weight[q % 2] * float(in[q].v[j]);
        }
      }
    }
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(any ? sum[j] : p.outside);
    store(y + ((long(r) * p.rows + row) * p.cols + col) * channels + c, out);
  }
}
