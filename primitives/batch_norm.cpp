// Batch normalization over channels-last pixels: the moments, two affine maps and the two sums between them.
#include "channels.h"
#include "parallel.h"
#include "simd.h"

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

// The moments of a block of rows, from data that stays in the cache between the two passes. The sum of what
// is left over corrects the rounding of the first mean.
template <typename T, int N>
MPSF_INLINE void block_moments(const T* x, int64_t stride, int64_t rows, int n, double* mean, double* m2) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  Vec<A> about[N] = {}, sum[N] = {}, squares[N] = {};
  for (int64_t row = 0; row < rows; ++row) {
    for (int v = 0; v < N; ++v) about[v] += load_some(x + row * stride + v * L, n);
  }
  for (int v = 0; v < N; ++v) about[v] *= A(1) / static_cast<A>(rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (int v = 0; v < N; ++v) {
      Vec<A> d = load_some(x + row * stride + v * L, n) - about[v];
      sum[v] += d;
      squares[v] += d * d;
    }
  }
  double share = 1.0 / static_cast<double>(rows);
  for (int i = 0; i < N * L; ++i) {
    double left = static_cast<double>(sum[i / L][i % L]);
    mean[i] = static_cast<double>(about[i / L][i % L]) + left * share;
    m2[i] = static_cast<double>(squares[i / L][i % L]) - left * left * share;
  }
}

template <typename T>
void stats(const Tensor& image, Acc<T>* mean, Acc<T>* var) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const T* x = data<T>(image);
  const Rows rows = rows_of<A>(image);
  const int64_t channels = rows.channels, chunks = rows.chunks();
  Scratch<double> partial((chunks + 1) * 2 * channels);
  Scratch<double> counts(chunks + 1);

  parallel_for(chunks + 1, [&](int64_t chunk) {
    const int64_t width = rows.width_of(chunk), begin = rows.begin(chunk), end = rows.begin(chunk + 1);
    Scratch<double> entries(4 * (width + L));
    double *row_mean = entries.get(), *row_m2 = row_mean + width + L;
    double *block_mean = row_m2 + width + L, *block_m2 = block_mean + width + L;
    for (int64_t i = 0; i < width; ++i) row_mean[i] = row_m2[i] = 0;
    Moments all{row_mean, row_m2, 0};
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t height = smaller(kBlock, end - block);
      for_columns<A>(width, [&]<int N>(int64_t column, int n) {
        block_moments<T, N>(x + block * rows.width + column, rows.width, height, n, block_mean + column,
                            block_m2 + column);
      });
      all.merge(block_mean, block_m2, static_cast<double>(height), width);
    }
    double* folded = &partial[chunk * 2 * channels];
    for (int64_t i = 0; i < 2 * channels; ++i) folded[i] = 0;
    Moments pixels{folded, folded + channels, 0};
    for (int64_t i = 0; i < width; i += channels) pixels.merge(row_mean + i, row_m2 + i, all.count, channels);
    counts[chunk] = pixels.count;
  });

  double* whole = partial.get();
  Moments total{whole, whole + channels, counts[0]};
  for (int64_t chunk = 1; chunk <= chunks; ++chunk) {
    const double* part = &partial[chunk * 2 * channels];
    if (counts[chunk] > 0) total.merge(part, part + channels, counts[chunk], channels);
  }
  for (int64_t c = 0; c < channels; ++c) {
    mean[c] = static_cast<A>(total.mean[c]);
    var[c] = static_cast<A>(total.count > 0 ? total.m2[c] / total.count : 0);
  }
}

// Calls f(offset, column, n) for every vector of the image; see channel_sums.
template <typename A, typename F>
void for_vectors(const Rows& rows, const F& f) {
  constexpr int L = lanes<A>;
  parallel_for(rows.chunks() + 1, [&](int64_t chunk) {
    const int64_t width = rows.width_of(chunk), end = rows.begin(chunk + 1);
    for (int64_t row = rows.begin(chunk); row < end; ++row) {
      const int64_t start = row * rows.width;
      int64_t column = 0;
      for (; column + L <= width; column += L) f(start + column, column, L);
      if (column < width) f(start + column, column, static_cast<int>(width - column));
    }
  });
}

}  // namespace

void bn_stats(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    stats<T>(call.in[0], data<Acc<T>>(call.out[0]), data<Acc<T>>(call.out[1]));
  });
}

void bn_normalize(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Rows rows = rows_of<A>(call.in[0]);
    const T* x = data<T>(call.in[0]);
    T* y = data<T>(call.out[0]);
    const Repeated<A> mean(rows, data<A>(call.in[1])), scale(rows, data<A>(call.in[2])),
        shift(rows, data<A>(call.in[3]));
    for_vectors<A>(rows, [&](int64_t offset, int64_t column, int n) {
      Vec<A> centred = load_some(x + offset, n) - load_some(mean.get() + column, n);
      Vec<A> result = centred * load_some(scale.get() + column, n) + load_some(shift.get() + column, n);
      store_some(y + offset, result, n);
    });
  });
}

void bn_stats_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Rows rows = rows_of<A>(call.in[0]);
    const T *dy = data<T>(call.in[0]), *x = data<T>(call.in[1]);
    const Repeated<A> mean(rows, data<A>(call.in[2]));
    A* const sums[] = {data<A>(call.out[0]), data<A>(call.out[1])};
    channel_sums<A>(
        rows,
        [&](int64_t offset, int64_t column, int n, Vec<A>(&terms)[2]) {
          terms[0] = load_some(dy + offset, n);
          terms[1] = terms[0] * (load_some(x + offset, n) - load_some(mean.get() + column, n));
        },
        sums);
  });
}

void bn_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Rows rows = rows_of<A>(call.in[0]);
    const T *dy = data<T>(call.in[0]), *x = data<T>(call.in[1]);
    T* dx = data<T>(call.out[0]);
    const Repeated<A> mean(rows, data<A>(call.in[2])), a(rows, data<A>(call.in[3])), b(rows, data<A>(call.in[4])),
        d(rows, data<A>(call.in[5]));
    for_vectors<A>(rows, [&](int64_t offset, int64_t column, int n) {
      Vec<A> centred = load_some(x + offset, n) - load_some(mean.get() + column, n);
      Vec<A> result = load_some(a.get() + column, n) * load_some(dy + offset, n) +
                      load_some(b.get() + column, n) * centred + load_some(d.get() + column, n);
      store_some(dx + offset, result, n);
    });
  });
}

}  // namespace mpsf::MPSF_ISA
