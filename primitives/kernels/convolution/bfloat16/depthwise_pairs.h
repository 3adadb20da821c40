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

// Depthwise weights as the tiles read them: [block of channels][pair of rows][column][half][16][2].
inline int turned_blocks(int channels) { return (channels + kTurns - 1) / kTurns; }
inline int64_t turned_block(int rows, int cols) { return int64_t{(rows + 1) / 2} * cols * 2 * kTurns; }

// `kernel` is [channel][row][column].
inline void lay_out_turns(const ConvAxis& rows, const ConvAxis& cols, int channels, const Bfloat* kernel,
                          int kernel_rows, int kernel_cols, Bfloat* turned) {
  const int64_t taps = int64_t{kernel_rows} * kernel_cols, block_size = turned_block(rows.taps, cols.taps);
  parallel_for(turned_blocks(channels), [&](int64_t block) {
    const int first = static_cast<int>(block) * kTurns, n = min_int(kTurns, channels - first);
    Bfloat* to = turned + block * block_size;
    for (int q = 0; q < rows.taps; q += 2) {
      for (int p = 0; p < cols.taps; ++p, to += 2 * kTurns) {
        Bfloat pair[2][kTurns] = {};
        for (int odd = 0; odd < 2 && q + odd < rows.taps; ++odd) {
          const int row = rows.tap_first + (q + odd) * rows.tap_step, col = cols.tap_first + p * cols.tap_step;
          for (int c = 0; c < n; ++c) pair[odd][c] = kernel[(first + c) * taps + row * kernel_cols + col];
        }
        const ByTurns turns = by_turns(load_turn(pair[0], ~__mmask32{}), load_turn(pair[1], ~__mmask32{}));
        memcpy(static_cast<void*>(to), &turns, sizeof(turns));
      }
    }
  });
}

// A convolution by such weights; the bias lies as [block][half][16].
struct DepthwisePairs {
  Depthwise<Bfloat> d;
  const Bfloat* weights;
  const Bfloat* added;  // where the result is, ahead of the activation; or null
  Scratch<float> bias;

  int blocks() const { return turned_blocks(d.channels); }
  int64_t block_size() const { return turned_block(d.rows.taps, d.cols.taps); }

  DepthwisePairs(const Depthwise<Bfloat>& given, const Bfloat* turned, const Bfloat* more)
      : d(given), weights(turned), added(more), bias(int64_t{blocks()} * kTurns) {
    for (int block = 0; block < blocks(); ++block) {
      const int first = block * kTurns, n = min_int(kTurns, d.channels - first);
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < kTurns / 2; ++i) {
          const int c = i / 4 * 8 + 4 * half + i % 4;
          bias[block * kTurns + half * kTurns / 2 + i] = c < n ? d.bias[first + c] : 0;
        }
      }
    }
  }
};

// What becomes of the sums of `Pixels` outputs, of which the first is element `to` of the result.
template <int Pixels, bool Whole>
MPSF_INLINE void finish_turns(const DepthwisePairs& pairs, Vec<float> (&acc)[Pixels][2], int first, int64_t to,
                              int64_t to_pitch) {
  const Depthwise<Bfloat>& d = pairs.d;
  const __mmask32 some = Whole ? ~__mmask32{} : turn_mask(d.channels - first);
  to += first;
  if (pairs.added) {
    const __m512i zeros = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < Pixels; ++i) {
      const ByTurns more = by_turns(zeros, load_turn(pairs.added + to + i * to_pitch, some));
      acc[i][0] += bit_cast<Vec<float>>(more.lower);
      acc[i][1] += bit_cast<Vec<float>>(more.upper);
    }
  }
  apply(acc, d.neuron, finish_roughly);
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
#pragma GCC unroll 4
  for (int i = 0; i < Pixels; ++i) {
    const __m512i made = bit_cast<__m512i>(_mm512_cvtne2ps_pbh(acc[i][1], acc[i][0]));
    const __m512i result = _mm512_maskz_permutexvar_epi64(0xff, order, made);
    Bfloat* y = d.result + to + i * to_pitch;
    if (d.streamed) {
      stream_halves(y, result, Whole ? 2 : 1);
    } else {
      _mm512_mask_storeu_epi16(y, some, result);
    }
  }
}

constexpr int kLinesAhead = 2;

// The lines of the source that a line of outputs reads, null where there are none, and some of the next one's.
struct TurnedLines {
  const Bfloat* const* now;
  const Bfloat* const* ahead;
};

// `Pixels` outputs axis by axis from `col` on, whose taps of a row touch; those of which only columns [begin, end)
// exist are one. Line `i` of `lines` is null where there is none.
template <int Taps, int Stride, int Pixels, bool Whole>
MPSF_INLINE void sum_turns(const DepthwisePairs& pairs, const TurnedLines& lines, int block, int64_t source_col,
                           int begin, int end, int64_t to, int64_t to_pitch) {
  const Depthwise<Bfloat>& d = pairs.d;
  const int first = block * kTurns;
  const __mmask32 some = Whole ? ~__mmask32{} : turn_mask(d.channels - first);
  const float* bias = pairs.bias.get() + block * kTurns;
  Vec<float> acc[Pixels][2];
#pragma GCC unroll 4
  for (int i = 0; i < Pixels; ++i) acc[i][0] = load(bias), acc[i][1] = load(bias + kTurns / 2);
  const Bfloat* w = pairs.weights + block * pairs.block_size();
  const int64_t at = source_col * d.channels + first;
  for (int q = 0; q < d.rows.taps; q += 2, w += Taps * 2 * kTurns) {
    const Bfloat *upper = lines.now[q], *lower = q + 1 < d.rows.taps ? lines.now[q + 1] : nullptr;
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
  // In pieces of a pixel, no processor foresees it.
  for (int i = 0; i < kLinesAhead && Pixels > 1; ++i) {
    if (!lines.ahead[i]) continue;
#pragma GCC unroll 8
    for (int j = 0; j < Pixels * Stride; ++j) __builtin_prefetch(lines.ahead[i] + at + j * d.channels);
  }
  finish_turns<Pixels, Whole>(pairs, acc, first, to, to_pitch);
}

// One output, whose taps of a row may be apart, and of which those beyond the line are left out.
template <bool Whole>
MPSF_INLINE void sum_turns_apart(const DepthwisePairs& pairs, const TurnedLines& lines, int block, int64_t source_col,
                                 int64_t to) {
  const Depthwise<Bfloat>& d = pairs.d;
  const int first = block * kTurns;
  const __mmask32 some = Whole ? ~__mmask32{} : turn_mask(d.channels - first);
  const float* bias = pairs.bias.get() + block * kTurns;
  Vec<float> acc[1][2] = {{load(bias), load(bias + kTurns / 2)}};
  const Bfloat* w = pairs.weights + block * pairs.block_size();
  for (int q = 0; q < d.rows.taps; q += 2) {
    const Bfloat *upper = lines.now[q], *lower = q + 1 < d.rows.taps ? lines.now[q + 1] : nullptr;
    const __mmask32 of_upper = upper ? some : 0, of_lower = lower ? some : 0;
    for (int p = 0; p < d.cols.taps; ++p, w += 2 * kTurns) {
      const int64_t col = source_col + int64_t{p} * d.cols.src_tap;
      if (col < d.cols.src_begin || col >= d.cols.src_end || (!upper && !lower)) continue;
      const int64_t at = col * d.channels + first;
      const ByTurns x = by_turns(load_turn((upper ? upper : lower) + at, of_upper),
                                 load_turn((lower ? lower : upper) + at, of_lower));
      __m512i weight[2];
      memcpy(weight, w, sizeof(weight));
      acc[0][0] = add_products(acc[0][0], x.lower, weight[0]);
      acc[0][1] = add_products(acc[0][1], x.upper, weight[1]);
    }
  }
  finish_turns<1, Whole>(pairs, acc, first, to, 0);
}

constexpr int kTurnedRows = 16;  // taps of a column at most

// Calls f with lines of the source, and the row of the result that they make.
template <typename F>
void for_turned_lines(const DepthwisePairs& pairs, const F& f) {
  const Depthwise<Bfloat>& d = pairs.d;
  const ConvAxis& rows = d.rows;
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
      // What the next line is the first to read.
      const Bfloat* ahead[kLinesAhead] = {};
      for (int i = 0; i < min_int(rows.src_out, kLinesAhead) && row + 1 < rows.count; ++i) {
        const int64_t from = rows.src_first + (row + 1) * rows.src_out + int64_t{rows.taps - 1} * rows.src_tap - i;
        const bool exists = from >= rows.src_begin && from < rows.src_end;
        if (exists) ahead[i] = d.source + (image * d.source_rows + from) * d.source_cols * d.channels;
      }
      f(TurnedLines{sources, ahead}, image * d.result_rows + rows.out_first + row * rows.out_step);
    }
    stream_end();
  });
}

constexpr int64_t kHeldTurns = 1 << 14;  // bytes of weights that stay near while a line of outputs is made

template <int Taps, int Stride>
void depthwise_of_turns(const DepthwisePairs& pairs) {
  const Depthwise<Bfloat>& d = pairs.d;
  const ConvAxis& cols = d.cols;
  const int64_t block_bytes = pairs.block_size() * static_cast<int64_t>(sizeof(Bfloat));  // 0 of windows without taps
  const int whole = d.channels / kTurns, fit = static_cast<int>(kHeldTurns / (block_bytes + 1));
  // Lines of the cache that go past it should be complete soon.
  const int together = d.streamed ? pairs.blocks() : max_int(1, fit);
  for_turned_lines(pairs, [&](const TurnedLines& sources, int64_t to_row) {
    for (int begin = 0; begin < pairs.blocks(); begin += together) {
      const int end = min_int(pairs.blocks(), begin + together);
      for_pixels<4>(cols, [&]<int Pixels>(int col, int tap_begin, int tap_end) {
        const int64_t to = (to_row * d.result_cols + cols.out_first + int64_t{col} * cols.out_step) * d.channels;
        const int64_t from = cols.src_first + int64_t{col} * cols.src_out;
        const int64_t pitch = int64_t{cols.out_step} * d.channels;
        int block = begin;
        for (; block < min_int(whole, end); ++block) {
          sum_turns<Taps, Stride, Pixels, true>(pairs, sources, block, from, tap_begin, tap_end, to, pitch);
        }
        if (block < end) {
          sum_turns<Taps, Stride, Pixels, false>(pairs, sources, block, from, tap_begin, tap_end, to, pitch);
        }
      });
    }
  });
}

inline void depthwise_of_turns_apart(const DepthwisePairs& pairs) {
  const Depthwise<Bfloat>& d = pairs.d;
  const ConvAxis& cols = d.cols;
  for_turned_lines(pairs, [&](const TurnedLines& sources, int64_t to_row) {
    for (int64_t col = 0; col < cols.count; ++col) {
      const int64_t to = (to_row * d.result_cols + cols.out_first + col * cols.out_step) * d.channels;
      const int64_t from = cols.src_first + col * cols.src_out;
      int block = 0;
      for (; (block + 1) * kTurns <= d.channels; ++block) sum_turns_apart<true>(pairs, sources, block, from, to);
      if (block < pairs.blocks()) sum_turns_apart<false>(pairs, sources, block, from, to);
    }
  });
}

inline bool has_turns(const ConvAxis& rows, const ConvAxis& cols) {
  const bool touching = cols.src_tap == 1 && rows.taps <= kTurnedRows;
  const int taps = cols.taps;
  if (cols.src_out == 1) return touching && taps >= 1 && taps <= 7 && taps != 6;
  return touching && cols.src_out == 2 && (taps == 3 || taps == 5);
}

inline void run_turns(const DepthwisePairs& pairs) {
  const int taps = pairs.d.cols.taps;
  if (!has_turns(pairs.d.rows, pairs.d.cols)) return depthwise_of_turns_apart(pairs);
  if (pairs.d.cols.src_out == 2) return taps == 3 ? depthwise_of_turns<3, 2>(pairs) : depthwise_of_turns<5, 2>(pairs);
  if (taps == 1) return depthwise_of_turns<1, 1>(pairs);
  if (taps == 2) return depthwise_of_turns<2, 1>(pairs);
  if (taps == 3) return depthwise_of_turns<3, 1>(pairs);
  if (taps == 4) return depthwise_of_turns<4, 1>(pairs);
  if (taps == 5) return depthwise_of_turns<5, 1>(pairs);
  depthwise_of_turns<7, 1>(pairs);
}

// What has_turns is true of.
inline void depthwise_of_turns(const Depthwise<Bfloat>& d, const Bfloat* kernel, int kernel_rows, int kernel_cols) {
  const Scratch<Bfloat> turned(turned_blocks(d.channels) * turned_block(d.rows.taps, d.cols.taps));
  lay_out_turns(d.rows, d.cols, d.channels, kernel, kernel_rows, kernel_cols, turned.get());
  run_turns(DepthwisePairs(d, turned.get(), nullptr));
}

// By weights that are laid out, of any windows that these fit.
inline void depthwise_of_laid_turns(const Depthwise<Bfloat>& d, const Bfloat* turned, const Bfloat* added) {
  run_turns(DepthwisePairs(d, turned, added));
}

// Elements of weights [channel][row][column] that are laid out; 0 where none are, or lanes would be mostly empty.
inline int64_t turned_size(int channels, int rows, int cols) {
  const int64_t blocks = turned_blocks(channels);
  const bool fits = rows <= kTurnedRows && 2 * channels >= blocks * kTurns;
  return fits ? blocks * turned_block(rows, cols) : 0;
}

#else

inline bool has_turns(const ConvAxis&, const ConvAxis&) { return false; }
inline void depthwise_of_turns(const Depthwise<Bfloat>&, const Bfloat*, int, int) {}
inline void depthwise_of_laid_turns(const Depthwise<Bfloat>&, const Bfloat*, const Bfloat*) {}
inline void lay_out_turns(const ConvAxis&, const ConvAxis&, int, const Bfloat*, int, int, Bfloat*) {}
inline int64_t turned_size(int, int, int) { return 0; }

#endif

}  // namespace
}  // namespace mpsf::MPSF_ISA
