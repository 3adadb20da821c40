// dx = straight * a - around * sum_a + along * sum_c, from local_contrast_norm_weights and their sums over windows. A
// thread has two packs of V elements under way together.
#include "normalization/params.h"
#include "shared/vector_load.h"
const LocalContrastGradLaunch launch = params_as<LocalContrastGradLaunch>(params);
const long packs = long(a_shape[0]) * a_shape[1] * a_shape[2] * a_shape[3] / V;
const float straight = launch.straight, around = launch.around, along = launch.along;
const bool wide = aligned<V>(a), wide_a = aligned<V>(sum_a), wide_c = aligned<V>(sum_c);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 2 * stride) {
  Pack<float, V> own[2], all_a[2], all_c[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    own[i] = load<V>(a + at, wide);
    all_a[i] = load<V>(sum_a + at, wide_a);
    all_c[i] = load<V>(sum_c + at, wide_c);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (p + i * stride >= packs) break;
    Pack<U, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      out.v[j] = U(straight * own[i].v[j] - around * all_a[i].v[j] + along * all_c[i].v[j]);
    }
    store(dx + (p + i * stride) * V, out);
  }
}
