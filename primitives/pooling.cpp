// Average pooling. Forward and gradient are one gather: each pixel of the result adds up a rectangle of
// pixels, evenly spaced along both axes. They differ in who owns the divisor: an output of the pooling is
// what is made in one and what is read in the other.
#include "channels.h"
#include "geometry.h"
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// Elements of the result in one chunk of work.
constexpr int64_t kChunkElements = 1 << 14;

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

template <typename T, bool kGradient>
void pool(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Tensor &in = call.in[0], &out = call.out[0];
  const int64_t in_height = in.shape[1], in_width = in.shape[2], height = out.shape[1], width = out.shape[2];
  const int64_t channels = out.shape[3], lines = out.shape[0] * height;
  const Gather<A> down(axis_at(call.params, 0), kGradient), across(axis_at(call.params, 1), kGradient);
  const T* source = data<T>(in);
  T* result = data<T>(out);

  const int64_t group = 1 + kChunkElements / (width * channels);
  parallel_for((lines + group - 1) / group, [&](int64_t chunk) {
    for (int64_t line = chunk * group; line < smaller(lines, (chunk + 1) * group); ++line) {
      const int64_t image = line / height, y = line % height;
      const Span rows = down.spans[y];
      // Hardware does not foresee the next line's windows; fetching them now is worth a sixth of the time.
      const int64_t next = y + 1 < height ? down.spans[y + 1].first - rows.first : 0;
      const int64_t ahead = next * in_width * channels;
      for (int64_t x = 0; x < width; ++x) {
        const Span cols = across.spans[x];
        T* pixel = result + (line * width + x) * channels;
        for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
          Vec<A> acc[N] = {};
          for (int i = 0; i < rows.count; ++i) {
            const int64_t row = rows.first + int64_t{i} * down.step;
            for (int j = 0; j < cols.count; ++j) {
              const int64_t col = cols.first + int64_t{j} * across.step;
              const T* read = source + ((image * in_height + row) * in_width + col) * channels + channel;
              A share = kGradient ? 1 / (down.divisors[row] * across.divisors[col]) : 1;
              if (!kGradient) {
                for (int v = 0; v < N; ++v) __builtin_prefetch(read + ahead + v * L, 0, 2);
              }
              for (int v = 0; v < N; ++v) acc[v] += load_some(read + v * L, n) * share;
            }
          }
          for (int v = 0; v < N; ++v) {
            if (!kGradient) acc[v] /= down.divisors[y] * across.divisors[x];
            store_some(pixel + channel + v * L, acc[v], n);
          }
        });
      }
    }
  });
}

}  // namespace

void avg_pool(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { pool<decltype(zero), false>(call); });
}

void avg_pool_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { pool<decltype(zero), true>(call); });
}

}  // namespace mpsf::MPSF_ISA
