// Winograd's F(4x4, 3x3): tiles of 6x6 source pixels, 3x3 weights and 4x4 results are taken to 36 places, where a
// convolution or its gradient is one product each: a quarter of the multiplications.
#pragma once
#include "channels.h"
#include "conv_side.h"

namespace mpsf::MPSF_ISA {
namespace {

// The places are values of polynomials at 0, +-a, +-b and infinity. These a and b, found by measurement, have exact
// squares and lose the least: half of what the usual 1 and 2 do.
constexpr float kPointA = 0.625f, kPointB = 1.5f;
constexpr float kSquareA = kPointA * kPointA, kSquareB = kPointB * kPointB;

constexpr float kWeight0 = 1 / (kSquareA * kSquareB);
constexpr float kWeightA = 1 / (2 * kSquareA * (kSquareA - kSquareB));
constexpr float kWeightB = 1 / (2 * kSquareB * (kSquareB - kSquareA));

constexpr int kTileOuts = 4, kTileTaps = 6, kPlaces = kTileTaps * kTileTaps;
constexpr int kLeastChannels = 16;  // below, a direct sum has too few terms to round as much
constexpr int kLeastPixels = 128;   // below, taking the weights to places costs more than it saves

template <typename V>
MPSF_INLINE void source_places(const V (&d)[6], V (&to)[6]) {
  const V even_a = d[4] - kSquareB * d[2], odd_a = d[3] - kSquareB * d[1];
  const V even_b = d[4] - kSquareA * d[2], odd_b = d[3] - kSquareA * d[1];
  to[0] = d[4] - (kSquareA + kSquareB) * d[2] + kSquareA * kSquareB * d[0];
  to[1] = even_a + kPointA * odd_a;
  to[2] = even_a - kPointA * odd_a;
  to[3] = even_b + kPointB * odd_b;
  to[4] = even_b - kPointB * odd_b;
  to[5] = d[5] - (kSquareA + kSquareB) * d[3] + kSquareA * kSquareB * d[1];
}

template <typename V>
MPSF_INLINE void weight_places(const V (&w)[3], V (&to)[6]) {
  const V even_a = kWeightA * w[0] + kWeightA * kSquareA * w[2], even_b = kWeightB * w[0] + kWeightB * kSquareB * w[2];
  to[0] = w[0] * kWeight0;
  to[1] = even_a + kWeightA * kPointA * w[1];
  to[2] = even_a - kWeightA * kPointA * w[1];
  to[3] = even_b + kWeightB * kPointB * w[1];
  to[4] = even_b - kWeightB * kPointB * w[1];
  to[5] = w[2];
}

template <typename V>
MPSF_INLINE void result_places(const V (&m)[6], V (&y)[4]) {
  const V even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
  y[0] = m[0] + even_a + even_b;
  y[1] = kPointA * odd_a + kPointB * odd_b;
  y[2] = kSquareA * even_a + kSquareB * even_b;
  y[3] = kSquareA * kPointA * odd_a + kSquareB * kPointB * odd_b + m[5];
}

// The transposes: results are taken to places, and places back to weights, for the weight gradient.
template <typename V>
MPSF_INLINE void placed_results(const V (&y)[4], V (&to)[6]) {
  const V even_a = y[0] + kSquareA * y[2], odd_a = kPointA * y[1] + kSquareA * kPointA * y[3];
  const V even_b = y[0] + kSquareB * y[2], odd_b = kPointB * y[1] + kSquareB * kPointB * y[3];
  to[0] = y[0];
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
  to[5] = y[3];
}

template <typename V>
MPSF_INLINE void placed_weights(const V (&m)[6], V (&w)[3]) {
  const V even_a = kWeightA * (m[1] + m[2]), even_b = kWeightB * (m[3] + m[4]);
  const V odd_a = kWeightA * (m[1] - m[2]), odd_b = kWeightB * (m[3] - m[4]);
  w[0] = m[0] * kWeight0 + even_a + even_b;
  w[1] = kPointA * odd_a + kPointB * odd_b;
  w[2] = kSquareA * even_a + kSquareB * even_b + m[5];
}

// The outputs of a convolution in tiles. Those of a dilated one are as many convolutions side by side as its taps are
// apart, so that a tile's outputs and sources are that far apart too.
struct Tiling {
  Side rows, cols;
  int source_rows, source_cols, source_channels;
  int down, across;  // tiles of an image
  int64_t count;     // of all images

  template <typename P>
  explicit Tiling(const P& p)
      : rows(p.rows),
        cols(p.cols),
        source_rows(p.source_rows),
        source_cols(p.source_cols),
        source_channels(p.source_channels),
        down(tiles(rows)),
        across(tiles(cols)),
        count(int64_t{p.images} * down * across) {}

  static int tiles(const Side& side) { return ceil_div(ceil_div(side.outs, side.src_tap), kTileOuts) * side.src_tap; }

  // Whether outputs are made of 3x3 taps in steps of one, and tiles do not hang over the edge too far.
  bool fits(int channels, int outs) const {
    const bool plain = rows.taps == 3 && cols.taps == 3 && rows.src_out == 1 && cols.src_out == 1;
    const int64_t pixels = down > 0 && across > 0 ? count / down / across * rows.outs * cols.outs : 0;
    return plain && channels >= kLeastChannels && outs >= kLeastChannels && pixels >= kLeastPixels &&
           count * kTileOuts * kTileOuts <= 2 * pixels;
  }

  struct Corner {
    int image, row, col;  // row and col count outputs of the sides
  };
  Corner corner(int64_t tile) const {
    const int64_t line = tile / across;
    const int row = static_cast<int>(line % down), col = static_cast<int>(tile % across);
    return {static_cast<int>(line / down), first_out(rows, row), first_out(cols, col)};
  }
  static int first_out(const Side& side, int tile) {
    return tile % side.src_tap + tile / side.src_tap * side.src_tap * kTileOuts;
  }
  // How many outputs of a tile that begins with `out` exist.
  static int outs(const Side& side, int out) {
    return greater(0, lesser(kTileOuts, ceil_div(side.outs - out, side.src_tap)));
  }

  // n channels of a tile of the source, taken to places that lie `pitch` apart.
  template <typename T>
  void place_source(const T* source, int64_t tile, int channel, int n, int64_t pitch, float* to) const {
    const Corner at = corner(tile);
    const int row = rows.src_first + at.row, col = cols.src_first + at.col;
    const bool inside = row >= rows.src_begin && row + (kTileTaps - 1) * rows.src_tap < rows.src_end &&
                        col >= cols.src_begin && col + (kTileTaps - 1) * cols.src_tap < cols.src_end;
    const T* x = source + ((int64_t{at.image} * source_rows + row) * source_cols + col) * source_channels + channel;
    if (inside && n == lanes<float>) {
      place_channels<true>(x, row, col, n, pitch, to);
    } else {
      place_channels<false>(x, row, col, n, pitch, to);
    }
  }

  template <bool Whole, typename T>
  MPSF_INLINE void place_channels(const T* x, int row, int col, int n, int64_t pitch, float* to) const {
    const int64_t col_step = int64_t{cols.src_tap} * source_channels;
    const int64_t row_step = int64_t{rows.src_tap} * source_cols * source_channels;
    Vec<float> half[6][6];
    for (int i = 0; i < 6; ++i, x += row_step, row += rows.src_tap) {
      const bool there = Whole || (row >= rows.src_begin && row < rows.src_end);
      Vec<float> d[6];
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j) {
        if constexpr (Whole) {
          d[j] = load(x + j * col_step);
        } else {
          const int at = col + j * cols.src_tap;
          d[j] = there && at >= cols.src_begin && at < cols.src_end ? load_some(x + j * col_step, n) : Vec<float>{};
        }
      }
      source_places(d, half[i]);
    }
    for (int j = 0; j < 6; ++j, to += pitch) {
      const Vec<float> d[6] = {half[0][j], half[1][j], half[2][j], half[3][j], half[4][j], half[5][j]};
      Vec<float> placed[6];
      source_places(d, placed);
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) store(to + i * 6 * pitch, placed[i]);
    }
  }
};

}  // namespace
}  // namespace mpsf::MPSF_ISA
