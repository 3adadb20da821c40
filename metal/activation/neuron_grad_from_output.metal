// dz = dy * f'(x) for a relu, told from y = f(x); its parameters are params. A thread has four packs of V
// elements under way together.
#include "shared/vector_load.h"
#include "shared/functions.h"
#include "activation/activations.h"
#include "activation/params.h"
long size = 1;
for (int axis = 0; axis < dy_ndim; ++axis) size *= dy_shape[axis];
const long packs = size / V;
const ActivationParams known = params_as<ActivationParams>(params);
const bool wide = aligned<V>(dy), wide_y = aligned<V>(y);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 4 * stride) {
  Pack<T, V> g[4], came[4];
  for (int i = 0; i < 4; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    g[i] = load<V>(dy + at, wide);
    came[i] = load<V>(y + at, wide_y);
  }
  for (int i = 0; i < 4 && p + i * stride < packs; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(told(float(g[i].v[j]), float(came[i].v[j]), known));
    store(dz + (p + i * stride) * V, out);
  }
}
