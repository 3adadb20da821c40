// Convolution of bfloat16 with one channel a group. Two rows of a window lie by turns in a vector, so that an
// instruction multiplies a tap of both.
#pragma once
#include "kernels/convolution/bfloat16/pairs.h"
#include "kernels/convolution/depthwise.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

#if defined(__AVX512BF16__)

constexpr int kTurns = 32;  // channels at a time

// Of the lanes of two vectors by turns, in fours: of each eight channels the first four, and the others.
struct ByTurns {
  __m512i lower, upper;
};
MPSF_INLINE ByTurns by_turns(__m512i first, __m512i second) {
  return {_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)};
}

MPSF_INLINE __m512i load_turn(const Bfloat* from, __mmask32 some) { return _mm512_maskz_loadu_epi16(some, from); }
MPSF_INLINE __mmask32 turn_mask(int count) { return count >= kTurns ? ~__mmask32{} : (__mmask32{1} << count) - 1; }

// Depthwise weights and bias as the tiles read them: [block of channels][pair of rows][column][half][16][2], and
// [block][half][16].
struct DepthwisePairs {
  Depthwise<Bfloat> d;
  Scratch<Bfloat> weights;
  Scratch<float> bias;

  int blocks() const { return (d.channels + kTurns - 1) / kTurns; }
  int row_pairs() const { return (d.rows.taps + 1) / 2; }
  int64_t block_size() const { return int64_t{row_pairs()} * d.cols.taps * 2 * kTurns; }

  // `kernel` is [channel][row][column].
  DepthwisePairs(const Depthwise<Bfloat>& given, const Bfloat* kernel, int kernel_rows, int kernel_cols)
      : d(given), weights(blocks() * block_size()), bias(int64_t{blocks()} * kTurns) {
    const int64_t taps = int64_t{kernel_rows} * kernel_cols;
    for (int block = 0; block < blocks(); ++block) {
      const int first = block * kTurns, n = min_int(kTurns, d.channels - first);
      Bfloat* to = weights.get() + block * block_size();
      for (int q = 0; q < d.rows.taps; q += 2) {
        for (int p = 0; p < d.cols.taps; ++p, to += 2 * kTurns) {
          Bfloat rows[2][kTurns] = {};
          for (int odd = 0; odd < 2 && q + odd < d.rows.taps; ++odd) {
            const int row = d.rows.tap_first + (q + odd) * d.rows.tap_step;
            const int col = d.cols.tap_first + p * d.cols.tap_step;
            for (int c = 0; c < n; ++c) rows[odd][c] = kernel[(first + c) * taps + row * kernel_cols + col];
          }
          const ByTurns turns = by_turns(load_turn(rows[0], ~__mmask32{}), load_turn(rows[1], ~__mmask32{}));
          memcpy(static_cast<void*>(to), &turns, sizeof(turns));
        }
      }
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < kTurns / 2; ++i) {
          const int c = i / 4 * 8 + 4 * half + i % 4;
          bias[block * kTurns + half * kTurns / 2 + i] = c < n ? d.bias[first + c] : 0;
        }
      }
    }
  }
};

// `Pixels` outputs axis by axis from `col` on, whose taps of a row touch; those of which only columns [begin, end)
// exist are one. Line `i` of `lines` is null where there is none.
template <int Taps, int Stride, int Pixels, bool Whole>
MPSF_INLINE void sum_turns(const DepthwisePairs& pairs, const Bfloat* const* lines, int block, int64_t source_col,
                           int begin, int end, Bfloat* to, int64_t to_pitch) {
  const Depthwise<Bfloat>& d = pairs.d;
  const int first = block * kTurns, n = Whole ? kTurns : d.channels - first;
  const __mmask32 some = Whole ? ~__mmask32{} : turn_mask(n);
  const float* bias = pairs.bias.get() + block * kTurns;
  Vec<float> acc[Pixels][2];
#pragma GCC unroll 4
  for (int i = 0; i < Pixels; ++i) acc[i][0] = load(bias), acc[i][1] = load(bias + kTurns / 2);
  const Bfloat* w = pairs.weights.get() + block * pairs.block_size();
  const int64_t at = source_col * d.channels + first;
  for (int q = 0; q < d.rows.taps; q += 2, w += Taps * 2 * kTurns) {
    const Bfloat *upper = lines[q], *lower = q + 1 < d.rows.taps ? lines[q + 1] : nullptr;
    if (!upper && !lower) continue;
    // A mask rather than a branch: a line that does not exist is read nowhere.
    const __mmask32 of_upper = upper ? some : 0, of_lower = lower ? some : 0;
    const Bfloat *a = (upper ? upper : lower) + at, *b = (lower ? lower : upper) + at;
#pragma GCC unroll 16
    for (int j = 0; j < (Pixels - 1) * Stride + Taps; ++j) {
      if (Pixels == 1 && (j < begin || j >= end)) continue;
      const ByTurns x = by_turns(load_turn(a + j * d.channels, of_upper), load_turn(b + j * d.channels, of_lower));
#pragma GCC unroll 4
      for (int i = 0; i < Pixels; ++i) {
        const int tap = j - i * Stride;
        if (tap < 0 || tap >= Taps) continue;
        __m512i weight[2];
        memcpy(weight, w + tap * 2 * kTurns, sizeof(weight));
        acc[i][0] = add_products(acc[i][0], x.lower, weight[0]);
        acc[i][1] = add_products(acc[i][1], x.upper, weight[1]);
      }
    }
  }
  apply(acc, d.neuron);
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
#pragma GCC unroll 4
  for (int i = 0; i < Pixels; ++i) {
    const __m512i made = bit_cast<__m512i>(_mm512_cvtne2ps_pbh(acc[i][1], acc[i][0]));
    const __m512i result = _mm512_maskz_permutexvar_epi64(0xff, order, made);
    Bfloat* y = to + i * to_pitch + first;
    if (d.streamed) {
      stream_halves(y, result, Whole ? 2 : 1);
    } else {
      _mm512_mask_storeu_epi16(y, some, result);
    }
  }
}

constexpr int kTurnedRows = 16;  // taps of a column at most

template <int Taps, int Stride>
void depthwise_of_turns(const DepthwisePairs& pairs) {
  const Depthwise<Bfloat>& d = pairs.d;
  const ConvAxis &rows = d.rows, &cols = d.cols;
  const int64_t lines = int64_t{d.images} * rows.count, band = smaller(8, 1 + lines / 32);
  parallel_for((lines + band - 1) / band, [&](int64_t task) {
    for (int64_t line = task * band; line < smaller(lines, (task + 1) * band); ++line) {
      const int64_t image = line / rows.count, row = line % rows.count;
      const Bfloat* sources[kTurnedRows];
      for (int q = 0; q < rows.taps; ++q) {
        const int64_t from = rows.src_first + row * rows.src_out + int64_t{q} * rows.src_tap;
        const bool exists = from >= rows.src_begin && from < rows.src_end;
        sources[q] = exists ? d.source + (image * d.source_rows + from) * d.source_cols * d.channels : nullptr;
      }
      const int64_t to_row = image * d.result_rows + rows.out_first + row * rows.out_step;
      for_pixels<4>(cols, [&]<int Pixels>(int col, int tap_begin, int tap_end) {
        const int64_t to = to_row * d.result_cols + cols.out_first + int64_t{col} * cols.out_step;
        const int64_t from = cols.src_first + int64_t{col} * cols.src_out;
        const int64_t pitch = int64_t{cols.out_step} * d.channels;
        int block = 0;
        for (; (block + 1) * kTurns <= d.channels; ++block) {
          sum_turns<Taps, Stride, Pixels, true>(pairs, sources, block, from, tap_begin, tap_end,
                                                d.result + to * d.channels, pitch);
        }
        if (block < pairs.blocks()) {
          sum_turns<Taps, Stride, Pixels, false>(pairs, sources, block, from, tap_begin, tap_end,
                                                 d.result + to * d.channels, pitch);
        }
      });
    }
    stream_end();
  });
}

inline bool has_turns(const ConvAxis& rows, const ConvAxis& cols) {
  const bool touching = cols.src_tap == 1 && rows.taps <= kTurnedRows;
  const int taps = cols.taps;
  if (cols.src_out == 1) return touching && taps >= 1 && taps <= 5;
  return touching && cols.src_out == 2 && (taps == 3 || taps == 5);
}

// What has_turns is true of.
inline void depthwise_of_turns(const Depthwise<Bfloat>& d, const Bfloat* kernel, int kernel_rows, int kernel_cols) {
  const DepthwisePairs pairs(d, kernel, kernel_rows, kernel_cols);
  const int taps = d.cols.taps;
  if (d.cols.src_out == 2) return taps == 3 ? depthwise_of_turns<3, 2>(pairs) : depthwise_of_turns<5, 2>(pairs);
  if (taps == 1) return depthwise_of_turns<1, 1>(pairs);
  if (taps == 2) return depthwise_of_turns<2, 1>(pairs);
  if (taps == 3) return depthwise_of_turns<3, 1>(pairs);
  if (taps == 4) return depthwise_of_turns<4, 1>(pairs);
  depthwise_of_turns<5, 1>(pairs);
}

#else

inline bool has_turns(const ConvAxis&, const ConvAxis&) { return false; }
inline void depthwise_of_turns(const Depthwise<Bfloat>&, const Bfloat*, int, int) {}

#endif

}  // namespace
}  // namespace mpsf::MPSF_ISA
