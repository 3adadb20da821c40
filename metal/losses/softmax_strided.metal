// y = softmax of S * x, S = 1 or -1, along the middle axis of (outer, length, inner), with L its logarithm, for lines of
// any length. Threads side by side own V lines each; those above one another share them, with four elements under way,
// and fold what they found in a fixed order.
#include "shared/base.h"
#include "shared/vector_load.h"
#include "losses/online_softmax.h"
const int length = x_shape[1], inner = x_shape[2], lanes = inner / V;
const Threadgroup group = params_as<Threadgroup>(params);
const int width = group.width, height = group.height;
const int row = thread_position_in_threadgroup.y;
const int slot = (row * width + int(thread_position_in_threadgroup.x)) * V;
const long column = thread_position_in_grid.x;
const bool there = column < long(x_shape[0]) * lanes, wide = aligned<V>(x);
const uint end = there ? length : 0;  // unsigned counters may go past 2^31 before they end
const long from = column / lanes * length * inner + column % lanes * V;
threadgroup float mosts[256 * V], sums[256 * V];

Exponentials own[V];
for (int j = 0; j < V; ++j) own[j] = Exponentials{minus_infinity(), 0};
for (uint i = row; i < end; i += 4 * height) {
  Pack<T, V> in[4];
  for (int k = 0; k < 4; ++k) {
    in[k] = load<V>(x + from + long(int(i + k * height < end ? i + k * height : i)) * inner, wide);
  }
  for (int j = 0; j < V; ++j) {
    Pack<float, 4> more;
    for (int k = 0; k < 4; ++k) more.v[k] = i + k * height < end ? S * float(in[k].v[j]) : minus_infinity();
    own[j] = grown(own[j], more);
  }
}
for (int j = 0; j < V; ++j) {
  mosts[slot + j] = own[j].most;
  sums[slot + j] = own[j].sum;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    const int other = slot + half_height * width * V;
    for (int j = 0; j < V; ++j) {
      own[j] = joined(own[j], Exponentials{mosts[other + j], sums[other + j]});
      mosts[slot + j] = own[j].most;
      sums[slot + j] = own[j].sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
float most[V], last[V];
for (int j = 0; j < V; ++j) {
  most[j] = mosts[slot - row * width * V + j];
  const float sum = sums[slot - row * width * V + j];
  last[j] = L ? log(sum) : 1 / sum;
}
for (uint i = row; i < end; i += height) {
  const Pack<T, V> in = load<V>(x + from + long(int(i)) * inner, wide);
  Pack<T, V> out;
  for (int j = 0; j < V; ++j) {
    const float less = S * float(in.v[j]) - most[j];
    out.v[j] = T(L ? less - last[j] : exp(less) * last[j]);
  }
  store(y + from + long(int(i)) * inner, out);
}
