// Sums and means over the middle axis of an array (outer, length, inner), perhaps of elements times their weights, and
// what a gradient of such sums hands on to the elements. Sums are in the accumulator's precision for kBlock terms and
// in double beyond, and rounded once.
#include "kernels/pooling/reduction.h"
#include "pooling/params.h"

namespace mpsf::MPSF_ISA {
namespace {

// Rows that are added to the sums at a time.
constexpr int64_t kTogether = 8;

// Adds so many rows of a width, which lie `stride` apart, to their sums; times weights that lie as they do.
template <bool Weighted, typename T>
void add_rows(const T* x, const T* w, int64_t rows, int64_t width, int64_t stride, Acc<T>* sums) {
  using A = Acc<T>;
  const auto add = [&]<int64_t N>(int64_t row, int64_t rest) {
    const int64_t count = N > 0 ? N : rest;
    along<A>(
        width, [&](int64_t at, int n) __attribute__((always_inline)) {
          Vec<A> sum = load_some(sums + at, n);
          for (int64_t i = 0; i < count; ++i) {
            const int64_t from = (row + i) * stride + at;
            const Vec<A> v = load_some(x + from, n);
            sum += Weighted ? v * load_some(w + from, n) : v;
          }
          store_some(sums + at, sum, n);
        });
  };
  int64_t row = 0;
  for (; row + kTogether <= rows; row += kTogether) add.template operator()<kTogether>(row, kTogether);
  if (row < rows) add.template operator()<0>(row, rows - row);
}

// The sums of rows in double precision; `room` holds a row.
template <bool Weighted, typename T>
void sum_rows(const T* x, const T* w, int64_t rows, int64_t width, int64_t stride, Acc<T>* room, double* sums) {
  using A = Acc<T>;
  for (int64_t block = 0; block < rows; block += kBlock) {
    memset(room, 0, static_cast<size_t>(width) * sizeof(A));
    add_rows<Weighted>(x + block * stride, Weighted ? w + block * stride : w, smaller(kBlock, rows - block), width,
                       stride, room);
    for (int64_t i = 0; i < width; ++i) sums[i] = (block > 0 ? sums[i] : 0) + static_cast<double>(room[i]);
  }
}

template <bool Weighted, typename T>
MPSF_INLINE double line_sum(const T* x, const T* w, int64_t length) {
  using A = Acc<T>;
  const auto term = [&](int64_t at, int n) __attribute__((always_inline)) {
    const Vec<A> v = load_some(x + at, n);
    return Weighted ? v * load_some(w + at, n) : v;
  };
  if (length <= kBlock) {  // too few for any lane to go on in double
    Vec<A> sum{};
    along<A>(
        length, [&](int64_t at, int n) __attribute__((always_inline)) { sum += term(at, n); });
    return static_cast<double>(sum_of<A>(sum));
  }
  LaneSum<A> sum;
  along<A>(
      length, [&](int64_t at, int n) __attribute__((always_inline)) { sum.add(term(at, n)); });
  return sum.total();
}

template <bool Weighted, typename T, typename Out>
void sums(const Call& call) {
  using A = Acc<T>;
  const Reduction r(call.in[0]);
  const T *const x = data<T>(call.in[0]), *const w = Weighted ? data<T>(call.in[1]) : nullptr;
  Out* const out = data<Out>(call.out[0]);
  const int64_t own = Weighted && call.in[1].shape[0] == r.outer ? r.size() : 0;  // or weights are the same for all
  const bool mean = params_as<ReduceSumParams>(call.params).mean;
  const auto made = [&](double sum) { return mean ? sum / static_cast<double>(r.length) : sum; };
  const auto weights = [&](int64_t outer, int64_t at) { return Weighted ? w + outer * own + at : w; };
  if (r.along_lines()) {
    return r.for_lines([&](int64_t begin, int64_t end) {
      store_lines<Out, A>(out, begin, end, [&](int64_t line) {
        return static_cast<A>(made(line_sum<Weighted>(x + line * r.length, weights(line, 0), r.length)));
      });
    });
  }
  if (r.in_tiles<A>()) {
    return r.for_tiles([&](int64_t outer, int64_t first, int64_t width) {
      A room[kTileWidth];
      double total[kTileWidth];
      const T *const from = x + outer * r.size() + first, *const by = weights(outer, first);
      Out* const to = out + outer * r.inner + first;
      if (r.length > kBlock) {
        sum_rows<Weighted>(from, by, r.length, width, r.inner, room, total);
        return store_doubles(to, width, [&](int64_t i) { return made(total[i]); });
      }
      memset(room, 0, static_cast<size_t>(width) * sizeof(A));
      add_rows<Weighted>(from, by, r.length, width, r.inner, room);
      const Vec<A> divisor = splat(static_cast<A>(mean ? r.length : 1));
      along<A>(
          width, [&](int64_t at, int n)
                     __attribute__((always_inline)) { store_some(to + at, load_some(room + at, n) / divisor, n); });
    });
  }
  const StatGroups groups = r.groups<A>();
  const Rows& rows = groups.rows;
  reduce_stat_groups(
      groups, r.inner, 2 * rows.width,
      [&](int64_t outer, int64_t chunk, double* part, double* room) {
        const int64_t width = rows.width_of(chunk), begin = rows.begin(chunk), at = begin * rows.width;
        sum_rows<Weighted>(x + outer * r.size() + at, weights(outer, at), rows.begin(chunk + 1) - begin, width, width,
                           reinterpret_cast<A*>(room + rows.width), room);
        fold(room, width, part, r.inner);
      },
      [&](int64_t outer, double* parts) {
        store_doubles(out + outer * r.inner, r.inner, [&](int64_t i) {
          double total = 0;
          for (int64_t chunk = 0; chunk <= rows.chunks(); ++chunk) {
            if (rows.pixels_of(chunk) > 0) total += parts[chunk * r.inner + i];
          }
          return made(total);
        });
      });
}

// dy (outer, inner) times weights, in the places of the elements.
template <typename T>
void weighed(const Call& call) {
  using A = Acc<T>;
  const Reduction r(call.out[0]);
  const A* const dy = data<A>(call.in[0]);
  const T* const w = data<T>(call.in[1]);
  T* const out = data<T>(call.out[0]);
  const int64_t own = call.in[1].shape[0] == r.outer ? r.size() : 0;
  const bool streamed = call.out[0].streamed;
  // As many rows as are a chunk of work; of a line, elements.
  const int64_t width = r.inner > 1 ? r.inner : smaller(r.length, kChunkElements), rows = r.size() / width;
  const int64_t each = smaller(rows, 1 + kChunkElements / width), rest = r.size() - rows * width;
  const int64_t pieces = (rows + each - 1) / each + (rest > 0);
  const auto row = [&](int64_t outer, int64_t at, int64_t n) {
    const A* const of = dy + outer * r.inner;
    const T* const from = w + outer * own + at;
    T* const to = out + outer * r.size() + at;
    const Vec<A> same = splat(of[0]);
    along_made(
        to, n, streamed, [&](int64_t i, int count, bool past) __attribute__((always_inline)) {
          const Vec<A> t = r.inner > 1 ? load_some(of + i, count) : same;
          store_result(to + i, t * load_some(from + i, count), count, past);
        });
  };
  const int64_t several = 1 + kChunkElements / (r.size() + 1), groups = (r.outer + several - 1) / several;
  parallel_for(groups * pieces, [&](int64_t task) {
    const int64_t first = task / pieces * several, piece = task % pieces;
    for (int64_t outer = first; outer < smaller(r.outer, first + several); ++outer) {
      for (int64_t i = piece * each; i < smaller(rows, (piece + 1) * each); ++i) row(outer, i * width, width);
      if (rest > 0 && piece == pieces - 1) row(outer, rows * width, rest);
    }
    stream_end();
  });
}

}  // namespace

void reduce_sum(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto t) {
    by_type(call.out[0].type, [&](auto o) {
      using T = decltype(t);
      using Out = decltype(o);
      if constexpr (sizeof(Acc<T>) == sizeof(Acc<Out>)) {
        call.in_count > 1 ? sums<true, T, Out>(call) : sums<false, T, Out>(call);
      }
    });
  });
}

void reduce_weigh(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[1].type, [&](auto t) { weighed<decltype(t)>(call); });
}

}  // namespace mpsf::MPSF_ISA
