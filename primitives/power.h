// t ** e for one exponent and many t, vectors at a time. float goes through double: polynomials with errors of 2^-37
// and 2^-28 leave powers of any size right to the last place or the one beside it. Edges are those of powf.
#pragma once
#include "channels.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// A vector of floats as two of doubles.
struct Pair {
  Vec<double> low, high;
};

typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));

// Intrinsics where GCC goes by halves; masked ones, because it takes the undefined lanes of others for our mistake.
MPSF_INLINE Pair split(Vec<float> v) {
#if defined(__AVX512F__)
  return {_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, v, 0)),
          _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, v, 1))};
#else
  HalfFloats halves[2];
  memcpy(halves, &v, sizeof(v));
  return {__builtin_convertvector(halves[0], Vec<double>), __builtin_convertvector(halves[1], Vec<double>)};
#endif
}

MPSF_INLINE Vec<float> join(Vec<double> low, Vec<double> high) {
#if defined(__AVX512F__)
  return _mm512_maskz_insertf32x8(0xffff, _mm512_castps256_ps512(_mm512_maskz_cvtpd_ps(0xff, low)),
                                  _mm512_maskz_cvtpd_ps(0xff, high), 1);
#else
  const HalfFloats halves[2] = {__builtin_convertvector(low, HalfFloats), __builtin_convertvector(high, HalfFloats)};
  Vec<float> v;
  memcpy(&v, halves, sizeof(v));
  return v;
#endif
}

// Between two bounds; NaN becomes anything.
MPSF_INLINE Vec<double> bounded(Vec<double> v, double low, double high) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_pd(0xff, _mm512_maskz_min_pd(0xff, v, splat(high)), splat(low));
#else
  v = v > high ? splat(high) : v;
  return v < low ? splat(low) : v;
#endif
}

// a / b to 40 bits.
MPSF_INLINE Vec<double> quotient(Vec<double> a, Vec<double> b) {
#if defined(__AVX512F__)
  const Vec<double> about = _mm512_maskz_rcp14_pd(0xff, b), error = 1 - b * about;
  return a * (about + about * (error * error + error));
#else
  return a / b;
#endif
}

// Whether all are positive and finite; false where it would cost more to ask.
MPSF_INLINE bool ordinary([[maybe_unused]] Vec<float> v) {
#if defined(__AVX512F__)
  const __m512i below = _mm512_sub_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(1));
  return _mm512_cmplt_epu32_mask(below, _mm512_set1_epi32(0x7f7fffff)) == 0xffff;
#elif defined(__AVX2__)
  const Vec<float> infinity = splat(__builtin_inff());
  return _mm256_movemask_ps(bit_cast<__m256>((v > 0) & (v < infinity))) == 0xff;
#else
  return false;
#endif
}

// a ** e of normal positive a, to the precision of float; beyond its range something beyond it.
MPSF_INLINE Vec<double> raised(Vec<double> a, double e) {
  using Bits = Vec<uint64_t>;
  constexpr uint64_t kOne = 0x3ff0000000000000, kRootHalf = 0x3fe6a09e667f3bcd, kMantissa = 0x000fffffffffffff;
  // a = m * 2^k with m between the roots of 1/2 and 2.
  const Bits moved = bit_cast<Bits>(a) + (kOne - kRootHalf);
  const Vec<double> m = bit_cast<Vec<double>>((moved & kMantissa) + kRootHalf);
  const Vec<double> k = bit_cast<Vec<double>>((moved >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
  // log2(m) = s * f(s * s)
  const Vec<double> s = quotient(m - 1, m + 1), z = s * s;
  // Polynomials by halves: a shorter way through the pipeline than term by term.
  const Vec<double> z2 = z * z;
  const Vec<double> log =
      ((z * 0.3407118693981226 + 0.4116737781011388) * z2 + (z * 0.5770835657202681 + 0.9617966734543006)) * z +
      2.885390081789978;
  const Vec<double> p = bounded((log * s + k) * e, -200, 200);
  // 2 ** p = 2 ** whole * 2 ** r, where the low bits of `whole` hold the integer.
  const Vec<double> whole = p + 0x1.8p52, r = p - (whole - 0x1.8p52);
  const Vec<double> r2 = r * r;
  const Vec<double> high = (r * 0.00015461444724808513 + 0.0013400428177711937) * r + 0.00961805667843204;
  const Vec<double> low = (r * 0.05550327226669895 + 0.24022650922289554) * r2 + (r * 0.6931472067028329 + 1);
  const Vec<double> power = high * (r2 * r2) + low;
  return bit_cast<Vec<double>>(bit_cast<Bits>(power) + (bit_cast<Bits>(whole) << 52));
}

enum class Raise { zero, reciprocal, root, root_root, other };

template <typename A>
struct Power {
  double exponent;
  bool odd, fractional;  // whether a negative base keeps its sign, and whether it has no power

  explicit Power(double e) : exponent(e) {
    const double half = __builtin_floor(e / 2);
    fractional = __builtin_floor(e) != e;
    odd = !fractional && half * 2 != e;
  }

  Raise kind() const {
    return exponent == 0       ? Raise::zero
           : exponent == -1    ? Raise::reciprocal
           : exponent == -0.5  ? Raise::root
           : exponent == -0.75 ? Raise::root_root
                               : Raise::other;
  }

  template <Raise Kind>
  MPSF_INLINE Vec<A> of(Vec<A> t) const {
    constexpr A kInfinity = static_cast<A>(__builtin_inf());
    if constexpr (Kind == Raise::zero) return splat(A(1));
    if constexpr (Kind == Raise::reciprocal) return 1 / t;
    if constexpr (Kind == Raise::root || Kind == Raise::root_root) {
      if constexpr (Kind == Raise::root) {
        const Vec<A> power = 1 / root(t + A(0));  // -0 becomes 0
        return t == -kInfinity ? Vec<A>{} : power;
      }
      const Vec<A> power = t == 0 ? splat(kInfinity) : root(root(t)) / t;  // two roundings in a row, and a quarter
      return (t == kInfinity) | (t == -kInfinity) ? Vec<A>{} : power;
    }
    if constexpr (sizeof(A) == 8) {
      for (int i = 0; i < lanes<A>; ++i) t[i] = static_cast<A>(__builtin_pow(static_cast<double>(t[i]), exponent));
      return t;
    } else {
      if (ordinary(t)) {
        const Pair pair = split(t);
        return join(raised(pair.low, exponent), raised(pair.high, exponent));
      }
      const Bits32 sign = bit_cast<Bits32>(t) & 0x80000000;
      const Vec<A> a = bit_cast<Vec<A>>(bit_cast<Bits32>(t) ^ sign);
      const Pair pair = split(a);
      Vec<A> power = join(raised(pair.low, exponent), raised(pair.high, exponent));
      power = a == 0 ? splat(exponent < 0 ? kInfinity : A(0)) : power;
      power = a == kInfinity ? splat(exponent < 0 ? A(0) : kInfinity) : power;
      power = t != t ? t : power;
      if (odd) return bit_cast<Vec<A>>(bit_cast<Bits32>(power) | sign);
      if (fractional) power = (t < 0) & (a < kInfinity) ? splat(static_cast<A>(__builtin_nan(""))) : power;
      return power;
    }
  }
};

// Calls store(i, n, powers) with the powers of what load(i, n) gives, for all vectors of so many elements.
template <typename A, typename Load, typename Store>
void for_powers(const Power<A> power, int64_t length, const Load load, const Store store) {
  constexpr int L = lanes<A>;
  const auto each = [=]<Raise Kind>() {
    int64_t i = 0;
    for (; i + L <= length; i += L) store(i, L, power.template of<Kind>(load(i, L)));
    if (i < length)
      store(i, static_cast<int>(length - i), power.template of<Kind>(load(i, static_cast<int>(length - i))));
  };
  switch (power.kind()) {
    case Raise::zero:
      return each.template operator()<Raise::zero>();
    case Raise::reciprocal:
      return each.template operator()<Raise::reciprocal>();
    case Raise::root:
      return each.template operator()<Raise::root>();
    case Raise::root_root:
      return each.template operator()<Raise::root_root>();
    case Raise::other:
      return each.template operator()<Raise::other>();
  }
}

// A double that Python packed into two ints.
inline double unpacked(const int* params) {
  double value;
  memcpy(&value, params, sizeof(value));
  return value;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
