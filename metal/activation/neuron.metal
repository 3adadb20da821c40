// y = f(x) for the activation N, whose parameters are params. A prelu's a is the slope of the channel; the others read
// no slopes. A thread has four packs of V elements under way together.
#include "shared/vector_load.h"
#include "shared/functions.h"
#include "activation/activations.h"
#include "activation/params.h"
long size = 1;
for (int axis = 0; axis < x_ndim; ++axis) size *= x_shape[axis];
const long packs = size / V;
const int channels = x_shape[x_ndim - 1];
ActivationParams known = params_as<ActivationParams>(params);
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 4 * stride) {
  Pack<T, V> in[4];
  for (int i = 0; i < 4; ++i) in[i] = load<V>(x + (p + i * stride < packs ? p + i * stride : p) * V, wide);
  for (int i = 0; i < 4 && p + i * stride < packs; ++i) {
    int c = (p + i * stride) * V % channels;
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      if (N == kPrelu) known.a = float(slopes[c]);
      c = c + 1 < channels ? c + 1 : 0;
      out.v[j] = T(activated<N>(float(in[i].v[j]), known));
    }
    store(y + (p + i * stride) * V, out);
  }
}
