// Convolution of images with few channels, such as colours. The taps of a row are one run of memory, which registers
// read from lines of the source where they lie, padded: nothing is gathered pixel by pixel.
#pragma once
#include "kernels/convolution/implicit_gemm.h"
#include "kernels/convolution/line_tile.h"
#include "kernels/convolution/transpose.h"
#include "kernels/convolution/weight_grad.h"

namespace mpsf::MPSF_ISA {
namespace {

// A line of an image from column `col` on, `cols` columns, with zeros where there are none in [begin, end). Writes up
// to one vector behind.
template <typename T>
void pad_line(const T* line, int channels, int64_t col, int64_t cols, int64_t begin, int64_t end, Acc<T>* to) {
  copy_run(to, line + col * channels, 0, cols * channels, (begin - col) * channels, (end - col) * channels);
}

constexpr int kLeastLines = 8;                       // below, threads would have nothing to share
constexpr int64_t kLineSumBytes = int64_t{1} << 18;  // of sums that a part of the image keeps for itself

// Sums are not broken up here, so they must not be longer than a panel's.
template <typename T>
bool has_few_channels(const Product<T>& p) {
  return p.groups == 1 && p.merged() && p.channels < lanes<Acc<T>> && p.cols.taps > 1 && p.rows.taps > 0 &&
         p.fold_rows * p.fold_cols == 1 && p.depth() <= kDepth && int64_t{p.images} * p.rows.count >= kLeastLines;
}

template <typename T>
void product_of_lines(const Product<T>& p) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, W = kTileLanes<A>;
  if (p.pixels() == 0 || p.out_channels == 0) return;
  const int blocks = (p.out_channels + W - 1) / W, taps = p.rows.taps;
  const int64_t depth = p.depth(), length = int64_t{p.cols.taps} * p.channels;
  const int64_t cols = int64_t{p.cols.count - 1} * p.cols.src_out + p.cols.taps, size = cols * p.channels + L;
  const int64_t tiles = (p.cols.count + kTileRows - 1) / kTileRows;
  const Scratch<A> own(p.laid ? 0 : blocks * depth * W);
  if (!p.laid) lay_out_weights(p, 0, blocks, own.get());
  const A* const weights = p.laid ? p.laid : own.get();
  const int64_t all = int64_t{p.images} * p.rows.count, band = smaller(8, 1 + all / 32);
  parallel_for((all + band - 1) / band, [&](int64_t task) {
    // Lines of the source stay for the next outputs, as many as taps see.
    const Scratch<A> panel(taps * size);
    const Scratch<const A*> lines(taps);
    const Scratch<int64_t> held(taps);
    for (int i = 0; i < taps; ++i) held[i] = -1;
    const LineJob<T> job = {lines.get(),
                            taps,
                            int64_t{p.cols.src_out} * p.channels,
                            length,
                            int64_t{p.cols.out_step} * p.result_channels,
                            p.neuron,
                            p.streamed,
                            nullptr,
                            nullptr,
                            p.added,
                            p.result};
    for (int64_t line = task * band; line < smaller(all, (task + 1) * band); ++line) {
      const int64_t image = line / p.rows.count;
      const int out = static_cast<int>(line % p.rows.count);
      for (int q = 0; q < taps; ++q) {
        const int row = p.rows.src_first + out * p.rows.src_out + q * p.rows.src_tap;
        lines[q] = nullptr;
        if (row < p.rows.src_begin || row >= p.rows.src_end) continue;
        const int64_t from = image * p.source_rows + row, place = p.rows.src_tap == 1 ? from % taps : q;
        A* to = panel.get() + place * size;
        if (held[place] != from) {
          pad_line(p.source + from * p.source_cols * p.channels, p.channels, p.cols.src_first, cols, p.cols.src_begin,
                   p.cols.src_end, to);
        }
        held[place] = from;
        lines[q] = to;
      }
      T* result =
          p.result + ((image * p.result_rows + p.rows.out_first + int64_t{out} * p.rows.out_step) * p.result_cols +
                      p.cols.out_first) *
                         p.result_channels;
      for (int block = 0; block < blocks; ++block) {
        const int lane = block * W, vectors = p.out_channels - lane <= L ? 1 : kTileVectors;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t begin = p.cols.count * tile / tiles, rows = p.cols.count * (tile + 1) / tiles - begin;
          line_tile<T>(static_cast<int>(rows), vectors)(job, begin * job.pitch, weights + block * depth * W,
                                                        p.bias + lane, p.out_channels - lane, {weights, 0},
                                                        result + begin * job.result_pitch + lane);
        }
      }
    }
    stream_end();
  });
}

// Windows of one pixel, in one line of pixels ----------------------------------------------------------------------

constexpr int64_t kNearBytes =
    1024;  // of a pixel; more, and the rows of a tile take each other's places in the nearest cache

// Whether tiles may read the source where it lies.
template <typename T>
bool is_of_pixels(const Product<T>& p) {
  const auto alone = [](const ConvAxis& s, int n) {
    return s.taps == 1 && s.count == n && s.src_out == 1 && s.src_first == 0 && s.src_begin == 0 && s.src_end == n &&
           s.out_first == 0 && s.out_step == 1;
  };
  return sizeof(T) == sizeof(Acc<T>) && p.images == 1 && alone(p.rows, 1) && alone(p.cols, p.source_cols) &&
         p.source_cols == p.result_cols && p.groups == 1 && p.fold_rows * p.fold_cols == 1 &&
         p.channels * static_cast<int64_t>(sizeof(T)) <= kNearBytes &&
         p.cols.count >= kProductTasks * kChunkTiles * kTileRows &&
         int64_t{p.channels} * p.out_channels * static_cast<int64_t>(sizeof(T)) <= kWeightBytes;
}

template <typename T>
void product_of_pixels(const Product<T>& p) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, W = kTileLanes<A>;
  constexpr int64_t kChunk = kChunkTiles * kTileRows;
  if (p.out_channels == 0) return;
  const int blocks = (p.out_channels + W - 1) / W;
  const int64_t pixels = p.cols.count, depth = p.channels;
  const Scratch<A> own(p.laid ? 0 : blocks * depth * W);
  if (!p.laid) lay_out_weights(p, 0, blocks, own.get());
  const A* const weights = p.laid ? p.laid : own.get();
  const int64_t step = (kTileRows * static_cast<int64_t>(sizeof(T)) + blocks - 1) / blocks;
  const int64_t stretch = smaller(kTaskChunks, pixels / (kChunk * kProductTasks)) * kChunk;
  parallel_for((pixels + stretch - 1) / stretch, [&](int64_t task) {
    const A* lines[] = {nullptr};
    if constexpr (sizeof(T) == sizeof(A)) lines[0] = p.source;
    const LineJob<T> job = {lines,      1,       depth,   depth,   p.result_channels, p.neuron,
                            p.streamed, nullptr, nullptr, p.added, p.result};
    const int64_t last = smaller(pixels, (task + 1) * stretch);
    for (int64_t begin = task * stretch, end; begin < last; begin = end) {
      end = smaller(last, begin + kChunk);
      Meanwhile next = {p.source + end * depth, end < last ? step : 0};
      for (int lane = 0; lane < p.out_channels; lane += W) {
        const int vectors = p.out_channels - lane <= L ? 1 : kTileVectors;
        for (int64_t pixel = begin; pixel < end; pixel += kTileRows) {
          const int rows = static_cast<int>(smaller(kTileRows, end - pixel));
          line_tile<T>(rows, vectors)(job, pixel * depth, weights + lane * depth, p.bias + lane, p.out_channels - lane,
                                      next, p.result + pixel * p.result_channels + lane);
          next.from = static_cast<const char*>(next.from) + depth * next.step;
        }
      }
    }
    stream_end();
  });
}

// Weight gradient: output channels are the lanes, and the taps of a row with their channels the rows of a tile --------

constexpr int kPackedPixels = 128;  // of a piece, so that a block of many stays in the nearest cache
constexpr int kNearBlocks = 2;      // of lanes; with more, pixels lie too far apart to be read again and again

template <typename A>
using LineOuterTile = void (*)(const A* x, int64_t x_pitch, const A* dy, int64_t dy_pitch, int count, A* sums);

// sums[r][lane] += sum over pixels of x[pixel * x_pitch + r] * dy[pixel * dy_pitch + lane]
template <typename A, int Rows, int Vectors>
void outer_lines(const A* x, int64_t x_pitch, const A* dy, int64_t dy_pitch, int count, A* sums) {
  constexpr int L = lanes<A>;
  Vec<A> acc[Rows][Vectors] = {};
  for (int i = 0; i < count; ++i, x += x_pitch, dy += dy_pitch) {
    Vec<A> d[Vectors];
    for (int v = 0; v < Vectors; ++v) d[v] = load(dy + v * L);
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
      const Vec<A> s = splat(x[r]);
      for (int v = 0; v < Vectors; ++v) acc[r][v] += s * d[v];
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < Rows; ++r, sums += kTileLanes<A>) {
    for (int v = 0; v < Vectors; ++v) store(sums + v * L, load(sums + v * L) + acc[r][v]);
  }
}

template <typename A, int Rows = kTileRows>
LineOuterTile<A> line_outer_tile(int rows, int vectors) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return line_outer_tile<A, Rows - 1>(rows, vectors);
  }
  return vectors == 1 ? outer_lines<A, Rows, 1> : outer_lines<A, Rows, 2>;
}

template <typename T>
class LineGrad {
  using A = Acc<T>;
  static constexpr int L = lanes<A>, W = kTileLanes<A>;

 public:
  explicit LineGrad(const WeightGrad<T>& g)
      : g_(g),
        blocks_((g.out_channels + W - 1) / W),
        width_(g.cols.size * g.channels),
        size_(int64_t{blocks_} * g.rows.size * width_ * W),
        direct_(sizeof(T) == sizeof(A) && g.out_channels % L == 0 && blocks_ <= kNearBlocks),
        pieces_(blocks_ <= kNearBlocks ? g.pieces() : (g.line() + kPackedPixels - 1) / kPackedPixels) {}

  bool fits() const {
    // Pixels by themselves, as many as give threads enough pieces.
    const bool pixels = g_.rows.size == 1 && g_.cols.size == 1 && g_.lines() == 1 && g_.groups == 1 &&
                        g_.line() == g_.cols.n_in && g_.cols.stride == 1 && 2 * pieces_ >= kMaxParts;
    return (g_.merged() || pixels) && g_.channels > 0 && g_.out_channels > 0 && g_.lines() > 0 && g_.line() > 0 &&
           size_ * static_cast<int64_t>(sizeof(A)) <= kLineSumBytes;
  }

  void run() const {
    const int64_t pieces = g_.lines() * pieces_, parts = smaller(kMaxParts, pieces);
    const Scratch<A> totals(parts * size_);
    const Scratch<double> bias(g_.db ? parts * g_.out_channels : 0);
    parallel_for(parts, [&](int64_t part) {
      A* total = totals.get() + part * size_;
      double* own = g_.db ? bias.get() + part * g_.out_channels : nullptr;
      clear(total, size_);
      if (own) clear(own, g_.out_channels);
      int64_t piece = pieces * part / parts;
      const int64_t end = pieces * (part + 1) / parts;
      if (end - piece <= kRunBlocks) {
        for (; piece < end; ++piece) add(piece, end, total, own);
        return;
      }
      const Scratch<A> sums(size_);
      while (piece < end) {
        clear(sums.get(), size_);
        for (const int64_t last = smaller(end, piece + kRunBlocks); piece < last; ++piece) {
          add(piece, end, sums.get(), own);
        }
        for (int64_t i = 0; i < size_; i += L) store(total + i, load(total + i) + load(sums.get() + i));
      }
    });
    const int64_t depth = int64_t{g_.rows.size} * width_, squares = (depth + L - 1) / L;
    parallel_for(blocks_ * squares,
                 [&](int64_t task) { add_up(totals.get(), parts, task / squares, task % squares * L, depth); });
    for (int out = 0; g_.db && out < g_.out_channels; ++out) {
      for (int64_t part = 1; part < parts; ++part) bias[out] += bias[part * g_.out_channels + out];
      g_.db[out] = static_cast<A>(bias[out]);
    }
  }

 private:
  // As many weights of each output channel of a block as there are lanes, from number k of their `depth` on.
  void add_up(const A* totals, int64_t parts, int64_t block, int64_t k, int64_t depth) const {
    const int n = static_cast<int>(smaller(L, depth - k));
    for (int v = 0; v < kTileVectors; ++v) {
      const int64_t out = block * W + v * L;
      Vec<A> square[L] = {};
      for (int i = 0; i < n; ++i) {
        const A* from = totals + (block * depth + k + i) * W + v * L;
        square[i] = load(from);
        for (int64_t part = 1; part < parts; ++part) square[i] += load(from + part * size_);
      }
      turn_over<A>(square);
      for (int lane = 0; lane < L && out + lane < g_.out_channels; ++lane) {
        store_some(g_.dw + (out + lane) * depth + k, square[lane], n);
      }
    }
  }

  // Where a piece begins in its line, and what the next piece reads.
  int piece_begin(int64_t at) const { return static_cast<int>(g_.line() * at / pieces_); }
  Ahead ahead(int64_t piece, int64_t steps) const {
    const int64_t line = piece / pieces_, at = piece % pieces_;
    const T* const from = g_.dy + dy_pixel(g_, line, 0) * g_.out_channels;
    return {from + int64_t{piece_begin(at)} * g_.out_channels, from + int64_t{piece_begin(at + 1)} * g_.out_channels,
            steps};
  }

  // Adds the products of a piece of a line of outputs to sums, [block][row tap][column tap, channel][out]. Pieces up to
  // `end` follow.
  void add(int64_t piece, int64_t end, A* sums, double* bias) const {
    const int64_t line = piece / pieces_, at = piece % pieces_;
    const int begin = piece_begin(at), count = piece_begin(at + 1) - begin;
    const int64_t cols = int64_t{count - 1} * g_.cols.stride + g_.cols.size;
    const int64_t pitch = direct_ ? g_.out_channels : W, block_size = direct_ ? W : int64_t{count} * W;
    const Scratch<A> x(cols * g_.channels + L), packed(direct_ ? 0 : blocks_ * block_size);
    const T* given = g_.dy + dy_pixel(g_, line, begin) * g_.out_channels;
    const A* dy = packed.get();
    if constexpr (sizeof(T) == sizeof(A)) dy = direct_ ? given : dy;
    for (int i = 0; !direct_ && i < count; ++i, given += g_.out_channels) {
      for (int block = 0; block < blocks_; ++block) {
        copy_run(packed.get() + block * block_size + i * W, given, block * W, block * W + W, 0, g_.out_channels);
      }
    }
    if (bias) add_bias(dy, pitch, block_size, count, bias);
    const int tiles = (width_ + kTileRows - 1) / kTileRows;
    Ahead next = piece + 1 < end ? ahead(piece + 1, int64_t{g_.rows.size} * blocks_ * tiles) : Ahead();
    for (int q = 0; q < g_.rows.size; ++q) {
      const int64_t from = x_line(g_, line, q);
      if (from < 0) continue;
      pad_line(g_.x + from * g_.cols.n_in * g_.channels, g_.channels, first(g_.cols, g_.cols.begin + begin), cols, 0,
               g_.cols.n_in, x.get());
      for (int block = 0; block < blocks_; ++block) {
        const int vectors = g_.out_channels - block * W <= L ? 1 : kTileVectors;
        A* sum = sums + (int64_t{block} * g_.rows.size + q) * width_ * W;
        for (int tile = 0; tile < tiles; ++tile, next.step()) {
          const int k = width_ * tile / tiles;
          line_outer_tile<A>(width_ * (tile + 1) / tiles - k, vectors)(
              x.get() + k, int64_t{g_.cols.stride} * g_.channels, dy + block * block_size, pitch, count, sum + k * W);
        }
      }
    }
  }

  void add_bias(const A* dy, int64_t pitch, int64_t block_size, int count, double* bias) const {
    for (int out = 0; out < g_.out_channels; out += L) {
      const int n = min_int(L, g_.out_channels - out);
      Vec<A> sum = {};
      const A* from = dy + out / W * block_size + out % W;
      for (int i = 0; i < count; ++i) sum += load_some(from + i * pitch, n);
      for (int j = 0; j < n; ++j) bias[out + j] += static_cast<double>(sum[j]);
    }
  }

  const WeightGrad<T>& g_;
  const int blocks_, width_;
  const int64_t size_;
  const bool direct_;
  const int pieces_;
};

}  // namespace
}  // namespace mpsf::MPSF_ISA
