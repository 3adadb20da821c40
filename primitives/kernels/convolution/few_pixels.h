// Few pixels: as in a fully connected layer, or in late layers of a network with weights that were laid out ahead. Most
// of what is read are weights then: a task goes through all pixels, which are gathered once, with some of them, which
// it has in the second cache of its core; those of windows of one pixel it lays out there itself.
#pragma once
#include "kernels/convolution/implicit_gemm.h"
#include "kernels/convolution/weight_grad.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int64_t kFewTiles = 64, kFewLaidTiles = 32;  // of pixels
constexpr int64_t kManyWeights = int64_t{1} << 20;     // bytes, more than a second cache holds
constexpr int kFewPacked = 4;                          // tiles of output channels that a task packs
constexpr int kFewBlocks = 4;                          // of lanes that a task has at most
constexpr int kFewTasks = 8;                           // at least

template <typename T>
bool is_of_few(const Product<T>& p) {
  constexpr int W = kTileLanes<Acc<T>>;
  if (p.groups > 1 || p.fold_rows * p.fold_cols > 1 || p.pixels() == 0 || p.depth() == 0) return false;
  if (p.laid) return p.pixels() <= kFewLaidTiles * kTileRows && p.out_channels > (kFewTasks - 1) * W;
  return p.rows.taps == 1 && p.cols.taps == 1 && p.pixels() <= kFewTiles * kTileRows &&
         p.out_channels > (kProductTasks - 1) * W &&
         int64_t{p.channels} * p.out_channels * static_cast<int64_t>(sizeof(Acc<T>)) > kManyWeights;
}

template <typename T>
void product_of_few(const Product<T>& p) {
  using A = Acc<T>;
  constexpr int W = kTileLanes<A>;
  constexpr int64_t kTileSize = kTileRows * W, kPanelSize = kTileRows * kPitch, kLine = 64;
  const int blocks = (p.out_channels + W - 1) / W;
  const int64_t pixels = p.pixels(), tiles = (pixels + kTileRows - 1) / kTileRows, parts = p.parts();
  const auto tile_begin = [&](int64_t tile) { return pixels * tile / tiles; };
  const auto rows = [&](int64_t tile) { return static_cast<int>(tile_begin(tile + 1) - tile_begin(tile)); };
  const auto part_begin = [&](int64_t part) { return static_cast<int>(p.depth() * part / parts); };
  const Scratch<A> panels(parts * tiles * kPanelSize);
  parallel_for(parts * tiles, [&](int64_t task) {
    const int64_t part = task / tiles, tile = task % tiles;
    Run runs[kDepth];
    const int count = make_runs(p, part_begin(part), part_begin(part + 1), runs);
    gather(p, 0, tile_begin(tile), rows(tile), runs, count, panels.get() + task * kPanelSize);
  });
  const int64_t tasks = max_int((blocks + kFewBlocks - 1) / kFewBlocks, min_int(blocks, kProductTasks));
  parallel_for(tasks, [&](int64_t task) {
    const int begin = static_cast<int>(blocks * task / tasks),
              count = static_cast<int>(blocks * (task + 1) / tasks) - begin;
    const Scratch<A> own(p.laid ? 0 : count * kDepth * W),
        sums(parts > 1 || !p.in_order() ? count * tiles * kTileSize : 0);
    for (int64_t part = 0; part < parts; ++part) {
      const int from = part_begin(part), depth = part_begin(part + 1) - from;
      if (!p.laid) lay_out_tap(p, 0, begin, count, 0, from, from + depth, own.get(), kDepth * W);
      for (int block = 0; block < count; ++block) {
        const A* weights = p.laid ? p.laid + ((begin + block) * p.depth() + from) * W : own.get() + block * kDepth * W;
        // What is next of those that were laid out ahead is still far away.
        const A* next = weights;
        if (p.laid && block + 1 < count) {
          next += p.depth() * W;
        } else if (p.laid && part + 1 < parts) {
          next = p.laid + (begin * p.depth() + from + depth) * W;
        }
        // Evenly: as many lines as tiles can ask for at a time would have them wait.
        const int64_t step = smaller(kLine, (W * static_cast<int64_t>(sizeof(A)) + tiles - 1) / tiles);
        Meanwhile ahead = {next, p.laid ? step : 0};
        for (int64_t tile = 0; tile < tiles; ++tile) {
          multiply_rows(p, 0, tile_begin(tile), rows(tile), (begin + block) * W,
                        panels.get() + (part * tiles + tile) * kPanelSize, weights, depth, part > 0, part == parts - 1,
                        ahead, sums.get() + (block * tiles + tile) * kTileSize);
          ahead.from = static_cast<const char*>(ahead.from) + depth * ahead.step;
        }
      }
    }
    stream_end();
  });
}

template <typename T>
bool is_of_few(const WeightGrad<T>& g) {
  return g.groups == 1 && g.rows.size == 1 && g.cols.size == 1 && g.lines() == 1 && x_line(g, 0, 0) >= 0 &&
         g.cols.stride == 1 && g.line() > 0 && g.line() <= kFewTiles * kTileRows &&
         g.size() * static_cast<int64_t>(sizeof(Acc<T>)) > kManyWeights;
}

template <typename T>
void weight_grad_of_few(const WeightGrad<T>& g) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, W = kTileLanes<A>;
  const int pixels = g.line(), blocks = g.blocks(), parts = (pixels + kBlockPixels - 1) / kBlockPixels;
  const int64_t dy_size = packed_size(pixels), x_size = int64_t{pixels} * W;
  const Scratch<A> dy(g.tiles() * dy_size);
  parallel_for((g.tiles() + kFewPacked - 1) / kFewPacked, [&](int64_t task) {
    const int begin = static_cast<int>(task) * kFewPacked, end = min_int(g.tiles(), begin + kFewPacked);
    pack_dy(g, 0, {0, 1, 0, pixels}, begin, end, dy.get() + begin * dy_size);
    if (!g.db) return;
    double bias[kFewPacked * kTileRows] = {};
    add_bias(g, begin, end, dy.get() + begin * dy_size, pixels, bias);
    const int first = g.tile_begin(begin);
    for (int out = first; out < g.tile_begin(end); ++out) g.db[out] = static_cast<A>(bias[out - first]);
  });
  const int64_t line = x_line(g, 0, 0), col = first(g.cols, g.cols.begin);
  const int64_t wide = (blocks + kFewBlocks - 1) / kFewBlocks,
                tall = smaller(g.tiles(), (kProductTasks + wide - 1) / wide);
  parallel_for(wide * tall, [&](int64_t task) {
    const int64_t column = task / tall, row = task % tall;
    const int begin = static_cast<int>(blocks * column / wide);
    const int count = static_cast<int>(blocks * (column + 1) / wide) - begin;
    const Scratch<A> x(count * x_size + L), sums(kTileRows * W);
    for (int k = 0; k < count; ++k) pack_line(g, 0, line, (begin + k) * W, col, pixels, 1, x.get() + k * x_size);
    const int last = static_cast<int>(g.tiles() * (row + 1) / tall);
    for (int tile = static_cast<int>(g.tiles() * row / tall); tile < last; ++tile) {
      const int out = g.tile_begin(tile), rows = g.tile_begin(tile + 1) - out;
      for (int k = 0; k < count; ++k) {
        const int lane = (begin + k) * W, vectors = g.width() - lane <= L ? 1 : kTileVectors;
        for (int part = 0; part < parts; ++part) {
          const int at = pixels * part / parts;
          const PixelBlock block = {&at, &at, 1, pixels * (part + 1) / parts - at, 1};
          outer_tile<A, false>(rows, vectors)(block, dy.get() + tile * dy_size, x.get() + k * x_size, part > 0, nullptr,
                                              nullptr, sums.get(), W);
        }
        for (int r = 0; r < rows; ++r) {
          A* to = g.dw + int64_t{out + r} * g.channels + lane;
          for (int v = 0; v < vectors; ++v) {
            store_result(to + v * L, load(sums.get() + r * W + v * L), min_int(L, g.width() - lane - v * L),
                         g.streamed);
          }
        }
      }
    }
    stream_end();
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
