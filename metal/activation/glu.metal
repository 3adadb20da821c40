// y = v * sigmoid(g), where x is (outer, 2, half, inner) and has v and g one behind the other. A thread has four packs
// of V elements under way together.
#include "shared/vector_load.h"
#include "shared/functions.h"
#include "activation/activations.h"
const long half_size = long(x_shape[2]) * x_shape[3];
const long packs = x_shape[0] * half_size / V;
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 4 * stride) {
  Pack<T, V> v[4], g[4];
  for (int i = 0; i < 4; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V, from = at + at / half_size * half_size;
    v[i] = load<V>(x + from, wide);
    g[i] = load<V>(x + from + half_size, wide);
  }
  for (int i = 0; i < 4 && p + i * stride < packs; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(float(v[i].v[j]) * sigmoid(float(g[i].v[j])));
    store(y + (p + i * stride) * V, out);
  }
}
