// The weight gradient of a convolution with 3x3 taps with fewer multiplications; transform_domain.h says how.
#pragma once
#include "kernels/convolution/transform_domain.h"
#include "kernels/convolution/weight_grad.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int64_t kGradPointBytes = int64_t{4} << 20;  // of points of some tiles
constexpr int64_t kGradAllBytes = int64_t{8} << 20;    // of points of all tiles, if that spares adding sums up
constexpr int64_t kGradSumBytes = int64_t{5} << 20;    // of sums at points
constexpr int64_t kGradFewSums = 6;                    // register tiles that threads cannot share evenly
constexpr int64_t kGradOwnBytes = int64_t{3} << 17;    // of points that a thread has for itself

template <typename Map, typename T>
class WinogradGrad {
  static constexpr int kSide = Map::kSide, kPoints = kSide * kSide, kOuts = Map::kOuts;
  static constexpr int64_t kRun = Map::kRun;  // tiles that a sum in registers has at most, and sums added in a row
  static constexpr int L = lanes<float>, W = kTileLanes<float>;
  static constexpr int kSums = kPoints * kTileRows * W;  // of a register tile in all points

  struct Image {
    ConvAxis rows, cols;
    int images, source_rows, source_cols, source_channels;
  };

 public:
  explicit WinogradGrad(const WeightGrad<T>& g)
      : g_(g),
        tiling_(Image{forward_axis(g.rows), forward_axis(g.cols), g.images, g.rows.n_in, g.cols.n_in, g.channels}),
        blocks_((g.channels + W - 1) / W) {}

  bool fits() const { return g_.groups == 1 && tiling_.fits(g_.channels, g_.out_channels); }

  void run() const {
    const int64_t tiles = tiling_.count;
    if (int64_t{blocks_} * g_.tiles() <= kGradFewSums && tiles * bytes(blocks_) > kGradOwnBytes) return run_apart();
    int batch = blocks_;
    int64_t most = tiles;
    if (tiles * bytes(batch) > kGradAllBytes) {
      const int64_t sums = int64_t{g_.tiles()} * kSums * static_cast<int64_t>(sizeof(float));
      batch = static_cast<int>(smaller(blocks_, kGradSumBytes / sums + 1));
      if (tiles * bytes(batch) > kGradAllBytes) most = smaller(tiles, kGradPointBytes / bytes(batch) + 2 * kTileRows);
    }
    const int64_t rounds = (tiles + most - 1) / most;
    const Scratch<float> dy(kPoints * dy_pitch(most)), x(kPoints * x_pitch(most, batch));
    const int64_t each = (tiles + rounds - 1) / rounds, flush = kRun / ((each + kRun - 1) / kRun) + 1;
    const int64_t size = rounds > 1 ? int64_t{batch} * g_.tiles() * kSums : 0;
    const Scratch<float> sums(size), totals(rounds > flush ? size : 0);
    const Scratch<double> bias(g_.db ? g_.out_channels : 0);
    if (g_.db) clear(bias.get(), g_.out_channels);
    for (int first = 0; first < blocks_; first += batch) {
      const int here = min_int(batch, blocks_ - first);
      for (int64_t round = 0; round < rounds; ++round) {
        const int64_t begin = tiles * round / rounds, end = tiles * (round + 1) / rounds, count = end - begin;
        transform(first, here, begin, end, dy.get(), x.get(), g_.db && first == 0 ? bias.get() : nullptr);
        parallel_for(int64_t{here} * g_.tiles(), [&](int64_t task) {
          const int block = static_cast<int>(task / g_.tiles()), tile = static_cast<int>(task % g_.tiles());
          const Scratch<float> own(rounds > 1 ? 0 : kSums);
          float* sum = rounds > 1 ? sums.get() + task * kSums : own.get();
          multiply_points(first + block, tile, count, dy.get() + tile * count * kOuterPitch,
                          x.get() + block * count * W, dy_pitch(count), x_pitch(count, here), round % flush > 0, sum);
          const bool last = round + 1 == rounds;
          if (rounds > flush && (last || (round + 1) % flush == 0)) {
            float* total = totals.get() + task * kSums;
            add(sum, kSums, round < flush, total);
            sum = total;
          }
          if (last) finish(first + block, tile, sum);
        });
      }
    }
    for (int out = 0; g_.db && out < g_.out_channels; ++out) g_.db[out] = static_cast<float>(bias[out]);
  }

 private:
  int64_t bytes(int batch) const {
    return int64_t{kPoints} * (g_.tiles() * kOuterPitch + batch * W) * static_cast<int64_t>(sizeof(float));
  }

  // Distances of two points.
  int64_t dy_pitch(int64_t count) const { return count * g_.tiles() * kOuterPitch + kSkew; }
  int64_t x_pitch(int64_t count, int blocks) const { return count * blocks * W + kSkew; }

  // Few channels: parts of the image have points and sums of their own.
  void run_apart() const {
    const int64_t tiles = tiling_.count, sums_each = int64_t{blocks_} * g_.tiles();
    const int64_t most = kGradOwnBytes / bytes(blocks_) + kTileRows;
    const int64_t parts = smaller(kMaxParts, (tiles + most - 1) / most);
    const Scratch<float> sums(parts * sums_each * kSums);
    const Scratch<double> bias(g_.db ? parts * g_.out_channels : 0);
    if (g_.db) clear(bias.get(), parts * g_.out_channels);
    parallel_for(parts, [&](int64_t part) {
      const int64_t from = tiles * part / parts, mine = tiles * (part + 1) / parts - from;
      const int64_t rounds = (mine + most - 1) / most, each = (mine + rounds - 1) / rounds;
      const int64_t flush = kRun / ((each + kRun - 1) / kRun) + 1, size = sums_each * kSums;
      const Scratch<float> dy(kPoints * dy_pitch(each)), x(kPoints * x_pitch(each, blocks_));
      const Scratch<float> run(rounds > flush ? size : 0), added(g_.db ? g_.out_channels : 0);
      float* const total = sums.get() + part * size;
      float* const sum = rounds > flush ? run.get() : total;
      for (int64_t round = 0; round < rounds; ++round) {
        const int64_t begin = from + mine * round / rounds, count = from + mine * (round + 1) / rounds - begin;
        if (g_.db) clear(added.get(), g_.out_channels);
        for (int64_t i = 0; i < count; ++i) {
          place_tile(0, blocks_, begin, i, count, dy.get(), x.get(), g_.db ? added.get() : nullptr);
        }
        for (int out = 0; g_.db && out < g_.out_channels; ++out)
          bias[part * g_.out_channels + out] += static_cast<double>(added[out]);
        for (int64_t task = 0; task < sums_each; ++task) {
          const int block = static_cast<int>(task / g_.tiles()), tile = static_cast<int>(task % g_.tiles());
          multiply_points(block, tile, count, dy.get() + tile * count * kOuterPitch, x.get() + block * count * W,
                          dy_pitch(count), x_pitch(count, blocks_), round % flush > 0, sum + task * kSums);
        }
        if (rounds > flush && (round + 1 == rounds || (round + 1) % flush == 0)) add(sum, size, round < flush, total);
      }
    });
    parallel_for(sums_each, [&](int64_t task) {
      float* const total = sums.get() + task * kSums;
      for (int64_t part = 1; part < parts; ++part) add(total + part * sums_each * kSums, kSums, false, total);
      finish(static_cast<int>(task / g_.tiles()), static_cast<int>(task % g_.tiles()), total);
    });
    for (int out = 0; g_.db && out < g_.out_channels; ++out) {
      for (int64_t part = 1; part < parts; ++part) bias[out] += bias[part * g_.out_channels + out];
      g_.db[out] = static_cast<float>(bias[out]);
    }
  }

  // Adds sums to total, or begins it with them.
  static void add(const float* sums, int64_t size, bool first, float* total) {
    for (int64_t i = 0; i < size; i += L) store(total + i, first ? load(sums + i) : load(total + i) + load(sums + i));
  }

  // Tiles [begin, end) as [point][tile of output channels][tile][out] and [point][block][tile][lane].
  void transform(int first, int blocks, int64_t begin, int64_t end, float* dy, float* x, double* bias) const {
    const int64_t count = end - begin, tasks = (count + kTileRows - 1) / kTileRows;
    const Scratch<float> part(bias ? tasks * g_.out_channels : 0);
    if (bias) clear(part.get(), tasks * g_.out_channels);
    parallel_for(tasks, [&](int64_t task) {
      for (int64_t i = count * task / tasks; i < count * (task + 1) / tasks; ++i) {
        place_tile(first, blocks, begin, i, count, dy, x, bias ? part.get() + task * g_.out_channels : nullptr);
      }
    });
    for (int64_t task = 0; bias && task < tasks; ++task) {
      for (int out = 0; out < g_.out_channels; ++out)
        bias[out] += static_cast<double>(part[task * g_.out_channels + out]);
    }
  }

  // Tile begin + i, one of count.
  MPSF_INLINE void place_tile(int first, int blocks, int64_t begin, int64_t i, int64_t count, float* dy, float* x,
                              float* bias) const {
    for (int tile = 0; tile < g_.tiles(); ++tile) {
      for (int out = g_.tile_begin(tile); out < g_.tile_begin(tile + 1); out += L) {
        const int lane = out - g_.tile_begin(tile);
        transform_result(begin + i, out, min_int(L, g_.tile_begin(tile + 1) - out), dy_pitch(count),
                         dy + (tile * count + i) * kOuterPitch + lane, bias);
      }
    }
    for (int channel = first * W; channel < min_int(g_.channels, (first + blocks) * W); channel += L) {
      tiling_.transform_source(g_.x, begin + i, channel, min_int(L, g_.channels - channel), x_pitch(count, blocks),
                               x + (int64_t{channel / W - first} * count + i) * W + channel % W);
    }
  }

  // n output channels of a tile of the cotangent, transformed, to points that lie `pitch` apart, and added to their
  // sums.
  MPSF_INLINE void transform_result(int64_t tile, int out, int n, int64_t pitch, float* to, float* bias) const {
    const typename Tiling<Map>::Corner at = tiling_.corner(tile);
    const int rows = tiling_.outputs(tiling_.rows, at.row), cols = tiling_.outputs(tiling_.cols, at.col);
    const int64_t col_step = int64_t{tiling_.cols.src_tap} * g_.out_channels;
    const int64_t row_step = int64_t{tiling_.rows.src_tap} * g_.cols.n_out * g_.out_channels;
    const T* from =
        g_.dy + out +
        ((int64_t{at.image} * g_.rows.n_out + g_.rows.begin + at.row) * g_.cols.n_out + g_.cols.begin + at.col) *
            g_.out_channels;
    Vec<float> half[kOuts][kSide], sum = {};
    for (int i = 0; i < kOuts; ++i, from += row_step) {
      Vec<float> d[kOuts];
#pragma GCC unroll 4
      for (int j = 0; j < kOuts; ++j) {
        d[j] = i < rows && j < cols ? load_some(from + j * col_step, n) : Vec<float>{};
        sum += d[j];
      }
      Map::from_results(d, half[i]);
    }
    if (bias) store(bias + out, load(bias + out, n) + sum, n);
    for (int j = 0; j < kSide; ++j, to += pitch) {
      Vec<float> d[kOuts], points[kSide];
      column(half, j, d);
      Map::from_results(d, points);
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) store(to + i * kSide * pitch, points[i]);
    }
  }

  void multiply_points(int block, int tile, int64_t count, const float* dy, const float* x, int64_t dy_pitch,
                       int64_t x_pitch, bool add, float* sums) const {
    const int rows = g_.tile_begin(tile + 1) - g_.tile_begin(tile);
    const int vectors = g_.channels - block * W <= L ? 1 : kTileVectors, start = 0;
    const int64_t runs = (count + kRun - 1) / kRun;
    const OuterTile<float> multiply = outer_tile<float, true>(rows, vectors);
    for (int at = 0; at < kPoints; ++at, dy += dy_pitch, x += x_pitch, sums += kTileRows * W) {
      for (int64_t run = 0; run < runs; ++run) {
        const int64_t begin = count * run / runs, end = count * (run + 1) / runs;
        const PixelBlock tiles = {&start, &start, 1, static_cast<int>(end - begin), 1};
        multiply(tiles, dy + begin * kOuterPitch, x + begin * W, add || run > 0, dy + dy_pitch + begin * kOuterPitch,
                 x + x_pitch + begin * W, sums, W);
      }
    }
  }

  void finish(int block, int tile, const float* sums) const {
    const int begin = g_.tile_begin(tile), end = g_.tile_begin(tile + 1);
    for (int v = 0; v < kTileVectors; ++v) {
      const int lane = block * W + v * L, n = min_int(L, g_.channels - lane);
      if (n <= 0) break;
      for (int out = begin; out < end; ++out) {
        const float* from = sums + (out - begin) * W + v * L;
        Vec<float> half[kSide][3];
        for (int i = 0; i < kSide; ++i, from += kSide * kTileRows * W) {
          Vec<float> m[kSide];
#pragma GCC unroll 6
          for (int j = 0; j < kSide; ++j) m[j] = load(from + j * kTileRows * W);
          Map::to_weights(m, half[i]);
        }
        for (int j = 0; j < 3; ++j) {
          Vec<float> m[kSide], w[3];
          column(half, j, m);
          Map::to_weights(m, w);
          for (int i = 0; i < 3; ++i) store_some(g_.dw + (int64_t{out} * 9 + i * 3 + j) * g_.channels + lane, w[i], n);
        }
      }
    }
  }

  const WeightGrad<T>& g_;
  const Tiling<Map> tiling_;
  const int blocks_;
};

}  // namespace
}  // namespace mpsf::MPSF_ISA
