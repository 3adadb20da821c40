// Batch normalization over channels-last pixels: the moments, two affine maps and the two sums between them. Images
// come in sets with vectors of their own (channels.h): one set for batch norm, one an image for instance norm.
#include "activation.h"
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
  const double share = 1.0 / static_cast<double>(rows);
  A first[N * L], rest[N * L], square[N * L];
  memcpy(first, about, sizeof(first));
  memcpy(rest, sum, sizeof(rest));
  memcpy(square, squares, sizeof(square));
  for (int i = 0; i < N * L; ++i) {
    const double left = static_cast<double>(rest[i]);
    mean[i] = static_cast<double>(first[i]) + left * share;
    m2[i] = static_cast<double>(square[i]) - left * left * share;
  }
}

template <typename T>
void stats(const Tensor& image, const Tensor& means, const Tensor& vars) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Sets sets = sets_of<A>(image, means.size);
  const Rows& rows = sets.rows;
  const int64_t channels = rows.channels, stride = rows.width + kTile * L;

  reduce_sets(
      sets, 2 * channels, 4 * stride,
      [&](int64_t set, int64_t chunk, double* part, double* room) {
        const T* x = data<T>(image) + set * sets.size;
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
      [&](int64_t set, double* parts) {
        A *mean = data<A>(means) + set * channels, *var = data<A>(vars) + set * channels;
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

// Bytes of the result that a column of vectors is followed through.
constexpr int64_t kBand = 1 << 14;

// Fills an image with f(at, n, p): n elements from `at` on, where p holds their entries of `Count` vectors with one
// entry a channel of each set. Runs from back to front, because the caches hold the end of what the pass before went
// through.
template <typename T, int Count, typename F>
void fill(const Tensor& image, const Tensor* vectors, const F& f) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  T* result = data<T>(image);
  const Sets sets = sets_of<A>(image, vectors[0].size);
  const Rows& rows = sets.rows;
  const bool streamed = image.streamed && rows.width % L == 0 && (sets.count == 1 || sets.size % L == 0);

  // `height` rows of `width` elements from `offset` on.
  auto fill_band = [&](const A* const(&entries)[Count], int64_t offset, int64_t height, int64_t width) {
    // By value: a store might change what is reached through a reference.
    T* const to = result;
    const F made = f;
    const int64_t pitch = rows.width;
    const bool past = streamed;
    for_columns<A>(width, [&]<int N>(int64_t column, int n) {
      Vec<A> p[N][Count];
      for (int v = 0; v < N; ++v) {
        for (int i = 0; i < Count; ++i) p[v][i] = load_some(entries[i] + column + v * L, n);
      }
      for (int64_t row = 0; row < height; ++row) {
        for (int v = 0; v < N; ++v) {
          const int64_t at = offset + row * pitch + column + v * L;
          store_result(to + at, made(at, n, p[v]), n, past && n == L);
        }
      }
    });
  };

  const int64_t band = 1 + kBand / (rows.width * static_cast<int64_t>(sizeof(T)));
  parallel_sets(sets, true, [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
    Scratch<A> room(Count * rows.width);
    for (int64_t set = end - 1; set >= begin; --set) {
      const A* entries[Count];
      for (int i = 0; i < Count; ++i) entries[i] = entries_of(vectors[i], sets, set, &room[i * rows.width]);
      for (int64_t chunk = last - 1; chunk >= first; --chunk) {
        const int64_t width = rows.width_of(chunk), chunk_end = rows.begin(chunk + 1);
        for (int64_t row = rows.begin(chunk); width > 0 && row < chunk_end; row += band) {
          fill_band(entries, set * sets.size + row * rows.width, smaller(band, chunk_end - row), width);
        }
      }
    }
    stream_end();
  });
}

}  // namespace

void bn_stats(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { stats<decltype(zero)>(call.in[0], call.out[0], call.out[1]); });
}

void bn_normalize(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using V = Vec<Acc<T>>;
    const T* x = data<T>(call.in[0]);
    const Neuron<Acc<T>> neuron(call.params[0], call.params + 1);
    by_form(neuron.form, [&]<int Act>() {
      fill<T, 3>(call.out[0], call.in + 1, [x, &neuron](int64_t at, int n, const V(&p)[3]) {
        const auto& [mean, scale, shift] = p;
        return activated_by<Act>((load_some(x + at, n) - mean) * scale + shift, neuron);
      });
    });
  });
}

void bn_stats_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Sets sets = sets_of<A>(call.in[0], call.out[0].size);
    A* const sums[] = {data<A>(call.out[0]), data<A>(call.out[1])};
    const Neuron<A> neuron(call.params[0], call.params + 1);
    by_form(neuron.form, [&]<int Act>() {
      constexpr int kVectors = Act == kUnchanged ? 1 : 3;
      const auto prepare = [&](int64_t set, A* room) {
        const A* entries[kVectors];
        for (int i = 0; i < kVectors; ++i) {
          entries[i] = entries_of(call.in[2 + i], sets, set, room + i * sets.rows.width);
        }
        const T *dy = data<T>(call.in[0]) + set * sets.size, *x = data<T>(call.in[1]) + set * sets.size;
        return [=, &neuron](int64_t at, int64_t column, int n, Vec<A>(&terms)[2]) {
          const Vec<A> centred = load_some(x + at, n) - load_some(entries[0] + column, n);
          terms[0] = load_some(dy + at, n);
          if constexpr (Act != kUnchanged) {
            const Vec<A> scale = load_some(entries[1] + column, n), shift = load_some(entries[2] + column, n);
            terms[0] = passed_by<Act>(terms[0], centred * scale + shift, neuron);
          }
          terms[1] = terms[0] * centred;
        };
      };
      channel_sums<A, kVectors>(sets, prepare, sums);
    });
  });
}

void bn_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using V = Vec<Acc<T>>;
    const T *dy = data<T>(call.in[0]), *x = data<T>(call.in[1]);
    const Neuron<Acc<T>> neuron(call.params[0], call.params + 1);
    by_form(neuron.form, [&]<int Act>() {
      constexpr int kVectors = Act == kUnchanged ? 4 : 6;
      fill<T, kVectors>(call.out[0], call.in + 2, [dy, x, &neuron](int64_t at, int n, const V(&p)[kVectors]) {
        V g = load_some(dy + at, n), centred = load_some(x + at, n) - p[0];
        if constexpr (Act != kUnchanged) g = passed_by<Act>(g, centred * p[4] + p[5], neuron);
        return p[1] * g + p[2] * centred + p[3];
      });
    });
  });
}

}  // namespace mpsf::MPSF_ISA
