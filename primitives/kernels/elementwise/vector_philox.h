// The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011) in vectors;
// metal/elementwise/philox.h has it for GPUs. Word number i of a key is word i % 4 of what the 64-bit counter i / 4
// gives.
#pragma once
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

typedef uint64_t Bits64 __attribute__((vector_size(kVectorBytes)));

constexpr int kRounds = 10;
constexpr int kCalls = kVectorBytes / 8;           // of the generator, one a lane
constexpr int kGroups = kRegisters == 32 ? 4 : 2;  // of so many calls, which go side by side
constexpr int kWords = 4 * kCalls * kGroups;       // that come out together

// The products of the lower halves of lanes.
MPSF_INLINE Bits64 product(Bits64 a, uint32_t by) {
  const Bits64 b = Bits64{} + by;
#if defined(__AVX512F__)
  return bit_cast<Bits64>(_mm512_maskz_mul_epu32(0xff, bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return bit_cast<Bits64>(_mm256_mul_epu32(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#elif defined(__x86_64__)
  return bit_cast<Bits64>(_mm_mul_epu32(bit_cast<__m128i>(a), bit_cast<__m128i>(b)));
#elif defined(__aarch64__)
  return bit_cast<Bits64>(vmull_u32(vmovn_u64(bit_cast<uint64x2_t>(a)), vmovn_u64(bit_cast<uint64x2_t>(b))));
#else
  return (a & 0xffffffffu) * b;
#endif
}

// Even lanes of both beside each other, or odd ones, in each sixteen bytes.
MPSF_INLINE Bits64 interleaved_even(Bits64 a, Bits64 b) {
#if defined(__AVX512F__)
  return bit_cast<Bits64>(_mm512_maskz_unpacklo_epi64(0xff, bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return bit_cast<Bits64>(_mm256_unpacklo_epi64(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#else
  return Bits64{a[0], b[0]};
#endif
}
MPSF_INLINE Bits64 interleaved_odd(Bits64 a, Bits64 b) {
#if defined(__AVX512F__)
  return bit_cast<Bits64>(_mm512_maskz_unpackhi_epi64(0xff, bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return bit_cast<Bits64>(_mm256_unpackhi_epi64(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#else
  return Bits64{a[1], b[1]};
#endif
}

// The first half of the calls stands in even lanes, so that interleaving leaves words in order.
MPSF_INLINE Bits64 calls_from(uint64_t first) {
  Bits64 calls;
  for (int i = 0; i < kCalls; ++i) calls[i] = first + static_cast<uint64_t>(i / 2 + (i % 2) * (kCalls / 2));
  return calls;
}

struct Key {
  uint32_t low, high;
};

// The kWords words from counter `first` on, in order.
MPSF_INLINE void philox(uint64_t first, Key key, Bits32 (&words)[2 * kGroups]) {
  Bits64 c0[kGroups], c1[kGroups], c2[kGroups] = {}, c3[kGroups] = {};
  for (int g = 0; g < kGroups; ++g) {
    c0[g] = calls_from(first + static_cast<uint64_t>(g * kCalls));
    c1[g] = c0[g] >> 32;
  }
  for (int round = 0; round < kRounds; ++round) {  // the upper halves of lanes hold anything
    for (int g = 0; g < kGroups; ++g) {
      const Bits64 a = product(c0[g], 0xD2511F53u), b = product(c2[g], 0xCD9E8D57u);
      c0[g] = b >> 32 ^ c1[g] ^ key.low;
      c2[g] = a >> 32 ^ c3[g] ^ key.high;
      c1[g] = b;
      c3[g] = a;
    }
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  for (int g = 0; g < kGroups; ++g) {
    const Bits64 first_two = (c0[g] & 0xffffffffu) | c1[g] << 32, last_two = (c2[g] & 0xffffffffu) | c3[g] << 32;
    words[2 * g] = bit_cast<Bits32>(interleaved_even(first_two, last_two));
    words[2 * g + 1] = bit_cast<Bits32>(interleaved_odd(first_two, last_two));
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
