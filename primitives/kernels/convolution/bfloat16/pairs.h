// What the tiles of bfloat16 read: weights as pairs of channels, and panels of the image's own numbers.
#pragma once
#include "kernels/convolution/bfloat16/pair_tile.h"
#include "kernels/convolution/implicit_gemm.h"

namespace mpsf::MPSF_ISA {
namespace {

using PairProduct = Product<Bfloat, Bfloat>;

// n of a vector's bfloat16, zeros behind; n may be 0 or less.
MPSF_INLINE Bits16 load_bits(const Bfloat* from, int64_t n) {
  Bits16 bits = {};
  if (n >= lanes<float>) {
    memcpy(&bits, from, sizeof(bits));
  } else if (n > 0) {
#if defined(__AVX512BW__)
    bits = bit_cast<Bits16>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), from));
#else
    memcpy(&bits, from, static_cast<size_t>(n) * sizeof(Bfloat));
#endif
  }
  return bits;
}

// Numbers of two rows by turns, the first row's first.
MPSF_INLINE Bits32 paired(Bits16 first, Bits16 second) { return expand(first) | expand(second) << 16; }

// Elements [begin, end) of a run of which only [low, high) exist; the others become zeros.
MPSF_INLINE void copy_numbers(Bfloat* to, const Bfloat* from, int64_t begin, int64_t end, int64_t low, int64_t high) {
  constexpr int kCopied = 64 / sizeof(Bfloat);
  low = low < begin ? begin : smaller(low, end);
  high = high < low ? low : smaller(high, end);
  if (low > begin) clear(to, low - begin);
  Bfloat* at = to + (low - begin);
  int64_t i = low;
  for (; i + kCopied <= high; i += kCopied, at += kCopied) memcpy(static_cast<void*>(at), from + i, 64);
  if (i < high) {
#if defined(__AVX512BW__)
    const __mmask32 some = (1u << (high - i)) - 1;
    _mm512_mask_storeu_epi16(at, some, _mm512_maskz_loadu_epi16(some, from + i));
#else
    memcpy(static_cast<void*>(at), from + i, static_cast<size_t>(high - i) * sizeof(Bfloat));
#endif
  }
  if (end > high) clear(to + (high - begin), end - high);
}

// Channels [begin, end) of one tap, an even number of them from an even one on, for a block of lanes.
inline void lay_out_segment(const Bfloat* from, int64_t channel_stride, int64_t out_stride, int begin, int end, int n,
                            Bfloat* to) {
  constexpr int L = lanes<float>;
  if (out_stride == 1) {  // lanes are neighbours in memory
    for (int c = begin; c < end; c += 2, to += 2 * kPairLanes) {
      const Bfloat *first = from + c * channel_stride, *second = first + channel_stride;
      for (int lane = 0; lane < kPairLanes; lane += L) {
        const Bits32 pairs = paired(load_bits(first + lane, n - lane), load_bits(second + lane, n - lane));
        memcpy(static_cast<void*>(to + 2 * lane), &pairs, sizeof(pairs));
      }
    }
    return;
  }
  // Channels are, so a pair is one number of 32 bits, and squares of them are turned over.
  for (int c = begin; c < end; c += 2 * L) {
    const int count = min_int(L, (end - c) / 2);
    for (int lane = 0; lane < kPairLanes; lane += L) {
      Vec<float> turned[L];
      for (int i = 0; i < L; ++i) {
        turned[i] = Vec<float>{};
        if (lane + i >= n) continue;
        const void* row = from + (lane + i) * out_stride + c;
        if (count == L) {
          memcpy(&turned[i], row, sizeof(turned[i]));
        } else {
          memcpy(&turned[i], row, static_cast<size_t>(count) * sizeof(float));
        }
      }
      turn_over<float>(turned);
      for (int i = 0; i < count; ++i) {
        memcpy(static_cast<void*>(to + (c - begin + 2 * i) * kPairLanes + 2 * lane), &turned[i], sizeof(turned[i]));
      }
    }
  }
}

// Weights of elements [begin, end) of the sum for lane block `block`, as [k / 2][lane][2] with zeros up to a whole
// unit; `begin` is a whole unit.
inline void lay_out_pairs(const PairProduct& p, int group, int block, int64_t begin, int64_t end, Bfloat* to) {
  const int n = min_int(kPairLanes, p.out_channels - block * kPairLanes);
  const auto tap_weights = [&](int64_t tap) {
    const int row = p.rows.tap_first + static_cast<int>(tap) / p.cols.taps * p.rows.tap_step;
    const int col = p.cols.tap_first + static_cast<int>(tap) % p.cols.taps * p.cols.tap_step;
    return p.weights + group * p.group_stride + (int64_t{row} * p.kernel_cols + col) * p.tap_stride +
           int64_t{block} * kPairLanes * p.out_stride;
  };
  clear(to + (end - begin) / 2 * 2 * kPairLanes, (whole_units(end) - begin - (end - begin) / 2 * 2) * kPairLanes);
  for (int64_t k = begin, count; k < end; k += count) {
    const int64_t tap = k / p.channels;
    const int c = static_cast<int>(k % p.channels);
    const Bfloat* from = tap_weights(tap);
    count = smaller(p.channels - c, end - k);
    if (p.channels % 2 == 0 && (p.out_stride == 1 || p.channel_stride == 1)) {
      lay_out_segment(from, p.channel_stride, p.out_stride, c, c + static_cast<int>(count), n,
                      to + (k - begin) * kPairLanes);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      Bfloat* place = to + ((k + i - begin) / 2 * kPairLanes) * 2 + (k + i - begin) % 2;
      for (int lane = 0; lane < n; ++lane) place[2 * lane] = from[(c + i) * p.channel_stride + lane * p.out_stride];
      for (int lane = n; lane < kPairLanes; ++lane) place[2 * lane] = {};
    }
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
