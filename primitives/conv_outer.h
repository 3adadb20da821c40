// The weight gradient: sums of outer products over blocks of pixels that stay in the cache.
#pragma once
#include "conv_tile.h"
#include "geometry.h"
#include "parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kBlockPixels = 128;                 // that one register tile adds up
constexpr int kMaxHalo = 64;                      // columns worth packing once for all taps of a row
constexpr int64_t kPartBytes = int64_t{4} << 20;  // of sums private to the parts of the image
constexpr int64_t kMaxParts = 16, kOuterTasks = 64;

template <typename T>
struct WeightGrad {
  using A = Acc<T>;
  const T *dy, *x;
  A* dw;
  int images;
  Axis rows, cols;
  int groups, channels, outs;  // channels and outs of one group

  // With few channels the taps of a row, neighbours in memory, are taken as the channels of one tap.
  bool merged() const { return cols.dilation == 1 && groups == 1 && channels < lanes<A> && cols.size > 1; }
  int taps() const { return merged() ? 1 : cols.size; }
  int width() const { return merged() ? cols.size * channels : channels; }
  int blocks() const { return (width() + kTileLanes<A> - 1) / kTileLanes<A>; }
  // Sums of one block of lanes, as [row tap][column tap][out][lane].
  int64_t block_size() const { return int64_t{rows.size} * taps() * outs * kTileLanes<A>; }

  // One panel serves all taps of a row; otherwise each tap has its own, without the columns between strides.
  bool shared() const { return !merged() && cols.stride <= 2 && (cols.size - 1) * int64_t{cols.dilation} <= kMaxHalo; }
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

// The cotangents of a group as [tile of outs][pixel][out].
template <typename T>
void pack_dy(const WeightGrad<T>& g, int group, const PixelRange& range, Acc<T>* panel) {
  const int selected = g.rows.end - g.rows.begin, tiles = (g.outs + kTileRows - 1) / kTileRows;
  for (int tile = 0; tile < tiles; ++tile) {
    const int begin = g.outs * tile / tiles, end = g.outs * (tile + 1) / tiles;
    for (int i = 0; i < range.count; ++i) {
      const int64_t image = (range.line + i) / selected, row = g.rows.begin + (range.line + i) % selected;
      const int64_t pixel = (image * g.rows.n_out + row) * g.cols.n_out + g.cols.begin + range.col;
      const T* from = g.dy + (pixel * g.groups + group) * g.outs;
      for (int j = 0; j < range.cols; ++j, from += int64_t{g.groups} * g.outs, panel += kOuterPitch) {
        copy_run(panel, from, begin, end, begin, end);
      }
    }
  }
}

// One line of the source, from lane `lane` on: `count` columns from `col` on, `step` apart.
template <typename T>
void pack_line(const WeightGrad<T>& g, int group, int64_t line, int lane, int64_t col, int count, int step, Acc<T>* panel) {
  const int64_t end = smaller(lane + kTileLanes<Acc<T>>, g.merged() ? g.width() : g.channels);
  for (int j = 0; j < count; ++j, col += step, panel += kTileLanes<Acc<T>>) {
    const T* from = g.x + ((line * g.cols.n_in + col) * g.groups + group) * g.channels;
    copy_run(panel, from, lane, lane + kTileLanes<Acc<T>>, -col * g.channels,
             smaller(end, (g.cols.n_in - col) * g.channels));
  }
}

// Adds up pixel blocks [begin, end) for the block of lanes from `lane` on.
template <typename T>
void add_blocks(const WeightGrad<T>& g, int group, int lane, int64_t begin, int64_t end, Acc<T>* sums) {
  using A = Acc<T>;
  constexpr int W = kTileLanes<A>;
  const int vectors = g.width() - lane <= lanes<A> ? 1 : kTileVectors;
  const int tiles = (g.outs + kTileRows - 1) / kTileRows, selected = g.rows.end - g.rows.begin;
  const int longest = (g.line() + g.pieces() - 1) / g.pieces();
  Scratch<A> dy(int64_t{tiles} * kBlockPixels * kOuterPitch), x(g.lines_each() * g.span(longest) * W);
  int dy_row[kBlockPixels];
  clear(sums, g.block_size());

  for (int64_t index = begin; index < end; ++index) {
    const PixelRange range = pixel_range(g, index);
    const int span = g.span(range.cols);
    const PixelBlock block = {dy_row, 0, range.cols, span, g.shared() ? g.cols.stride : 1};
    pack_dy(g, group, range, dy.get());

    for (int q = 0; q < g.rows.size; ++q) {
      for (int tap = 0; tap < g.taps(); ++tap) {
        PixelBlock part = block;
        const A* panel = x.get() + (g.shared() ? int64_t{tap} * g.cols.dilation * W : 0);
        for (int i = 0; i < range.count; ++i) {
          const int64_t image = (range.line + i) / selected;
          const int row = source(g.rows, g.rows.begin + static_cast<int>((range.line + i) % selected), q);
          if (row < 0) continue;
          if (tap == 0 || !g.shared()) {
            const int col = first(g.cols, g.cols.begin + range.col) + tap * g.cols.dilation;
            pack_line(g, group, image * g.rows.n_in + row, lane, col, span, g.shared() ? 1 : g.cols.stride,
                      x.get() + int64_t{part.count} * span * W);
          }
          dy_row[part.count++] = i * range.cols;
        }
        if (part.count == 0) continue;
        A* sum = sums + (int64_t{q} * g.taps() + tap) * g.outs * W;
        for (int tile = 0; tile < tiles; ++tile) {
          const int from = g.outs * tile / tiles, to = g.outs * (tile + 1) / tiles;
          outer_tile<A>(to - from, vectors)(
              part, dy.get() + int64_t{tile} * range.count * range.cols * kOuterPitch, panel, sum + from * W);
        }
      }
    }
  }
}

// dw[out][row tap][column tap][channel] = the sum of the parts, in order.
template <typename T>
void add_parts(const WeightGrad<T>& g, int64_t parts, int64_t part_size, const Acc<T>* sums) {
  using A = Acc<T>;
  constexpr int W = kTileLanes<A>;
  parallel_for(int64_t{g.groups} * g.outs, [&](int64_t channel) {
    const int64_t group = channel / g.outs, out = channel % g.outs;
    A* to = g.dw + channel * g.rows.size * g.taps() * g.width();
    for (int64_t tap = 0; tap < int64_t{g.rows.size} * g.taps(); ++tap, to += g.width()) {
      for (int lane = 0; lane < g.width(); lane += lanes<A>) {
        const A* from = sums + (group * g.blocks() + lane / W) * g.block_size() + (tap * g.outs + out) * W + lane % W;
        Vec<A> sum = load(from);
        for (int64_t part = 1; part < parts; ++part) sum += load(from + part * part_size);
        store_some(to + lane, sum, lesser(lanes<A>, g.width() - lane));
      }
    }
  });
}

template <typename T>
void weight_grad(const WeightGrad<T>& g) {
  using A = Acc<T>;
  const int64_t units = int64_t{g.groups} * g.blocks(), part_size = units * g.block_size();
  if (part_size == 0) return;
  if (g.lines() == 0 || g.line() == 0) return clear(g.dw, int64_t{g.groups} * g.outs * g.rows.size * g.cols.size * g.channels);
  const int64_t affordable = kPartBytes / (part_size * static_cast<int64_t>(sizeof(A))) + 1;
  const int64_t wanted = smaller(kMaxParts, (kOuterTasks + units - 1) / units);
  const int64_t parts = smaller(g.pixel_blocks(), smaller(affordable, wanted));
  Scratch<A> sums(parts * part_size);
  parallel_for(units * parts, [&](int64_t task) {
    const int64_t part = task / units, unit = task % units;
    add_blocks(g, static_cast<int>(unit / g.blocks()), static_cast<int>(unit % g.blocks()) * kTileLanes<A>,
               g.pixel_blocks() * part / parts, g.pixel_blocks() * (part + 1) / parts,
               sums.get() + part * part_size + unit * g.block_size());
  });
  add_parts(g, parts, part_size, sums.get());
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
