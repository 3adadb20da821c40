// Mean and variance of channels over many pixels, exact to rounding however far the mean is from zero.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// Mean and sum of squared deviations of every entry of a row, over the rows seen so far.
struct Moments {
  double* mean;
  double* m2;
  double count;

  // Merges other moments (Chan, Golub and LeVeque), entry by entry.
  void merge(const double* other_mean, const double* other_m2, double other_count, int64_t entries) {
    double total = count + other_count, weight = other_count / total, spread = count * weight;
    for (int64_t i = 0; i < entries; ++i) {
      double delta = other_mean[i] - mean[i];
      mean[i] += delta * weight;
      m2[i] += other_m2[i] + delta * delta * spread;
    }
    count = total;
  }
};

// Rows of a block that tell about where its mean is, and how far ahead others are fetched.
constexpr int64_t kFew = 32, kAhead = 24;

// The moments of a block of rows, by how far they are from the mean of the first few. These are among what varies, so
// theirs is at most sqrt(kBlock / kFew - 1) deviations from the mean of all, and little cancels below. It is told from
// the first row, so that what is constant has no variance at all.
template <typename T, int N>
MPSF_INLINE void block_moments(const T* x, int64_t stride, int64_t rows, int n, double* mean, double* m2) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  Vec<A> top[N], about[N] = {}, sum[N] = {}, squares[N] = {};
  for (int v = 0; v < N; ++v) top[v] = load_some(x + v * L, n);
  const int64_t few = smaller(kFew, rows);
  for (int64_t row = 1; row < few; ++row) {
    for (int v = 0; v < N; ++v) about[v] += load_some(x + row * stride + v * L, n) - top[v];
  }
  for (int v = 0; v < N; ++v) about[v] = top[v] + about[v] * (A(1) / static_cast<A>(few));
  for (int64_t row = 0; row < rows; ++row) {
    fetch<N * L * sizeof(T) + 64>(x, (row + kAhead) * stride);  // which may begin within a line
    for (int v = 0; v < N; ++v) {
      Vec<A> d = load_some(x + row * stride + v * L, n) - about[v];
      sum[v] += d;
      squares[v] += d * d;
    }
  }
  const double share = 1.0 / static_cast<double>(rows);
  A first[N * L], rest[N * L], square[N * L];
  memcpy(first, about, sizeof(first));
  memcpy(rest, sum, sizeof(rest));
  memcpy(square, squares, sizeof(square));
  for (int i = 0; i < N * L; ++i) {
    const double left = static_cast<double>(rest[i]);
    mean[i] = static_cast<double>(first[i]) + left * share;
    const double less = static_cast<double>(square[i]) - left * left * share;
    m2[i] = less < 0 ? 0 : less;  // which underflow can make of squares; a NaN stays
  }
}

// Mean and population variance of every channel of every statistics group.
template <typename T>
void moments_of(const T* image, const StatGroups& stat_groups, Acc<T>* means, Acc<T>* vars) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Rows& rows = stat_groups.rows;
  const int64_t channels = rows.channels, stride = rows.width + kTile * L;

  reduce_stat_groups(
      stat_groups, 2 * channels, 4 * stride,
      [&](int64_t stat_group, int64_t chunk, double* part, double* room) {
        const T* x = image + stat_group * stat_groups.size;
        const int64_t width = rows.width_of(chunk), begin = rows.begin(chunk), end = rows.begin(chunk + 1);
        Moments all{room, room + stride, 0};
        for (int64_t block = begin; block < end; block += kBlock) {
          const int64_t height = smaller(kBlock, end - block);
          double* mean = block == begin ? room : room + 2 * stride;
          for_columns<A>(width, [&]<int N>(int64_t column, int n) {
            block_moments<T, N>(x + block * rows.width + column, rows.width, height, n, mean + column,
                                mean + stride + column);
          });
          if (block == begin) {
            all.count = static_cast<double>(height);
          } else {
            all.merge(mean, mean + stride, static_cast<double>(height), width);
          }
        }
        const auto bytes = static_cast<size_t>(channels) * sizeof(double);
        memcpy(part, all.mean, bytes);
        memcpy(part + channels, all.m2, bytes);
        Moments pixels{part, part + channels, all.count};
        for (int64_t i = channels; i < width; i += channels) {
          pixels.merge(all.mean + i, all.m2 + i, all.count, channels);
        }
      },
      [&](int64_t stat_group, double* parts) {
        A *mean = means + stat_group * channels, *var = vars + stat_group * channels;
        Moments total{parts, parts + channels, 0};
        for (int64_t chunk = 0; chunk <= rows.chunks(); ++chunk) {
          double* part = parts + chunk * 2 * channels;
          const auto count = static_cast<double>(rows.pixels_of(chunk));
          if (count == 0) continue;
          if (total.count == 0) {
            total = {part, part + channels, count};
          } else {
            total.merge(part, part + channels, count, channels);
          }
        }
        for (int64_t c = 0; c < channels; ++c) {
          mean[c] = static_cast<A>(total.count > 0 ? total.mean[c] : 0);
          var[c] = static_cast<A>(total.count > 0 ? total.m2[c] / total.count : 0);
        }
      });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
