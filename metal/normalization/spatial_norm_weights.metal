// dy * x * t ** (-beta - 1), t = delta + share * squares: what the gradient of spatial_norm adds up over windows. A thread
// has two packs of V elements under way together.
#include "shared/vector_load.h"
#include "normalization/params.h"
#include "normalization/powers.h"
const SquaresNormLaunch launch = params_as<SquaresNormLaunch>(params);
const long packs = long(x_shape[0]) * x_shape[1] * x_shape[2] * x_shape[3] / V;
const float share = launch.share, beta = launch.beta, delta = launch.delta;
const bool wide_dy = aligned<V>(dy), wide = aligned<V>(x), wide_squares = aligned<V>(squares);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 2 * stride) {
  Pack<T, V> in_dy[2], in[2];
  Pack<float, V> sum[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    in_dy[i] = load<V>(dy + at, wide_dy);
    in[i] = load<V>(x + at, wide);
    sum[i] = load<V>(squares + at, wide_squares);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (p + i * stride >= packs) break;
    Pack<float, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const Inverse by = inverse_power<Q>(delta + share * sum[i].v[j], beta);
      out.v[j] = float(in_dy[i].v[j]) * float(in[i].v[j]) * by.power * by.once;
    }
    store(weights + (p + i * stride) * V, out);
  }
}
