// y = x * m / keep, where m is 1 if the mask's random word is below a bound, else 0. The mask goes along channels where A
// is 1. A thread has four packs of V elements of an image under way together.
#include "shared/vector_load.h"
#include "elementwise/broadcast.h"
#include "elementwise/philox.h"
const int n = params[0], w = params[2], lanes = params[3] / V, packs = params[1] * w * lanes;
const int each = n / params[14];  // images of a set, which has a key and a mask of its own
const Under of_x = under_at(params, 0), of_mask = under_at(params, 1);
const uint bound = params[15];
const float keep = as_type<float>(params[16]), share = 1 / keep;
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
