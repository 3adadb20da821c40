// What the gradient of local_contrast_norm adds up over windows: a = dy * t ** -beta, b = dy * (x - p0 * M) * t ** (-beta -
// 1), and c = b * (M - x). A thread owns V channels of some pixels.
#include "normalization/params.h"
#include "normalization/powers.h"
#include "shared/moments.h"
#include "shared/vector_load.h"
const LocalContrastWeightsLaunch launch = params_as<LocalContrastWeightsLaunch>(params);
const int before = launch.before, after = launch.after, height = x_shape[1], width = x_shape[2], channels = x_shape[3];
const int lanes = channels / V, column = thread_position_in_grid.x / lanes;
if (column >= width) return;
const float area = launch.area, alpha = launch.alpha, beta = launch.beta;
const float delta = launch.delta, p0 = launch.p0;
const bool wide_dy = aligned<V>(dy), wide = aligned<V>(x), wide_mean = aligned<V>(mean), wide_m2 = aligned<V>(m2);
const int across = min_int(width, column + after + 1) - max_int(0, column - before);
for (long i = thread_position_in_grid.z; i < x_shape[0]; i += threads_per_grid.z) {
  for (int row = thread_position_in_grid.y; row < height; row += threads_per_grid.y) {
    const int down = min_int(height, row + after + 1) - max_int(0, row - before);
    const long at = ((i * height + row) * width) * channels + long(thread_position_in_grid.x) * V;
    const Pack<T, V> in_dy = load<V>(dy + at, wide_dy), in = load<V>(x + at, wide);
    const Pack<float, V> near = load<V>(mean + at, wide_mean), spread = load<V>(m2 + at, wide_m2);
    Pack<float, V> out_a, out_b, out_c;
    for (int j = 0; j < V; ++j) {
      const float value = float(in.v[j]);
      const Contrast here = contrast(value, near.v[j], spread.v[j], float(across) * down, area);
      const Inverse by = inverse_power<Q>(delta + alpha * here.variance, beta);
      out_a.v[j] = float(in_dy.v[j]) * by.power;
      out_b.v[j] = out_a.v[j] * ((1 - p0) * value - p0 * here.mean) * by.once;
      out_c.v[j] = out_b.v[j] * here.mean;
    }
    store(a + at, out_a);
    store(b + at, out_b);
    store(c + at, out_c);
  }
}
