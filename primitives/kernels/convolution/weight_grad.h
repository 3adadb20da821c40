// The weight gradient: sums of outer products over blocks of pixels that stay in the cache.
#pragma once
#include "kernels/convolution/microkernel.h"
#include "runtime/parallel.h"
#include "shared/geometry.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kBlockPixels = 256;   // that one register tile adds up
constexpr int64_t kRunBlocks = 32;  // added up by themselves, to round less in long sums
constexpr int kPackedTiles = 4;     // of output channels that are packed together, to read whole lines of the cache
constexpr int kMaxHalo = 64;        // columns worth packing once for all taps of a row
constexpr int64_t kPartBytes = int64_t{4} << 20;  // of sums private to the parts of the image
constexpr int64_t kMaxParts = 16;

template <typename T>
struct WeightGrad {
  using A = Acc<T>;
  const T *dy, *x;
  A *dw, *db;  // db, the sums of dy, or null
  int images;
  Axis rows, cols;
  int groups, channels, out_channels;  // channels and out_channels of one group
  bool streamed;                       // whole vectors of dw are aligned, and better stored past the caches

  // With few channels the taps of a row, neighbours in memory, are taken as the channels of one tap.
  bool merged() const { return cols.dilation == 1 && groups == 1 && channels < lanes<A> && cols.size > 1; }
  int taps() const { return merged() ? 1 : cols.size; }
  int width() const { return merged() ? cols.size * channels : channels; }
  int blocks() const { return (width() + kTileLanes<A> - 1) / kTileLanes<A>; }
  // Sums of one block of lanes, as [row tap][column tap][out][lane].
  int64_t block_size() const { return int64_t{rows.size} * taps() * out_channels * kTileLanes<A>; }

  int64_t size() const { return int64_t{groups} * out_channels * rows.size * cols.size * channels; }

  // Outs are divided evenly into register tiles.
  int tiles() const { return (out_channels + kTileRows - 1) / kTileRows; }
  int tile_begin(int tile) const { return static_cast<int>(int64_t{out_channels} * tile / tiles()); }

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
  // Of the cotangents of a group in one block of pixels.
  int64_t packed_size() const { return int64_t{tiles()} * kBlockPixels * kOuterPitch; }
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

// The cotangents of tiles [first, last) of a group as [tile of output channels][pixel][out]; `panel` is of all tiles.
template <typename T>
void pack_dy(const WeightGrad<T>& g, int group, const PixelRange& range, int first, int last, Acc<T>* panel) {
  const int64_t size = int64_t{range.count} * range.cols * kOuterPitch;
  for (; first < last; first += kPackedTiles) {
    const int end = min_int(last, first + kPackedTiles);
    Acc<T>* to = panel + first * size;
    for (int i = 0; i < range.count; ++i) {
      const T* from = g.dy + (dy_pixel(g, range.line + i, range.col) * g.groups + group) * g.out_channels;
      for (int j = 0; j < range.cols; ++j, from += int64_t{g.groups} * g.out_channels, to += kOuterPitch) {
        for (int tile = first; tile < end; ++tile) {
          const int begin = g.tile_begin(tile), out = g.tile_begin(tile + 1);
          copy_run(to + (tile - first) * size, from, begin, out, begin, out);
        }
      }
    }
  }
}

// Adds up what pack_dy has packed; `bias` is of the output channels of these tiles.
template <typename T>
void add_bias(const WeightGrad<T>& g, int first, int last, const Acc<T>* panel, int64_t pixel_count, double* bias) {
  using A = Acc<T>;
  for (int tile = first; tile < last; ++tile) {
    const int begin = g.tile_begin(tile), end = g.tile_begin(tile + 1);
    const A* from = panel + tile * pixel_count * kOuterPitch;
    for (int i = begin; i < end; i += lanes<A>, from += lanes<A>) {
      const int n = min_int(lanes<A>, end - i);
      for (int64_t pixel = 0; pixel < pixel_count;) {
        Vec<A> sum = {};
        const int64_t run = smaller(pixel_count, pixel + kBlockPixels);
        for (; pixel < run; ++pixel) sum += load_some(from + pixel * kOuterPitch, n);
        for (int j = 0; j < n; ++j) bias[i - g.tile_begin(first) + j] += static_cast<double>(sum[j]);
      }
    }
  }
}

// One line of the source, from lane `lane` on: `count` columns from `col` on, `step` apart.
template <typename T>
void pack_line(const WeightGrad<T>& g, int group, int64_t line, int lane, int64_t col, int count, int step,
               Acc<T>* panel) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, W = kTileLanes<A>;
  const int64_t pitch = int64_t{g.groups} * g.channels;
  const T* from = g.x + (line * g.cols.n_in + col) * pitch + int64_t{group} * g.channels;
  const bool whole = lane + W <= g.channels;
  for (int j = 0; j < count; ++j, col += step, from += step * pitch, panel += W) {
    if (whole && col >= 0 && col < g.cols.n_in) {
      for (int v = 0; v < kTileVectors; ++v) store(panel + v * L, load(from + lane + v * L));
    } else {
      copy_run(panel, from, lane, lane + W, -col * g.channels, smaller(g.width(), (g.cols.n_in - col) * g.channels));
    }
  }
}

// Source lines packed for a block of pixels, most of them for several row taps.
template <typename T>
struct LinePanel {
  Scratch<Acc<T>> data;
  Scratch<int64_t> lines;
  int count = 0;

  // One vector more than the lines take: copy_run may write that far behind the last.
  LinePanel(int64_t capacity, int64_t span)
      : data(capacity * span * kTileLanes<Acc<T>> + lanes<Acc<T>>), lines(capacity) {}

  // The place of a line, or `count` when it is not there. The search must not stop early: a line packed twice
  // would outgrow the capacity.
  int find(int64_t line) const {
    for (int i = count - 1; i >= 0; --i) {
      if (lines[i] == line) return i;
    }
    return count;
  }
};

// A task: sums over some of the pixels for blocks of lanes [first_block, last_block) of a group.
template <typename T>
class WeightGradTask {
  using A = Acc<T>;
  static constexpr int W = kTileLanes<A>;

 public:
  // Adds sums of dy to `bias` besides, unless that is null. `packed` has the group's cotangents of all pixel blocks, or
  // is null.
  WeightGradTask(const WeightGrad<T>& g, int group, int first_block, int last_block, double* bias, const A* packed)
      : g_(g),
        bias_(bias),
        packed_(packed),
        group_(group),
        first_(first_block),
        last_(last_block),
        dy_(packed ? 0 : g.packed_size()),
        sums_((last_block - first_block) * g.block_size()),
        panel_(g.lines_each() * (g.shared() ? g.rows.size : 1), g.span((g.line() + g.pieces() - 1) / g.pieces())) {}

  // Adds up pixel blocks [begin, end) into total, which starts at the first block of lanes.
  void add(int64_t begin, int64_t end, A* total) {
    const int64_t size = (last_ - first_) * g_.block_size();
    if (end - begin <= kRunBlocks) return add_run(begin, end, end, total);
    clear(total, size);
    clear(sums_.get(), size);  // lanes of no channel, too
    for (; begin < end; begin += kRunBlocks) {
      add_run(begin, smaller(end, begin + kRunBlocks), end, sums_.get());
      for (int64_t i = 0; i < size; i += lanes<A>) store(total + i, load(total + i) + load(sums_.get() + i));
    }
  }

 private:
  // Sums of pixel blocks [begin, end), of which those up to `last` are this task's.
  void add_run(int64_t begin, int64_t end, int64_t last, A* sums) {
    const int64_t steps = int64_t{last_ - first_} * g_.rows.size * g_.taps() * g_.tiles();
    for (int64_t index = begin; index < end; ++index) {
      const PixelRange range = pixel_range(g_, index);
      Ahead dy = dy_ahead(index + 1, last, steps), x = x_ahead(index + 1, last, steps);
      const A* panel = packed_ ? packed_ + index * g_.packed_size() : dy_.get();
      if (!packed_) pack_dy(g_, group_, range, 0, g_.tiles(), dy_.get());
      if (bias_) add_bias(g_, 0, g_.tiles(), panel, range.count * range.cols, bias_);
      for (int block = first_; block < last_; ++block) {
        panel_.count = 0;
        for (int q = 0; q < g_.rows.size; ++q) {
          for (int tap = 0; tap < g_.taps(); ++tap) {
            const PixelBlock pixels = source_pixels(range, block * W, q, tap);
            A* sum = sums + (block - first_) * g_.block_size() + (int64_t{q} * g_.taps() + tap) * g_.out_channels * W;
            if (pixels.count == 0 && index == begin) clear(sum, int64_t{g_.out_channels} * W);
            for (int tile = 0; tile < g_.tiles() && pixels.count > 0; ++tile) {
              add_tile(panel, pixels, block * W, tile, range.count * range.cols, index > begin, sum);
              dy.step();
              x.step();
            }
          }
        }
      }
    }
  }

  void add_tile(const A* panel, const PixelBlock& pixels, int lane, int tile, int64_t pixel_count, bool add, A* sum) {
    const int from = g_.tile_begin(tile), to = g_.tile_begin(tile + 1);
    const int vectors = g_.width() - lane <= lanes<A> ? 1 : kTileVectors;
    outer_tile<A, false>(to - from, vectors)(pixels, panel + tile * pixel_count * kOuterPitch, panel_.data.get(), add,
                                             nullptr, nullptr, sum + int64_t{from} * W, W);
  }

  // Where the pixels of a range, and those that a tap of theirs reads, lie in the panels. Packs what is missing.
  PixelBlock source_pixels(const PixelRange& range, int lane, int q, int tap) {
    const bool shared = g_.shared();
    const int span = g_.span(range.cols), dilation = g_.cols.dilation;
    const int col = first(g_.cols, g_.cols.begin + range.col) + (shared ? 0 : tap * dilation);
    PixelBlock pixels = {dy_rows_, x_rows_, 0, range.cols, shared ? g_.cols.stride : 1};
    if (!shared) panel_.count = 0;
    for (int i = 0; i < range.count; ++i) {
      const int64_t line = x_line(g_, range.line + i, q);
      if (line < 0) continue;
      const int place = shared ? panel_.find(line) : panel_.count;
      if (place == panel_.count) {
        pack_line(g_, group_, line, lane, col, span, shared ? 1 : g_.cols.stride,
                  panel_.data.get() + int64_t{place} * span * W);
        panel_.lines[panel_.count++] = line;
      }
      dy_rows_[pixels.count] = i * range.cols;
      x_rows_[pixels.count++] = place * span + (shared ? tap * dilation : 0);
    }
    return pixels;
  }

  // What the next block reads, unless other tasks share its memory or there is none.
  bool alone(int64_t index, int64_t end) const {
    return index < end && g_.groups == 1 && first_ == 0 && last_ == g_.blocks();
  }
  Ahead dy_ahead(int64_t index, int64_t end, int64_t steps) const {
    if (!alone(index, end)) return {};
    const PixelRange range = pixel_range(g_, index);
    const int64_t from = dy_pixel(g_, range.line, range.col);
    const int64_t to = dy_pixel(g_, range.line + range.count - 1, range.col + range.cols);
    return {g_.dy + from * g_.out_channels, g_.dy + to * g_.out_channels, steps};
  }
  Ahead x_ahead(int64_t index, int64_t end, int64_t steps) const {
    if (!alone(index, end)) return {};
    const PixelRange range = pixel_range(g_, index);
    const int64_t from = x_line(g_, range.line, 0), to = x_line(g_, range.line + range.count - 1, g_.rows.size - 1);
    if (from < 0 || to < 0) return {};
    const int col = first(g_.cols, g_.cols.begin + range.col),
              last = first(g_.cols, g_.cols.begin + range.col + range.cols - 1) + 1;
    const int64_t low = from * g_.cols.n_in + max_int(0, min_int(col, g_.cols.n_in));
    const int64_t high = to * g_.cols.n_in + max_int(0, min_int(last, g_.cols.n_in));
    return {g_.x + low * g_.channels, g_.x + (low < high ? high : low) * g_.channels, steps};
  }

  const WeightGrad<T>& g_;
  double* const bias_;
  const A* const packed_;
  const int group_, first_, last_;
  Scratch<A> dy_, sums_;
  LinePanel<T> panel_;
  int dy_rows_[kBlockPixels], x_rows_[kBlockPixels];
};

// dw[out][row tap][column tap][channel] = the sum of the parts, in order.
template <typename T>
void add_parts(const WeightGrad<T>& g, int64_t parts, int64_t part_size, const Acc<T>* sums) {
  using A = Acc<T>;
  constexpr int W = kTileLanes<A>;
  parallel_for(int64_t{g.groups} * g.out_channels, [&](int64_t channel) {
    const int64_t group = channel / g.out_channels, out = channel % g.out_channels;
    A* to = g.dw + channel * g.rows.size * g.taps() * g.width();
    for (int64_t tap = 0; tap < int64_t{g.rows.size} * g.taps(); ++tap, to += g.width()) {
      for (int lane = 0; lane < g.width(); lane += lanes<A>) {
        const A* from =
            sums + (group * g.blocks() + lane / W) * g.block_size() + (tap * g.out_channels + out) * W + lane % W;
        Vec<A> sum = load(from);
        for (int64_t part = 1; part < parts; ++part) sum += load(from + part * part_size);
        store_some(to + lane, sum, min_int(lanes<A>, g.width() - lane));
      }
    }
  });
}

constexpr int64_t kPackedBytes = int64_t{16} << 20;

// Many weights, whose sums no cache holds: each task adds up one block of lanes over all pixels and stores it at once.
template <typename T>
void weight_grad_by_blocks(const WeightGrad<T>& g) {
  using A = Acc<T>;
  constexpr int W = kTileLanes<A>;
  const int64_t out_channels = int64_t{g.groups} * g.out_channels, taps = int64_t{g.rows.size} * g.taps();
  const int64_t size = g.packed_size(), pixel_blocks = g.pixel_blocks();
  Scratch<double> bias(g.db ? out_channels : 0);
  if (g.db) clear(bias.get(), out_channels);
  // All tasks of a group read all of its cotangents: packed once, unless they are many.
  const bool packs = g.blocks() > 1 && g.groups * pixel_blocks * size * static_cast<int64_t>(sizeof(A)) <= kPackedBytes;
  const Scratch<A> packed(packs ? g.groups * pixel_blocks * size : 0);
  const int64_t shares =
      smaller(g.tiles(), kMaxParts / (g.groups * pixel_blocks) + 1);  // of the tiles, for the threads
  parallel_for(packs ? g.groups * pixel_blocks * shares : 0, [&](int64_t task) {
    const int64_t share = task % shares, at = task / shares;
    pack_dy(g, static_cast<int>(at / pixel_blocks), pixel_range(g, at % pixel_blocks),
            static_cast<int>(g.tiles() * share / shares), static_cast<int>(g.tiles() * (share + 1) / shares),
            packed.get() + at * size);
  });
  parallel_for(int64_t{g.groups} * g.blocks(), [&](int64_t task) {
    const int group = static_cast<int>(task / g.blocks()), block = static_cast<int>(task % g.blocks());
    const Scratch<A> sums(g.block_size());
    double* const own = g.db && block == 0 ? bias.get() + int64_t{group} * g.out_channels : nullptr;
    const A* all = packs ? packed.get() + group * pixel_blocks * size : nullptr;
    WeightGradTask<T>(g, group, block, block + 1, own, all).add(0, pixel_blocks, sums.get());
    for (int64_t i = 0; i < g.out_channels * taps; ++i) {
      const A* from = sums.get() + (i % taps * g.out_channels + i / taps) * W;
      A* to = g.dw + (int64_t{group} * g.out_channels * taps + i) * g.width() + block * W;
      for (int lane = 0; lane < W && block * W + lane < g.width(); lane += lanes<A>) {
        store_result(to + lane, load(from + lane), min_int(lanes<A>, g.width() - block * W - lane), g.streamed);
      }
    }
    stream_end();
  });
  for (int64_t out = 0; g.db && out < out_channels; ++out) g.db[out] = static_cast<A>(bias[out]);
}

template <typename T>
void weight_grad(const WeightGrad<T>& g) {
  using A = Acc<T>;
  const int64_t part_size = int64_t{g.groups} * g.blocks() * g.block_size();
  const int64_t out_channels = int64_t{g.groups} * g.out_channels;
  if (out_channels == 0) return;
  if (g.lines() == 0 || g.line() == 0) {
    if (g.db) clear(g.db, out_channels);
    return clear(g.dw, g.size());
  }
  const int64_t affordable = kPartBytes / ((part_size + 1) * static_cast<int64_t>(sizeof(A))) + 1;
  const int64_t parts = smaller(g.pixel_blocks(), smaller(kMaxParts, affordable));
  if (affordable == 1 && int64_t{g.groups} * g.blocks() >= kMaxParts) return weight_grad_by_blocks(g);
  const int64_t splits = smaller(max_int(1, g.blocks()), (kMaxParts + parts * g.groups - 1) / (parts * g.groups));
  Scratch<A> sums(parts * part_size);
  Scratch<double> bias(g.db ? parts * out_channels : 0);
  if (g.db) clear(bias.get(), parts * out_channels);
  parallel_for(parts * g.groups * splits, [&](int64_t task) {
    const int64_t split = task % splits, group = task / splits % g.groups, part = task / splits / g.groups;
    const int64_t begin = g.blocks() * split / splits, end = g.blocks() * (split + 1) / splits;
    WeightGradTask<T>(g, static_cast<int>(group), static_cast<int>(begin), static_cast<int>(end),
                      g.db && split == 0 ? bias.get() + part * out_channels + group * g.out_channels : nullptr, nullptr)
        .add(g.pixel_blocks() * part / parts, g.pixel_blocks() * (part + 1) / parts,
             sums.get() + part * part_size + (group * g.blocks() + begin) * g.block_size());
  });
  add_parts(g, parts, part_size, sums.get());
  for (int64_t out = 0; g.db && out < out_channels; ++out) {
    for (int64_t part = 1; part < parts; ++part) bias[out] += bias[part * out_channels + out];
    g.db[out] = static_cast<A>(bias[out]);
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
