// The gradient of cross_channel_norm for a window of few channels: dy * t ** -beta less 2 alpha beta / K * x * sum of
// dy * x * t ** (-beta - 1) over the channels whose windows hold this one, [c - (K - 1) / 2, c + K / 2].
// A thread owns O packs of V channels, all of them there, and every grid-th pixel; what its neighbours need too it works
// out again.
#include "shared/vector_load.h"
#include "normalization/params.h"
#include "normalization/powers.h"
const SquaresNormGradLaunch launch = params_as<SquaresNormGradLaunch>(params);
const int channels = x_shape[3], lanes = channels / V;
const long pixels = long(x_shape[0]) * x_shape[1] * x_shape[2];
const float share = launch.share, beta = launch.beta, delta = launch.delta;
const float factor = launch.factor;
const int lane = thread_position_in_grid.x * O;  // the first
if (lane >= lanes) return;
const int beside = (K - 1 + V - 1) / V, packs = beside + O + beside;  // of x, for the windows of all that are read
const int own = beside * V, low = own - (K - 1) / 2, many = O * V + K - 1;  // where windows hold one of its channels
const bool wide = aligned<V>(x) && aligned<V>(dy);
const long stride = threads_per_grid.y;
for (long p = thread_position_in_grid.y; p < pixels; p += stride) {
  Staged<T, V> in[packs], in_dy[packs];
  bool there[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int from = lane - beside + k;
    there[k] = (k >= beside && k < beside + O) || (from >= 0 && from < lanes);
    in[k] = there[k] ? hold<V>(x + p * channels + from * V, wide) : none_held<T, V>();
    const bool read = (k + 1) * V > low && k * V < low + many;
    in_dy[k] = there[k] && read ? hold<V>(dy + p * channels + from * V, wide) : none_held<T, V>();
  }
  float squares[packs * V], weights[many], powers[O * V];
#pragma unroll
  for (int k = 0; k < packs * V; ++k) {
    const float value = staged_value(in[k / V], k % V);
    squares[k] = value * value;
  }
#pragma unroll
  for (int k = 0; k < many; ++k) {
    const int at = low + k;
    float sum = 0;
#pragma unroll
    for (int q = 0; q < K; ++q) sum += squares[at - K / 2 + q];
    const Inverse by = inverse_power<Q>(delta + share * sum, beta);
    const float product = staged_value(in_dy[at / V], at % V) * staged_value(in[at / V], at % V);
    weights[k] = there[at / V] ? product * by.power * by.once : 0.0f;
    if (at >= own && at < own + O * V) powers[at - own] = by.power;
  }
#pragma unroll
  for (int o = 0; o < O; ++o) {
    Pack<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float sum = 0;
#pragma unroll
      for (int q = 0; q < K; ++q) sum += weights[o * V + j + q];
      const float through = staged_value(in_dy[beside + o], j) * powers[o * V + j];
      out.v[j] = T(through - factor * staged_value(in[beside + o], j) * sum);
    }
    store(dx + p * channels + (lane + o) * V, out);
  }
}
