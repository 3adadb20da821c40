// Squares of numbers turned over in registers, to lay weights out.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// The lower or upper halves of two vectors, by turns.
template <bool Upper, typename V>
MPSF_INLINE V by_turns(V a, V b) {
  constexpr int n = sizeof(V) / sizeof(a[0]), h = Upper ? n / 2 : 0;
  if constexpr (n == 2) return __builtin_shufflevector(a, b, h, h + 2);
  if constexpr (n == 4) return __builtin_shufflevector(a, b, h, h + 4, h + 1, h + 5);
  if constexpr (n == 8) {
    return __builtin_shufflevector(a, b, h, h + 8, h + 1, h + 9, h + 2, h + 10, h + 3, h + 11);
  }
  if constexpr (n == 16) {
    return __builtin_shufflevector(a, b, h, h + 16, h + 1, h + 17, h + 2, h + 18, h + 3, h + 19, h + 4, h + 20, h + 5,
                                   h + 21, h + 6, h + 22, h + 7, h + 23);
  }
}

// Taking turns with the vector half the square away moves one bit of the place from row to column.
template <typename A>
MPSF_INLINE void turn_over(Vec<A> (&rows)[lanes<A>]) {
  constexpr int L = lanes<A>;
#pragma GCC unroll 4
  for (int size = 1; size < L; size *= 2) {
    Vec<A> next[L];
#pragma GCC unroll 8
    for (int i = 0; i < L / 2; ++i) {
      next[2 * i] = by_turns<false>(rows[i], rows[i + L / 2]);
      next[2 * i + 1] = by_turns<true>(rows[i], rows[i + L / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) rows[i] = next[i];
  }
}

// to[k][lane] = from[k + lane * lane_step] for k < count and lane < n, zeros elsewhere.
template <typename A>
MPSF_INLINE void load_turned(const A* from, int64_t lane_step, int count, int n, Vec<A> (&to)[lanes<A>]) {
  for (int lane = 0; lane < lanes<A>; ++lane) {
    to[lane] = lane < n ? load_some(from + lane * lane_step, count) : Vec<A>{};
  }
  turn_over<A>(to);
}

// to[k][lane] = from[k * step + lane * lane_step] for k < count and lane < n, zeros elsewhere; one of the steps is 1.
template <typename A>
MPSF_INLINE void load_lanes(const A* from, int64_t step, int64_t lane_step, int count, int n, Vec<A> (&to)[lanes<A>]) {
  constexpr int L = lanes<A>;
  n = n < L ? n : L;
  if (lane_step == 1) {
    for (int k = 0; k < L; ++k) to[k] = k < count ? load_some(from + k * step, n) : Vec<A>{};
    return;
  }
  load_turned(from, lane_step, count, n, to);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
