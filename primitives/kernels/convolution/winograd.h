// Convolution with 3x3 taps with fewer multiplications; transform_domain.h says how.
#pragma once
#include "kernels/convolution/implicit_gemm.h"
#include "kernels/convolution/transform_domain.h"
#include "kernels/convolution/transpose.h"

namespace mpsf::MPSF_ISA {
namespace {

// Longest sum over one panel, and the distance of a panel's rows, as in microkernel.h.
constexpr int kPointDepth = 64, kPointPitch = kPointDepth + 16;
constexpr int64_t kPointBytes = 400 << 10;  // of source points that stay in the cache beside sums and weights
// Of source points of a small problem, made once for all threads; more where a register tile's are too many beside sums
// and weights.
constexpr int64_t kSharedBytes = int64_t{5} << 20, kMostShared = 2 * kSharedBytes;
constexpr int64_t kPointSums = 512 << 10;  // of sums of blocks of lanes that share a panel while it is close
constexpr int kPointGroups = 4;            // of register tiles, at most, that share a cache

template <typename Map, typename T>
class Winograd {
  static constexpr int kReach = Map::kReach, kSide = Map::kSide, kPoints = kSide * kSide, kOuts = Map::kOuts;
  static constexpr int L = lanes<float>, W = kTileLanes<float>;

 public:
  explicit Winograd(const Product<T>& p)
      : p_(p),
        tiling_(p),
        tiles_(tiling_.count),
        blocks_((p.out_channels + W - 1) / W),
        parts_((p.channels + kPointDepth - 1) / kPointDepth) {}

  bool fits() const { return p_.groups == 1 && tiling_.fits(p_.channels, p_.out_channels); }

  void run() const {
    const int64_t each = int64_t{kPoints} * p_.channels * static_cast<int64_t>(sizeof(float));
    const int64_t groups = smaller(kPointGroups, kPointBytes / (each * kTileRows));
    if (blocks_ >= 4 && tiles_ * each <= (groups > 0 ? kSharedBytes : kMostShared)) return run_shared();
    int64_t count = kTileRows * (groups < 1 ? 1 : groups);
    while (count > kTileRows && tiles_ < 8 * count) count -= kTileRows;
    run_blocks(count);
  }

 private:
  // Every task goes from its tiles of the source to their results; the weights' points are made before, for a batch
  // of the blocks of lanes.
  void run_blocks(int64_t count) const {
    const int64_t size = weights_size();
    const int batch =
        static_cast<int>(smaller(blocks_, kWeightBytes / (size * static_cast<int64_t>(sizeof(float))) + 1));
    const Scratch<float> weights(batch * size);
    const int64_t tasks = (tiles_ + count - 1) / count;
    const int64_t each = kPoints * count * W * static_cast<int64_t>(sizeof(float));
    const int together = static_cast<int>(smaller(batch, kPointSums / each + 1));
    for (int first = 0; first < blocks_; first += batch) {
      const int here = min_int(batch, blocks_ - first);
      const int pieces = (p_.channels + L - 1) / L;
      parallel_for(int64_t{here} * pieces, [&](int64_t task) {
        const int block = static_cast<int>(task / pieces);
        transform_weights(first + block, static_cast<int>(task % pieces) * L, weights.get() + block * size);
      });
      parallel_for(tasks, [&](int64_t task) {
        const int64_t begin = tiles_ * task / tasks, end = tiles_ * (task + 1) / tasks;
        const Scratch<float> source(parts_ * kPoints * source_pitch(end - begin)),
            sums(together * kPoints * sums_pitch(end - begin));
        for (int64_t tile = begin; tile < end; ++tile) transform_source(tile, tile - begin, end - begin, source.get());
        for (int block = 0; block < here; block += together) {
          const int some = min_int(together, here - block);
          multiply_points(first + block, some, end - begin, source.get(), 0, end - begin, weights.get() + block * size,
                          sums.get());
          for (int i = 0; i < some; ++i) {
            finish(first + block + i, begin, end - begin, sums.get() + i * kPoints * sums_pitch(end - begin));
          }
        }
        stream_end();
      });
    }
  }

  // Few tiles and large weights: the source's points are made before, and each task makes weights for itself.
  void run_shared() const {
    const Scratch<float> source(parts_ * kPoints * source_pitch(tiles_));
    parallel_for((tiles_ + kTileRows - 1) / kTileRows, [&](int64_t task) {
      const int64_t end = smaller(tiles_, (task + 1) * kTileRows);
      for (int64_t tile = task * kTileRows; tile < end; ++tile) transform_source(tile, tile, tiles_, source.get());
    });
    const int64_t most = 8 * kTileRows, rounds = (tiles_ + most - 1) / most;
    parallel_for(blocks_, [&](int64_t task) {
      const int block = static_cast<int>(task);
      const Scratch<float> weights(weights_size()), sums(kPoints * sums_pitch(most));
      if (rounds == 1) {  // weights of a part are still close when they are met
        for (int part = 0; part < parts_; ++part) {
          const int first = part * kPointDepth, last = first + depth(part);
          for (int channel = first; channel < last; channel += L) {
            transform_weights(block, channel, weights.get() - part * kPoints * weights_pitch(kPointDepth));
          }
          multiply_part(block, 1, part, tiles_, source.get(), 0, tiles_, weights.get(), sums.get());
        }
        finish(block, 0, tiles_, sums.get());
        return stream_end();
      }
      for (int channel = 0; channel < p_.channels; channel += L) transform_weights(block, channel, weights.get());
      for (int64_t round = 0; round < rounds; ++round) {
        const int64_t begin = tiles_ * round / rounds, end = tiles_ * (round + 1) / rounds;
        multiply_points(block, 1, tiles_, source.get(), begin, end - begin, weights.get(), sums.get());
        finish(block, begin, end - begin, sums.get());
      }
      stream_end();
    });
  }

  // Distances of two points.
  static int64_t source_pitch(int64_t tiles) { return tiles * kPointPitch + kSkew; }
  static int64_t sums_pitch(int64_t tiles) { return tiles * W + kSkew; }
  static int64_t weights_pitch(int depth) { return int64_t{depth} * W + kSkew; }
  // Of the weights of a block of lanes.
  int64_t weights_size() const { return kPoints * (int64_t{p_.channels} * W + parts_ * kSkew); }
  int depth(int part) const { return min_int(kPointDepth, p_.channels - part * kPointDepth); }

  // The weights of L channels and a block of lanes, as [part][point][channel][lane].
  void transform_weights(int block, int channel, float* to) const {
    const int n = min_int(L, p_.channels - channel), part = channel / kPointDepth;
    const int64_t pitch = weights_pitch(depth(part));
    to += part * kPoints * weights_pitch(kPointDepth) + channel % kPointDepth * W;
    for (int v = 0; v < kTileVectors && block * W + v * L < p_.out_channels; ++v) {
      if (p_.laid) {
        const float* from = p_.laid + (block * p_.depth() + channel) * W + v * L;
        for (int k = 0; k < n; ++k, from += W) {
          transform_channel([&](int tap) { return load(from + int64_t{tap} * p_.channels * W); }, pitch,
                            to + k * W + v * L);
        }
        continue;
      }
      Vec<float> taps[9][L];
      for (int tap = 0; tap < 9; ++tap) {
        const int row = p_.rows.tap_first + tap / 3 * p_.rows.tap_step;
        const int col = p_.cols.tap_first + tap % 3 * p_.cols.tap_step;
        const int lane = block * W + v * L;
        load_lanes(p_.weights + (int64_t{row} * p_.kernel_cols + col) * p_.tap_stride + channel * p_.channel_stride +
                       lane * p_.out_stride,
                   p_.channel_stride, p_.out_stride, n, min_int(L, p_.out_channels - lane), taps[tap]);
      }
      for (int k = 0; k < n; ++k) transform_channel([&](int tap) { return taps[tap][k]; }, pitch, to + k * W + v * L);
    }
  }

  // The weights of one channel and a vector of lanes, to points that lie `pitch` apart.
  template <typename F>
  static MPSF_INLINE void transform_channel(const F& tap, int64_t pitch, float* to) {
    Vec<float> half[3][kSide];
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) {
      const Vec<float> row[3] = {tap(3 * q), tap(3 * q + 1), tap(3 * q + 2)};
      Map::weights(row, half[q]);
    }
#pragma GCC unroll 6
    for (int j = 0; j < kSide; ++j) {
      Vec<float> col[3], points[kSide];
      column(half, j, col);
      Map::weights(col, points);
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) store(to + (i * kSide + j) * pitch, points[i]);
    }
  }

  // A tile of the source as [part][point][tile][channel], where it is number `at` of `count`.
  void transform_source(int64_t tile, int64_t at, int64_t count, float* to) const {
    for (int channel = 0; channel < p_.channels; channel += L) {
      tiling_.transform_source(
          p_.source, tile, channel, min_int(L, p_.channels - channel), source_pitch(count),
          to + channel / kPointDepth * kPoints * source_pitch(count) + at * kPointPitch + channel % kPointDepth);
    }
  }

  // sums[block][point][tile][lane] of `count` tiles from `begin` on, of `all` whose points are there.
  void multiply_points(int first_block, int blocks, int64_t all, const float* source, int64_t begin, int64_t count,
                       const float* weights, float* sums) const {
    for (int part = 0; part < parts_; ++part) {
      multiply_part(first_block, blocks, part, all, source, begin, count, weights, sums);
      weights += kPoints * weights_pitch(depth(part));
    }
  }

  // The same for one part of the sum, whose weights these are.
  void multiply_part(int first_block, int blocks, int part, int64_t all, const float* source, int64_t begin,
                     int64_t count, const float* weights, float* sums) const {
    const int64_t groups = (count + kTileRows - 1) / kTileRows, size = weights_size();
    const int length = depth(part);
    const int64_t fetched = int64_t{length} * W / kPointPitch;
    for (int point = 0; point < kPoints; ++point, weights += weights_pitch(length)) {
      const float* panel = source + (part * kPoints + point) * source_pitch(all) + begin * kPointPitch;
      for (int block = 0; block < blocks; ++block) {
        const int vectors = p_.out_channels - (first_block + block) * W <= L ? 1 : kTileVectors;
        for (int64_t group = 0; group < groups; ++group) {
          const int64_t first = count * group / groups, rows = count * (group + 1) / groups - first;
          // The first group fetches the weights of the next point, the others what those meet.
          const float* slice = weights + block * size;
          const float* next =
              group == 0 ? slice + weights_pitch(length)
                         : panel + source_pitch(all) + (block * (groups - 1) + group - 1) * fetched * kPointPitch;
          multiply_tile<float, kPointPitch, true>(static_cast<int>(rows), vectors)(
              panel + first * kPointPitch, slice, length, part > 0, next,
              sums + (block * kPoints + point) * sums_pitch(count) + first * W);
        }
      }
    }
  }

  void finish(int block, int64_t begin, int64_t count, const float* sums) const {
    for (int64_t tile = 0; tile < count; ++tile) {
      const typename Tiling<Map>::Corner at = tiling_.corner(begin + tile);
      const int rows = tiling_.outputs(p_.rows, at.row), cols = tiling_.outputs(p_.cols, at.col);
      T* y = p_.result +
             ((int64_t{at.image} * p_.result_rows + p_.rows.out_first + at.row * p_.rows.out_step) * p_.result_cols +
              p_.cols.out_first + at.col * p_.cols.out_step) *
                 p_.result_channels;
      for (int v = 0; v < kTileVectors; ++v) {
        const int lane = block * W + v * L, n = min_int(L, p_.out_channels - lane);
        if (n <= 0) break;
        finish_tile(sums + tile * W + v * L, sums_pitch(count), load_some(p_.bias + lane, n), rows, cols, n, y + lane);
      }
    }
  }

  MPSF_INLINE void finish_tile(const float* sums, int64_t pitch, Vec<float> bias, int rows, int cols, int n,
                               T* y) const {
    const int64_t col_step = int64_t{p_.cols.src_tap} * p_.cols.out_step * p_.result_channels;
    const int64_t row_step = int64_t{p_.rows.src_tap} * p_.rows.out_step * p_.result_cols * p_.result_channels;
    Vec<float> half[kSide][kOuts];
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i, sums += kSide * pitch) {
      Vec<float> m[kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) m[j] = load(sums + j * pitch);
      Map::results(m, half[i]);
    }
    for (int j = 0; j < cols; ++j) {
      Vec<float> m[kSide], made[1][kOuts];
      column(half, j, m);
      Map::results(m, made[0]);
#pragma GCC unroll 6
      for (int i = 0; i < kOuts; ++i) made[0][i] += bias;
      T* to = y + j * col_step;
      if (p_.added) {
        const T* more = p_.added + (to - p_.result);
        for (int i = 0; i < rows; ++i) made[0][i] += load_some(more + i * row_step, n);
      }
      apply(made, p_.neuron);
      for (int i = 0; i < rows; ++i, to += row_step) store_result(to, made[0][i], n, p_.streamed);
    }
  }

  const Product<T>& p_;
  const Tiling<Map> tiling_;
  const int64_t tiles_;
  const int blocks_, parts_;
};

}  // namespace
}  // namespace mpsf::MPSF_ISA
