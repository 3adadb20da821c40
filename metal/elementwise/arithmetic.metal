// out = (p * x) K (q * y) + bias, between the limits that bits of L tell of. A thread has four packs of V elements of an
// image under way together.
#include "shared/vector_load.h"
#include "elementwise/broadcast.h"
#include "elementwise/params.h"
const ArithmeticParams<float> given = params_as<ArithmeticParams<float>>(params);
const int n = given.n, w = given.w, lanes = given.c / V, packs = given.h * w * lanes;
const Operand of_x = given.x, of_y = given.y;
const float p = given.factors.primary_scale, q = given.factors.secondary_scale, bias = given.factors.bias;
const float least = given.factors.minimum, most = given.factors.maximum;
const bool wide_x = aligned<V>(x), wide_y = aligned<V>(y);
const long stride = threads_per_grid.x;
for (int b = thread_position_in_grid.y; b < n; b += threads_per_grid.y) {
  auto from_x = x + image_of(of_x, b);
  auto from_y = y + image_of(of_y, b);
  const long to = long(b) * packs;
  for (long i = thread_position_in_grid.x; i < packs; i += 4 * stride) {
    Pack<T, V> in_x[4], in_y[4];
    for (int k = 0; k < 4; ++k) {
      const Place at = place_at<F, V>(i + k * stride < packs ? i + k * stride : i, w, lanes);
      in_x[k] = lying<1, V, T>(from_x + entry_of(of_x, at), of_x.c > 1, wide_x);
      in_y[k] = lying<1, V, T>(from_y + entry_of(of_y, at), of_y.c > 1, wide_y);
    }
    for (int k = 0; k < 4 && i + k * stride < packs; ++k) {
      Pack<T, V> made;
      for (int j = 0; j < V; ++j) {
        float r = combined<K>(p * float(in_x[k].v[j]), q * float(in_y[k].v[j])) + bias;
        if ((L & 1) && r < least) r = least;
        if ((L & 2) && r > most) r = most;
        made.v[j] = T(r);
      }
      store(out + (to + i + k * stride) * V, made);
    }
  }
}
