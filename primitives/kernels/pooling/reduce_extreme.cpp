// The largest or least element along the middle axis of an array (outer, length, inner), and which it is: the first of
// equal ones, and a NaN before all numbers. And a gradient's entries in these places, with zeros around them.
#include "kernels/pooling/reduction.h"
#include "pooling/params.h"

namespace mpsf::MPSF_ISA {
namespace {

template <typename A>
struct IndexOf {
  typedef int32_t type;
};
template <>
struct IndexOf<double> {
  typedef int64_t type;
};
template <typename A>
using Index = typename IndexOf<A>::type;
template <typename A>
using Indices = Vec<Index<A>>;

// Where what was found first stays; of vectors, halves of them, or numbers.
template <bool Largest, typename V>
MPSF_INLINE auto stays(V found, V next) {
  return (Largest ? next <= found : next >= found) | (found != found);
}

// Rows that are looked at together.
constexpr int64_t kTogether = 8;

// The extremes of rows of a width, which lie `stride` apart, and the rows that they are in, if asked for.
template <bool Largest, bool Which, typename T>
void extreme_rows(const T* x, int64_t rows, int64_t width, int64_t stride, Acc<T>* best, Index<Acc<T>>* which) {
  using A = Acc<T>;
  along<A>(
      width, [&](int64_t at, int n) __attribute__((always_inline)) {
        store_some(best + at, load_some(x + at, n), n);
        if constexpr (Which) memset(which + at, 0, static_cast<size_t>(n) * sizeof(*which));
      });
  for (int64_t row = 1; row < rows; row += kTogether) {
    const int64_t count = smaller(kTogether, rows - row);
    along<A>(
        width, [&](int64_t at, int n) __attribute__((always_inline)) {
          Vec<A> found = load_some(best + at, n);
          Indices<A> place = {};
          const size_t bytes = static_cast<size_t>(n) * sizeof(*which);
          if constexpr (Which)
            n == lanes<A> ? memcpy(&place, which + at, sizeof(place)) : memcpy(&place, which + at, bytes);
          for (int64_t i = 0; i < count; ++i) {
            const Vec<A> next = load_some(x + (row + i) * stride + at, n);
            const auto same = stays<Largest>(found, next);
            found = same ? found : next;
            if (Which) place = same ? place : Indices<A>{} + static_cast<Index<A>>(row + i);
          }
          store_some(best + at, found, n);
          if constexpr (Which)
            n == lanes<A> ? memcpy(which + at, &place, sizeof(place)) : memcpy(which + at, &place, bytes);
        });
  }
}

// Of a line in which there may be a NaN; `which` is the place in it, if asked for.
template <bool Largest, bool Which, typename T>
__attribute__((noinline)) Acc<T> extreme_among_nans(const T* x, int64_t length, uint32_t* which) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const A beyond = Largest ? -kInfinity<A> : kInfinity<A>;  // of lanes behind the line, which are later than any
  Indices<A> number;
  for (int i = 0; i < L; ++i) number[i] = i;
  const auto read = [&](int64_t at, int n) __attribute__((always_inline)) {
    return n == L ? load(x + at) : filled_from<A>(load(x + at, n), n, beyond);
  };
  Vec<A> found = read(0, static_cast<int>(smaller(L, length)));
  Indices<A> place = {};
  for (int64_t at = L; at < length; at += L) {
    const Vec<A> next = read(at, static_cast<int>(smaller(L, length - at)));
    const auto same = stays<Largest>(found, next);
    found = same ? found : next;
    if (Which) place = same ? place : Indices<A>{} + static_cast<Index<A>>(at);
  }
  const A best = folded<L, A>(
      found, [](auto a, auto b) __attribute__((always_inline)) { return stays<Largest>(a, b) ? a : b; });
  if constexpr (Which) {
    const auto winners = best == best ? found == splat(best) : found != found;
    const Indices<A> last = Indices<A>{} + static_cast<Index<A>>(INT32_MAX);
    const Indices<A> candidates = winners ? place + number : last;
    *which = static_cast<uint32_t>(folded<L, Index<A>>(
        candidates, [](auto a, auto b) __attribute__((always_inline)) { return a < b ? a : b; }));
  }
  return best;
}

template <typename A>
MPSF_INLINE bool any_nan(Vec<A> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(A) == 4) return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
  if constexpr (sizeof(A) == 4) return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)) != 0;
#endif
  return any(v != v);
}

// Of a line. What nobody has to look at for NaNs takes one comparison a vector: their sum is NaN if one of them is, or
// if there are infinities of both signs.
template <bool Largest, bool Which, typename T>
MPSF_INLINE Acc<T> extreme_of(const T* x, int64_t length, uint32_t* which) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const A beyond = Largest ? -kInfinity<A> : kInfinity<A>;
  Vec<A> found = splat(beyond), sum{};
  along<A>(
      length, [&](int64_t at, int n) __attribute__((always_inline)) {
        const Vec<A> next = n == L ? load(x + at) : filled_from<A>(load(x + at, n), n, beyond);
        found = (Largest ? next > found : next < found) ? next : found;
        sum += next;
      });
  if (any_nan<A>(sum)) return extreme_among_nans<Largest, Which>(x, length, which);
  const A best = folded<L, A>(
      found, [](auto a, auto b) __attribute__((always_inline)) { return (Largest ? a > b : a < b) ? a : b; });
  if constexpr (Which) {
    Indices<A> number, first = Indices<A>{} + static_cast<Index<A>>(INT32_MAX);
    for (int i = 0; i < L; ++i) number[i] = i;
    along<A>(
        length, [&](int64_t at, int n) __attribute__((always_inline)) {
          const Indices<A> candidates =
              load_some(x + at, n) == splat(best) ? number + static_cast<Index<A>>(at) : first;
          first = candidates < first ? candidates : first;
        });
    *which = static_cast<uint32_t>(folded<L, Index<A>>(
        first, [](auto a, auto b) __attribute__((always_inline)) { return a < b ? a : b; }));
  }
  return best;
}

// What is found of one entry in several parts, the first of them first.
template <bool Largest>
struct Found {
  double value = 0;
  int64_t at = -1;

  void see(double next, int64_t place) {
    const bool equal = next == value || (next != next && value != value);
    const bool earlier = equal && place < at;
    if (at < 0 || earlier || !(equal || stays<Largest>(value, next))) {
      value = next;
      at = place;
    }
  }
};

struct Wanted {
  uint32_t* which;
  bool values;
};

template <bool Largest, bool Which, typename T>
void extremes(const Call& call, const Wanted& wanted) {
  using A = Acc<T>;
  const Reduction r(call.in[0]);
  const T* const x = data<T>(call.in[0]);
  T* const out = data<T>(call.out[0]);
  if (r.along_lines()) {
    return r.for_lines([&](int64_t begin, int64_t end) {
      const auto of_line = [&](int64_t line) __attribute__((always_inline)) {
        uint32_t ignored, *const which = wanted.which ? wanted.which + line : &ignored;
        return extreme_of<Largest, Which>(x + line * r.length, r.length, which);
      };
      if (wanted.values) return store_lines<T, A>(out, begin, end, of_line);
      for (int64_t line = begin; line < end; ++line) of_line(line);
    });
  }
  if (r.in_tiles<A>()) {
    return r.for_tiles([&](int64_t outer, int64_t first, int64_t width) {
      A best[kTileWidth];
      Index<A> which[kTileWidth];
      const int64_t to = outer * r.inner + first;
      extreme_rows<Largest, Which>(x + outer * r.size() + first, r.length, width, r.inner, best, which);
      if (wanted.values) {
        along<A>(
            width, [&](int64_t at, int n)
                       __attribute__((always_inline)) { store_some(out + to + at, load_some(best + at, n), n); });
      }
      for (int64_t i = 0; Which && i < width; ++i) wanted.which[to + i] = static_cast<uint32_t>(which[i]);
    });
  }
  const StatGroups groups = r.groups<A>();
  const Rows& rows = groups.rows;
  reduce_stat_groups(
      groups, 2 * r.inner, 2 * rows.width,
      [&](int64_t outer, int64_t chunk, double* part, double* room) {
        const int64_t width = rows.width_of(chunk), begin = rows.begin(chunk);
        A* const best = reinterpret_cast<A*>(room);
        Index<A>* const which = reinterpret_cast<Index<A>*>(room + rows.width);
        extreme_rows<Largest, Which>(x + outer * r.size() + begin * rows.width, rows.begin(chunk + 1) - begin, width,
                                     width, best, which);
        for (int64_t i = 0; i < r.inner; ++i) {
          Found<Largest> found;
          for (int64_t at = i; at < width; at += r.inner) {
            const int64_t row = begin + (Which ? which[at] : 0);
            found.see(static_cast<double>(best[at]), (row * rows.width + at - i) / r.inner);
          }
          part[i] = found.value;
          part[r.inner + i] = static_cast<double>(found.at);
        }
      },
      [&](int64_t outer, double* parts) {
        const int64_t to = outer * r.inner;
        for (int64_t i = 0; i < r.inner; ++i) {
          Found<Largest> found;
          for (int64_t chunk = 0; chunk <= rows.chunks(); ++chunk) {
            if (rows.pixels_of(chunk) == 0) continue;
            const double* const part = parts + chunk * 2 * r.inner;
            found.see(part[i], static_cast<int64_t>(part[r.inner + i]));
          }
          parts[i] = found.value;  // of the first part, which has been seen
          if (Which) wanted.which[to + i] = static_cast<uint32_t>(found.at);
        }
        if (wanted.values) store_doubles(out + to, r.inner, [&](int64_t i) { return parts[i]; });
      });
}

// dy (outer, inner) in its places along the axis.
template <typename T>
void placed(const Call& call) {
  const Reduction r(call.out[0]);
  const T* const dy = data<T>(call.in[0]);
  const uint32_t* const which = data<uint32_t>(call.in[1]);
  T* const out = data<T>(call.out[0]);
  // So many rows at a time that their zeros are in the caches when entries come between them.
  const int64_t each = smaller(r.length, 1 + 4 * kChunkElements / r.inner), pieces = (r.length + each - 1) / each;
  const int64_t several = 1 + kChunkElements / (r.size() + 1), groups = (r.outer + several - 1) / several;
  parallel_for(groups * pieces, [&](int64_t task) {
    const int64_t first = task / pieces * several, begin = task % pieces * each;
    const int64_t end = smaller(r.length, begin + each), last = smaller(r.outer, first + several);
    for (int64_t outer = first; outer < last; ++outer) {
      T* const to = out + outer * r.size();
      memset(to + begin * r.inner, 0, static_cast<size_t>((end - begin) * r.inner) * sizeof(T));
      for (int64_t i = 0; i < r.inner; ++i) {
        const int64_t entry = outer * r.inner + i, row = which[entry];
        if (begin <= row && row < end) to[row * r.inner + i] = dy[entry];
      }
    }
  });
}

}  // namespace

void reduce_extreme(const Call& call) {
  if (call.in[0].size == 0) return;
  const auto p = params_as<ReduceExtremeParams>(call.params);
  const bool values = p.results != 1, which = p.results != 0;
  const Wanted wanted{which ? data<uint32_t>(call.out[values ? 1 : 0]) : nullptr, values};
  by_type(call.in[0].type, [&](auto t) {
    using T = decltype(t);
    if (p.largest) {
      which ? extremes<true, true, T>(call, wanted) : extremes<true, false, T>(call, wanted);
    } else {
      which ? extremes<false, true, T>(call, wanted) : extremes<false, false, T>(call, wanted);
    }
  });
}

void reduce_place(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto t) { placed<decltype(t)>(call); });
}

}  // namespace mpsf::MPSF_ISA
