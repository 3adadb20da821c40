// The weight gradient: sums of outer products over blocks of pixels that stay in the cache.
#pragma once
#include "kernels/convolution/weight_grad_pixels.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int64_t kRunBlocks = 32;                // added up by themselves, to round less in long sums
constexpr int kPixelsAhead = 4;                   // whose memory is fetched while one is packed
constexpr int64_t kPartBytes = int64_t{4} << 20;  // of sums private to the parts of the image
constexpr int64_t kMaxParts = 16;
constexpr int kCutBlocks = 8, kCutTiles = 10;      // that a task has at most
constexpr int64_t kCutBytes = int64_t{384} << 10;  // of its sums, about

// Numbers of a tile of packed cotangents. The skew parts tiles that would meet in one place of the nearest cache.
inline int64_t packed_size(int64_t pixels) { return pixels * kOuterPitch + 3 * kOuterPitch; }

// The cotangents of tiles [first, last) of a group as [tile of output channels][pixel][out]. What is read of the pixels
// ahead is fetched: pixels lie so far apart that no processor foresees it.
template <typename T>
void pack_dy(const WeightGrad<T>& g, int group, const PixelRange& range, int first, int last, Acc<T>* panel) {
  constexpr int L = lanes<Acc<T>>, kLine = 64 / sizeof(T);
  const int64_t size = packed_size(int64_t{range.count} * range.cols), step = int64_t{g.groups} * g.out_channels;
  const int begin = g.tile_begin(first), end = g.tile_begin(last);
  for (int i = 0; i < range.count; ++i) {
    const T* from = g.dy + (dy_pixel(g, range.line + i, range.col) * g.groups + group) * g.out_channels;
    for (int j = 0; j < range.cols; ++j, from += step, panel += kOuterPitch) {
      for (int out = begin; out < end; out += kLine) __builtin_prefetch(from + kPixelsAhead * step + out, 0, 3);
      Acc<T>* to = panel;
      for (int tile = first; tile < last; ++tile, to += size) {
        const int low = g.tile_begin(tile), n = g.tile_begin(tile + 1) - low;
        for (int v = 0; v < n; v += L) store(to + v, load(from + low + v, min_int(L, n - v)));
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
    const A* from = panel + (tile - first) * packed_size(pixel_count);
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
    fetch<W * sizeof(T)>(from + 2 * kPixelsAhead * step * pitch + lane);
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

// Sums of a part of the weights over some of the pixels.
template <typename T>
class WeightGradTask {
  using A = Acc<T>;
  static constexpr int W = kTileLanes<A>;

 public:
  // Adds sums of dy to `bias` besides, which is of the part's output channels, unless that is null.
  WeightGradTask(const WeightGrad<T>& g, const Part& part, double* bias)
      : g_(g),
        part_(part),
        bias_(bias),
        block_size_(g.block_size(part)),
        size_(block_size_ * (part.last_block - part.first_block)),
        dy_((part.last_tile - part.first_tile) * packed_size(kBlockPixels)),
        sums_(size_),
        panel_(g.lines_each() * (g.shared() ? g.rows.size : 1), g.span((g.line() + g.pieces() - 1) / g.pieces())) {}

  // Adds up pixel blocks [begin, end) into total, as [block][row tap][column tap][out][lane].
  void add(int64_t begin, int64_t end, A* total) {
    if (end - begin <= kRunBlocks) return add_run(begin, end, end, total);
    clear(total, size_);
    clear(sums_.get(), size_);  // lanes of no channel, too
    for (; begin < end; begin += kRunBlocks) {
      add_run(begin, smaller(end, begin + kRunBlocks), end, sums_.get());
      for (int64_t i = 0; i < size_; i += lanes<A>) store(total + i, load(total + i) + load(sums_.get() + i));
    }
  }

 private:
  // Sums of pixel blocks [begin, end), of which those up to `last` are this task's.
  void add_run(int64_t begin, int64_t end, int64_t last, A* sums) {
    const int tiles = part_.last_tile - part_.first_tile, outs = g_.outs(part_);
    const int64_t blocks = part_.last_block - part_.first_block;  // none of images without channels
    const int64_t steps = (blocks > 0 ? blocks : 1) * g_.rows.size * g_.taps() * tiles;
    for (int64_t index = begin; index < end; ++index) {
      const PixelRange range = pixel_range(g_, index);
      const int64_t pixel_count = int64_t{range.count} * range.cols;
      Ahead dy = dy_ahead(index + 1, last, steps), x = x_ahead(index + 1, last, steps);
      pack_dy(g_, part_.group, range, part_.first_tile, part_.last_tile, dy_.get());
      if (bias_) add_bias(g_, part_.first_tile, part_.last_tile, dy_.get(), pixel_count, bias_);
      for (int block = part_.first_block; block < part_.last_block; ++block) {
        const int vectors = g_.width() - block * W <= lanes<A> ? 1 : kTileVectors;
        panel_.count = 0;
        for (int q = 0; q < g_.rows.size; ++q) {
          for (int tap = 0; tap < g_.taps(); ++tap) {
            const PixelBlock pixels = source_pixels(range, block * W, q, tap);
            A* sum = sums + (block - part_.first_block) * block_size_ + (int64_t{q} * g_.taps() + tap) * outs * W;
            if (pixels.count == 0 && index == begin) clear(sum, int64_t{outs} * W);
            const A* from = dy_.get();
            for (int tile = part_.first_tile; tile < part_.last_tile && pixels.count > 0; ++tile) {
              const int rows = g_.tile_begin(tile + 1) - g_.tile_begin(tile);
              outer_tile<A, false>(rows, vectors)(pixels, from, panel_.data.get(), index > begin, nullptr, nullptr, sum,
                                                  W);
              from += packed_size(pixel_count);
              sum += int64_t{rows} * W;
              dy.step();
              x.step();
            }
          }
        }
      }
    }
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
        pack_line(g_, part_.group, line, lane, col, span, shared ? 1 : g_.cols.stride,
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
    return index < end && g_.groups == 1 && part_.last_block - part_.first_block == g_.blocks() &&
           part_.last_tile - part_.first_tile == g_.tiles();
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
  const Part part_;
  double* const bias_;
  const int64_t block_size_, size_;
  Scratch<A> dy_, sums_;
  LinePanel<T> panel_;
  int dy_rows_[kBlockPixels], x_rows_[kBlockPixels];
};

// dw[out][row tap][column tap][channel], or with channel and out exchanged, = the sum of `count` sums of a part, in
// order.
template <typename T>
void add_up(const WeightGrad<T>& g, const Part& part, int64_t count, int64_t apart, const Acc<T>* sums) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, W = kTileLanes<A>;
  const int64_t taps = int64_t{g.rows.size} * g.taps(), first = g.tile_begin(part.first_tile), outs = g.outs(part);
  for (int block = part.first_block; block < part.last_block; ++block, sums += g.block_size(part)) {
    const int width = min_int(W, g.width() - block * W);
    for (int64_t tap = 0; g.exchanged && tap < taps; ++tap) {
      store_exchanged(sums + tap * outs * W, W, count, apart, outs, width,
                      g.dw + (int64_t{block} * W * taps + tap) * g.out_channels + first, taps * g.out_channels);
    }
    for (int64_t i = 0; !g.exchanged && i < outs * taps; ++i) {
      const A* from = sums + (i % taps * outs + i / taps) * W;
      A* to = g.dw + ((int64_t{part.group} * g.out_channels + first) * taps + i) * g.width() + block * W;
      for (int lane = 0; lane < width; lane += L, from += L) {
        Vec<A> sum = load(from);
        for (int64_t k = 1; k < count; ++k) sum += load(from + k * apart);
        store_result(to + lane, sum, min_int(L, width - lane), g.streamed);
      }
    }
  }
}

// How weights are cut into parts, and pixels: so that what a task holds stays in the second cache of its core while
// what it packs is used often, and threads have enough to share.
struct Cut {
  int wide, tall;  // parts of the blocks of lanes, and of the tiles of output channels
  int64_t pixels;  // parts of the pixel blocks

  template <typename T>
  explicit Cut(const WeightGrad<T>& g) {
    using A = Acc<T>;
    const int64_t taps = int64_t{g.rows.size} * g.taps();
    const int64_t tile = taps * kTileRows * kTileLanes<A> * static_cast<int64_t>(sizeof(A));
    const int64_t most = kCutBytes / tile;
    const auto share = [](int64_t all, int64_t each) { return static_cast<int>((all + each - 1) / each); };
    wide = max_int(1, share(g.blocks(), kCutBlocks));
    tall = share(g.tiles(), smaller(kCutTiles, 1 + most / kCutBlocks));
    const int64_t sums = g.groups * g.blocks() * g.tiles() * tile, affordable = kPartBytes / (sums + 1) + 1;
    pixels = smaller(smaller(g.pixel_blocks(), affordable), share(kMaxParts, int64_t{g.groups} * wide * tall));
    tall = min_int(g.tiles(), max_int(tall, share(kMaxParts, g.groups * pixels * wide)));
    wide = max_int(1, min_int(g.blocks(), max_int(wide, share(kMaxParts, g.groups * pixels * tall))));
  }

  template <typename T>
  Part part(const WeightGrad<T>& g, int64_t number) const {
    const int64_t row = number % tall, column = number / tall % wide;
    const auto at = [](int64_t all, int64_t i, int64_t of) { return static_cast<int>(all * i / of); };
    return {static_cast<int>(number / tall / wide), at(g.blocks(), column, wide), at(g.blocks(), column + 1, wide),
            at(g.tiles(), row, tall), at(g.tiles(), row + 1, tall)};
  }
};

template <typename T>
void weight_grad(const WeightGrad<T>& g) {
  using A = Acc<T>;
  constexpr int W = kTileLanes<A>;
  const int64_t out_channels = int64_t{g.groups} * g.out_channels;
  if (out_channels == 0) return;
  if (g.lines() == 0 || g.line() == 0) {
    if (g.db) clear(g.db, out_channels);
    return clear(g.dw, g.size());
  }
  const Cut cut(g);
  const int64_t parts = int64_t{g.groups} * cut.wide * cut.tall, size = g.blocks() * g.block_size(),
                all = g.groups * size;
  const Scratch<A> sums(cut.pixels > 1 ? cut.pixels * all : 0);
  const Scratch<double> bias(g.db ? cut.pixels * out_channels : 0);
  if (g.db) clear(bias.get(), cut.pixels * out_channels);
  // Where the sums of a part begin: those of a group lie as [blocks][tiles], cut.
  const auto place = [&](const Part& p) {
    return p.group * size + p.first_block * g.block_size() +
           (p.last_block - p.first_block) * int64_t{g.rows.size} * g.taps() * g.tile_begin(p.first_tile) * W;
  };
  parallel_for(cut.pixels * parts, [&](int64_t task) {
    const int64_t share = task / parts;
    const Part part = cut.part(g, task % parts);
    double* own =
        bias.get() + share * out_channels + int64_t{part.group} * g.out_channels + g.tile_begin(part.first_tile);
    WeightGradTask<T> work(g, part, g.db && part.first_block == 0 ? own : nullptr);
    const int64_t begin = g.pixel_blocks() * share / cut.pixels, end = g.pixel_blocks() * (share + 1) / cut.pixels;
    if (cut.pixels > 1) return work.add(begin, end, sums.get() + share * all + place(part));
    const Scratch<A> only(g.block_size(part) * (part.last_block - part.first_block));
    work.add(begin, end, only.get());
    add_up(g, part, 1, 0, only.get());
    stream_end();
  });
  parallel_for(cut.pixels > 1 ? parts : 0, [&](int64_t number) {
    const Part part = cut.part(g, number);
    add_up(g, part, cut.pixels, all, sums.get() + place(part));
    stream_end();
  });
  for (int64_t out = 0; g.db && out < out_channels; ++out) {
    for (int64_t share = 1; share < cut.pixels; ++share) bias[out] += bias[share * out_channels + out];
    g.db[out] = static_cast<A>(bias[out]);
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
