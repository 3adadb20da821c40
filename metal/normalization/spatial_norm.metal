// y = x * t ** -beta, t = delta + share * squares, from sums of squares over windows. A thread has four packs of V
// elements under way together.
#include "shared/vector_load.h"
#include "normalization/params.h"
#include "normalization/powers.h"
const SquaresNormLaunch launch = params_as<SquaresNormLaunch>(params);
const long packs = long(x_shape[0]) * x_shape[1] * x_shape[2] * x_shape[3] / V;
const float share = launch.share, beta = launch.beta, delta = launch.delta;
const bool wide = aligned<V>(x), wide_squares = aligned<V>(squares);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 4 * stride) {
  Pack<T, V> in[4];
  Pack<float, V> sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    in[i] = load<V>(x + at, wide);
    sum[i] = load<V>(squares + at, wide_squares);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (p + i * stride >= packs) break;
    Pack<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      out.v[j] = T(float(in[i].v[j]) * inverse_power<Q>(delta + share * sum[i].v[j], beta).power);
    }
    store(y + (p + i * stride) * V, out);
  }
}
