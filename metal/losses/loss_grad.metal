// gradient = weight * slope for every element of images (n, pixels, classes) of type K, with X = 1 or 2 times the factor
// and, with X = 2, that of the image; with X = 3 weight * loss. A thread has two packs of V elements under way together.
#include "shared/vector_load.h"
#include "losses/losses.h"
#include "losses/params.h"
const int classes = y_shape[2];
const long size = long(y_shape[1]) * classes, packs = y_shape[0] * size / V, stride = threads_per_grid.x;
const LossNumbers<float> told = params_as<LossNumbers<float>>(params);
for (long p = thread_position_in_grid.x; p < packs; p += 2 * stride) {
  Given<V> in[2];
  for (int i = 0; i < 2; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    in[i] = given<L, W, V>(y, target, weights, at, at / classes, int(at % classes), classes, told);
  }
  for (int i = 0; i < 2 && p + i * stride < packs; ++i) {
    const long at = (p + i * stride) * V;
    const float factor = (X == 2 ? float(scales[at / size]) : 1.0f) * (X == 1 || X == 2 ? told.factor : 1.0f);
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      const Term made = term<K>(in[i].y[j], in[i].t[j], told);
      out.v[j] = T(in[i].w[j] * (X == 3 ? made.loss : made.slope) * factor);
    }
    store(gradient + at, out);
  }
}
