// y = x * (delta + alpha / K * sum of x^2 over K channels) ** -beta, for a window of few channels: [c - K / 2, c + (K -
// 1) / 2]. A thread owns V channels and every grid-th pixel, and has two of them under way together; neighbours come in
// packs, which the threads beside it have loaded too.
#include "shared/vector_load.h"
#include "normalization/params.h"
#include "normalization/powers.h"
const SquaresNormLaunch launch = params_as<SquaresNormLaunch>(params);
const int channels = x_shape[3], lanes = channels / V;
const long pixels = long(x_shape[0]) * x_shape[1] * x_shape[2];
const float share = launch.share, beta = launch.beta, delta = launch.delta;
const int lane = thread_position_in_grid.x;
if (lane >= lanes) return;
const int before = (K / 2 + V - 1) / V, packs = before + 1 + ((K - 1) / 2 + V - 1) / V;
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.y;
for (long p = thread_position_in_grid.y; p < pixels; p += 2 * stride) {
  Staged<T, V> in[2 * packs];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const long first = (p + i * stride < pixels ? p + i * stride : p) * channels;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const int from = lane - before + k;
      in[i * packs + k] = from >= 0 && from < lanes ? hold<V>(x + first + from * V, wide) : none_held<T, V>();
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (p + i * stride >= pixels) break;
    float squares[packs * V];
#pragma unroll
    for (int k = 0; k < packs * V; ++k) {
      const float value = staged_value(in[i * packs + k / V], k % V);
      squares[k] = value * value;
    }
    Pack<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < K; ++k) sum += squares[before * V - K / 2 + j + k];
      out.v[j] = T(staged_value(in[i * packs + before], j) * inverse_power<Q>(delta + share * sum, beta).power);
    }
    store(y + (p + i * stride) * channels + lane * V, out);
  }
}
