// gradient = weight * slope for every element of images (n, pixels, classes), and the sums of weight * loss of images of
// type K in parts: partial[part, image]. R threads of a simdgroup own a part, with two packs of V elements under way.
#include "shared/vector_load.h"
#include "losses/losses.h"
#include "losses/params.h"
const LossLaunch launch = params_as<LossLaunch>(params);
const int classes = y_shape[2], size = y_shape[1] * classes, parts = launch.parts;
const long group = thread_position_in_grid.x / R, image = group / parts;
const int part = group % parts, lane = int(thread_position_in_grid.x) % R, stride = parts * R;
const LossNumbers<float> told = launch.numbers;
const int packs = image < y_shape[0] ? size / V : 0;
float sum = 0;
for (long p = part * R + lane; p < packs; p += 2 * stride) {
  Given<V> in[2];
  for (int i = 0; i < 2; ++i) {
    const long at = image * size + (p + i * stride < packs ? p + i * stride : p) * V;
    in[i] = given<L, W, V>(y, target, weights, at, at / classes, int(at % classes), classes, told);
  }
  for (int i = 0; i < 2; ++i) {
    if (p + i * stride >= packs) continue;
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      const Term made = term<K>(in[i].y[j], in[i].t[j], told);
      out.v[j] = T(in[i].w[j] * made.slope);
      sum += in[i].w[j] * made.loss;
    }
    store(gradient + image * size + (p + i * stride) * V, out);
  }
}
for (int m = R / 2; m > 0; m /= 2) sum += simd_shuffle_xor(sum, m);
if (lane == 0 && image < y_shape[0]) partial[part * long(y_shape[0]) + image] = sum * told.factor;
