// dx = dy times the derivative of r = (p * x) K (q * y) + bias by x, or with S = 1 by y; 0 where r is not strictly between
// the limits that bits of L tell of. A thread has four packs of V elements of an image under way together.
#include "shared/vector_load.h"
#include "elementwise/broadcast.h"
#include "elementwise/params.h"
const ArithmeticGradParams<float> given = params_as<ArithmeticGradParams<float>>(params);
const int n = given.n, w = given.w, lanes = given.c / V, packs = given.h * w * lanes;
const Operand of_x = given.x, of_y = given.y;
const float p = given.factors.primary_scale, q = given.factors.secondary_scale, bias = given.factors.bias;
const float least = given.factors.minimum, most = given.factors.maximum;
const bool wide = aligned<V>(dy), wide_x = aligned<V>(x), wide_y = aligned<V>(y);
const long stride = threads_per_grid.x;
for (int b = thread_position_in_grid.y; b < n; b += threads_per_grid.y) {
  auto from_x = x + image_of(of_x, b);
  auto from_y = y + image_of(of_y, b);
  const long to = long(b) * packs;
  for (long i = thread_position_in_grid.x; i < packs; i += 4 * stride) {
    Pack<T, V> g[4], in_x[4], in_y[4];
    for (int k = 0; k < 4; ++k) {
      const long pack = i + k * stride < packs ? i + k * stride : i;
      const Place at = place_at<F, V>(pack, w, lanes);
      g[k] = load<V>(dy + (to + pack) * V, wide);
      in_x[k] = lying<Needs<K, S, L>::x, V, T>(from_x + entry_of(of_x, at), of_x.c > 1, wide_x);
      in_y[k] = lying<Needs<K, S, L>::y, V, T>(from_y + entry_of(of_y, at), of_y.c > 1, wide_y);
    }
    for (int k = 0; k < 4 && i + k * stride < packs; ++k) {
      Pack<O, V> made;
      for (int j = 0; j < V; ++j) {
        const float at_x = float(in_x[k].v[j]), at_y = float(in_y[k].v[j]);
        const float r = combined<K>(p * at_x, q * at_y) + bias;
        const bool inside = (!(L & 1) || r > least) && (!(L & 2) || r < most);
        made.v[j] = O(inside ? float(g[k].v[j]) * slope<K, S>(at_x, at_y, p, q) : 0.0f);
      }
      store(dx + (to + i + k * stride) * V, made);
    }
  }
}
