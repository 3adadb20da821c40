// The largest of a line and the sum of its exponentials, and what lines of few entries have one of.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/lines.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/vector_math.h"

namespace mpsf::MPSF_ISA {
namespace {

// The largest of a line; a NaN may be passed over, since it spoils the sum.
template <typename A, typename X>
MPSF_INLINE A largest_along(X x, int64_t length) {
  constexpr int L = lanes<A>;
  Vec<A> most[2] = {splat(-kInfinity<A>), splat(-kInfinity<A>)};
  int64_t at = 0;
  for (; at + 2 * L <= length; at += 2 * L) {
    const Vec<A> first = load(x + at), second = load(x + at + L);
    most[0] = first > most[0] ? first : most[0];
    most[1] = second > most[1] ? second : most[1];
  }
  along<A>(
      length - at, [&](int64_t i, int n) __attribute__((always_inline)) {
        const Vec<A> v = n == L ? load(x + at + i) : filled_from<A>(load(x + at + i, n), n, -kInfinity<A>);
        most[0] = v > most[0] ? v : most[0];
      });
  return largest_of<A>(most[0] > most[1] ? most[0] : most[1]);
}

// Exponentials of a line, or of lines side by side, are kept up to so many, and made again beyond.
constexpr int64_t kKept = 1 << 14;

// The sum of exp(x - largest), whose terms go to `room` unless it is null.
template <typename A, typename X>
MPSF_INLINE double exponentials(X x, int64_t length, A largest, A* room) {
  constexpr int L = lanes<A>;
  LaneSum<A> sum;
  along<A>(
      length, [&](int64_t i, int n) __attribute__((always_inline)) {
        const Vec<A> e = exp_below(load_some(x + i, n) - largest);
        if (room) store(room + i, e);
        sum.add(n == L ? e : filled_from<A>(e, n, A(0)));
      });
  return sum.total();
}

// Lines of few entries, each in one piece, would leave vectors nearly empty. Blocks of them are worked on as they lie:
// vectors go over all entries, and what each line has one of is found, and spread over its entries, one by one.
template <typename A>
constexpr int64_t kFewEntries = 4 * lanes<A>;
constexpr int64_t kBlockLines = 64;
// Up to so many entries the steps for one line are unrolled.
constexpr int64_t kUnrolled = 10;

// Whether lines that fill fewer than so many vectors are worked on so, and longer ones: without masks the numbers of a
// broken vector move one by one, which takes longer.
template <typename A>
bool few_entries(int64_t length, int64_t vectors = 1) {
  constexpr int64_t L = lanes<A>;
#if defined(__AVX512BW__)
  return length < vectors * L;
#else
  return length < vectors * L || (length % L != 0 && length < 2 * L) || length <= smaller(L, kUnrolled);
#endif
}

template <int64_t N>
struct Fixed {
  constexpr operator int64_t() const { return N; }
};

// Calls f with a length, which is a constant if it is small.
template <int64_t N = 1, typename F>
MPSF_INLINE void of_length(int64_t length, const F& f) {
  if constexpr (N > kUnrolled) {
    f(length);
  } else {
    if (length == N) return f(Fixed<N>{});
    of_length<N + 1>(length, f);
  }
}

// What f makes of the entries of each line, from the first on.
template <typename A, typename F>
inline void fold_each(const A* flat, int64_t count, int64_t length, A* each, const F& f) {
  of_length(length, [&](auto n) {
    for (int64_t k = 0; k < count; ++k) {
      A made = flat[k * n];
      for (int64_t i = 1; i < n; ++i) made = f(made, flat[k * n + i]);
      each[k] = made;
    }
  });
}
template <typename A>
__attribute__((noinline)) void largest_of_each(const A* flat, int64_t count, int64_t length, A* each) {
  fold_each(flat, count, length, each, [](A a, A b) { return b > a ? b : a; });
}
template <typename A>
__attribute__((noinline)) void sum_of_each(const A* flat, int64_t count, int64_t length, A* each) {
  fold_each(flat, count, length, each, [](A a, A b) { return a + b; });
}

// A line's number for each of its entries.
template <typename A>
__attribute__((noinline)) void spread(const A* each, int64_t count, int64_t length, A* flat) {
  of_length(length, [&](auto n) {
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t i = 0; i < n; ++i) flat[k * n + i] = each[k];
    }
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
