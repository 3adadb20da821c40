// The two register tiles that convolutions spend their time in, and the copies that feed them.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// A tile holds kTileRows x kTileVectors accumulators, and leaves registers for one row of vectors and a scalar.
constexpr int kTileRows = kRegisters == 32 ? 14 : 6;
constexpr int kTileVectors = 2;
template <typename A>
constexpr int kTileLanes = kTileVectors* lanes<A>;

// Longest sum over one panel, and the distance of a panel's rows. The distance is a constant so that all rows
// are addressed from one register, and has room for a whole vector behind the last element.
constexpr int kDepth = 576;
constexpr int kPitch = kDepth + 16;

template <typename A>
using Tile = void (*)(const A* panel, const A* weights, int64_t depth, bool add, const A* next, A* sums);

// `next` is fetched into the cache meanwhile, as much as there are weights, unless Fetch is false.
// sums[r][lane] = (add ? sums[r][lane] : 0) + sum over k of panel[r][k] * weights[k][lane]
template <typename A, int Pitch, bool Fetch, int Rows, int Vectors>
void multiply(const A* panel, const A* weights, int64_t depth, bool add, const A* next, A* sums) {
  constexpr int L = lanes<A>;
  Vec<A> acc[Rows][Vectors] = {};
  for (int64_t k = 0; k < depth; ++k, ++panel, weights += kTileLanes<A>) {
    Vec<A> w[Vectors];
    for (int v = 0; v < Vectors; ++v) w[v] = load(weights + v * L);
    if (Fetch) fetch<kTileLanes<A> * sizeof(A)>(next + k * kTileLanes<A>);
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
      const Vec<A> x = splat(panel[r * Pitch]);
      for (int v = 0; v < Vectors; ++v) acc[r][v] += x * w[v];
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < Rows; ++r, sums += kTileLanes<A>) {
    for (int v = 0; v < Vectors; ++v) store(sums + v * L, add ? load(sums + v * L) + acc[r][v] : acc[r][v]);
  }
}

template <typename A, int Pitch, bool Fetch, int Rows = kTileRows>
Tile<A> multiply_tile(int rows, int vectors) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return multiply_tile<A, Pitch, Fetch, Rows - 1>(rows, vectors);
  }
  return vectors == 1 ? multiply<A, Pitch, Fetch, Rows, 1> : multiply<A, Pitch, Fetch, Rows, 2>;
}

// The pixels that a weight gradient sums over at a time: `count` rows of `cols` pixels. Row number r starts at
// pixel dy[r] of the cotangent's panel and at pixel x[r] of the source's, where x_step leads to the next.
struct PixelBlock {
  const int *dy, *x;
  int count, cols, x_step;
};

// Distance of two pixels in a cotangent's panel.
constexpr int kOuterPitch = kRegisters == 32 ? 16 : 8;

template <typename A>
using OuterTile = void (*)(const PixelBlock& block, const A* dy, const A* x, bool add, const A* next_dy,
                           const A* next_x, A* sums, int64_t pitch);

// sums[r * pitch + lane] = (add ? sums[r * pitch + lane] : 0) + sum over pixels of dy[pixel][r] * x[pixel][lane]
template <typename A, bool Fetch, int Rows, int Vectors>
void outer(const PixelBlock& block, const A* dy, const A* x, bool add, const A* next_dy, const A* next_x, A* sums,
           int64_t pitch) {
  constexpr int L = lanes<A>;
  Vec<A> acc[Rows][Vectors] = {};
  for (int row = 0; row < block.count; ++row) {
    const A* d = dy + int64_t{block.dy[row]} * kOuterPitch;
    const A* from = x + int64_t{block.x[row]} * kTileLanes<A>;
    for (int i = 0; i < block.cols; ++i, d += kOuterPitch, from += int64_t{block.x_step} * kTileLanes<A>) {
      Vec<A> w[Vectors];
      for (int v = 0; v < Vectors; ++v) w[v] = load(from + v * L);
      if (Fetch) {
        fetch<kOuterPitch * sizeof(A)>(next_dy + i * kOuterPitch);
        fetch<kTileLanes<A> * sizeof(A)>(next_x + i * kTileLanes<A>);
        __builtin_prefetch(sums + kTileRows * kTileLanes<A> + i * (64 / sizeof(A)), 1, 2);  // of the next place
      }
#pragma GCC unroll 14
      for (int r = 0; r < Rows; ++r) {
        const Vec<A> s = splat(d[r]);
        for (int v = 0; v < Vectors; ++v) acc[r][v] += s * w[v];
      }
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < Rows; ++r, sums += pitch) {
    for (int v = 0; v < Vectors; ++v) store(sums + v * L, add ? load(sums + v * L) + acc[r][v] : acc[r][v]);
  }
}

template <typename A, bool Fetch, int Rows = kTileRows>
OuterTile<A> outer_tile(int rows, int vectors) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return outer_tile<A, Fetch, Rows - 1>(rows, vectors);
  }
  return vectors == 1 ? outer<A, Fetch, Rows, 1> : outer<A, Fetch, Rows, 2>;
}

// Memory that is read soon, fetched a little at a time between tiles: taken all at once, its latency shows.
class Ahead {
 public:
  Ahead() : at_(nullptr), end_(nullptr), each_(0) {}
  Ahead(const void* begin, const void* end, int64_t steps)
      : at_(static_cast<const char*>(begin)),
        end_(static_cast<const char*>(end)),
        each_((end_ - at_) / steps + kLine) {}

  MPSF_INLINE void step() {
    const char* to = at_ + smaller(each_, end_ - at_);
    for (; at_ < to; at_ += kLine) __builtin_prefetch(at_, 0, 2);
  }

 private:
  static constexpr int64_t kLine = 64;
  const char *at_, *end_;
  int64_t each_;
};

template <typename A>
MPSF_INLINE void clear(A* to, int64_t count) {
  memset(static_cast<void*>(to), 0, static_cast<size_t>(count) * sizeof(A));
}

// Elements [begin, end) of a run of which only [low, high) exist; the others become zeros. Writes up to one
// vector behind the run. `from` is where element 0 is or would be.
template <typename T>
MPSF_INLINE void copy_run(Acc<T>* to, const T* from, int64_t begin, int64_t end, int64_t low, int64_t high) {
  constexpr int L = lanes<Acc<T>>;
  low = low < begin ? begin : smaller(low, end);
  high = high < low ? low : smaller(high, end);
  if (low > begin) clear(to, low - begin);
  Acc<T>* p = to + (low - begin);
  int64_t i = low;
  for (; i + L <= high; i += L, p += L) store(p, load(from + i));
  if (i < high) store(p, load(from + i, static_cast<int>(high - i)));
  if (end > high) clear(to + (high - begin), end - high);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
