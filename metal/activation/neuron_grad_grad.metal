// r = u * dy * f''(x) for the activation N, whose parameters are params. A thread has four packs of V elements under
// way together.
#include "shared/vector_load.h"
#include "shared/functions.h"
#include "activation/activations.h"
#include "activation/params.h"
long size = 1;
for (int axis = 0; axis < x_ndim; ++axis) size *= x_shape[axis];
const long packs = size / V;
const ActivationParams known = params_as<ActivationParams>(params);
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy), wide_u = aligned<V>(u);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 4 * stride) {
  Pack<T, V> with[4], g[4], in[4];
  for (int i = 0; i < 4; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    with[i] = load<V>(u + at, wide_u);
    g[i] = load<V>(dy + at, wide_dy);
    in[i] = load<V>(x + at, wide);
  }
  for (int i = 0; i < 4 && p + i * stride < packs; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      out.v[j] = T(curved<N>(float(with[i].v[j]) * float(g[i].v[j]), float(in[i].v[j]), known));
    }
    store(r + (p + i * stride) * V, out);
  }
}
