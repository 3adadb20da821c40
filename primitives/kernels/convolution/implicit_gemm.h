// Convolution and its input gradient as one product: panels of source pixels, gathered for a few output pixels
// at a time, by weights laid out ahead or once a call in the order in which the tiles read them.
#pragma once
#include "kernels/activation/apply.h"
#include "kernels/convolution/conv_axis.h"
#include "kernels/convolution/line_tile.h"
#include "kernels/convolution/microkernel.h"
#include "kernels/convolution/transpose.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kChunkTiles = 8;                      // tiles gathered together, to reuse weights from L1
constexpr int64_t kWeightBytes = int64_t{8} << 20;  // of weights laid out at a time
constexpr int64_t kTaskChunks = 4, kProductTasks = 16;
constexpr int kLaidOut = 2;  // lane blocks whose weights are laid out together

// W is what the weights are in.
template <typename T, typename W = Acc<T>>
struct Product {
  using A = Acc<T>;
  const T* source;
  T* result;
  int images;
  int source_rows, source_cols, source_channels;
  int result_rows, result_cols, result_channels;
  int groups, channels, out_channels;  // of one group: channels summed over, channels computed
  const W* weights;
  int64_t group_stride, tap_stride, channel_stride, out_stride;
  int kernel_cols;
  const A* bias;
  const Neuron<A>* neuron;
  bool streamed;  // whole vectors of the result are aligned, and better stored past the caches

  ConvAxis rows, cols;
  // Weights of all blocks as lay_out_weights makes them, or as pairs are laid out; null where none were made ahead.
  const W* laid = nullptr;
  // Images like the result that are added to it ahead of the activation, or null.
  const T* added = nullptr;
  // Pixels of the result that one output makes, [row][col] in front of the channel within out_channels; bias counts
  // out_channels too.
  int fold_rows = 1, fold_cols = 1;

  // Whether pixels of the result lie as they are counted.
  bool in_order() const {
    const auto whole = [](const ConvAxis& a, int n) { return a.out_first == 0 && a.out_step == 1 && a.count == n; };
    return whole(rows, result_rows) && whole(cols, result_cols) && fold_rows * fold_cols == 1;
  }
  int64_t pixels() const { return int64_t{images} * rows.count * cols.count; }
  // A row of taps is one run of memory where pixels and taps touch.
  bool merged() const { return cols.src_tap == 1 && channels == source_channels; }
  int64_t depth() const { return int64_t{rows.taps} * cols.taps * channels; }
  int64_t parts() const { return depth() <= kDepth ? 1 : (depth() + kDepth - 1) / kDepth; }
};

// Elements [begin, end) of row tap `row` and, unless rows are merged, of column tap `col`.
struct Run {
  int row, col;
  int64_t begin, end;
};

// The runs that make elements [begin, end) of the sum.
template <typename T, typename W>
int make_runs(const Product<T, W>& p, int64_t begin, int64_t end, Run* runs) {
  const int64_t length = p.merged() ? int64_t{p.cols.taps} * p.channels : p.channels;
  int count = 0;
  for (int64_t k = begin; k < end;) {
    const int64_t unit = k / length, from = k % length, to = smaller(length, from + end - k);
    const int row = static_cast<int>(p.merged() ? unit : unit / p.cols.taps);
    const int col = static_cast<int>(p.merged() ? 0 : unit % p.cols.taps);
    runs[count++] = {row, col, from, to};
    k += to - from;
  }
  return count;
}

struct Pixel {
  int image, row, col;  // row and col count outputs of the axis
};

template <typename T, typename W>
Pixel pixel_at(const Product<T, W>& p, int64_t index) {
  const int64_t line = index / p.cols.count;
  return {static_cast<int>(line / p.rows.count), static_cast<int>(line % p.rows.count),
          static_cast<int>(index % p.cols.count)};
}

template <typename T, typename W>
MPSF_INLINE void step(const Product<T, W>& p, Pixel& at) {
  if (++at.col < p.cols.count) return;
  at.col = 0;
  if (++at.row < p.rows.count) return;
  at.row = 0;
  ++at.image;
}

template <typename T>
void gather(const Product<T>& p, int group, int64_t pixel, int64_t count, const Run* runs, int run_count,
            Acc<T>* panel) {
  Pixel at = pixel_at(p, pixel);
  for (int64_t i = 0; i < count; ++i, step(p, at), panel += kPitch) {
    const int row0 = p.rows.src_first + at.row * p.rows.src_out, col0 = p.cols.src_first + at.col * p.cols.src_out;
    Acc<T>* to = panel;
    for (int r = 0; r < run_count; ++r) {
      const Run& run = runs[r];
      const int row = row0 + run.row * p.rows.src_tap, col = col0 + run.col * p.cols.src_tap;
      if (row < p.rows.src_begin || row >= p.rows.src_end) {
        clear(to, run.end - run.begin);
      } else {
        const int64_t line = (int64_t{at.image} * p.source_rows + row) * p.source_cols + col;
        copy_run(to, p.source + line * p.source_channels + int64_t{group} * p.channels, run.begin, run.end,
                 int64_t{p.cols.src_begin - col} * p.channels, int64_t{p.cols.src_end - col} * p.channels);
      }
      to += run.end - run.begin;
    }
  }
}

// An output that makes several pixels of the result: a row of them is one run of memory.
template <typename T, typename W>
void unfold(const Product<T, W>& p, const Pixel& at, const Acc<T>* sums) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const int row = p.rows.out_first + at.row * p.rows.out_step, col = p.cols.out_first + at.col * p.cols.out_step;
  const int rows = min_int(p.fold_rows, p.result_rows - row), cols = min_int(p.fold_cols, p.result_cols - col);
  for (int i = 0; i < rows; ++i) {
    T* to = p.result + ((int64_t{at.image} * p.result_rows + row + i) * p.result_cols + col) * p.result_channels;
    const int begin = i * p.fold_cols * p.result_channels, width = cols * p.result_channels;
    for (int lane = 0; lane < width; lane += L) {
      const int n = min_int(L, width - lane);
      Vec<A> value[1][1] = {{load_some(sums + begin + lane, n) + load_some(p.bias + begin + lane, n)}};
      apply(value, p.neuron);
      store_some(to + lane, value[0][0], n);
    }
  }
}

template <typename T>
void scatter(const Product<T>& p, int group, int64_t pixel, int rows, int first_lane, const Acc<T>* sums) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  Pixel at = pixel_at(p, pixel);
  if (p.fold_rows * p.fold_cols > 1) {
    for (int r = 0; r < rows; ++r, step(p, at), sums += kTileLanes<A>) unfold(p, at, sums);
    return;
  }
  const int64_t channel = int64_t{group} * p.out_channels + first_lane;
  const int width = p.out_channels - first_lane, vectors = width <= L ? 1 : kTileVectors;
  Vec<A> bias[kTileVectors], values[kTileRows * kTileVectors];
  T* to[kTileRows];
  for (int v = 0; v < vectors; ++v) bias[v] = load_some(p.bias + channel + v * L, min_int(L, width - v * L));
  for (int r = 0; r < rows; ++r, step(p, at), sums += kTileLanes<A>) {
    const int row = p.rows.out_first + at.row * p.rows.out_step, col = p.cols.out_first + at.col * p.cols.out_step;
    to[r] = p.result + ((int64_t{at.image} * p.result_rows + row) * p.result_cols + col) * p.result_channels + channel;
    for (int v = 0; v < vectors; ++v) {
      Vec<A> value[1][1] = {{load(sums + v * L) + bias[v]}};
      if (!is_costly(p.neuron->form)) apply(value, p.neuron);
      values[r * vectors + v] = value[0][0];
    }
  }
  if (is_costly(p.neuron->form)) finish_others(values, rows * vectors, *p.neuron);  // of the whole tile, by one call
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      store_result(to[r] + v * L, values[r * vectors + v], min_int(L, width - v * L), p.streamed);
    }
  }
}

// Channels [begin, end) of one tap for some blocks of lanes, as [channel][lane], blocks `pitch` apart.
template <typename T>
void lay_out_tap(const Product<T>& p, int group, int block, int blocks, int tap, int begin, int end, Acc<T>* to,
                 int64_t pitch) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, W = kTileLanes<A>;
  const int row = p.rows.tap_first + tap / p.cols.taps * p.rows.tap_step;
  const int col = p.cols.tap_first + tap % p.cols.taps * p.cols.tap_step;
  const int width = min_int(blocks * W, p.out_channels - block * W);
  const A* from = p.weights + group * p.group_stride + (int64_t{row} * p.kernel_cols + col) * p.tap_stride +
                  int64_t{block} * W * p.out_stride + begin * p.channel_stride;
  if (p.out_stride == 1) {  // lanes are neighbours in memory, and so are blocks
    for (int c = begin; c < end; ++c, from += p.channel_stride, to += W) {
      for (int lane = 0; lane < blocks * W; lane += L) {
        A* place = to + lane / W * pitch + lane % W;
        store(place, lane + L <= width ? load(from + lane) : load_some(from + lane, max_int(0, width - lane)));
      }
    }
    return;
  }
  // Channels are neighbours. Whole lines of the cache are read once: of many output channels so far apart that they
  // meet in few places of the nearest cache, none stays there for the next channels.
  const int across = static_cast<int>(-(reinterpret_cast<intptr_t>(from) / static_cast<int>(sizeof(A))) & (L - 1));
  for (int k = 0; k < blocks; ++k, from += W * p.out_stride, to += pitch) {
    const int n = width - k * W;
    for (int c = begin, count; c < end; c += count) {
      count = min_int(c == begin && across > 0 ? across : L, end - c);
      for (int v = 0; v < kTileVectors; ++v) {
        Vec<A> turned[L];
        load_turned(from + (c - begin) + v * L * p.out_stride, p.out_stride, count, max_int(0, n - v * L), turned);
        for (int i = 0; i < count; ++i) store(to + (c - begin + i) * W + v * L, turned[i]);
      }
    }
  }
}

// Lane blocks [first, first + count) of every group, as [group][block][tap, channel][lane].
template <typename T>
void lay_out_weights(const Product<T>& p, int first, int count, Acc<T>* to) {
  constexpr int W = kTileLanes<Acc<T>>;
  const int taps = p.rows.taps * p.cols.taps, tasks = (count + kLaidOut - 1) / kLaidOut;
  const int64_t depth = p.depth();
  parallel_for(int64_t{p.groups} * tasks * taps, [&](int64_t task) {
    const int tap = static_cast<int>(task % taps), begin = static_cast<int>(task / taps % tasks) * kLaidOut;
    const int64_t group = task / taps / tasks;
    lay_out_tap(p, static_cast<int>(group), first + begin, min_int(kLaidOut, count - begin), tap, 0, p.channels,
                to + ((group * count + begin) * depth + int64_t{tap} * p.channels) * W, depth * W);
  });
}

// One tile of sums of panel rows for lanes from `lane` on, in parts of which `sums` has those before, and of the last
// one results.
template <typename T>
void multiply_rows(const Product<T>& p, int group, int64_t pixel, int rows, int lane, const Acc<T>* panel,
                   const Acc<T>* weights, int64_t depth, bool add, bool last, Meanwhile next, Acc<T>* sums) {
  using A = Acc<T>;
  const int vectors = p.out_channels - lane <= lanes<A> ? 1 : kTileVectors;
  const bool finishes = last && p.in_order();
  const LineJob<T> job = {&panel,
                          1,
                          kPitch,
                          depth,
                          p.result_channels,
                          p.neuron,
                          p.streamed,
                          add ? sums : nullptr,
                          finishes ? nullptr : sums,
                          p.added,
                          p.result};
  const int64_t channel = int64_t{group} * p.out_channels + lane;
  T* const result = p.result + (finishes ? pixel * p.result_channels + channel : 0);
  line_tile<T>(rows, vectors)(job, 0, weights, p.bias + channel, p.out_channels - lane, next, result);
  if (last && !finishes) scatter(p, group, pixel, rows, lane, sums);
}

// A task: some pixels of lane blocks [begin, end) of a group. `weights` starts at block `begin`.
template <typename T>
class ProductTask {
  using A = Acc<T>;
  static constexpr int W = kTileLanes<A>;
  static constexpr int64_t kTileSize = kTileRows * W, kPanelSize = kTileRows * kPitch;

 public:
  ProductTask(const Product<T>& p, int group, int begin, int end, const A* weights)
      : p_(p),
        group_(group),
        begin_(begin),
        blocks_(end - begin),
        weights_(weights),
        panels_(kChunkTiles * kPanelSize),
        sums_(kChunkTiles * kTileSize * blocks_) {}

  // At most kChunkTiles tiles of pixels. `ahead` is stepped through once for each of chunk_steps() tiles.
  void compute(int64_t pixel, int64_t count, Ahead ahead) {
    const int64_t depth = p_.depth(), parts = p_.parts(), tiles = (count + kTileRows - 1) / kTileRows;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t from = depth * part / parts, to = depth * (part + 1) / parts;
      gather(p_, group_, pixel, count, runs_, make_runs(p_, from, to, runs_), panels_.get());
      for (int block = 0; block < blocks_; ++block) {
        const A* weights = weights_ + (block * depth + from) * W;
        for (int64_t tile = 0; tile < tiles; ++tile, ahead.step()) {
          const int rows = static_cast<int>(smaller(kTileRows, count - tile * kTileRows));
          A* sums = sums_.get() + (block * tiles + tile) * kTileSize;
          multiply_rows(p_, group_, pixel + tile * kTileRows, rows, (begin_ + block) * W,
                        panels_.get() + tile * kPanelSize, weights, to - from, part > 0, part == parts - 1,
                        {weights, 0}, sums);
        }
      }
    }
  }

  int64_t chunk_steps() const { return kChunkTiles * p_.parts() * blocks_; }

 private:
  const Product<T>& p_;
  const int group_, begin_, blocks_;
  const A* weights_;
  Scratch<A> panels_, sums_;
  Run runs_[kDepth];
};

// What pixels [pixel, pixel + count) read, unless that is only a part of what lies there.
template <typename T, typename W>
Ahead source_ahead(const Product<T, W>& p, int64_t pixel, int64_t count, int64_t steps) {
  if (count <= 0 || p.groups > 1) return {};
  const auto place = [&](const Pixel& at, int row_tap, int col_tap) {
    const int row = p.rows.src_first + at.row * p.rows.src_out + row_tap * p.rows.src_tap;
    const int col = p.cols.src_first + at.col * p.cols.src_out + col_tap * p.cols.src_tap;
    const int64_t line = int64_t{at.image} * p.source_rows + max_int(0, min_int(row, p.source_rows - 1));
    return (line * p.source_cols + max_int(0, min_int(col, p.source_cols - 1))) * p.source_channels;
  };
  const int64_t from = place(pixel_at(p, pixel), 0, 0);
  const int64_t to = place(pixel_at(p, pixel + count - 1), p.rows.taps - 1, p.cols.taps - 1) + p.source_channels;
  return {p.source + from, p.source + (from < to ? to : from), steps};
}

template <typename T>
void product(const Product<T>& p) {
  using A = Acc<T>;
  constexpr int W = kTileLanes<A>;
  const int64_t pixels = p.pixels(), depth = p.depth();
  if (pixels == 0 || p.out_channels == 0) return;
  const int blocks = (p.out_channels + W - 1) / W;
  const int64_t block_bytes = p.groups * (depth + 1) * W * static_cast<int64_t>(sizeof(A));
  const int batch = static_cast<int>(smaller(blocks, kWeightBytes / block_bytes + 1));
  const int64_t tiles = (pixels + kTileRows - 1) / kTileRows;
  const int64_t chunk = smaller(kChunkTiles, (tiles + kProductTasks - 1) / kProductTasks) * kTileRows;
  const int64_t stretch = smaller(kTaskChunks, (pixels + chunk * kProductTasks - 1) / (chunk * kProductTasks)) * chunk;
  const int64_t stretches = (pixels + stretch - 1) / stretch;
  const Scratch<A> weights(p.laid ? 0 : p.groups * batch * depth * W);

  for (int first = 0; first < blocks; first += batch) {
    const int count = min_int(batch, blocks - first);
    if (!p.laid) lay_out_weights(p, first, count, weights.get());
    // Few pixels: split the lanes as well.
    const int64_t tasks = stretches * p.groups;
    const int splits = max_int(1, static_cast<int>(smaller(count, kProductTasks / tasks)));
    parallel_for(tasks * splits, [&](int64_t task) {
      const int split = static_cast<int>(task % splits), group = static_cast<int>(task / splits % p.groups);
      const int begin = count * split / splits, end = count * (split + 1) / splits;
      const A* own = p.laid ? p.laid + (int64_t{group} * blocks + first + begin) * depth * W
                            : weights.get() + (int64_t{group} * count + begin) * depth * W;
      ProductTask<T> work(p, group, first + begin, first + end, own);
      int64_t pixel = task / splits / p.groups * stretch;
      const int64_t last = smaller(pixels, pixel + stretch);
      for (; pixel < last; pixel += chunk) {
        const int64_t next = pixel + chunk;
        work.compute(pixel, smaller(chunk, last - pixel),
                     source_ahead(p, next, smaller(chunk, last - next), work.chunk_steps()));
      }
      stream_end();
    });
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
