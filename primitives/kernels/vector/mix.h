// Sums of pixels by weight.
#pragma once
#include "kernels/vector/tap_lists.h"

namespace mpsf::MPSF_ISA {
namespace {

template <typename F>
MPSF_INLINE void for_count(int count, const F& f) {
  if (count == 1) return f(Constant<1>());
  if (count == 2) return f(Constant<2>());
  if (count == 3) return f(Constant<3>());
  if (count == 4) return f(Constant<4>());
  f(count);
}

// out[i] is the sum of from[entry.at + i] * entry.weight over a list that is not empty.
template <typename From, typename T, typename A, typename Count>
MPSF_INLINE void mix(const From* from, const Entry<A>* entries, Count count, int64_t length, T* out, bool streamed) {
  constexpr int L = lanes<A>;
  for_vectors<A>(length, [=]<int N>(int64_t at, int n) {
    Vec<A> sum[N];
    for (int v = 0; v < N; ++v) sum[v] = load_some(from + entries[0].at + at + v * L, n) * entries[0].weight;
    for (int i = 1; i < count; ++i) {
      const From* p = from + entries[i].at + at;
      for (int v = 0; v < N; ++v) sum[v] += load_some(p + v * L, n) * entries[i].weight;
    }
    for (int v = 0; v < N; ++v) store_result(out + at + v * L, sum[v], n, streamed);
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
