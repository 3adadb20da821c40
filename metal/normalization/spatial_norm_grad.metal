// dx = dy * t ** -beta - factor * x * through, t = delta + share * squares, where `sums` are those of
// spatial_norm_weights over windows. A thread has two packs of V elements under way together.
#include "shared/vector_load.h"
#include "normalization/params.h"
#include "normalization/powers.h"
const SquaresNormGradLaunch launch = params_as<SquaresNormGradLaunch>(params);
const long packs = long(x_shape[0]) * x_shape[1] * x_shape[2] * x_shape[3] / V;
const float share = launch.share, beta = launch.beta, delta = launch.delta;
const float factor = launch.factor;
const bool wide_dy = aligned<V>(dy), wide = aligned<V>(x);
const bool wide_squares = aligned<V>(squares), wide_sums = aligned<V>(sums);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 2 * stride) {
  Pack<T, V> in_dy[2], in[2];
  Pack<float, V> sum[2], others[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    in_dy[i] = load<V>(dy + at, wide_dy);
    in[i] = load<V>(x + at, wide);
    sum[i] = load<V>(squares + at, wide_squares);
    others[i] = load<V>(sums + at, wide_sums);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (p + i * stride >= packs) break;
    Pack<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float direct = float(in_dy[i].v[j]) * inverse_power<Q>(delta + share * sum[i].v[j], beta).power;
      out.v[j] = T(direct - factor * float(in[i].v[j]) * others[i].v[j]);
    }
    store(dx + (p + i * stride) * V, out);
  }
}
