// y = x * m / keep, where m is 1 if the mask's random word is below a bound, else 0. The mask goes along channels where A
// is 1. A thread has four packs of V elements of an image under way together.
#include "shared/vector_load.h"
#include "elementwise/broadcast.h"
#include "elementwise/params.h"
#include "elementwise/philox.h"
const DropoutParams<float> given = params_as<DropoutParams<float>>(params);
const int n = given.n, w = given.w, lanes = given.c / V, packs = given.h * w * lanes;
const int each = n / keys_shape[0];  // images of a set, which has a key and a mask of its own
const Operand of_x = given.x, of_mask = given.mask;
const uint bound = given.bound;
const float keep = given.keep, share = 1 / keep;
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.x;
for (int b = thread_position_in_grid.y; b < n; b += threads_per_grid.y) {
  const int set = b / each;
  const Keys rounds = keys_of(keys[2 * set], keys[2 * set + 1]);
  auto from = x + image_of(of_x, b);
  const long to = long(b) * packs, begin = (b - set * each) * entries(of_mask);
  for (long i = thread_position_in_grid.x; i < packs; i += 4 * stride) {
    Pack<T, V> in[4];
    for (int k = 0; k < 4; ++k) in[k] = load<V>(from + (i + k * stride < packs ? i + k * stride : i) * V, wide);
    for (int k = 0; k < 4 && i + k * stride < packs; ++k) {
      const long entry = begin + entry_of(of_mask, place_at<F, V>(i + k * stride, w, lanes));
      const Pack<uint, V> words = words_at<A, V>(entry, rounds);
      Pack<T, V> made;
      for (int j = 0; j < V; ++j) {
        made.v[j] = T(over(float(in[k].v[j]) * (words.v[j] < bound ? 1.0f : 0.0f), keep, share));
      }
      store(y + (to + i + k * stride) * V, made);
    }
  }
}
