// Convolution in small groups with as many channels in as out. Whole groups lie axis by axis in a vector, and
// each channel of a group is spread over its group: nothing is multiplied by zero.
#pragma once
#include "kernels/activation/apply.h"
#include "kernels/convolution/conv_axis.h"
#include "kernels/convolution/microkernel.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

template <typename A>
bool is_small_group(int groups, int channels, int out_channels) {
  return groups > 1 && channels == out_channels && channels > 1 && channels < lanes<A> && lanes<A> % channels == 0;
}

// result[pixel][lane] = bias + the sum over taps and channels k of a group of
// source[tap of pixel][lane's group, k] * weights[k][tap][lane].
template <typename T>
struct Grouped {
  using A = Acc<T>;
  const T* source;
  T* result;
  int images;
  int source_rows, source_cols, result_rows, result_cols;
  int width, channels;  // of all groups, of one
  const A* weights;
  const A* bias;
  const Neuron<A>* neuron;
  ConvAxis rows, cols;

  int taps() const { return rows.taps * cols.taps; }
};

template <typename A>
using Places = decltype(Vec<A>{} < Vec<A>{});

// The elements of v at these places.
template <typename A>
MPSF_INLINE Vec<A> take(Vec<A> v, Places<A> at) {
#if defined(__AVX512F__)
  if constexpr (sizeof(A) == 4) return _mm512_maskz_permutexvar_ps(0xffff, bit_cast<__m512i>(at), v);
  if constexpr (sizeof(A) == 8) return _mm512_maskz_permutexvar_pd(0xff, bit_cast<__m512i>(at), v);
#elif defined(__AVX2__)
  if constexpr (sizeof(A) == 4) return _mm256_permutevar8x32_ps(v, bit_cast<__m256i>(at));
#endif
  Vec<A> taken = v;
  for (int i = 0; i < lanes<A>; ++i) taken[i] = v[at[i]];
  return taken;
}

// `Pixels` outputs axis by axis that have the same taps [tap_begin, tap_end), n lanes from `lane` on. Whole says
// that these are all lanes of a vector, so that the compiler knows it too. `first` has each lane's group's channel 0.
template <typename T, int Pixels, bool Whole>
MPSF_INLINE void sum_groups(const Grouped<T>& g, Places<Acc<T>> first, int image, int row, int col, int tap_begin,
                            int tap_end, int lane, int n) {
  using A = Acc<T>;
  if (Whole) n = lanes<A>;
  const ConvAxis &rows = g.rows, &cols = g.cols;
  Vec<A> acc[Pixels][1];
#pragma GCC unroll 8
  for (int i = 0; i < Pixels; ++i) acc[i][0] = load_some(g.bias + lane, n);
  for (int q = 0; q < rows.taps; ++q) {
    const int from_row = rows.src_first + row * rows.src_out + q * rows.src_tap;
    if (from_row < rows.src_begin || from_row >= rows.src_end) continue;
    const int64_t line =
        (int64_t{image} * g.source_rows + from_row) * g.source_cols + cols.src_first + col * cols.src_out;
    for (int p = tap_begin; p < tap_end; ++p) {
      const T* from = g.source + (line + p * cols.src_tap) * g.width + lane;
      Vec<A> x[Pixels];
#pragma GCC unroll 8
      for (int i = 0; i < Pixels; ++i) x[i] = load_some(from + int64_t{i} * cols.src_out * g.width, n);
      for (int k = 0; k < g.channels; ++k) {
        const Vec<A> w = load_some(g.weights + (int64_t{k} * g.taps() + q * cols.taps + p) * g.width + lane, n);
#pragma GCC unroll 8
        for (int i = 0; i < Pixels; ++i) acc[i][0] += take<A>(x[i], first + k) * w;
      }
    }
  }
  apply(acc, g.neuron);
  const int64_t to = (int64_t{image} * g.result_rows + rows.out_first + row * rows.out_step) * g.result_cols;
#pragma GCC unroll 8
  for (int i = 0; i < Pixels; ++i) {
    store_some(g.result + (to + cols.out_first + (col + i) * cols.out_step) * g.width + lane, acc[i][0], n);
  }
}

template <typename T>
void grouped(const Grouped<T>& g) {
  constexpr int L = lanes<Acc<T>>, kPixels = kRegisters == 32 ? 8 : 4;
  Places<Acc<T>> first = {};
  for (int i = 0; i < L; ++i) first[i] = i / g.channels * g.channels;
  parallel_for(int64_t{g.images} * g.rows.count, [&](int64_t line) {
    const int image = static_cast<int>(line / g.rows.count), row = static_cast<int>(line % g.rows.count);
    for_pixels<kPixels>(g.cols, [&]<int Pixels>(int col, int tap_begin, int tap_end) {
      int lane = 0;
      for (; lane + L <= g.width; lane += L) {
        sum_groups<T, Pixels, true>(g, first, image, row, col, tap_begin, tap_end, lane, L);
      }
      if (lane < g.width) {
        sum_groups<T, Pixels, false>(g, first, image, row, col, tap_begin, tap_end, lane, g.width - lane);
      }
    });
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
