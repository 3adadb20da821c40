// Winograd's convolutions with 3x3 taps: tiles of source pixels, weights and results are taken to a transform domain,
// at each of whose points a convolution or its gradient is one product, with a fraction of the multiplications.
#pragma once
#include "kernels/convolution/conv_axis.h"
#include "kernels/vector/channels.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kSkew = 16;           // numbers between points, which would meet in few sets of the caches without
constexpr int kLeastChannels = 16;  // below, a direct sum has too few terms to round as much
constexpr int kLeastPixels = 128;   // below, transforming the weights costs more than it saves

// Below, kOuts results of an axis come from kReach pixels, in kSide points; from one result to the next it is kStep
// pixels, or one for kSpread results. Tiles may cover kFifths fifths of the results that exist.

// Windows axis by axis: F(4x4, 3x3), 36 points instead of 144 products. Its points are values of polynomials at 0, +-a,
// +-b and infinity. These a and b, found by measurement, have exact squares and lose the least: half of what the usual
// 1 and 2 do.
struct Dense {
  static constexpr int kStep = 1, kSpread = 1, kOuts = 4, kReach = 6, kSide = 6, kFifths = 10;
  static constexpr int kRun = 32;  // terms that a weight gradient adds in a row, so as not to round more than others
  static constexpr float a = 0.625f, b = 1.5f, aa = a * a, bb = b * b;
  static constexpr float w0 = 1 / (aa * bb), wa = 1 / (2 * aa * (aa - bb)), wb = 1 / (2 * bb * (bb - aa));

  template <typename V>
  static MPSF_INLINE void source(const V (&d)[6], V (&to)[6]) {
    const V even_a = d[4] - bb * d[2], odd_a = d[3] - bb * d[1];
    const V even_b = d[4] - aa * d[2], odd_b = d[3] - aa * d[1];
    to[0] = d[4] - (aa + bb) * d[2] + aa * bb * d[0];
    to[1] = even_a + a * odd_a;
    to[2] = even_a - a * odd_a;
    to[3] = even_b + b * odd_b;
    to[4] = even_b - b * odd_b;
    to[5] = d[5] - (aa + bb) * d[3] + aa * bb * d[1];
  }

  template <typename V>
  static MPSF_INLINE void weights(const V (&w)[3], V (&to)[6]) {
    const V even_a = wa * w[0] + wa * aa * w[2], even_b = wb * w[0] + wb * bb * w[2];
    to[0] = w[0] * w0;
    to[1] = even_a + wa * a * w[1];
    to[2] = even_a - wa * a * w[1];
    to[3] = even_b + wb * b * w[1];
    to[4] = even_b - wb * b * w[1];
    to[5] = w[2];
  }

  template <typename V>
  static MPSF_INLINE void results(const V (&m)[6], V (&y)[4]) {
    const V even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = m[0] + even_a + even_b;
    y[1] = a * odd_a + b * odd_b;
    y[2] = aa * even_a + bb * even_b;
    y[3] = aa * a * odd_a + bb * b * odd_b + m[5];
  }

  // The transposes of the last two: cotangents of results to the transform domain, and from there to weights.
  template <typename V>
  static MPSF_INLINE void from_results(const V (&y)[4], V (&to)[6]) {
    const V even_a = y[0] + aa * y[2], odd_a = a * y[1] + aa * a * y[3];
    const V even_b = y[0] + bb * y[2], odd_b = b * y[1] + bb * b * y[3];
    to[0] = y[0];
    to[1] = even_a + odd_a;
    to[2] = even_a - odd_a;
    to[3] = even_b + odd_b;
    to[4] = even_b - odd_b;
    to[5] = y[3];
  }

  template <typename V>
  static MPSF_INLINE void to_weights(const V (&m)[6], V (&w)[3]) {
    const V even_a = wa * (m[1] + m[2]), even_b = wb * (m[3] + m[4]);
    const V odd_a = wa * (m[1] - m[2]), odd_b = wb * (m[3] - m[4]);
    w[0] = m[0] * w0 + even_a + even_b;
    w[1] = a * odd_a + b * odd_b;
    w[2] = aa * even_a + bb * even_b + m[5];
  }
};

// Windows two apart: 25 points instead of 36 products. Outer taps meet the pixels at even positions, F(2, 2); the
// middle tap meets those between.
struct Strided {
  static constexpr int kStep = 2, kSpread = 1, kOuts = 2, kReach = 5, kSide = 5, kFifths = 6, kRun = 128;

  template <typename V>
  static MPSF_INLINE void source(const V (&d)[5], V (&to)[5]) {
    to[0] = d[0] - d[2];
    to[1] = d[2];
    to[2] = d[4] - d[2];
    to[3] = d[1];
    to[4] = d[3];
  }

  template <typename V>
  static MPSF_INLINE void weights(const V (&w)[3], V (&to)[5]) {
    to[0] = w[0];
    to[1] = w[0] + w[2];
    to[2] = w[2];
    to[3] = to[4] = w[1];
  }

  template <typename V>
  static MPSF_INLINE void results(const V (&m)[5], V (&y)[2]) {
    y[0] = m[0] + m[1] + m[3];
    y[1] = m[1] + m[2] + m[4];
  }

  template <typename V>
  static MPSF_INLINE void from_results(const V (&y)[2], V (&to)[5]) {
    to[0] = to[3] = y[0];
    to[1] = y[0] + y[1];
    to[2] = to[4] = y[1];
  }

  template <typename V>
  static MPSF_INLINE void to_weights(const V (&m)[5], V (&w)[3]) {
    w[0] = m[0] + m[1];
    w[1] = m[3] + m[4];
    w[2] = m[1] + m[2];
  }
};

// The adjoint of windows two apart: four results from three pixels of the source, in 25 points instead of 36 products.
// Every other result meets the outer taps, F(2, 2), and those between the middle one, which comes first if Odd.
template <bool Odd>
struct Spread {
  static constexpr int kStep = 1, kSpread = 2, kOuts = 4, kReach = 3, kSide = 5, kFifths = 6;

  template <typename V>
  static MPSF_INLINE void source(const V (&d)[3], V (&to)[5]) {
    to[0] = d[0] - d[1];
    to[1] = d[1];
    to[2] = d[2] - d[1];
    to[3] = Odd ? d[0] : d[1];
    to[4] = Odd ? d[1] : d[2];
  }

  template <typename V>
  static MPSF_INLINE void weights(const V (&w)[3], V (&to)[5]) {
    to[0] = w[2];
    to[1] = w[0] + w[2];
    to[2] = w[0];
    to[3] = to[4] = w[1];
  }

  template <typename V>
  static MPSF_INLINE void results(const V (&m)[5], V (&y)[4]) {
    y[Odd] = m[0] + m[1];
    y[Odd + 2] = m[1] + m[2];
    y[!Odd] = m[3];
    y[!Odd + 2] = m[4];
  }
};

// Column j of rows of vectors.
template <int Rows, int Cols, typename V>
MPSF_INLINE void column(const V (&rows)[Rows][Cols], int j, V (&to)[Rows]) {
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i) to[i] = rows[i][j];
}

// The outputs of a convolution in tiles. Those of a dilated one are as many convolutions axis by axis as its taps are
// apart, so that a tile's outputs and sources are that far apart too.
template <typename Map>
struct Tiling {
  static constexpr int kReach = Map::kReach, kSide = Map::kSide;

  ConvAxis rows, cols;
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

  static int tiles(const ConvAxis& axis) {
    return ceil_div(ceil_div(axis.count, axis.src_tap), Map::kOuts) * axis.src_tap;
  }

  // Every window touches the source (of an adjoint: every tile): where a tile lay mostly outside, a sum of few terms
  // would be rounded as many.
  static bool fits(const ConvAxis& axis) {
    const bool touching = axis.src_first + 2 * axis.src_tap >= axis.src_begin &&
                          axis.src_first + (axis.count - 1) * axis.src_out / Map::kSpread < axis.src_end;
    const bool apart = axis.src_tap == 1 || Map::kStep * Map::kSpread == 1;
    return touching && axis.taps == 3 && axis.src_out == Map::kStep && apart;
  }

  // Whether outputs are made of such windows, and tiles do not hang over the edge too far: so many fifths of the
  // outputs still cost less than a product for each tap.
  bool fits(int channels, int out_channels) const {
    const bool plain = fits(rows) && fits(cols);
    const int64_t pixels = down > 0 && across > 0 ? count / down / across * rows.count * cols.count : 0;
    return plain && channels >= kLeastChannels && out_channels >= kLeastChannels && pixels >= kLeastPixels &&
           5 * count * Map::kOuts * Map::kOuts <= Map::kFifths * pixels;
  }

  struct Corner {
    int image, row, col;  // row and col count outputs of the sides
  };
  Corner corner(int64_t tile) const {
    const int64_t line = tile / across;
    const int row = static_cast<int>(line % down), col = static_cast<int>(tile % across);
    return {static_cast<int>(line / down), first_out(rows, row), first_out(cols, col)};
  }
  static int first_out(const ConvAxis& axis, int tile) {
    return tile % axis.src_tap + tile / axis.src_tap * axis.src_tap * Map::kOuts;
  }
  // How many outputs of a tile that begins with `out` exist.
  static int outputs(const ConvAxis& axis, int out) {
    return max_int(0, min_int(Map::kOuts, ceil_div(axis.count - out, axis.src_tap)));
  }

  // n channels of a tile of the source, transformed, to points that lie `pitch` apart.
  template <typename T>
  void transform_source(const T* source, int64_t tile, int channel, int n, int64_t pitch, float* to) const {
    const Corner at = corner(tile);
    const int row = rows.src_first + at.row * Map::kStep / Map::kSpread,
              col = cols.src_first + at.col * Map::kStep / Map::kSpread;
    const bool inside = row >= rows.src_begin && row + (kReach - 1) * rows.src_tap < rows.src_end &&
                        col >= cols.src_begin && col + (kReach - 1) * cols.src_tap < cols.src_end;
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
    Vec<float> half[kReach][kSide];
    for (int i = 0; i < kReach; ++i, x += row_step, row += rows.src_tap) {
      const bool there = Whole || (row >= rows.src_begin && row < rows.src_end);
      Vec<float> d[kReach];
#pragma GCC unroll 6
      for (int j = 0; j < kReach; ++j) {
        if constexpr (Whole) {
          d[j] = load(x + j * col_step);
        } else {
          const int at = col + j * cols.src_tap;
          d[j] = there && at >= cols.src_begin && at < cols.src_end ? load_some(x + j * col_step, n) : Vec<float>{};
        }
      }
      Map::source(d, half[i]);
    }
    for (int j = 0; j < kSide; ++j, to += pitch) {
      Vec<float> d[kReach], points[kSide];
      column(half, j, d);
      Map::source(d, points);
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) store(to + i * kSide * pitch, points[i]);
    }
  }
};

}  // namespace
}  // namespace mpsf::MPSF_ISA
