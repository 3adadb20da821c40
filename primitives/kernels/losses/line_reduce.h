// One number of all lanes of a vector, halves folded onto halves; the largest of a line and the sum of its
// exponentials.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/vector_math.h"

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
  for (int i = n; i < lanes<A>; ++i) v[i] = filling;
  return v;
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

// The largest of a line; a NaN may be passed over, since it spoils the sum.
template <typename T>
MPSF_INLINE Acc<T> largest_along(const T* x, int64_t length) {
  using A = Acc<T>;
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
template <typename T>
MPSF_INLINE double exponentials(const T* x, int64_t length, Acc<T> largest, Acc<T>* room) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  LaneSum<A> sum;
  along<A>(
      length, [&](int64_t i, int n) __attribute__((always_inline)) {
        const Vec<A> e = exp(load_some(x + i, n) - largest);
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

template <int64_t N>
struct Fixed {
  constexpr operator int64_t() const { return N; }
};

// Calls f with a length, which is a constant if it is very small.
template <typename F>
MPSF_INLINE void of_length(int64_t length, const F& f) {
  if (length == 1) return f(Fixed<1>{});
  if (length == 2) return f(Fixed<2>{});
  if (length == 3) return f(Fixed<3>{});
  if (length == 4) return f(Fixed<4>{});
  f(length);
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
