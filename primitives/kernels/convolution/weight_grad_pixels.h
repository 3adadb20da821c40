// What the weight gradient is made of: blocks of pixels, and what the taps of the windows read of them.
#pragma once
#include "kernels/convolution/exchanged.h"
#include "kernels/convolution/microkernel.h"
#include "shared/geometry.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kBlockPixels = 256;  // that one register tile adds up
constexpr int kMaxHalo = 64;       // columns worth packing once for all taps of a row

// Weights of a group: some of its blocks of lanes for some of its tiles of output channels.
struct Part {
  int group, first_block, last_block, first_tile, last_tile;
};

template <typename T>
struct WeightGrad {
  using A = Acc<T>;
  const T *dy, *x;
  A *dw, *db;  // db, the sums of dy, or null
  int images;
  Axis rows, cols;
  int groups, channels, out_channels;  // channels and out_channels of one group
  bool streamed;                       // whole vectors of dw are aligned, and better stored past the caches
  bool exchanged = false;              // dw is (channels, taps, outs), of one group

  // With few channels the taps of a row, neighbours in memory, are taken as the channels of one tap.
  bool merged() const { return cols.dilation == 1 && groups == 1 && channels < lanes<A> && cols.size > 1; }
  int taps() const { return merged() ? 1 : cols.size; }
  int width() const { return merged() ? cols.size * channels : channels; }
  int blocks() const { return (width() + kTileLanes<A> - 1) / kTileLanes<A>; }
  // Sums of one block of lanes, as [row tap][column tap][out][lane]; and of the output channels of a part.
  int64_t block_size() const { return int64_t{rows.size} * taps() * out_channels * kTileLanes<A>; }
  int outs(const Part& part) const { return tile_begin(part.last_tile) - tile_begin(part.first_tile); }
  int64_t block_size(const Part& part) const { return int64_t{rows.size} * taps() * outs(part) * kTileLanes<A>; }

  int64_t size() const { return int64_t{groups} * out_channels * rows.size * cols.size * channels; }

  // Outs are divided evenly into register tiles.
  int tiles() const { return (out_channels + kTileRows - 1) / kTileRows; }
  int tile_begin(int tile) const { return static_cast<int>(int64_t{out_channels} * tile / tiles()); }

  // One panel serves all taps of a row; otherwise each tap has its own, without the columns between strides.
  bool shared() const {
    const bool close = cols.stride == 1 || (cols.stride == 2 && cols.size > 1);
    return !merged() && close && (cols.size - 1) * int64_t{cols.dilation} <= kMaxHalo;
  }
  int span(int pixels) const {
    return shared() ? (pixels - 1) * cols.stride + (cols.size - 1) * cols.dilation + 1 : pixels;
  }

  // The pixels are cut into blocks of whole lines, or of pieces of long lines. Lines run through all images.
  int64_t lines() const { return int64_t{images} * (rows.end - rows.begin); }
  int line() const { return cols.end - cols.begin; }
  int pieces() const { return (line() + kBlockPixels - 1) / kBlockPixels; }
  int64_t lines_each() const { return pieces() == 1 ? kBlockPixels / line() : 1; }
  int64_t pixel_blocks() const { return (lines() + lines_each() - 1) / lines_each() * pieces(); }
};

// Lines [line, line + count), columns [col, col + cols) of the selected outputs.
struct PixelRange {
  int64_t line;
  int count, col, cols;
};

template <typename T>
PixelRange pixel_range(const WeightGrad<T>& g, int64_t block) {
  const int piece = static_cast<int>(block % g.pieces());
  const int64_t line = block / g.pieces() * g.lines_each();
  const int begin = static_cast<int>(int64_t{g.line()} * piece / g.pieces());
  const int end = static_cast<int>(int64_t{g.line()} * (piece + 1) / g.pieces());
  return {line, static_cast<int>(smaller(g.lines_each(), g.lines() - line)), begin, end - begin};
}

// Pixel number `col` of a selected line of the cotangent, and the line of the source under its row tap q, or -1.
template <typename T>
int64_t dy_pixel(const WeightGrad<T>& g, int64_t line, int col) {
  const int selected = g.rows.end - g.rows.begin;
  return (line / selected * g.rows.n_out + g.rows.begin + line % selected) * g.cols.n_out + g.cols.begin + col;
}

template <typename T>
int64_t x_line(const WeightGrad<T>& g, int64_t line, int q) {
  const int selected = g.rows.end - g.rows.begin;
  const int row = source(g.rows, g.rows.begin + static_cast<int>(line % selected), q);
  return row < 0 ? -1 : line / selected * g.rows.n_in + row;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
