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

// Bytes of the result that a column of vectors is followed through.
constexpr int64_t kBand = 1 << 14;

// Fills an image with f(at, n, p): n elements from `at` on, where p holds their entries of `Count` vectors with one
// entry a channel. Runs from back to front, because the caches hold the end of what the pass before went through.
template <typename T, int Count, typename F>
void fill(const Tensor& image, const Tensor* vectors, const F& f) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  T* result = data<T>(image);
  const Rows rows = rows_of<A>(image);
  const bool streamed = image.streamed && rows.width % L == 0;
  Scratch<A> entries(Count * rows.width);
  for (int i = 0; i < Count; ++i) repeat(vectors[i], rows.width, &entries[i * rows.width]);

  // `height` rows of `width` elements from `offset` on.
  auto fill_band = [&](int64_t offset, int64_t height, int64_t width) {
    for_columns<A>(width, [&]<int N>(int64_t column, int n) {
      Vec<A> p[N][Count];
      for (int v = 0; v < N; ++v) {
        for (int i = 0; i < Count; ++i) p[v][i] = load_some(&entries[i * rows.width + column + v * L], n);
      }
      for (int64_t row = 0; row < height; ++row) {
        for (int v = 0; v < N; ++v) {
          const int64_t at = offset + row * rows.width + column + v * L;
          store_result(result + at, f(at, n, p[v]), n, streamed && n == L);
        }
      }
    });
  };

  const int64_t band = 1 + kBand / (rows.width * static_cast<int64_t>(sizeof(T)));
  parallel_for(rows.chunks() + 1, [&](int64_t i) {
    const int64_t chunk = rows.chunks() - i, end = rows.begin(chunk + 1);
    for (int64_t row = rows.begin(chunk); row < end; row += band) {
      fill_band(row * rows.width, smaller(band, end - row), rows.width_of(chunk));
    }
    stream_end();
  });
}

// Number i of an operation on vectors, as Python packed it.
template <typename A>
A number(const Call& call, int i) {
  double value;
  memcpy(&value, call.params + 2 * i, sizeof(value));
  return static_cast<A>(value);
}

// Calls f(in, out) for every channel of an operation on vectors: entry c of each, as f reads and writes them.
template <int Inputs, int Outputs, typename F>
void for_channels(const Call& call, const F& f) {
  by_type(call.in[0].type, [&](auto zero) {
    using A = Acc<decltype(zero)>;
    for (int64_t c = 0; c < call.in[0].size; ++c) {
      A in[Inputs], out[Outputs];
      for (int i = 0; i < Inputs; ++i) in[i] = data<A>(call.in[i])[c];
      f(in, out);
      for (int i = 0; i < Outputs; ++i) data<A>(call.out[i])[c] = out[i];
    }
  });
}

template <typename A>
A inverse_root(A var, A eps) {
  if constexpr (sizeof(A) == 4) return 1 / __builtin_sqrtf(var + eps);
  return 1 / __builtin_sqrt(var + eps);
}

}  // namespace

void bn_slope(const Call& call) {
  for_channels<2, 1>(call, [&]<typename A>(const A(&in)[2], A(&out)[1]) {
    const auto& [scale, var] = in;
    out[0] = scale * inverse_root(var, number<A>(call, 0));
  });
}

void bn_grown(const Call& call) {
  for_channels<5, 2>(call, [&]<typename A>(const A(&in)[5], A(&out)[2]) {
    const auto& [dgamma, dbeta, total, dot, var] = in;
    out[0] = dgamma + dot * inverse_root(var, number<A>(call, 0));
    out[1] = dbeta + total;
  });
}

void bn_factors(const Call& call) {
  const int64_t count = *data<int64_t>(call.in[4]);
  for_channels<4, 3>(call, [&]<typename A>(const A(&in)[4], A(&out)[3]) {
    const auto& [scale, var, dgamma, dbeta] = in;
    const A root = inverse_root(var, number<A>(call, 0)), share = scale * root / static_cast<A>(count);
    out[0] = scale * root;
    out[1] = -share * root * dgamma;
    out[2] = -share * dbeta;
  });
}

void bn_composed_factors(const Call& call) {
  for_channels<6, 4>(call, [&]<typename A>(const A(&in)[6], A(&out)[4]) {
    const auto& [gamma, var, dmean, dvar, dbeta, dot] = in;
    const A count = number<A>(call, 0), root = inverse_root(var, number<A>(call, 1));
    out[0] = dot * root;
    out[1] = gamma * root;
    out[2] = (2 * dvar - out[1] * root * out[0]) / count;
    out[3] = (dmean - out[1] * dbeta) / count;
  });
}

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
    using V = Vec<Acc<T>>;
    const T* x = data<T>(call.in[0]);
    fill<T, 3>(call.out[0], call.in + 1, [&](int64_t at, int n, const V(&p)[3]) {
      const auto& [mean, scale, shift] = p;
      return (load_some(x + at, n) - mean) * scale + shift;
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
    Scratch<A> mean(rows.width);
    repeat(call.in[2], rows.width, mean.get());
    A* const sums[] = {data<A>(call.out[0]), data<A>(call.out[1])};
    channel_sums<A>(
        rows,
        [&](int64_t at, int64_t column, int n, Vec<A>(&terms)[2]) {
          terms[0] = load_some(dy + at, n);
          terms[1] = terms[0] * (load_some(x + at, n) - load_some(&mean[column], n));
        },
        sums);
  });
}

void bn_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using V = Vec<Acc<T>>;
    const T *dy = data<T>(call.in[0]), *x = data<T>(call.in[1]);
    fill<T, 4>(call.out[0], call.in + 2, [&](int64_t at, int n, const V(&p)[4]) {
      const auto& [mean, a, b, d] = p;
      return a * load_some(dy + at, n) + b * (load_some(x + at, n) - mean) + d;
    });
  });
}

}  // namespace mpsf::MPSF_ISA
