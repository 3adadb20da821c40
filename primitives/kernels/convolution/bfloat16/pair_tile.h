// The tile that products of bfloat16 are made in, by the instructions that multiply pairs of them and add in float32:
// sums of kPairRows rows of a panel by kPairLanes lanes of weights, which lie as [k / 2][lane][2].
#pragma once
#include "kernels/activation/rounded.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"

#if defined(MPSF_TILES)
#include "kernels/convolution/bfloat16/tiles.h"
#endif

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kPairLanes = 32;
#if defined(MPSF_TILES)
constexpr int kPairRows = 2 * kTileSide;
constexpr int64_t kPairUnit = kTileBytes / 2;  // sums are of a multiple of so many products
#else
constexpr int kPairRows = 14;
constexpr int64_t kPairUnit = 2;
struct Tiles {
  Tiles() {}  // not trivial: an object by itself is then no unused variable
};
#endif

#if defined(__AVX512BF16__)
// Stores halves of a line past the caches, the first one or both: only they are aligned.
MPSF_INLINE void stream_halves(Bfloat* to, __m512i line, int count) {
  __m256i halves[2];
  memcpy(halves, &line, sizeof(line));
  stream_bits(to, halves[0]);
  if (count == 2) stream_bits(to + lanes<float>, halves[1]);
}

MPSF_INLINE Vec<float> add_products(Vec<float> sums, __m512i rows, __m512i columns) {
  return _mm512_dpbf16_ps(sums, bit_cast<__m512bh>(rows), bit_cast<__m512bh>(columns));
}
#endif

inline int64_t whole_units(int64_t depth) { return (depth + kPairUnit - 1) / kPairUnit * kPairUnit; }

// What becomes of a tile's sums, whose lanes are the channels from `channel` on.
struct Finish {
  Bfloat* to;     // the first row's channel 0
  int64_t pitch;  // from one row to the next
  int64_t channel;
  int64_t count;      // channels from there on, which may be fewer than lanes or more
  const float* bias;  // of all channels
  const Neuron<float>* neuron;
  bool streamed;
  const Bfloat* added;  // to results ahead of the activation, where `to` is; or null
};

// Rows `pitch` apart of runs of `length` elements each, a whole number of units: row r of run i is at
// runs[i] + offset + r * pitch. A run that is null is of zeros. AMX reads rows beyond `rows`, up to a multiple of
// kTileSide.
struct PairPanel {
  const Bfloat* const* runs;
  int count;
  int64_t length, offset, pitch;
  int rows;
};

// Of a tile, rows `pitch` apart.
struct PairSums {
  float* data;
  int64_t pitch;
};

// sums[r][lane] = (add ? sums[r][lane] : 0) + the sum over runs and k of panel[r][k] * weights[k / 2][lane][k % 2],
// which are stored unless `finish` says what to make of them.
using PairTile = void (*)(const PairPanel& panel, const Bfloat* weights, bool add, const PairSums& sums,
                          const Finish* finish);

#if defined(MPSF_TILES)

inline void finish_rows(int rows, const PairSums& sums, const Finish& finish) {
  constexpr int L = lanes<float>;
  for (int r = 0; r < rows; ++r) {
    const float* from = sums.data + r * sums.pitch;
    for (int lane = 0; lane < kPairLanes && lane < finish.count; lane += L) {
      const int n = static_cast<int>(smaller(L, finish.count - lane));
      const int64_t channel = finish.channel + lane;
      Vec<float> value[1][1] = {{load(from + lane) + load_some(finish.bias + channel, n)}};
      if (finish.added) value[0][0] += load_some(finish.added + r * finish.pitch + channel, n);
      apply(value, finish.neuron, finish_roughly);
      store_result(finish.to + r * finish.pitch + channel, value[0][0], n, finish.streamed);
    }
  }
}

template <int RowTiles, int Columns>
void multiply_pairs(const PairPanel& panel, const Bfloat* weights, bool add, const PairSums& sums,
                    const Finish* finish) {
  constexpr int64_t kSumBytes = kPairLanes * sizeof(float), kColumnBytes = 2 * kPairLanes * sizeof(Bfloat);
  const int64_t pitch = panel.pitch * static_cast<int64_t>(sizeof(Bfloat));
  tile_zero<0>();
  if constexpr (Columns == 2) tile_zero<1>();
  if constexpr (RowTiles == 2) tile_zero<2>();
  if constexpr (RowTiles == 2 && Columns == 2) tile_zero<3>();
  for (int run = 0; run < panel.count; ++run, weights += panel.length * kPairLanes) {
    if (!panel.runs[run]) continue;
    const Bfloat *rows = panel.runs[run] + panel.offset, *lower = rows + kTileSide * panel.pitch;
    for (int64_t k = 0; k < panel.length; k += kPairUnit) {
      const Bfloat* columns = weights + k * kPairLanes;
      tile_load<6>(columns, kColumnBytes);
      tile_load<4>(rows + k, pitch);
      tile_multiply<0, 0>();
      if constexpr (RowTiles == 2) {
        tile_load<5>(lower + k, pitch);
        tile_multiply<1, 0>();
      }
      if constexpr (Columns == 2) {
        tile_load<7>(columns + kPairLanes, kColumnBytes);
        tile_multiply<0, 1>();
        if constexpr (RowTiles == 2) tile_multiply<1, 1>();
      }
    }
  }
  float made[kPairRows * kPairLanes], *lower = made + kTileSide * kPairLanes;
  tile_store<0>(made, kSumBytes);
  if constexpr (Columns == 2) tile_store<1>(made + kTileSide, kSumBytes);
  if constexpr (RowTiles == 2) tile_store<2>(lower, kSumBytes);
  if constexpr (RowTiles == 2 && Columns == 2) tile_store<3>(lower + kTileSide, kSumBytes);
  for (int r = 0; r < panel.rows; ++r) {
    for (int lane = 0; lane < Columns * kTileSide; lane += lanes<float>) {
      float* to = sums.data + r * sums.pitch + lane;
      const Vec<float> own = load(made + r * kPairLanes + lane);
      store(to, add ? load(to) + own : own);
    }
  }
  if (finish) finish_rows(panel.rows, sums, *finish);
}

inline PairTile pair_tile(int rows, int64_t lane_count) {
  if (rows <= kTileSide) return lane_count <= kTileSide ? multiply_pairs<1, 1> : multiply_pairs<1, 2>;
  return lane_count <= kTileSide ? multiply_pairs<2, 1> : multiply_pairs<2, 2>;
}

#else

template <int Rows, int Vectors>
void multiply_pairs(const PairPanel& panel, const Bfloat* weights, bool add, const PairSums& sums,
                    const Finish* finish) {
  constexpr int L = lanes<float>;
  const int64_t pitch = panel.pitch * static_cast<int64_t>(sizeof(Bfloat));
  // All loops over it are unrolled: an index that is not a constant would have the sums live in memory.
  Vec<float> acc[Rows][Vectors];
#pragma GCC unroll 14
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) acc[r][v] = Vec<float>{};
  }
  for (int run = 0; run < panel.count; ++run) {
    const Bfloat* end = weights + panel.length * kPairLanes;
    if (!panel.runs[run]) {
      weights = end;
      continue;
    }
    // Rows are addressed from every fifth one. Hidden from the compiler, which would take a register for each.
    const char* base[3];
    for (int i = 0; i < 3; ++i) {
      base[i] = reinterpret_cast<const char*>(panel.runs[run] + panel.offset) + (5 * i < Rows ? 5 * i : 0) * pitch;
      asm("" : "+r"(base[i]));
    }
    for (; weights < end; weights += 2 * kPairLanes) {
      __m512i w[Vectors];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) memcpy(&w[v], weights + 2 * v * L, sizeof(w[v]));
#pragma GCC unroll 14
      for (int r = 0; r < Rows; ++r) {
        int pair;
        memcpy(&pair, base[r / 5] + r % 5 * pitch, sizeof(pair));
        const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) acc[r][v] = add_products(acc[r][v], x, w[v]);
      }
      for (int i = 0; i < 3; ++i) {
        base[i] += sizeof(int);
        asm("" : "+r"(base[i]));
      }
    }
  }
  if (add) {  // not before: a long sum that starts at another one rounds more
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) acc[r][v] += load(sums.data + r * sums.pitch + v * L);
    }
  }
  if (!finish) {
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) store(sums.data + r * sums.pitch + v * L, acc[r][v]);
    }
    return;
  }
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    const int n = static_cast<int>(smaller(finish->count - v * L, L));
    const Vec<float> start = load_some(finish->bias + finish->channel + v * L, n);
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) acc[r][v] += start;
    if (!finish->added) continue;
    const Bfloat* more = finish->added + finish->channel + v * L;
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) acc[r][v] += load_some(more + r * finish->pitch, n);
  }
  apply(acc, finish->neuron, finish_roughly);
  const bool streamed = finish->streamed;
  if (Vectors == 2 && finish->count >= kPairLanes) {  // a line of the cache at once
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
      const __m512i line = bit_cast<__m512i>(_mm512_cvtne2ps_pbh(acc[r][Vectors - 1], acc[r][0]));
      Bfloat* to = finish->to + r * finish->pitch + finish->channel;
      if (streamed) {
        stream_halves(to, line, 2);
      } else {
        memcpy(static_cast<void*>(to), &line, sizeof(line));
      }
    }
    return;
  }
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    const int n = static_cast<int>(smaller(finish->count - v * L, L));
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
      store_result(finish->to + r * finish->pitch + finish->channel + v * L, acc[r][v], n, streamed);
    }
  }
}

template <int Rows = kPairRows>
PairTile pair_tile(int rows, int64_t lane_count) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return pair_tile<Rows - 1>(rows, lane_count);
  }
  return lane_count <= lanes<float> ? multiply_pairs<Rows, 1> : multiply_pairs<Rows, 2>;
}

#endif

}  // namespace
}  // namespace mpsf::MPSF_ISA
