// Depthwise convolution with few taps a row, which touch, one or two pixels apart: a tile of neighbouring outputs stays
// in registers with the weights of a row of taps, so that a pixel is loaded once for all taps of the row.
#pragma once
#include "kernels/convolution/depthwise.h"

namespace mpsf::MPSF_ISA {
namespace {

// Outputs of a tile: they divide the widths that most networks have, and leave registers for seven weights.
constexpr int kTileOutputs = 7;

// What all tiles of a line of outputs share: the first of the lines of the image that they read, and how many there
// are; the weights of these lines, [line][tap][lane].
template <typename T>
struct TileLine {
  const T* source;
  int64_t line_pitch, pitch;  // elements from a line to the next, and from a pixel to the next
  int lines;
  const Acc<T>* weights;
  int64_t result_pitch;
};

// A tile of n outputs. Its pixels are those in [low, high) from column `from` on; All says that none of either misses.
// Outputs from n on are made of what pixels there are, and dropped.
template <typename T, int K, int Stride, bool All>
MPSF_INLINE void tile_of_outputs(const Depthwise<T>& d, const TileLine<T>& line, int64_t from, int low, int high, int n,
                                 Vec<Acc<T>> start, T* to) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, P = kTileOutputs, kPixels = (P - 1) * Stride + K;
  Vec<A> acc[P][1];
#pragma GCC unroll 8
  for (int i = 0; i < P; ++i) acc[i][0] = start;
  const T* x = line.source + from * line.pitch;
  const A* w = line.weights;
  for (int q = 0; q < line.lines; ++q, x += line.line_pitch, w += K * L) {
    Vec<A> weight[K];
#pragma GCC unroll 8
    for (int p = 0; p < K; ++p) weight[p] = load(w + p * L);
#pragma GCC unroll 32
    for (int j = 0; j < kPixels; ++j) {
      if (!All && (j < low || j >= high)) continue;
      const Vec<A> pixel = load(x + j * line.pitch);
#pragma GCC unroll 8
      for (int p = j % Stride; p < K; p += Stride) {
        if (j >= p && (j - p) / Stride < P) acc[(j - p) / Stride][0] += pixel * weight[p];
      }
    }
  }
  apply(acc, d.neuron);
#pragma GCC unroll 8
  for (int i = 0; i < P; ++i) {
    if (All || i < n) store_result(to + i * line.result_pitch, acc[i][0], L, d.streamed);
  }
}

// Rows [begin, end) of an image's outputs, for a vector of channels whose weights are [row of taps][tap][lane].
template <typename T, int K, int Stride>
void tiles_of_rows(const Depthwise<T>& d, int image, int begin, int end, int channel, const Acc<T>* weights) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, P = kTileOutputs, kPixels = (P - 1) * Stride + K;
  const ConvAxis &rows = d.rows, &cols = d.cols;
  const Vec<A> start = load(d.bias + channel);
  const int64_t line_size = int64_t{d.source_cols} * d.channels;
  TileLine<T> line = {};
  line.line_pitch = rows.src_tap * line_size, line.pitch = d.channels;
  line.result_pitch = int64_t{cols.out_step} * d.channels;
  for (int row = begin; row < end; ++row) {
    const int first = rows.src_first + row * rows.src_out;
    const int q_begin = max_int(0, ceil_div(rows.src_begin - first, rows.src_tap));
    const int q_end = min_int(rows.taps, floor_div(rows.src_end - 1 - first, rows.src_tap) + 1);
    line.source =
        d.source + channel + (int64_t{image} * d.source_rows + first + int64_t{q_begin} * rows.src_tap) * line_size;
    line.lines = q_end - q_begin;
    line.weights = weights + int64_t{q_begin} * K * L;
    const int64_t out_row = int64_t{image} * d.result_rows + rows.out_first + row * rows.out_step;
    T* to = d.result + channel + (out_row * d.result_cols + cols.out_first) * d.channels;
    for (int col = 0; col < cols.count; col += P, to += P * line.result_pitch) {
      const int from = cols.src_first + col * Stride, n = min_int(P, cols.count - col);
      const int low = cols.src_begin - from, high = cols.src_end - from;
      if (n == P && low <= 0 && high >= kPixels) {
        tile_of_outputs<T, K, Stride, true>(d, line, from, 0, kPixels, P, start, to);
      } else {
        tile_of_outputs<T, K, Stride, false>(d, line, from, low, high, n, start, to);
      }
    }
  }
}

template <typename T>
using TilesOfRows = void (*)(const Depthwise<T>& d, int image, int begin, int end, int channel, const Acc<T>* weights);

// The tiles that fit, or null.
template <typename T>
TilesOfRows<T> tiles_of(const Depthwise<T>& d) {
  if constexpr (sizeof(Acc<T>) == sizeof(float)) {
    const ConvAxis& cols = d.cols;
    if (!d.dense() || d.channels < lanes<Acc<T>> || (cols.src_tap > 1 && cols.taps > 1)) return nullptr;
    switch (cols.src_out * 8 + cols.taps) {
      case 8 + 1:
        return tiles_of_rows<T, 1, 1>;
      case 8 + 2:
        return tiles_of_rows<T, 2, 1>;
      case 8 + 3:
        return tiles_of_rows<T, 3, 1>;
      case 8 + 5:
        return tiles_of_rows<T, 5, 1>;
      case 8 + 7:
        return tiles_of_rows<T, 7, 1>;
      case 16 + 3:
        return tiles_of_rows<T, 3, 2>;
      case 16 + 5:
        return tiles_of_rows<T, 5, 2>;
    }
  }
  return nullptr;
}

constexpr int kMostPhases = 4;  // of windows two pixels apart in both directions

// Sums that differ in their axes alone, the phases of one gradient, where tiles fit all of them; else returns false.
template <typename T>
bool depthwise_by_tiles(const Depthwise<T>* sums, int count) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, kVectors = 2, kRows = 16, kLeastRows = 4, kTasks = 16;
  TilesOfRows<T> run[kMostPhases];
  int64_t rows = 0, taps = 0;
  if (count > kMostPhases) return false;
  for (int i = 0; i < count; ++i) {
    run[i] = tiles_of(sums[i]);
    if (!run[i]) return false;
    rows = rows < sums[i].rows.count ? sums[i].rows.count : rows;
    taps = taps < sums[i].taps() ? sums[i].taps() : taps;
  }
  // A task has a few vectors of channels, whose lines stay in the nearest cache, in a band of rows. Where the last
  // vector overlaps the one before, it is in the same task.
  const Depthwise<T>& d = sums[0];
  const int64_t whole = d.channels / L, blocks = (whole + kVectors - 1) / kVectors;
  const int64_t wanted = smaller(rows / kLeastRows, kTasks / (d.images * blocks));
  const int64_t bands = 1 + (wanted > rows / kRows ? wanted : rows / kRows);
  parallel_for(d.images * bands * blocks, [&](int64_t task) {
    const int64_t block = task % blocks, band = task / blocks % bands;
    const int image = static_cast<int>(task / blocks / bands);
    const int64_t first = whole * block / blocks, last = whole * (block + 1) / blocks;
    const int64_t vectors = last - first + (block + 1 == blocks && d.channels % L != 0 ? 1 : 0);
    const Scratch<A> weights(taps * L);
    for (int64_t v = first; v < first + vectors; ++v) {
      const int channel = static_cast<int>(smaller(v * L, d.channels - L));
      for (int i = 0; i < count; ++i) {
        const Depthwise<T>& s = sums[i];
        A* w = weights.get();
        for (int q = 0; q < s.rows.taps; ++q) {
          for (int p = 0; p < s.cols.taps; ++p, w += L) {
            const A* from = s.weights + int64_t{channel} * s.weight_step + s.tap(q, p);
            for (int64_t lane = 0; lane < L; ++lane) w[lane] = from[lane * s.weight_step];
          }
        }
        const auto row_at = [&](int64_t at) { return static_cast<int>(s.rows.count * at / bands); };
        run[i](s, image, row_at(band), row_at(band + 1), channel, weights.get());
      }
    }
    stream_end();
  });
  return true;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
