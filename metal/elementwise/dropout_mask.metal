// The bytes of masks: 1 where a random word is below a bound, else 0. Each key makes a set of them.
#include "shared/vector_load.h"
#include "elementwise/params.h"
#include "elementwise/philox.h"
const DropoutMaskLaunch given = params_as<DropoutMaskLaunch>(params);
const long each = joined(given.entries_low, given.entries_high), packs = each / V;
const uint bound = given.bound;
const int sets = keys_shape[0];
const long stride = threads_per_grid.x;
for (int set = thread_position_in_grid.y; set < sets; set += threads_per_grid.y) {
  const Keys rounds = keys_of(keys[2 * set], keys[2 * set + 1]);
  for (long i = thread_position_in_grid.x; i < packs; i += stride) {
    const Pack<uint, V> words = words_at<1, V>(i * V, rounds);
    Pack<uint8_t, V> made;
    for (int j = 0; j < V; ++j) made.v[j] = words.v[j] < bound ? 1 : 0;
    store(mask + set * each + i * V, made);
  }
}
