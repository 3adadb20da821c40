// Vectors for the instruction set that this object is compiled for. Everything here has internal linkage,
// so that no AVX code can be picked by the linker for a generic caller.
//
//   Vec<A>              a vector of lanes<A> accumulators, A = float or double; + - * / and < ?: work on it
//   Acc<T>              what an image type T (float, double, Half, Bfloat) is accumulated in
//   load(p), load(p, n) lanes<Acc<T>> elements from p; the first n of them, zeros behind
//   store(p, v), ...    the inverse, rounded to T
//   by_type(type, f)    calls f(T()) for the image type of a tensor
#pragma once
#include <stdint.h>
#include <string.h>

#include "runtime/call.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define MPSF_INLINE inline __attribute__((always_inline))

namespace mpsf::MPSF_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kRegisters = 32;
#else
constexpr int kVectorBytes = 16, kRegisters = 16;
#endif

// Image types of sixteen bits exist in memory only.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

template <typename A>
constexpr int lanes = kVectorBytes / static_cast<int>(sizeof(A));

template <typename A>
struct VectorOf {
  typedef A type __attribute__((vector_size(kVectorBytes)));
};
template <typename A>
using Vec = typename VectorOf<A>::type;

typedef uint16_t Bits16 __attribute__((vector_size(kVectorBytes / 2)));
typedef uint32_t Bits32 __attribute__((vector_size(kVectorBytes)));

template <typename T>
struct AccOf {
  typedef float type;
};
template <>
struct AccOf<double> {
  typedef double type;
};
template <>
struct AccOf<int64_t> {
  typedef int64_t type;
};
template <>
struct AccOf<uint64_t> {
  typedef uint64_t type;
};
template <typename T>
using Acc = typename AccOf<T>::type;

template <typename To, typename From>
MPSF_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename A>
MPSF_INLINE Vec<A> splat(A value) {
  return value - Vec<A>{};  // a broadcast load: x - 0 is x and folds away, x + 0 may not (-0 + 0 is +0)
}

// Whether any bit of a comparison is set.
template <typename Mask>
MPSF_INLINE bool any(Mask mask) {
  uint64_t words[sizeof(Mask) / 8], all = 0;
  memcpy(words, &mask, sizeof(mask));
  for (uint64_t word : words) all |= word;
  return all != 0;
}

MPSF_INLINE Vec<float> root(Vec<float> v) {
  for (int i = 0; i < lanes<float>; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
}
MPSF_INLINE Vec<double> root(Vec<double> v) {
  for (int i = 0; i < lanes<double>; ++i) v[i] = __builtin_sqrt(v[i]);
  return v;
}

// What a neuron makes: max(v, 0), and NaN stays.
template <typename V>
MPSF_INLINE V rectified(V v) {
  return v <= 0 ? V{} : v;
}

// Sixteen bits <-> float ---------------------------------------------------------------------------------

// Intrinsics where GCC makes four instructions of a conversion; the masked forms of AVX-512, because it takes
// the others' undefined lanes for our mistake.
MPSF_INLINE Bits32 expand(Bits16 bits) {
#if defined(__AVX512F__)
  return bit_cast<Bits32>(_mm512_maskz_cvtepu16_epi32(0xffff, bit_cast<__m256i>(bits)));
#elif defined(__AVX2__)
  return bit_cast<Bits32>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(bits)));
#else
  return __builtin_convertvector(bits, Bits32);
#endif
}

MPSF_INLINE Vec<float> widen(Bits16 bits, Bfloat) { return bit_cast<Vec<float>>(expand(bits) << 16); }

#if defined(__AVX512BF16__)
// The same but for subnormal numbers, which become zeros as they do in products of bfloat16.
MPSF_INLINE Bits16 narrow(Vec<float> v, Bfloat) { return bit_cast<Bits16>(_mm512_maskz_cvtneps_pbh(0xffff, v)); }
#else
MPSF_INLINE Bits16 narrow(Vec<float> v, Bfloat) {
  Bits32 bits = bit_cast<Bits32>(v);
  Bits32 even = bits + 0x7fff + (bits >> 16 & 1);
  Bits32 nan = bits | 0x400000;
  return __builtin_convertvector((v == v ? even : nan) >> 16, Bits16);
}
#endif

#if defined(__AVX512F__)
MPSF_INLINE Vec<float> widen(Bits16 bits, Half) { return _mm512_maskz_cvtph_ps(0xffff, bit_cast<__m256i>(bits)); }
MPSF_INLINE Bits16 narrow(Vec<float> v, Half) { return bit_cast<Bits16>(_mm512_maskz_cvtps_ph(0xffff, v, 0)); }
#elif defined(__F16C__)
MPSF_INLINE Vec<float> widen(Bits16 bits, Half) { return _mm256_cvtph_ps(bit_cast<__m128i>(bits)); }
MPSF_INLINE Bits16 narrow(Vec<float> v, Half) { return bit_cast<Bits16>(_mm256_cvtps_ph(v, 0)); }
#elif defined(__ARM_NEON)
MPSF_INLINE Vec<float> widen(Bits16 bits, Half) {
  return bit_cast<Vec<float>>(vcvt_f32_f16(bit_cast<float16x4_t>(bits)));
}
MPSF_INLINE Bits16 narrow(Vec<float> v, Half) { return bit_cast<Bits16>(vcvt_f16_f32(bit_cast<float32x4_t>(v))); }
#else
MPSF_INLINE Vec<float> widen(Bits16 half, Half) {
  Bits32 bits = expand(half);
  Bits32 magnitude = (bits & 0x7fff) << 13;
  // The product moves the exponent from bias 15 to 127 and makes subnormals normal.
  Bits32 finite = bit_cast<Bits32>(bit_cast<Vec<float>>(magnitude) * 0x1p112f);
  Bits32 infinite = finite | 0x7f800000;
  return bit_cast<Vec<float>>((magnitude >= (0x7c00 << 13) ? infinite : finite) | (bits & 0x8000) << 16);
}
MPSF_INLINE Bits16 narrow(Vec<float> v, Half) {
  Bits32 bits = bit_cast<Bits32>(v), magnitude = bits & 0x7fffffff;
  // The sum leaves a subnormal half, rounded to even, in the low bits.
  Bits32 subnormal = bit_cast<Bits32>(bit_cast<Vec<float>>(magnitude) + 0.5f) - 0x3f000000;
  Bits32 normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  Bits32 nan = (magnitude >> 13 & 0x3ff) | 0x7e00;
  Bits32 infinite = Bits32{} + 0x7c00;
  Bits32 large = magnitude > 0x7f800000 ? nan : infinite;
  Bits32 small = magnitude < 0x38800000 ? subnormal : normal;
  return __builtin_convertvector((magnitude >= 0x47800000 ? large : small) | (bits >> 16 & 0x8000), Bits16);
}
#endif

// Whole vectors, at any address --------------------------------------------------------------------------

template <typename T>
MPSF_INLINE Vec<Acc<T>> load(const T* p) {
  if constexpr (sizeof(T) == 2) {
    Bits16 bits;
    memcpy(&bits, p, sizeof(bits));
    return widen(bits, T());
  } else {
    Vec<T> v;
    memcpy(&v, p, sizeof(v));
    return v;
  }
}

template <typename T>
MPSF_INLINE void store(T* p, Vec<Acc<T>> v) {
  if constexpr (sizeof(T) == 2) {
    Bits16 bits = narrow(v, T());
    memcpy(p, &bits, sizeof(bits));
  } else {
    memcpy(p, &v, sizeof(v));
  }
}

// Stores past the caches: the line that a store overwrites is not fetched first. p is aligned to what is stored,
// and stream_end() comes before anybody else reads it.
template <typename V>
MPSF_INLINE void stream_bits([[maybe_unused]] void* p, [[maybe_unused]] V v) {
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(p), bit_cast<__m512i>(v));
  } else if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(static_cast<__m256i*>(p), bit_cast<__m256i>(v));
  } else if constexpr (sizeof(V) == 16) {
    _mm_stream_si128(static_cast<__m128i*>(p), bit_cast<__m128i>(v));
  } else {
    memcpy(p, &v, sizeof(v));
  }
#else
  memcpy(p, &v, sizeof(v));
#endif
}

template <typename T>
MPSF_INLINE void stream(T* p, Vec<Acc<T>> v) {
  if constexpr (sizeof(T) == 2) {
    stream_bits(p, narrow(v, T()));
  } else {
    stream_bits(p, v);
  }
}

MPSF_INLINE void stream_end() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// The first n elements of a vector, 0 <= n <= lanes; nothing beyond them is touched. -----------------------

#if defined(__AVX512BW__)
MPSF_INLINE Vec<float> load(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
MPSF_INLINE Vec<double> load(const double* p, int n) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
template <typename T>
MPSF_INLINE Vec<float> load(const T* p, int n) {
  return widen(bit_cast<Bits16>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p)), T());
}
MPSF_INLINE void store(float* p, Vec<float> v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
}
MPSF_INLINE void store(double* p, Vec<double> v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1), v);
}
MPSF_INLINE Vec<int64_t> load(const int64_t* p, int n) {
  return bit_cast<Vec<int64_t>>(_mm512_maskz_loadu_epi64(static_cast<__mmask8>((1u << n) - 1), p));
}
MPSF_INLINE void store(int64_t* p, Vec<int64_t> v, int n) {
  _mm512_mask_storeu_epi64(p, static_cast<__mmask8>((1u << n) - 1), bit_cast<__m512i>(v));
}
MPSF_INLINE Vec<uint64_t> load(const uint64_t* p, int n) {
  return bit_cast<Vec<uint64_t>>(_mm512_maskz_loadu_epi64(static_cast<__mmask8>((1u << n) - 1), p));
}
MPSF_INLINE void store(uint64_t* p, Vec<uint64_t> v, int n) {
  _mm512_mask_storeu_epi64(p, static_cast<__mmask8>((1u << n) - 1), bit_cast<__m512i>(v));
}
template <typename T>
MPSF_INLINE void store(T* p, Vec<float> v, int n) {
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), bit_cast<__m256i>(narrow(v, T())));
}
#else
template <typename T>
MPSF_INLINE Vec<Acc<T>> load(const T* p, int n) {
  constexpr int L = lanes<Acc<T>>;
  T whole[L] = {};
  for (int i = 0; i < L && i < n; ++i) whole[i] = p[i];
  return load(whole);
}
template <typename T>
MPSF_INLINE void store(T* p, Vec<Acc<T>> v, int n) {
  constexpr int L = lanes<Acc<T>>;
  T whole[L];
  store(whole, v);
  for (int i = 0; i < L && i < n; ++i) p[i] = whole[i];
}
#endif

// ----------------------------------------------------------------------------------------------------------

template <typename F>
MPSF_INLINE void by_type(Type type, F f) {
  switch (type) {
    case Type::f32:
      return f(float());
    case Type::f16:
      return f(Half());
    case Type::bf16:
      return f(Bfloat());
    case Type::f64:
      return f(double());
    case Type::i64:
    case Type::u64:
    case Type::u8:
    case Type::u16:
    case Type::u32:
      return;
  }
}

template <typename T>
MPSF_INLINE T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
