// The gradient of v * sigmoid(g) by both, dx, which lie one behind the other, as v and g do in x (outer, 2, half,
// inner). A thread has four packs of V elements of dy under way together.
#include "shared/vector_load.h"
#include "shared/functions.h"
#include "activation/activations.h"
const long half_size = long(x_shape[2]) * x_shape[3];
const long packs = x_shape[0] * half_size / V;
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 4 * stride) {
  Pack<T, V> u[4], v[4], g[4];
  for (int i = 0; i < 4; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V, from = at + at / half_size * half_size;
    u[i] = load<V>(dy + at, wide_dy);
    v[i] = load<V>(x + from, wide);
    g[i] = load<V>(x + from + half_size, wide);
  }
  for (int i = 0; i < 4 && p + i * stride < packs; ++i) {
    const long at = (p + i * stride) * V, to = at + at / half_size * half_size;
    Pack<T, V> by_v, by_g;
    for (int j = 0; j < V; ++j) {
      const float gate = float(g[i].v[j]), passed_on = float(u[i].v[j]);
      by_v.v[j] = T(passed_on * sigmoid(gate));
      by_g.v[j] = T(passed_on * float(v[i].v[j]) * sigmoid_slope(gate));
    }
    store(dx + to, by_v);
    store(dx + to + half_size, by_g);
  }
}
