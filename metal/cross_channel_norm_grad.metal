// The gradient of cross_channel_norm for a window of few channels: dy * t ** -beta less 2 alpha beta / K * x * sum of
// dy * x * t ** (-beta - 1) over the channels whose windows hold this one, [c - (K - 1) / 2, c + K / 2].
// A thread owns O packs of V channels and every grid-th pixel; what its neighbours need too it works out again.
const int channels = x_shape[3], lanes = channels / V;
const long pixels = long(x_shape[0]) * x_shape[1] * x_shape[2];
const float share = as_type<float>(params[0]), beta = as_type<float>(params[1]), delta = as_type<float>(params[2]);
const float factor = as_type<float>(params[3]);
const int lane = thread_position_in_grid.x * O;  // the first
if (lane >= lanes) return;
const int beside = (K - 1 + V - 1) / V, packs = beside + O + beside;  // of x, for the windows of all that are read
const int own = beside * V, low = own - (K - 1) / 2, many = O * V + K - 1;  // where windows hold one of its channels
const bool wide = aligned<V>(x) && aligned<V>(dy);
const long stride = threads_per_grid.y;
for (long p = thread_position_in_grid.y; p < pixels; p += stride) {
  Pack<T, V> in[packs], in_dy[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int from = lane - beside + k;
    const bool inside = from >= 0 && from < lanes;
    in[k] = inside ? load<V>(x + p * channels + from * V, wide) : nothing<T, V>();
    const bool read = (k + 1) * V > low && k * V < low + many;
    in_dy[k] = inside && read ? load<V>(dy + p * channels + from * V, wide) : nothing<T, V>();
  }
  float squares[packs * V], weights[many], powers[O * V];
#pragma unroll
  for (int k = 0; k < packs * V; ++k) {
    const float value = float(in[k / V].v[k % V]);
    squares[k] = value * value;
  }
#pragma unroll
  for (int k = 0; k < many; ++k) {
    const int at = low + k, c = (lane - beside) * V + at;
    float sum = 0;
#pragma unroll
    for (int q = 0; q < K; ++q) sum += squares[at - K / 2 + q];
    const Inverse by = inverse_power<Q>(delta + share * sum, beta);
    const float product = float(in_dy[at / V].v[at % V]) * float(in[at / V].v[at % V]);
    weights[k] = c >= 0 && c < channels ? product * by.power * by.once : 0.0f;
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
      const float through = float(in_dy[beside + o].v[j]) * powers[o * V + j];
      out.v[j] = T(through - factor * float(in[beside + o].v[j]) * sum);
    }
    store(dx + p * channels + (lane + o) * V, out);
  }
}
