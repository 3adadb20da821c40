// Going along a line of neighbouring elements: its vectors, sums of their terms, and one number of all lanes, halves
// folded onto halves.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

template <int N, typename A>
struct PartOf {
  typedef A type __attribute__((vector_size(N * sizeof(A))));
};

template <int N, typename A, typename F>
MPSF_INLINE A folded(typename PartOf<N, A>::type v, const F& f) {
  if constexpr (N == 2) {
    return f(v[0], v[1]);
  } else if constexpr (N == 4) {
    return f(f(v[0], v[2]), f(v[1], v[3]));
  } else {
    typename PartOf<N / 2, A>::type half[2];
    memcpy(half, &v, sizeof(v));
    return folded<N / 2, A>(f(half[0], half[1]), f);
  }
}

template <typename A>
MPSF_INLINE A sum_of(Vec<A> v) {
  return folded<lanes<A>, A>(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}

template <typename A>
MPSF_INLINE A largest_of(Vec<A> v) {
  return folded<lanes<A>, A>(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}

template <typename A>
constexpr A kInfinity = static_cast<A>(__builtin_inf());

// The vector with `filling` in all lanes from n on.
template <typename A>
MPSF_INLINE Vec<A> filled_from(Vec<A> v, int n, A filling) {
  Vec<A> number;
  for (int i = 0; i < lanes<A>; ++i) number[i] = static_cast<A>(i);
  return number < static_cast<A>(n) ? v : splat(filling);
}

// Sums of so many terms, lane by lane: in the accumulator's precision for a while and in double beyond.
template <typename A>
class LaneSum {
 public:
  MPSF_INLINE void add(Vec<A> v) {
    recent_ += v;
    if (++count_ == kBlock) flush();
  }
  // All lanes as one.
  MPSF_INLINE double total() const {
    double sum = static_cast<double>(sum_of<A>(recent_));
    if (flushed_) {
      for (int i = 0; i < lanes<A>; ++i) sum += long_[i];
    }
    return sum;
  }
  // Lane by lane.
  MPSF_INLINE Vec<A> each() const {
    Vec<A> sum = recent_;
    if (flushed_) {
      for (int i = 0; i < lanes<A>; ++i) sum[i] = static_cast<A>(static_cast<double>(sum[i]) + long_[i]);
    }
    return sum;
  }

 private:
  __attribute__((noinline)) void flush() {
    for (int i = 0; i < lanes<A>; ++i) long_[i] = (flushed_ ? long_[i] : 0) + static_cast<double>(recent_[i]);
    flushed_ = true;
    recent_ = Vec<A>{};
    count_ = 0;
  }
  Vec<A> recent_ = {};
  int64_t count_ = 0;
  bool flushed_ = false;
  double long_[lanes<A>];
};

// Calls f(at, n) for the vectors of a line.
template <typename A, typename F>
MPSF_INLINE void along(int64_t length, const F& f) {
  constexpr int L = lanes<A>;
  int64_t at = 0;
  for (; at + L <= length; at += L) f(at, L);
  if (at < length) f(at, static_cast<int>(length - at));
}

// Calls f(at, n, streamed) for the vectors of a line that is made at `to`: where it may be stored past the caches,
// first for what is ahead of the first place that is aligned for that.
template <typename T, typename F>
MPSF_INLINE void along_made(const T* to, int64_t length, bool streamed, const F& f) {
  constexpr int64_t L = lanes<Acc<T>>;
  int64_t at = 0;
  if (streamed) at = smaller(length, (L - static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) / sizeof(T)) % L) % L);
  if (at > 0) f(int64_t{0}, static_cast<int>(at), false);
  for (; at + L <= length; at += L) f(at, static_cast<int>(L), streamed);
  if (at < length) f(at, static_cast<int>(length - at), false);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
