// L2 pooling. Norms are gathered from the pixels that a window reads. A norm's derivative by a pixel is the pixel over
// the norm: the gradient gathers it along a pixel's windows, the tangent along a window's pixels.
#include "channels.h"
#include "geometry.h"
#include "lists.h"
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Reading {
  int64_t at;  // along one axis: the input or output it leads to
  int count;   // the taps that do

  bool operator==(const Reading& other) const { return at == other.at && count == other.count; }
  Reading moved(int64_t step) const { return {at + step, count}; }
};

// For each output the inputs that it reads; at an edge several taps can read one.
void list_reads(const Axis& a, Lists<Reading>& lists) {
  for (int o = 0; o < a.n_out; ++o) {
    for (int k = 0; k < a.size; ++k) {
      const int at = max_source(a, o, k);
      if (at < 0) continue;
      const int count = taps_on(a, o, at).count;
      lists.add({at, count});
      k += count - 1;
    }
    lists.close();
  }
}

// For each input the outputs that read it.
void list_readers(const Axis& a, Lists<Reading>& lists) {
  for (int i = 0; i < a.n_in; ++i) {
    for (int o = max_reader_begin(a, i); o < max_reader_end(a, i); ++o) {
      const int count = taps_on(a, o, i).count;
      if (count > 0) lists.add({o, count});
    }
    lists.close();
  }
}

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

// value / norm, and 0 where the norm is 0.
template <typename A>
MPSF_INLINE Vec<A> slope(Vec<A> value, Vec<A> norm) {
  return norm == Vec<A>{} ? Vec<A>{} : value / norm;
}

template <typename T>
void forward(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Axis rows = axis_at(call.params, 0), cols = axis_at(call.params, 1);
  const int64_t channels = call.out[0].shape[3], lines = int64_t{call.out[0].shape[0]} * rows.n_out;
  const int64_t row_pitch = int64_t{cols.n_in} * channels;
  Lists<Reading> row_lists(rows.n_out, pairs(rows)), col_lists(cols.n_out, pairs(cols));
  list_reads(rows, row_lists);
  list_reads(cols, col_lists);

  parallel_lines(lines, cols.n_out * channels, [&](int64_t line) {
    const int64_t image = line / rows.n_out, y = line % rows.n_out;
    const T* source = data<T>(call.in[0]) + image * rows.n_in * row_pitch;
    A* pixel = data<A>(call.out[0]) + line * cols.n_out * channels;
    for (int64_t x = 0; x < cols.n_out; ++x, pixel += channels) {
      for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
        Vec<A> sum[N], scale[N];
        const auto gather = [&](const auto& scaled) __attribute__((always_inline)) {
          for (int v = 0; v < N; ++v) sum[v] = Vec<A>{};
          for (const Reading* row = row_lists.begin(y); row < row_lists.begin(y + 1); ++row) {
            const T* read = source + row->at * row_pitch + channel;
            Vec<A> across[N] = {};  // sums of sums lose less in a large window
            for (const Reading* col = col_lists.begin(x); col < col_lists.begin(x + 1); ++col) {
              for (int v = 0; v < N; ++v) {
                const Vec<A> value = scaled(v, load_some(read + col->at * channels + v * L, n));
                across[v] += value * value * static_cast<A>(col->count);
              }
            }
            for (int v = 0; v < N; ++v) sum[v] += across[v] * static_cast<A>(row->count);
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
          store_some(pixel + channel + v * L, norm, n);
        }
      });
    }
  });
}

template <typename T>
void gradient(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Tensor& out = call.out[0];
  const Axis rows = axis_at(call.params, 0), cols = axis_at(call.params, 1);
  const int64_t channels = out.shape[3], lines = int64_t{out.shape[0]} * rows.n_in;
  const int64_t row_pitch = int64_t{cols.n_out} * channels;
  Lists<Reading> row_lists(rows.n_in, pairs(rows)), col_lists(cols.n_in, pairs(cols));
  list_readers(rows, row_lists);
  list_readers(cols, col_lists);
  const bool streamed = out.streamed && channels % L == 0;

  parallel_lines(lines, cols.n_in * channels, [&](int64_t line) {
    const int64_t image = line / rows.n_in, h = line % rows.n_in, from = image * rows.n_out * row_pitch;
    const T* dy = data<T>(call.in[0]) + from;
    const A* norms = data<A>(call.in[2]) + from;
    const T* own = data<T>(call.in[1]) + line * cols.n_in * channels;
    T* pixel = data<T>(out) + line * cols.n_in * channels;
    for (int64_t w = 0; w < cols.n_in; ++w, own += channels, pixel += channels) {
      for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
        Vec<A> acc[N] = {}, value[N];
        for (int v = 0; v < N; ++v) value[v] = load_some(own + channel + v * L, n);
        for (const Reading* row = row_lists.begin(h); row < row_lists.begin(h + 1); ++row) {
          for (const Reading* col = col_lists.begin(w); col < col_lists.begin(w + 1); ++col) {
            const int64_t at = row->at * row_pitch + col->at * channels + channel;
            const A count = static_cast<A>(row->count) * static_cast<A>(col->count);
            for (int v = 0; v < N; ++v) {
              const Vec<A> share = slope<A>(value[v], load_some(norms + at + v * L, n));
              acc[v] += share * count * load_some(dy + at + v * L, n);
            }
          }
        }
        for (int v = 0; v < N; ++v) store_result(pixel + channel + v * L, acc[v], n, streamed);
      });
    }
    stream_end();
  });
}

template <typename T>
void tangent(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Axis rows = axis_at(call.params, 0), cols = axis_at(call.params, 1);
  const int64_t channels = call.out[0].shape[3], lines = int64_t{call.out[0].shape[0]} * rows.n_out;
  const int64_t row_pitch = int64_t{cols.n_in} * channels;
  Lists<Reading> row_lists(rows.n_out, pairs(rows)), col_lists(cols.n_out, pairs(cols));
  list_reads(rows, row_lists);
  list_reads(cols, col_lists);

  parallel_lines(lines, cols.n_out * channels, [&](int64_t line) {
    const int64_t image = line / rows.n_out, y = line % rows.n_out, from = image * rows.n_in * row_pitch;
    const bool row_selected = selected(rows, static_cast<int>(y));
    const T *t = data<T>(call.in[0]) + from, *source = data<T>(call.in[1]) + from;
    for (int64_t x = 0; x < cols.n_out; ++x) {
      const int64_t pixel = (line * cols.n_out + x) * channels;
      const bool live = row_selected && selected(cols, static_cast<int>(x));
      for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
        Vec<A> acc[N] = {}, norm[N];
        for (int v = 0; v < N; ++v) norm[v] = load_some(data<A>(call.in[2]) + pixel + channel + v * L, n);
        for (const Reading* row = row_lists.begin(y); live && row < row_lists.begin(y + 1); ++row) {
          for (const Reading* col = col_lists.begin(x); col < col_lists.begin(x + 1); ++col) {
            const int64_t at = row->at * row_pitch + col->at * channels + channel;
            const A count = static_cast<A>(row->count) * static_cast<A>(col->count);
            for (int v = 0; v < N; ++v) {
              const Vec<A> share = slope<A>(load_some(source + at + v * L, n), norm[v]);
              acc[v] += share * count * load_some(t + at + v * L, n);
            }
          }
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

void l2_pool_tangent(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { tangent<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
