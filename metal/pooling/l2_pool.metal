// norms[n,oh,ow,c] is the root of the sum of squares that the taps of window (oh, ow) read in x.
// A thread owns V channels of one output pixel, image by image, and has U taps of a row under way at a time. Where
// squares left float's range it goes over the window once more with scaled values.
#include "pooling/params.h"
#include "shared/vector_load.h"
#include "shared/norms.h"
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = x_shape[0], channels = x_shape[3], lanes = channels / V;
const int ow = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (ow >= cols.n_out) return;
const long x_image = long(rows.n_in) * cols.n_in * channels, y_image = long(rows.n_out) * cols.n_out * channels;
const int left = first(cols, ow), k_begin = edge_tap_begin(cols, ow), k_end = edge_tap_end(cols, ow);
const bool wide = aligned<V>(x);

for (int oh = thread_position_in_grid.y; oh < rows.n_out; oh += threads_per_grid.y) {
  const int top = first(rows, oh), q_begin = edge_tap_begin(rows, oh), q_end = edge_tap_end(rows, oh);
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    auto from = x + n * x_image + c;
    float scale[V], sum[V];
    for (int j = 0; j < V; ++j) scale[j] = 1;
    bool again = true;
    while (again) {
      for (int j = 0; j < V; ++j) sum[j] = 0;
      for (int q = q_begin; q < q_end; ++q) {
        const int h = onto_image(rows, top + q * rows.dilation);
        for (int k = k_begin; k < k_end; k += U) {
          Pack<T, V> in[U];
          #pragma unroll
          for (int i = 0; i < U; ++i) {
            const int w = onto_image(cols, left + (k + i) * cols.dilation);
            in[i] = nothing<T, V>();
            if (k + i < k_end) in[i] = load<V>(from + (h * cols.n_in + w) * channels, wide);
          }
          #pragma unroll
          for (int i = 0; i < U * V; ++i) {
            const float value = float(in[i / V].v[i % V]) * scale[i % V];
            sum[i % V] += value * value;
          }
        }
      }
      again = false;
      for (int j = 0; j < V; ++j) {
        if (scale[j] == 1 && square_scale(sum[j]) != 1) {
          scale[j] = square_scale(sum[j]);
          again = true;
        }
      }
    }
    Pack<float, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = sqrt(sum[j]) / scale[j];
    store(norms + n * y_image + (oh * cols.n_out + ow) * channels + c, out);
  }
}
