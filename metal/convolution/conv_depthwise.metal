// y[n,oh,ow,o] = neuron(bias[o] + sum over taps t of x[n, source(oh), source(ow), o / each] * w[o,t]), where each
// channel of x has `each` outputs of its own.
// A thread owns V output channels of four neighbours in a row, so that it loads a weight once for four pixels.
#include "convolution/neuron.h"
#include "convolution/params.h"
#include "shared/vector_load.h"
const ConvLaunch launch = params_as<ConvLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int groups = launch.groups;
const int images = x_shape[0], out_channels = bias_shape[0], each = out_channels / groups, lanes = out_channels / V;
const int ow0 = thread_position_in_grid.x / lanes * 4, o = thread_position_in_grid.x % lanes * V, c = o / each;
const int taps = rows.size * cols.size;
const bool wide = aligned<V>(x);

for (int oh = thread_position_in_grid.y; oh < rows.n_out; oh += threads_per_grid.y) {
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    float sum[4 * V];
    for (int i = 0; i < 4 * V; ++i) sum[i] = float(bias[o + i % V]);
    for (int q = 0; q < rows.size; ++q) {
      const int h = source(rows, oh, q);
      if (h < 0) continue;
      const long row = (long(n) * rows.n_in + h) * cols.n_in;
      for (int k = 0; k < cols.size; ++k) {
        float weight[V];
        for (int j = 0; j < V; ++j) weight[j] = float(w[long(o + j) * taps + q * cols.size + k]);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = source(cols, ow0 + i, k);
          if (at >= 0 && ow0 + i < cols.n_out) {
            const Pack<T, V> in = load<V>(x + (row + at) * groups + c, wide);
            for (int j = 0; j < V; ++j) sum[i * V + j] += float(in.v[j]) * weight[j];
          }
        }
      }
    }
    const long to = ((long(n) * rows.n_out + oh) * cols.n_out + ow0) * out_channels + o;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (ow0 + i < cols.n_out) {
        Pack<T, V> out;
        for (int j = 0; j < V; ++j) out.v[j] = T(activated_by(launch.kind, sum[i * V + j], launch.activation));
        store(y + to + i * long(out_channels), out);
      }
    }
  }
}
