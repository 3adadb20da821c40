// Reductions of the middle axis of an array (outer, length, inner): how they are cut into work, by the shape alone.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/lines.h"
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// Elements of a line that one thread sees through; longer ones are cut.
constexpr int64_t kLongLine = 1 << 12;
// Neighbours that are reduced side by side: what is kept of them stays in the first cache. More are cut into tiles.
constexpr int64_t kTileWidth = 1 << 10;

struct Reduction {
  int64_t outer, length, inner;

  explicit Reduction(const Tensor& x) : outer(x.shape[0]), length(x.shape[1]), inner(x.shape[2]) {}
  int64_t size() const { return length * inner; }
  bool along_lines() const { return inner == 1 && length <= kLongLine; }
  // Whether vectors of neighbours go through all rows at once: there are few rows, or enough neighbours for threads.
  template <typename A>
  bool in_tiles() const {
    return inner > kTileWidth || (length <= kBlock && inner >= lanes<A>);
  }
  int64_t tiles() const { return (inner + kTileWidth - 1) / kTileWidth; }

  // Each outer one as a statistics group, whose channels are the inner ones.
  template <typename A>
  StatGroups groups() const {
    StatGroups all{outer, size(), rows_of<A>(size(), inner)};
    all.rows.most = (kChunks + outer - 1) / outer;
    return all;
  }

  // Calls f(begin, end) for lines.
  template <typename F>
  void for_lines(const F& f) const {
    parallel_groups(outer, length, length, f);
  }
  // Calls f(outer, first, width) for tiles of the inner axis.
  template <typename F>
  void for_tiles(const F& f) const {
    const int64_t width = smaller(inner, kTileWidth);
    parallel_groups(outer * tiles(), length * width, length * width, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % tiles() * kTileWidth;
        f(task / tiles(), first, smaller(kTileWidth, inner - first));
      }
    });
  }
};

// Stores f(line) of the lines from `begin` to `end`.
template <typename Out, typename A, typename F>
MPSF_INLINE void store_lines(Out* out, int64_t begin, int64_t end, const F& f) {
  constexpr int64_t L = lanes<A>;
  for (int64_t first = begin; first < end; first += L) {
    const int n = static_cast<int>(smaller(L, end - first));
    A made[L] = {};
    for (int i = 0; i < n; ++i) made[i] = f(first + i);
    Vec<A> v;
    memcpy(&v, made, sizeof(v));
    store_some(out + first, v, n);
  }
}

// Stores numbers of double precision.
template <typename Out, typename F>
MPSF_INLINE void store_doubles(Out* out, int64_t count, const F& f) {
  using A = Acc<Out>;
  store_lines<Out, A>(
      out, 0, count, [&](int64_t i) __attribute__((always_inline)) { return static_cast<A>(f(i)); });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
