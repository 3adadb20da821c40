// Average pooling. Forward and gradient are one gather: each pixel of the result adds up a rectangle of
// pixels, evenly spaced along both axes. They differ in who owns the divisor: an output of the pooling is
// what is made in one and what is read in the other.
#include "channels.h"
#include "geometry.h"
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Span {
  int first, count;
};

// What each position of the result reads along one axis: `count` positions from `first` on, `step` apart.
template <typename A>
struct Gather {
  Scratch<Span> spans;
  Scratch<A> divisors;  // of the pooling's outputs
  int step;

  Gather(const Axis& a, bool gradient) : spans(gradient ? a.n_in : a.n_out), divisors(a.n_out), step(a.dilation) {
    for (int o = 0; o < a.n_out; ++o) divisors[o] = static_cast<A>(greater(1, divisor(a, o)));
    if (gradient) {
      step = a.dilation / static_cast<int>(gcd(a.dilation, a.stride));
      for (int i = 0; i < a.n_in; ++i) spans[i] = readers(a, i);
    } else {
      for (int o = 0; o < a.n_out; ++o) spans[o] = taps(a, o);
    }
  }

 private:
  static Span taps(const Axis& a, int o) {
    int begin = tap_begin(a, o);
    return {first(a, o) + begin * a.dilation, selected(a, o) ? tap_end(a, o) - begin : 0};
  }

  Span readers(const Axis& a, int i) const {
    int o = reader_begin(a, i), end = reader_end(a, i);
    // Of any `step` neighbours at most one reads i.
    for (int last = lesser(end, o + step); o < last && !reads(a, o, i);) ++o;
    return {o, o < end && reads(a, o, i) ? (end - 1 - o) / step + 1 : 0};
  }
};

template <typename A>
bool is_power_of_two(A value) {
  return (static_cast<int64_t>(value) & (static_cast<int64_t>(value) - 1)) == 0;
}

// acc[v] = the sum of share(i, j, value) over a window's taps; steps are in elements.
template <typename T, int N, typename Rows, typename Cols, typename Share>
MPSF_INLINE void gather(const T* corner, Rows rows, Cols cols, int64_t down, int64_t across, int n, const Share& share,
                        Vec<Acc<T>> (&acc)[N]) {
  constexpr int L = lanes<Acc<T>>;
  for (int v = 0; v < N; ++v) acc[v] = Vec<Acc<T>>{};
  for (int i = 0; i < rows; ++i) {
    Vec<Acc<T>> line[N] = {};  // sums of sums lose less in a large window
    for (int j = 0; j < cols; ++j) {
      for (int v = 0; v < N; ++v) line[v] += share(i, j, load_some(corner + i * down + j * across + v * L, n));
    }
    for (int v = 0; v < N; ++v) acc[v] += line[v];
  }
}

template <typename T>
void forward(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Tensor &in = call.in[0], &out = call.out[0];
  const int64_t in_height = in.shape[1], in_width = in.shape[2], height = out.shape[1], width = out.shape[2];
  const int64_t channels = out.shape[3], lines = out.shape[0] * height;
  const Axis row_axis = axis_at(call.params, 0), col_axis = axis_at(call.params, 1);
  const Gather<A> down(row_axis, false), across(col_axis, false);
  const int64_t row_step = down.step * in_width * channels, col_step = across.step * channels;

  parallel_lines(lines, width * channels, [&](int64_t line) {
    const int64_t image = line / height, y = line % height;
    const Span rows = down.spans[y];
    const T* first = data<T>(in) + (image * in_height + rows.first) * in_width * channels;
    T* pixel = data<T>(out) + line * width * channels;
    // Where windows overlap, hardware does not foresee the rows that the next line is the first to read.
    const bool overlap = row_axis.size > row_axis.stride && y + 1 < height;
    const int64_t ahead = overlap ? (down.spans[y + 1].first - rows.first) * in_width * channels : 0;
    const int old = ahead > 0 ? greater(0, rows.count - row_axis.stride) : rows.count;
    for (int64_t x = 0; x < width; ++x, pixel += channels) {
      const Span cols = across.spans[x];
      const int fresh = lesser(cols.count, col_axis.stride);
      const A divisor = down.divisors[y] * across.divisors[x], reciprocal = 1 / divisor;
      const bool exact = is_power_of_two(divisor);
      for_counts(rows.count, cols.count, [&](auto row_count, auto col_count) {
        for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
          const T* corner = first + cols.first * channels + channel;
          for (int i = old; i < row_count; ++i) {
            for (int j = 0; j < fresh; ++j) {
              const T* read = corner + ahead + i * row_step + j * col_step;
              for (int v = 0; v < N; ++v) __builtin_prefetch(read + v * L, 0, 2);
            }
          }
          Vec<A> acc[N];
          const auto whole = [](int, int, Vec<A> value) { return value; };
          gather<T>(corner, row_count, col_count, row_step, col_step, n, whole, acc);
          for (int v = 0; v < N; ++v) {
            acc[v] = exact ? acc[v] * reciprocal : acc[v] / divisor;  // equal, and a division takes ten times as long
            store_some(pixel + channel + v * L, acc[v], n);
          }
        });
      });
    }
  });
}

template <typename T>
void gradient(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Tensor &in = call.in[0], &out = call.out[0];
  const int64_t in_height = in.shape[1], in_width = in.shape[2], height = out.shape[1], width = out.shape[2];
  const int64_t channels = out.shape[3], lines = out.shape[0] * height;
  const Gather<A> down(axis_at(call.params, 0), true), across(axis_at(call.params, 1), true);
  const int64_t row_step = down.step * in_width * channels, col_step = across.step * channels;
  const bool streamed = out.streamed && channels % L == 0;
  int most = 0;
  for (int64_t y = 0; y < height; ++y) most = greater(most, down.spans[y].count);

  parallel_lines(lines, width * channels, [&](int64_t line) {
    const int64_t image = line / height, y = line % height;
    const Span rows = down.spans[y];
    const T* first = data<T>(in) + (image * in_height + rows.first) * in_width * channels;
    T* pixel = data<T>(out) + line * width * channels;
    Scratch<A> shares(most * in_width + 1);
    for (int i = 0; i < rows.count; ++i) {
      const A divisor = down.divisors[rows.first + i * down.step];
      for (int64_t col = 0; col < in_width; ++col) shares[i * in_width + col] = 1 / (divisor * across.divisors[col]);
    }
    for (int64_t x = 0; x < width; ++x, pixel += channels) {
      const Span cols = across.spans[x];
      const A* share = &shares[cols.first];
      const auto part = [&](int i, int j, Vec<A> value) { return value * share[i * in_width + j * across.step]; };
      for_counts(rows.count, cols.count, [&](auto row_count, auto col_count) {
        for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
          Vec<A> acc[N];
          const T* corner = first + cols.first * channels + channel;
          gather<T>(corner, row_count, col_count, row_step, col_step, n, part, acc);
          for (int v = 0; v < N; ++v) store_result(pixel + channel + v * L, acc[v], n, streamed);
        });
      });
    }
    stream_end();
  });
}

}  // namespace

void avg_pool(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { forward<decltype(zero)>(call); });
}

void avg_pool_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { gradient<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
