// Convolution with one channel a group, of any kind: channels are the vector axis, and nothing is packed.
#pragma once
#include "kernels/activation/apply.h"
#include "kernels/convolution/conv_axis.h"
#include "kernels/convolution/microkernel.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// With more outputs than this for a channel, products are the better way.
constexpr int kMaxMultiplier = 4;

inline bool is_depthwise(int groups, int channels, int out_channels) {
  return groups > 1 && channels == 1 && out_channels <= kMaxMultiplier;
}

// result[pixel][channel * result_step] = bias + the sum over planes and taps of
// source[tap of pixel][channel * source_step + plane] * weights[channel * weight_step + plane * kernel's taps + tap].
template <typename T>
struct Depthwise {
  using A = Acc<T>;
  const T* source;
  T* result;
  int images;
  int source_rows, source_cols, result_rows, result_cols;
  int channels, planes, source_step, result_step;
  const A* weights;
  int weight_step, kernel_taps, kernel_cols;
  const A* bias;  // of the channels, result_step apart
  const Neuron<A>* neuron;
  bool streamed;  // whole vectors are aligned, and better stored past the caches
  ConvAxis rows, cols;

  int taps() const { return rows.taps * cols.taps; }
  // Where in the kernel the tap is.
  int tap(int q, int p) const {
    return (rows.tap_first + q * rows.tap_step) * kernel_cols + cols.tap_first + p * cols.tap_step;
  }
  int64_t source_pitch() const { return int64_t{channels} * source_step; }
  int64_t result_pitch() const { return int64_t{channels} * result_step; }
  bool dense() const { return planes == 1 && source_step == 1 && result_step == 1; }
};

template <typename T>
MPSF_INLINE Vec<Acc<T>> load_step(const T* p, int step, int n) {
  if (step == 1) return load_some(p, n);
  T some[lanes<Acc<T>>] = {};
  for (int i = 0; i < n; ++i) some[i] = p[i * step];
  return load(some);
}

template <typename T>
MPSF_INLINE void store_step(T* p, Vec<Acc<T>> v, int step, int n, bool streamed) {
  if (step == 1) return store_result(p, v, n, streamed);
  T some[lanes<Acc<T>>];
  store(some, v);
  for (int i = 0; i < n; ++i) p[i * step] = some[i];
}

// `Pixels` outputs axis by axis that have the same taps [tap_begin, tap_end), `Vectors` vectors of n channels. Fetches
// as many pixels of the source's line `ahead`, which without a stride the next row of outputs is the first to read: in
// pieces of a pixel, no processor foresees it. Whole says that these are whole vectors in one plane without steps, so
// that the compiler knows it too.
template <typename T, int Pixels, int Vectors, bool Whole>
MPSF_INLINE void sum_taps(const Depthwise<T>& given, const Acc<T>* weights, int image, int row, int col, int tap_begin,
                          int tap_end, int channel, int n, const T* ahead) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  Depthwise<T> d = given;
  if (Whole) {
    d.planes = d.source_step = d.result_step = 1;
    n = L;
  }
  const ConvAxis &rows = d.rows, &cols = d.cols;
  Vec<A> acc[Pixels][Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    const Vec<A> start = load_step(d.bias + (channel + v * L) * d.result_step, d.result_step, n);
#pragma GCC unroll 8
    for (int i = 0; i < Pixels; ++i) acc[i][v] = start;
  }
  for (int q = 0; q < rows.taps; ++q) {
    const int from_row = rows.src_first + row * rows.src_out + q * rows.src_tap;
    if (from_row < rows.src_begin || from_row >= rows.src_end) continue;
    const int64_t line =
        (int64_t{image} * d.source_rows + from_row) * d.source_cols + cols.src_first + col * cols.src_out;
    for (int p = tap_begin; p < tap_end; ++p) {
      for (int plane = 0; plane < d.planes; ++plane) {
        const T* x = d.source + (line + p * cols.src_tap) * d.source_pitch() + channel * d.source_step + plane;
        const A* w = weights + (int64_t{plane} * d.taps() + q * cols.taps + p) * d.channels + channel;
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
          const Vec<A> weight = load_some(w + v * L, n);
#pragma GCC unroll 8
          for (int i = 0; i < Pixels; ++i) {
            acc[i][v] +=
                load_step(x + i * cols.src_out * d.source_pitch() + v * L * d.source_step, d.source_step, n) * weight;
          }
        }
      }
    }
  }
  if (Whole) {
    const T* next = ahead + int64_t{col} * cols.src_out * d.source_pitch() + channel;
#pragma GCC unroll 8
    for (int i = 0; i < Pixels; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) __builtin_prefetch(next + i * cols.src_out * d.source_pitch() + v * L);
    }
  }
  apply(acc, d.neuron);
  const int64_t to =
      (int64_t{image} * d.result_rows + rows.out_first + row * rows.out_step) * d.result_cols + cols.out_first;
#pragma GCC unroll 8
  for (int i = 0; i < Pixels; ++i) {
    T* y = d.result + (to + (col + i) * cols.out_step) * d.result_pitch() + channel * d.result_step;
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      store_step(y + v * L * d.result_step, acc[i][v], d.result_step, n, d.streamed);
    }
  }
}

// Any windows, and any number of outputs for a channel.
template <typename T>
void depthwise_of_any(const Depthwise<T>& d) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, kPixels = kRegisters == 32 ? 4 : 2;
  const Scratch<A> weights(int64_t{d.planes} * d.taps() * d.channels);
  A* w = weights.get();
  for (int plane = 0; plane < d.planes; ++plane) {
    for (int q = 0; q < d.rows.taps; ++q) {
      for (int p = 0; p < d.cols.taps; ++p) {
        const A* from = d.weights + int64_t{plane} * d.kernel_taps + d.tap(q, p);
        for (int64_t c = 0; c < d.channels; ++c) *w++ = from[c * d.weight_step];
      }
    }
  }
  const int64_t lines = int64_t{d.images} * d.rows.count, band = smaller(8, 1 + lines / 32);
  parallel_for((lines + band - 1) / band, [&](int64_t task) {
    for (int64_t line = task * band; line < smaller(lines, (task + 1) * band); ++line) {
      const int image = static_cast<int>(line / d.rows.count), row = static_cast<int>(line % d.rows.count);
      const int last = d.rows.src_first + (row + 1) * d.rows.src_out + (d.rows.taps - 1) * d.rows.src_tap;
      const int next = max_int(0, min_int(last, d.source_rows - 1));
      const T* ahead = d.source + (int64_t{image} * d.source_rows + next) * d.source_cols * d.source_pitch();
      for_pixels<kPixels>(d.cols, [&]<int Pixels>(int col, int tap_begin, int tap_end) {
        int c = 0;
        for (; d.dense() && c + 2 * L <= d.channels; c += 2 * L) {
          sum_taps<T, Pixels, 2, true>(d, weights.get(), image, row, col, tap_begin, tap_end, c, L, ahead);
        }
        for (; c < d.channels; c += L) {
          const int n = min_int(L, d.channels - c);
          sum_taps<T, Pixels, 1, false>(d, weights.get(), image, row, col, tap_begin, tap_end, c, n, ahead);
        }
      });
    }
    stream_end();
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
