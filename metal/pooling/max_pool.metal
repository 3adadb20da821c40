// y[n,oh,ow,c] is the largest value that a tap of window (oh, ow) reads, and winners[n,oh,ow,c] the number of the first
// tap that reads it; all ones where a zero of the padding is larger. A NaN is larger than any number.
// A thread owns V channels of one output pixel, image by image, and has U taps of a row under way at a time.
#include "pooling/params.h"
#include "shared/vector_load.h"
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
  const bool over = hangs_over(rows, oh) || hangs_over(cols, ow);
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    Pack<T, V> best;
    int winner[V];
    for (int j = 0; j < V; ++j) {
      best.v[j] = T(0);
      winner[j] = -1;
    }
    auto from = x + n * x_image + c;
    for (int q = q_begin; q < q_end; ++q) {
      const int h = onto_image(rows, top + q * rows.dilation);
      for (int k = k_begin; k < k_end; k += U) {
        Pack<T, V> in[U];
        #pragma unroll
        for (int i = 0; i < U; ++i) {
          const int w = onto_image(cols, left + (k + i) * cols.dilation);
          in[i] = load<V>(from + (h * cols.n_in + w) * channels, wide);
        }
        #pragma unroll
        for (int i = 0; i < U; ++i) {
          for (int j = 0; k + i < k_end && j < V; ++j) {
            if (winner[j] < 0 || (!(in[i].v[j] <= best.v[j]) && best.v[j] == best.v[j])) {
              best.v[j] = in[i].v[j];
              winner[j] = q * cols.size + k + i;
            }
          }
        }
      }
    }
    Pack<W, V> codes;
    for (int j = 0; j < V; ++j) {
      if (over && best.v[j] < T(0)) {
        best.v[j] = T(0);
        winner[j] = -1;
      }
      codes.v[j] = W(winner[j]);
    }
    const long at = n * y_image + (oh * cols.n_out + ow) * channels + c;
    store(y + at, best);
    store(winners + at, codes);
  }
}
