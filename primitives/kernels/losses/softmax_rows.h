// Softmax, its logarithm and softmin of lines that lie in one piece.
#pragma once
#include "kernels/losses/line_reduce.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/vector_math.h"

namespace mpsf::MPSF_ISA {
namespace {

// Numbers that are read with the other sign.
template <typename T>
struct Negative {
  const T* at;
  Negative operator+(int64_t i) const { return {at + i}; }
};
template <typename T>
MPSF_INLINE Vec<Acc<T>> load(Negative<T> x) {
  return -load(x.at);
}
template <typename T>
MPSF_INLINE Vec<Acc<T>> load(Negative<T> x, int n) {
  return -load(x.at, n);
}
template <typename T>
MPSF_INLINE Vec<Acc<T>> load_some(Negative<T> x, int n) {
  return -load_some(x.at, n);
}

inline float log_of_one(float x) { return log(splat(x))[0]; }
inline double log_of_one(double x) { return __builtin_log(x); }

// Of so many lines of few entries, at most kBlockLines. The result has x's type or the accumulator's.
template <bool Log, typename X, typename Y>
void few(X x, int64_t count, int64_t length, Acc<Y>* room, Y* y, bool streamed) {
  using A = Acc<Y>;
  constexpr int L = lanes<A>;
  const int64_t entries = count * length, size = kBlockLines * length + L;
  A *const in = room, *const spread_out = in + size, *const made = spread_out + size, *const each = made + size;
  along<A>(
      entries, [&](int64_t i, int n) __attribute__((always_inline)) { store(in + i, load_some(x + i, n)); });
  largest_of_each(in, count, length, each);
  spread(each, count, length, spread_out);
  along<A>(
      entries, [&](int64_t i, int) __attribute__((always_inline)) {
        const Vec<A> less = load(in + i) - load(spread_out + i);
        if (Log) store(in + i, less);
        store(made + i, exp_below(less));
      });
  sum_of_each(made, count, length, each);
  along<A>(
      count, [&](int64_t k, int)
                 __attribute__((always_inline)) { store(each + k, Log ? log(load(each + k)) : 1 / load(each + k)); });
  spread(each, count, length, spread_out);
  along_made(
      y, entries, streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
        const Vec<A> of_line = load_some(spread_out + i, n);
        store_result(y + i, Log ? load_some(in + i, n) - of_line : load_some(made + i, n) * of_line, n, past);
      });
}

// Of a line of N vectors, of which the last may be broken; the others' lanes add nothing.
template <bool Log, int N, typename X, typename Y>
MPSF_INLINE void short_row(X x, int64_t length, Y* y, bool streamed) {
  using A = Acc<Y>;
  constexpr int L = lanes<A>;
  const int rest = static_cast<int>(length - (N - 1) * L);
  Vec<A> v[N];
  for (int i = 0; i < N - 1; ++i) v[i] = load(x + i * L);
  v[N - 1] = rest == L ? load(x + (N - 1) * L) : filled_from<A>(load(x + (N - 1) * L, rest), rest, -kInfinity<A>);
  Vec<A> most = v[0], sum{};
  for (int i = 1; i < N; ++i) most = v[i] > most ? v[i] : most;
  const A largest = largest_of<A>(most);
  for (int i = 0; i < N; ++i) {
    v[i] = v[i] - largest;
    const Vec<A> e = exp_below(v[i]);
    sum += e;
    if (!Log) v[i] = e;
  }
  const A total = sum_of<A>(sum), of_line = Log ? log_of_one(total) : 1 / total;
  for (int i = 0; i < N; ++i) {
    const int n = i < N - 1 ? L : rest;
    store_result(y + i * L, Log ? v[i] - of_line : v[i] * of_line, n, streamed && n == L);
  }
}

// Calls f with the number of vectors that a line fills as a constant, if its numbers stay in registers, else with 0.
template <typename A, typename F>
MPSF_INLINE auto by_vectors(int64_t length, const F& f) {
  constexpr int64_t L = lanes<A>;
  if (length <= L) return f.template operator()<1>();
  if (length <= 2 * L) return f.template operator()<2>();
  if (length <= 3 * L) return f.template operator()<3>();
  if (length <= 4 * L) return f.template operator()<4>();
  return f.template operator()<0>();
}

// Of a line of several vectors, whose exponentials may stay in the room.
template <bool Log, typename X, typename Y>
MPSF_INLINE void long_row(X x, int64_t length, Acc<Y>* room, Y* y, bool streamed) {
  using A = Acc<Y>;
  const bool kept = !Log && length <= kKept;
  const A largest = largest_along<A>(x, length);
  const double total = exponentials<A>(x, length, largest, kept ? room : nullptr);
  if constexpr (Log) {
    const A less = static_cast<A>(__builtin_log(total));
    along_made(
        y, length, streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
          store_result(y + i, load_some(x + i, n) - largest - less, n, past);
        });
  } else {
    const A share = static_cast<A>(1 / total);
    along_made(
        y, length, streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
          const Vec<A> e = kept ? load(room + i) : exp_below(load_some(x + i, n) - largest);
          store_result(y + i, e * share, n, past);
        });
  }
}

// A short line is streamed only where it is of whole vectors.
template <bool Log, typename X, typename Y>
MPSF_INLINE void row(X x, int64_t length, Acc<Y>* room, Y* y, bool streamed) {
  by_vectors<Acc<Y>>(
      length, [&]<int N>() __attribute__((always_inline)) {
        if constexpr (N == 0) {
          long_row<Log>(x, length, room, y, streamed);
        } else {
          short_row<Log, N>(x, length, y, streamed && length % lanes<Acc<Y>> == 0);
        }
      });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
