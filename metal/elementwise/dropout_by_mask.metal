// y = x * mask / keep, with a mask of bytes. A thread has four packs of V elements of an image under way together.
#include "shared/vector_load.h"
#include "elementwise/broadcast.h"
#include "elementwise/params.h"
const DropoutByMaskParams<float> given = params_as<DropoutByMaskParams<float>>(params);
const int n = given.n, w = given.w, lanes = given.c / V, packs = given.h * w * lanes;
const Operand of_x = given.x, of_mask = given.mask;
const float keep = given.keep, share = 1 / keep;
const bool wide = aligned<V>(x), wide_mask = aligned<V>(mask);
const long stride = threads_per_grid.x;
for (int b = thread_position_in_grid.y; b < n; b += threads_per_grid.y) {
  auto from = x + image_of(of_x, b);
  auto from_mask = mask + image_of(of_mask, b);
  const long to = long(b) * packs;
  for (long i = thread_position_in_grid.x; i < packs; i += 4 * stride) {
    Pack<T, V> in[4];
    Pack<uint8_t, V> kept[4];
    for (int k = 0; k < 4; ++k) {
      const long pack = i + k * stride < packs ? i + k * stride : i;
      in[k] = load<V>(from + pack * V, wide);
      const int entry = entry_of(of_mask, place_at<F, V>(pack, w, lanes));
      kept[k] = lying<1, V, uint8_t>(from_mask + entry, of_mask.c > 1, wide_mask);
    }
    for (int k = 0; k < 4 && i + k * stride < packs; ++k) {
      Pack<T, V> made;
      for (int j = 0; j < V; ++j) {
        made.v[j] = T(over(float(in[k].v[j]) * float(kept[k].v[j]), keep, share));
      }
      store(y + (to + i + k * stride) * V, made);
    }
  }
}
