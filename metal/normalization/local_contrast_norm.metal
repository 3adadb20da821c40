// y = pm + ps * (x - p0 * M) * t ** -beta, t = delta + alpha * variance, from moments over windows whose places outside
// the image are zeros that count. A thread owns V channels of some pixels.
#include "normalization/params.h"
#include "normalization/powers.h"
#include "shared/moments.h"
#include "shared/vector_load.h"
const LocalContrastLaunch launch = params_as<LocalContrastLaunch>(params);
const int before = launch.before, after = launch.after, height = x_shape[1], width = x_shape[2], channels = x_shape[3];
const int lanes = channels / V, column = thread_position_in_grid.x / lanes;
if (column >= width) return;
const float area = launch.area, alpha = launch.alpha, beta = launch.beta;
const float delta = launch.delta, p0 = launch.p0;
const float pm = launch.pm, ps = launch.ps;
const bool wide = aligned<V>(x), wide_mean = aligned<V>(mean), wide_m2 = aligned<V>(m2);
const int across = min_int(width, column + after + 1) - max_int(0, column - before);
for (long i = thread_position_in_grid.z; i < x_shape[0]; i += threads_per_grid.z) {
  for (int row = thread_position_in_grid.y; row < height; row += threads_per_grid.y) {
    const int down = min_int(height, row + after + 1) - max_int(0, row - before);
    const long at = ((i * height + row) * width) * channels + long(thread_position_in_grid.x) * V;
    const Pack<T, V> in = load<V>(x + at, wide);
    const Pack<float, V> near = load<V>(mean + at, wide_mean), spread = load<V>(m2 + at, wide_m2);
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      const float value = float(in.v[j]);
      const Contrast here = contrast(value, near.v[j], spread.v[j], float(across) * down, area);
      const float power = inverse_power<Q>(delta + alpha * here.variance, beta).power;
      out.v[j] = T(pm + ps * ((1 - p0) * value - p0 * here.mean) * power);
    }
    store(y + at, out);
  }
}
