// Elementary functions of vectors: floats within two places over the whole range, right at infinities, NaN and zeros;
// doubles by the C library, lane by lane. Call them by what metal/shared/functions.h calls the same on GPUs.
//
//   exp, log, tanh, exp_m1 (e ** x - 1), log_1p (log(1 + x))
//   decay                                                 e ** -|x|
//   bell                                                  the density of the normal distribution
//   absolute, at_most, at_least, without_infinity         NaN stays
//   reciprocal                                            1 / x of a normal number
//   filled(like, value)                                   a vector of one value
//
// And for CPUs alone exp_below, e ** x of numbers that are not above 0.
#pragma once
#include "kernels/vector/simd.h"

#define MPSF_POINTWISE MPSF_INLINE
#define MPSF_NUMBER(digits) digits  // of whatever Real is

namespace mpsf::MPSF_ISA {
namespace {

#if defined(__AVX512F__) || defined(__FMA__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

// a * b + c rounded once, where kFused.
MPSF_INLINE Vec<float> fused(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return bit_cast<Vec<float>>(vfmaq_f32(bit_cast<float32x4_t>(c), bit_cast<float32x4_t>(a), bit_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

template <typename V>
MPSF_INLINE V filled(V like, double value) {
  return static_cast<decltype(like[0] + like[0])>(value) - V{};
}

MPSF_INLINE Vec<float> absolute(Vec<float> x) { return bit_cast<Vec<float>>(bit_cast<Bits32>(x) & 0x7fffffff); }
MPSF_INLINE Vec<double> absolute(Vec<double> x) {
  return bit_cast<Vec<double>>(bit_cast<Vec<uint64_t>>(x) & 0x7fffffffffffffff);
}

// `bound` where x is above or below it; NaN stays.
MPSF_INLINE Vec<float> at_most(Vec<float> x, float bound) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xffff, splat(bound), x);
#elif defined(__AVX__)
  return _mm256_min_ps(splat(bound), x);
#else
  return x > bound ? splat(bound) : x;
#endif
}
MPSF_INLINE Vec<float> at_least(Vec<float> x, float bound) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, splat(bound), x);
#elif defined(__AVX__)
  return _mm256_max_ps(splat(bound), x);
#else
  return x < bound ? splat(bound) : x;
#endif
}
MPSF_INLINE Vec<double> at_most(Vec<double> x, double bound) { return x > bound ? splat(bound) : x; }
MPSF_INLINE Vec<double> at_least(Vec<double> x, double bound) { return x < bound ? splat(bound) : x; }

// 1 / x of a normal number, by Newton's step where the first guess has half of the digits: a division takes as long as
// ten other instructions.
MPSF_INLINE Vec<float> reciprocal(Vec<float> x) {
#if defined(__AVX512F__)
  const Vec<float> guess = _mm512_maskz_rcp14_ps(0xffff, x);
  return fused(guess, fused(-x, guess, splat(1.0f)), guess);
#else
  return 1 / x;
#endif
}

// ln 2 in two parts, the first of so few bits that exponents times it are exact.
constexpr float kLogOf2 = 0.693145751953125f, kRestOf2 = 1.42860682e-6f;

MPSF_INLINE Vec<float> without_infinity(Vec<float> x) { return at_least(at_most(x, __FLT_MAX__), -__FLT_MAX__); }
MPSF_INLINE Vec<double> without_infinity(Vec<double> x) { return at_least(at_most(x, __DBL_MAX__), -__DBL_MAX__); }

// x = n * ln 2 + r, with n whole and at most 129 or so.
struct Reduced {
  Vec<float> n, r;
};

MPSF_INLINE Reduced reduced(Vec<float> x) {
  const Vec<float> n = fused(x, splat(1.44269504f), splat(0x1.8p23f)) - 0x1.8p23f;
  return {n, fused(n, splat(-kRestOf2), fused(n, splat(-kLogOf2), x))};
}

// e ** r - 1 - r, over r * r, for |r| <= ln 2 / 2
MPSF_INLINE Vec<float> exp_rest(Vec<float> r) {
  Vec<float> rest = r * 0.00138145939f + 0.00836871951f;
  rest = rest * r + 0.0416683883f;
  rest = rest * r + 0.166665206f;
  return rest * r + 0.499999934f;
}

// v * 2 ** n, in two steps where n may be below the normal numbers.
MPSF_INLINE Vec<float> scaled(Vec<float> v, Vec<float> n) {
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(0xffff, v, n);
#else
  typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
  const Ints whole = bit_cast<Ints>(n + 0x1.8p23f) - 0x4b400000, half = whole >> 1;
  const Ints first = (half + 127) << 23, second = (whole - half + 127) << 23;
  return v * bit_cast<Vec<float>>(first) * bit_cast<Vec<float>>(second);
#endif
}

// e ** (x + more), where `more` is small beside 1.
MPSF_INLINE Vec<float> exp(Vec<float> x, Vec<float> more) {
  auto [n, r] = reduced(at_least(at_most(x, 89), -105));
  r += more;
  return scaled(exp_rest(r) * (r * r) + r + 1, n);
}
MPSF_INLINE Vec<float> exp(Vec<float> x) {
  const auto [n, r] = reduced(at_least(at_most(x, 89), -105));
  return scaled(exp_rest(r) * (r * r) + r + 1, n);
}

#if defined(__AVX512F__)

// 2 ** (i / 16)
alignas(64) constexpr float kSixteenths[16] = {
    1.0f,        1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f, 1.29683955f, 1.35425555f,
    1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f, 1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};

// The whole exponent is scaled by, the sixteenths, which end in the last bits of `moved`, are looked up, and what
// remains is small.
MPSF_INLINE Vec<float> decay(Vec<float> x) {
  const Vec<float> least = at_least(bit_cast<Vec<float>>(bit_cast<Bits32>(x) | 0x80000000), -105);
  const Vec<float> moved = fused(least, splat(1.44269504f), splat(0x1.8p19f)), n = moved - 0x1.8p19f;
  const Vec<float> r = fused(n, splat(-kRestOf2), fused(n, splat(-kLogOf2), least));
  const Vec<float> power =
      _mm512_maskz_permutexvar_ps(0xffff, bit_cast<__m512i>(moved), bit_cast<__m512>(load(kSixteenths)));
  const Vec<float> more = ((r * 0.166666667f + 0.5f) * r + 1) * r;
  return scaled(more * power + power, n);  // which rounds n down
}

#else

// 2 ** kMoved, by which powers are larger until the end: e ** -105 is below the normal numbers.
constexpr int kMoved = 64;

#if defined(__AVX2__)

// The bits of 2 ** (i / 8 + kMoved), less i in the place where those of `moved` are added, which end in i.
alignas(32) constexpr uint32_t kEighths[8] = {0x5f800000, 0x5f7b95c2, 0x5f7837f0, 0x5f75fed7,
                                              0x5f7504f3, 0x5f75672a, 0x5f7744fd, 0x5f7ac0c7};

// As with sixteenths.
MPSF_INLINE Vec<float> decay(Vec<float> x) {
  const Vec<float> least = at_least(bit_cast<Vec<float>>(bit_cast<Bits32>(x) | 0x80000000), -105);
  const Vec<float> moved = fused(least, splat(1.44269504f), splat(0x1.8p20f)), n = moved - 0x1.8p20f;
  const Vec<float> r = fused(n, splat(-kRestOf2), fused(n, splat(-kLogOf2), least));
  Bits32 eighths;
  memcpy(&eighths, kEighths, sizeof(eighths));
  const auto found = _mm256_permutevar8x32_epi32(bit_cast<__m256i>(eighths), bit_cast<__m256i>(moved));
  const Vec<float> power = bit_cast<Vec<float>>((bit_cast<Bits32>(moved) << 20) + bit_cast<Bits32>(found));
  const Vec<float> more = ((r * 0.166666667f + 0.500064781f) * r + 1) * r;
  return (more * power + power) * 0x1p-64f;
}

#else

// One power of 2 takes the whole exponent: x is not above 0.
MPSF_INLINE Vec<float> decay(Vec<float> x) {
  constexpr float kRounding = 0x1.8p23f + 127 + kMoved;  // a sum with n ends in the exponent of 2 ** (n + kMoved)
  const Vec<float> least = at_least(bit_cast<Vec<float>>(bit_cast<Bits32>(x) | 0x80000000), -105);
  const Vec<float> moved = fused(least, splat(1.44269504f), splat(kRounding)), n = moved - kRounding;
  const Vec<float> r = fused(n, splat(-kRestOf2), fused(n, splat(-kLogOf2), least));
  const Vec<float> power = bit_cast<Vec<float>>(bit_cast<Bits32>(moved) << 23);
  return (exp_rest(r) * (r * r) + r + 1) * power * 0x1p-64f;
}

#endif

#endif

// Of numbers less their largest.
MPSF_INLINE Vec<float> exp_below(Vec<float> x) {
#if defined(__AVX512F__)
  return exp(x);
#else
  return decay(x);
#endif
}

MPSF_INLINE Vec<float> exp_m1(Vec<float> x) {
  const auto [n, r] = reduced(at_least(at_most(x, 89), -86));
  const Vec<float> less = exp_rest(r) * (r * r) + r;
  const Vec<float> half = bit_cast<Vec<float>>((bit_cast<Bits32>(n + 0x1.8p23f) + 126) << 23);  // 2 ** n overflows
  return 2 * (less * half + (half - 0.5f));
}

// log(2 ** k * (1 + f)) for f from sqrt(1/2) - 1 to sqrt(2) - 1
MPSF_INLINE Vec<float> log_of(Vec<float> k, Vec<float> f) {
  Vec<float> p = f * -0.0785962281f + 0.128816504f;
  p = p * f - 0.131287521f;
  p = p * f + 0.141811914f;
  p = p * f - 0.166245543f;
  p = p * f + 0.200022863f;
  p = p * f - 0.250008104f;
  p = p * f + 0.333333167f;
  const Vec<float> z = f * f;
  const Vec<float> rest = (p * f - 0.5f) * z + k * kRestOf2;
  return k * kLogOf2 + (f + rest);
}

// What logarithms are at 0, beyond, and at infinity, where x is what they are taken of.
MPSF_INLINE Vec<float> log_edges(Vec<float> log, Vec<float> x) {
  constexpr float kInfinity = __builtin_inff(), kNan = __builtin_nanf("");
  log = x < kInfinity ? log : x;  // NaN too
  return x > 0 ? log : x == 0 ? splat(-kInfinity) : x < 0 ? splat(kNan) : x;
}

constexpr uint32_t kOneBits = 0x3f800000, kRootHalfBits = 0x3f3504f3;

MPSF_INLINE Vec<float> log(Vec<float> x) {
  const auto tiny = x < 0x1p-126f;  // a subnormal number has no exponent to read
  const Bits32 moved = bit_cast<Bits32>(tiny ? x * 0x1p23f : x) + (kOneBits - kRootHalfBits);
  const Vec<float> m = bit_cast<Vec<float>>((moved & 0x7fffff) + kRootHalfBits);
  const Vec<float> k =
      bit_cast<Vec<float>>((moved >> 23) | 0x4b000000) - (tiny ? splat(0x1p23f + 150) : splat(0x1p23f + 127));
  return log_edges(log_of(k, m - 1), x);
}

MPSF_INLINE Vec<float> log_1p(Vec<float> x) {
  const Vec<float> one = x + 1;
  const Bits32 moved = bit_cast<Bits32>(one) + (kOneBits - kRootHalfBits), exponent = moved >> 23;
  const Vec<float> k = bit_cast<Vec<float>>(exponent | 0x4b000000) - (0x1p23f + 127);
  // (1 + x) / 2 ** k - 1 without the rounding of 1 + x; 2 ** -k itself may be below the normal numbers.
  const Vec<float> over = bit_cast<Vec<float>>((256 - exponent) << 23);
  return log_edges(log_of(k, fused(x * 0.25f, over, over * 0.25f - 1)), one);
}

MPSF_INLINE Vec<float> tanh(Vec<float> x) {
  const Vec<float> size = absolute(x), z = x * x;
  Vec<float> p = z * -0.00571704519f + 0.0206505875f;
  p = p * z - 0.0537434982f;
  p = p * z + 0.133314913f;
  p = p * z - 0.333332839f;
  const Vec<float> near = p * z * size + size, far = 1 - 2 / (exp(size * 2) + 1);
  const Vec<float> made = size < 0.625f ? near : far;
  return bit_cast<Vec<float>>(bit_cast<Bits32>(made) | (bit_cast<Bits32>(x) & 0x80000000));
}

// An error in the square would be as many times larger as the square is.
MPSF_INLINE Vec<float> bell(Vec<float> x) {
  const Vec<float> high = bit_cast<Vec<float>>(bit_cast<Bits32>(x) & 0xfffff000);
  return exp(high * high * -0.5f, (x - high) * (x + high) * -0.5f) * 0.39894228f;
}

template <typename F>
MPSF_INLINE Vec<double> by_lane(Vec<double> x, const F& f) {
  for (int i = 0; i < lanes<double>; ++i) x[i] = f(x[i]);
  return x;
}

MPSF_INLINE Vec<double> exp(Vec<double> x) {
  return by_lane(x, [](double v) { return __builtin_exp(v); });
}
MPSF_INLINE Vec<double> decay(Vec<double> x) { return exp(-absolute(x)); }
MPSF_INLINE Vec<double> exp_below(Vec<double> x) { return exp(x); }
MPSF_INLINE Vec<double> exp_m1(Vec<double> x) {
  return by_lane(x, [](double v) { return __builtin_expm1(v); });
}
MPSF_INLINE Vec<double> log(Vec<double> x) {
  return by_lane(x, [](double v) { return __builtin_log(v); });
}
MPSF_INLINE Vec<double> log_1p(Vec<double> x) {
  return by_lane(x, [](double v) { return __builtin_log1p(v); });
}
MPSF_INLINE Vec<double> tanh(Vec<double> x) {
  return by_lane(x, [](double v) { return __builtin_tanh(v); });
}

MPSF_INLINE Vec<double> bell(Vec<double> x) {
  const Vec<double> high = bit_cast<Vec<double>>(bit_cast<Vec<uint64_t>>(x) & 0xfffffffff8000000);
  return exp(high * high * -0.5) * exp((x - high) * (x + high) * -0.5) * 0.39894228040143268;
}
// What the normal distribution has below -x, over bell(x), for x from 0 to 40.
MPSF_INLINE Vec<double> tail(Vec<double> x) {
  const Vec<double> high = bell(x);
  for (int i = 0; i < lanes<double>; ++i) {
    const double u = x[i] * 0.70710678118654752,
                 lost = __builtin_fma(x[i], 0.70710678118654752, -u) - x[i] * 4.8336466567264567e-17;
    const double below = 0.5 * __builtin_erfc(u) - high[i] * 1.4142135623730951 * lost;
    x[i] = high[i] > 0 ? below / high[i] : 0;
  }
  return x;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
