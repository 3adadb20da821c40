// L2 pooling. Norms are gathered from the pixels that a window reads. A norm's derivative by a pixel is the pixel over
// the norm: the gradient gathers it along a pixel's windows, the tangent along a window's pixels.
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/tap_lists.h"
#include "pooling/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// For an output the inputs that it reads, with the number of taps that do: at an edge there can be several.
constexpr auto each_read = [](const Axis& a, int o, const auto& add) {
  for (int k = edge_tap_begin(a, o); k < edge_tap_end(a, o); ++k) {
    const int at = edge_source(a, o, k);
    const int count = taps_on(a, o, at).count;
    add(at, count);
    k += count - 1;
  }
};

// For an input the outputs that read it.
constexpr auto each_reader = [](const Axis& a, int i, const auto& add) {
  for (int o = edge_reader_begin(a, i); o < edge_reader_end(a, i); ++o) {
    const int count = taps_on(a, o, i).count;
    if (count > 0) add(o, count);
  }
};

template <typename A>
struct Range;  // of sums of squares that lost no digits, and factors that lead values of others into it
template <>
struct Range<float> {
  static constexpr float low = 0x1p-80f, high = 0x1p100f, up = 0x1p90f, down = 0x1p-80f;
};
template <>
struct Range<double> {
  static constexpr double low = 0x1p-700, high = 0x1p900, up = 0x1p600, down = 0x1p-550;
};

// value / norm * by, and 0 where the norm is 0.
template <typename A>
MPSF_INLINE Vec<A> slope(Vec<A> value, Vec<A> norm, Vec<A> by) {
  return norm == Vec<A>{} ? Vec<A>{} : value / norm * by;
}

// The norms of windows that read these lines at these columns.
template <typename T, typename Rows, typename Cols>
MPSF_INLINE void roots(const Line<T, int>* lines, Rows rows, const Entry<int>* entries, Cols cols, int64_t shift,
                       int64_t length, Acc<T>* out) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  for_vectors<A>(length, [&]<int N>(int64_t at, int n) {
    Vec<A> sum[N], scale[N];
    const auto gather = [&](const auto& scaled) __attribute__((always_inline)) {
      for (int v = 0; v < N; ++v) sum[v] = Vec<A>{};
      for (int i = 0; i < rows; ++i) {
        for (int block = 0; block < cols; block += kBlock) {  // sums of sums lose less in a large window
          Vec<A> across[N] = {};
          for (int j = block; j < cols && j < block + kBlock; ++j) {
            for (int v = 0; v < N; ++v) {
              const Vec<A> value = scaled(v, load_some(lines[i].data + shift + entries[j].at + at + v * L, n));
              across[v] += value * value * static_cast<A>(entries[j].weight);
            }
          }
          for (int v = 0; v < N; ++v) sum[v] += across[v] * static_cast<A>(lines[i].weight);
        }
      }
    };
    gather([](int, Vec<A> value) { return value; });
    bool scaled = false;
    for (int v = 0; v < N; ++v) {
      const auto large = sum[v] > Range<A>::high, small = sum[v] < Range<A>::low;
      scale[v] = large ? splat<A>(Range<A>::down) : small ? splat<A>(Range<A>::up) : splat<A>(1);
      scaled = scaled || any(large | small);
    }
    if (scaled) gather([&](int v, Vec<A> value) { return value * scale[v]; });
    for (int v = 0; v < N; ++v) {
      Vec<A> norm = root(sum[v]);
      if (scaled) norm /= scale[v];
      store_some(out + at + v * L, norm, n);
    }
  });
}

template <typename T>
void forward(const Call& call) {
  const PoolParams windows = params_as<PoolParams>(call.params);
  over_windows<T, int>(
      call, windows.rows, windows.cols, each_read,
      [&](auto lines, auto row_count, auto cols, auto col_count, int, int, int64_t shift, int64_t at, int64_t length) {
        roots(lines, row_count, cols, col_count, shift, length, data<Acc<T>>(call.out[0]) + at);
      });
}

// The sums over the windows at `rows` and `cols`, which read these pixels.
template <typename T, typename Rows, typename Cols>
MPSF_INLINE void pulled(const T* dy, const Acc<T>* norms, const Entry<int>* rows, Rows row_count,
                        const Entry<int>* cols, Cols col_count, const T* own, int64_t length, T* dx, bool streamed) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  for_vectors<A>(length, [=]<int N>(int64_t at, int n) {
    Vec<A> acc[N] = {}, value[N];
    for (int v = 0; v < N; ++v) value[v] = load_some(own + at + v * L, n);
    for (int i = 0; i < row_count; ++i) {
      for (int j = 0; j < col_count; ++j) {
        const int64_t from = rows[i].at + cols[j].at + at;
        const A count = static_cast<A>(rows[i].weight) * static_cast<A>(cols[j].weight);
        for (int v = 0; v < N; ++v) {
          acc[v] += slope<A>(value[v], load_some(norms + from + v * L, n), load_some(dy + from + v * L, n) * count);
        }
      }
    }
    for (int v = 0; v < N; ++v) store_result(dx + at + v * L, acc[v], n, streamed);
  });
}

template <typename T>
void gradient(const Call& call) {
  const PoolParams windows = params_as<PoolParams>(call.params);
  over_pixels<T, int>(call, windows.rows, windows.cols, data<T>(call.in[1]), each_reader,
                      [&](int64_t from, auto rows, auto row_count, auto cols, auto col_count, const T* own, T* made,
                          int64_t length, bool streamed) {
                        pulled(data<T>(call.in[0]) + from, data<Acc<T>>(call.in[2]) + from, rows, row_count, cols,
                               col_count, own, length, made, streamed);
                      });
}

template <typename T>
void jvp(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const PoolParams windows = params_as<PoolParams>(call.params);
  const Axis &rows = windows.rows, &cols = windows.cols;
  const int64_t channels = call.out[0].shape[3], lines = int64_t{call.out[0].shape[0]} * rows.n_out;
  const int64_t row_pitch = cols.n_in * channels;
  parallel_lines(lines, cols.n_out * channels, [&](int64_t line) {
    const int64_t image = line / rows.n_out, from = image * rows.n_in * row_pitch;
    const int y = static_cast<int>(line % rows.n_out);
    const T *t = data<T>(call.in[0]) + from, *source = data<T>(call.in[1]) + from;
    for (int x = 0; x < cols.n_out; ++x) {
      const int64_t pixel = (line * cols.n_out + x) * channels;
      const bool live = selected(rows, y) && selected(cols, x);
      for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
        Vec<A> acc[N] = {}, norm[N];
        for (int v = 0; v < N; ++v) norm[v] = load_some(data<A>(call.in[2]) + pixel + channel + v * L, n);
        for (int q = 0; live && q < rows.size; ++q) {
          const int row = edge_source(rows, y, q);
          Vec<A> across[N] = {};
          for (int k = 0; row >= 0 && k < cols.size; ++k) {
            const int col = edge_source(cols, x, k);
            if (col < 0) continue;
            const int64_t at = row * row_pitch + col * channels + channel;
            for (int v = 0; v < N; ++v) {
              across[v] += slope<A>(load_some(source + at + v * L, n), norm[v], load_some(t + at + v * L, n));
            }
          }
          for (int v = 0; v < N; ++v) acc[v] += across[v];
        }
        for (int v = 0; v < N; ++v) store_some(data<A>(call.out[0]) + pixel + channel + v * L, acc[v], n);
      });
    }
  });
}

}  // namespace

void l2_pool(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { forward<decltype(zero)>(call); });
}

void l2_pool_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { gradient<decltype(zero)>(call); });
}

void l2_pool_jvp(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { jvp<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
