// dx[n,h,w,c] = neuron(bias[c] + sum over taps t and the outputs o of channel c of dy[n, target(h), target(w), o] *
// w[o,t]), where each channel has `each` outputs of its own.
// A thread owns V channels of four neighbours in a row, so that it loads a weight once for four pixels.
#include "convolution/neuron.h"
#include "convolution/params.h"
#include "shared/vector_load.h"
const ConvLaunch launch = params_as<ConvLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int channels = launch.groups;
const int images = dy_shape[0], out_channels = dy_shape[3], each = out_channels / channels, lanes = channels / V;
const int w0 = thread_position_in_grid.x / lanes * 4, c = thread_position_in_grid.x % lanes * V;
const int taps = rows.size * cols.size;
const bool wide = aligned<V>(dy);

for (int h = thread_position_in_grid.y; h < rows.n_in; h += threads_per_grid.y) {
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    float sum[4 * V];
    for (int i = 0; i < 4 * V; ++i) sum[i] = float(bias[c + i % V]);
    for (int k = 0; k < cols.size; ++k) {
      int ow[4];
      for (int i = 0; i < 4; ++i) ow[i] = target(cols, w0 + i, k);
      for (int q = 0; q < rows.size; ++q) {
        const int oh = target(rows, h, q);
        if (oh < 0) continue;
        const long row = (long(n) * rows.n_out + oh) * cols.n_out;
        for (int e = 0; e < each; ++e) {
          float weight[V];
          for (int j = 0; j < V; ++j) weight[j] = float(w[(long(c + j) * each + e) * taps + q * cols.size + k]);
          #pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (ow[i] >= 0 && w0 + i < cols.n_in) {
              const Pack<T, V> g = load<V>(dy + (row + ow[i]) * out_channels + c * each + e, wide);
              for (int j = 0; j < V; ++j) sum[i * V + j] += float(g.v[j]) * weight[j];
            }
          }
        }
      }
    }
    const long to = ((long(n) * rows.n_in + h) * cols.n_in + w0) * channels + c;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (w0 + i < cols.n_in) {
        Pack<T, V> out;
        for (int j = 0; j < V; ++j) out.v[j] = T(activated_by(launch.kind, sum[i * V + j], launch.activation));
        store(dx + to + i * long(channels), out);
      }
    }
  }
}
