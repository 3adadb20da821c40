// MSL as C++14, as far as kernel bodies may use it; the text of a kernel follows. Values and control flow are Metal's;
// address spaces mean nothing here (msl_strict.h checks those).
#ifndef MSL_H
#define MSL_H
#include "gpu.h"

#define device
#define constant
#define thread
#define threadgroup

typedef unsigned char uchar, uint8_t;
typedef signed char int8_t;
typedef unsigned short ushort, uint16_t;
typedef short int16_t;
typedef unsigned int uint;
typedef unsigned long ulong, uint64_t, size_t;
typedef long int64_t;
typedef int int32_t;
typedef uint uint32_t;
struct uint3 {
  uint x, y, z;
};

// A float of 16 bits: kept exactly, computed with in float, rounded to nearest even by each operation of two of them.
template <typename Format>
struct Narrow {
  ushort bits;
  Narrow() = default;
  explicit Narrow(float value) : bits(Format::round(value)) {}
  operator float() const { return Format::widen(bits); }
};
template <typename F>
Narrow<F> operator+(Narrow<F> a, Narrow<F> b) {
  return Narrow<F>(float(a) + float(b));
}
template <typename F>
Narrow<F> operator-(Narrow<F> a, Narrow<F> b) {
  return Narrow<F>(float(a) - float(b));
}
template <typename F>
Narrow<F> operator*(Narrow<F> a, Narrow<F> b) {
  return Narrow<F>(float(a) * float(b));
}
template <typename F>
Narrow<F> operator/(Narrow<F> a, Narrow<F> b) {
  return Narrow<F>(float(a) / float(b));
}

template <typename To, typename From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

struct Bfloat16 {
  static float widen(ushort bits) { return as_type<float>(uint(bits) << 16); }
  static ushort round(float value) {
    const uint u = as_type<uint>(value);
    if (value != value) return ushort(u >> 16 | 0x40);
    return ushort((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};

struct Binary16 {
  static float widen(ushort bits) {
    const uint sign = uint(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return as_type<float>(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return as_type<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -small : small;
  }
  static ushort round(float value) {
    const uint u = as_type<uint>(value), magnitude = u & 0x7fffffff;
    const ushort sign = ushort(u >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return ushort(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return ushort(sign | 0x7c00);  // 65520 and more round to infinity
    if (magnitude < 0x38800000) {  // subnormal: adding 0.5 leaves the multiples of 2^-24, rounded, in the last bits
      return ushort(sign | (as_type<uint>(as_type<float>(magnitude) + 0.5f) - 0x3f000000));
    }
    return ushort(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
  }
};

typedef Narrow<Binary16> half, float16_t;
typedef Narrow<Bfloat16> bfloat, bfloat16_t;

namespace metal {
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float exp(float x) { return __builtin_expf(x); }
inline float log(float x) { return __builtin_logf(x); }
inline float tanh(float x) { return __builtin_tanhf(x); }
inline float pow(float x, float y) { return __builtin_powf(x, y); }
inline float floor(float x) { return __builtin_floorf(x); }
inline float ceil(float x) { return __builtin_ceilf(x); }
inline float fabs(float x) { return __builtin_fabsf(x); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float max(float x, float y) { return __builtin_fmaxf(x, y); }
inline float min(float x, float y) { return __builtin_fminf(x, y); }
inline int max(int x, int y) { return x > y ? x : y; }
inline int min(int x, int y) { return x < y ? x : y; }
inline uint ctz(uint x) { return x == 0 ? 32 : uint(__builtin_ctz(x)); }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  gpu_threadgroup_barrier(line, flags != mem_flags::mem_none);
}
inline void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  gpu_simdgroup_barrier(line, flags != mem_flags::mem_none);
}
}  // namespace metal

#include "msl_matrix.h"
#include "msl_simd.h"
using namespace metal;

#endif
