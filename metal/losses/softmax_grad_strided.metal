// dx = S * y * (dy - sum of dy * y), S = 1 or -1, along the middle axis of (outer, length, inner), with L
// dy - exp(y) * (sum of dy), for lines of any length. Threads side by side own V lines each; those above one another
// share them, with two elements under way, and fold their sums in a fixed order. Of 16 bits, dy is taken from its mean,
// as in softmax_grad.
#include "shared/base.h"
#include "shared/vector_load.h"
const int length = y_shape[1], inner = y_shape[2], lanes = inner / V;
const Threadgroup group = params_as<Threadgroup>(params);
const int width = group.width, height = group.height;
const int row = thread_position_in_threadgroup.y;
const int slot = (row * width + int(thread_position_in_threadgroup.x)) * V;
const long column = thread_position_in_grid.x;
const bool there = column < long(y_shape[0]) * lanes, wide = aligned<V>(y), wide_dy = aligned<V>(dy);
const uint end = there ? length : 0;  // unsigned counters may go past 2^31 before they end
const long from = column / lanes * length * inner + column % lanes * V;
threadgroup float sums[256 * V];

float total[V], centre[V], own[V];
for (int j = 0; j < V; ++j) total[j] = 0;
for (int pass = 0; pass < (!L && sizeof(T) == 2 ? 2 : 1); ++pass) {
  for (int j = 0; j < V; ++j) {
    centre[j] = total[j];
    own[j] = 0;
  }
  for (uint i = row; i < end; i += 2 * height) {
    Pack<T, V> g[2], came[2];
    for (int k = 0; k < 2; ++k) {
      const long at = from + long(int(i + k * height < end ? i + k * height : i)) * inner;
      g[k] = load<V>(dy + at, wide_dy);
      came[k] = load<V>(y + at, wide);
    }
    for (int k = 0; k < 2; ++k) {
      if (i + k * height >= end) continue;
      for (int j = 0; j < V; ++j) own[j] += (float(g[k].v[j]) - centre[j]) * (L ? 1.0f : float(came[k].v[j]));
    }
  }
  for (int j = 0; j < V; ++j) sums[slot + j] = own[j];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int half_height = height / 2; half_height > 0; half_height /= 2) {
    if (row < half_height) {
      for (int j = 0; j < V; ++j) sums[slot + j] += sums[slot + half_height * width * V + j];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (int j = 0; j < V; ++j) total[j] = sums[slot - row * width * V + j];
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
for (uint i = row; i < end; i += height) {
  const long at = from + long(int(i)) * inner;
  const Pack<T, V> g = load<V>(dy + at, wide_dy), came = load<V>(y + at, wide);
  Pack<T, V> out;
  for (int j = 0; j < V; ++j) {
    const float a = float(g.v[j]), c = float(came.v[j]);
    out.v[j] = T(L ? a - exp(c) * total[j] : S * c * (a - centre[j] - total[j]));
  }
  store(dx + at, out);
}
