// t ** e for one exponent and many t, vectors at a time. Floats whose power is far from the ends of the range stay
// float, with a correction for what the logarithm loses. The others, and those of large exponents, go through double:
// polynomials with errors of 2^-37 and 2^-28 leave any power right to the last place or the one beside it. Edges are
// those of powf.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/vector_math.h"

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

// Whether all lie between two bounds; not with a NaN.
MPSF_INLINE bool within(Vec<float> v, float low, float high) {
#if defined(__AVX512F__)
  return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(v, splat(low), _CMP_GE_OQ), v, splat(high), _CMP_LE_OQ) == 0xffff;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(bit_cast<__m256>((v >= low) & (v <= high))) == 0xff;
#else
  return !any(~((v >= low) & (v <= high)));
#endif
}

// 1 / a to 14 bits at least; a is normal, and so is the result.
MPSF_INLINE Vec<float> about_inverse(Vec<float> a) {
#if defined(__AVX512F__)
  return _mm512_maskz_rcp14_ps(0xffff, a);
#else
  return 1 / a;
#endif
}

// 1 / sqrt(a), two roundings from the exact one; of -0 anything.
MPSF_INLINE Vec<double> inverse_root_of(Vec<double> a) { return 1 / root(a); }
MPSF_INLINE Vec<float> inverse_root_of(Vec<float> a) {
#if defined(__AVX512F__)
  // A root and a quotient take the divider as long as a window's sums take everything else.
  const Vec<float> about = _mm512_maskz_rsqrt14_ps(0xffff, a), error = fused(-a * about, about, splat(1.0f));
  const Vec<float> exact = fused(about * error, error * 0.375f + 0.5f, about);
  return error == error ? exact : about;  // of zero and infinity
#else
  return 1 / root(a);
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

// a ** e of floats without doubles, to about one place, for |e| <= kMost.
struct FloatPower {
  static constexpr double kMost = 8;

  float low, high;              // bounds of a; low > high where e is too large
  float step, rest;             // e, of which `step` times a power of two's exponent is exact
  float slope, tail0, a, b, c;  // e times what makes log2((1 + s) / (1 - s)) of s and s * s

  explicit FloatPower(double e) {
    const double size = __builtin_fabs(e), most = __builtin_fmin(125 / size, 127.99);
    low = static_cast<float>(__builtin_fmax(__builtin_exp2(-most), 0x1p-126));
    high = static_cast<float>(__builtin_exp2(most));
    if (!(kFused && size <= kMost)) low = 1, high = 0;
    step = static_cast<float>(__builtin_rint(e * 0x1p15) * 0x1p-15);
    rest = static_cast<float>(e - static_cast<double>(step));
    slope = static_cast<float>(e * 2.885390081777927);
    tail0 = static_cast<float>(e * 2.885390081777927 - static_cast<double>(slope));
    a = static_cast<float>(e * 0.961798276796825);
    b = static_cast<float>(e * 0.5767540075880934);
    c = static_cast<float>(e * 0.43095799328758316);
  }

  // Of several vectors step by step: one alone waits for itself most of the time.
  template <int N>
  MPSF_INLINE void of(Vec<float> (&t)[N]) const {
    using V = Vec<float>;
    V near[N], lack[N], s[N], steps[N], whole[N], k[N], r[N], power[N];
    // t = m * 2^k with m between the roots of 1/2 and 2, and s = f / (2 + f) of f = m - 1.
    for (int v = 0; v < N; ++v) {
      const Bits32 moved = bit_cast<Bits32>(t[v]) + (kOneBits - kRootHalfBits);
      const V m = bit_cast<V>((moved & 0x7fffff) + kRootHalfBits), f = m - 1, over = about_inverse(m + 1);
      k[v] = bit_cast<V>((moved >> 23) | 0x4b000000) - (0x1p23f + 127);
      near[v] = f * over;
      // f - near * (2 + f), exact but for its last rounding: what `near` lacks.
      lack[v] = fused(-near[v], f, f - (near[v] + near[v])) * over;
    }
    // e * log2(t) as whole numbers and a small rest. k * step is exact, and so is what the whole number leaves of it.
    for (int v = 0; v < N; ++v) {
      s[v] = near[v] + lack[v];
      steps[v] = k[v] * step;
      whole[v] = fused(near[v], splat(slope), steps[v]) + 0x1.8p23f;
    }
    for (int v = 0; v < N; ++v) {
      r[v] = fused(near[v], splat(slope), steps[v] - (whole[v] - 0x1.8p23f));
      r[v] += lack[v] * slope + k[v] * rest;
    }
    for (int v = 0; v < N; ++v) {
      const V z = s[v] * s[v];
      r[v] += s[v] * (((z * c + b) * z + a) * z + tail0);
    }
    // Term by term: the shorter way through the pipeline takes one more multiplication, which are what it waits for.
    for (int v = 0; v < N; ++v) power[v] = r[v] * 0.00015461445f + 0.0013400428f;
    constexpr float kTerms[] = {0.0096180567f, 0.055503272f, 0.24022651f, 0.6931472f, 1};
    for (const float term : kTerms) {
      for (int v = 0; v < N; ++v) power[v] = power[v] * r[v] + term;
    }
    for (int v = 0; v < N; ++v) t[v] = bit_cast<V>(bit_cast<Bits32>(power[v]) + (bit_cast<Bits32>(whole[v]) << 23));
  }
};

enum class Raise { zero, reciprocal, root, root_root, other };

template <typename A>
struct Power {
  double exponent;
  bool odd, fractional;  // whether a negative base keeps its sign, and whether it has no power
  FloatPower quick;

  explicit Power(double e) : exponent(e), quick(e) {
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

  // Whether powers of this kind mostly are quick, and the quick power; where `all` becomes false it is not one.
  template <Raise Kind>
  static constexpr bool kQuick = sizeof(A) == 4 && Kind == Raise::other&& kFused;

  template <int N>
  MPSF_INLINE void quickly(Vec<A> (&t)[N], bool& all) const requires(sizeof(A) == 4) {
    for (int v = 0; v < N; ++v) all &= within(t[v], quick.low, quick.high);
    quick.of(t);
  }

  template <Raise Kind>
  MPSF_INLINE Vec<A> of(Vec<A> t) const {
    if constexpr (!kQuick<Kind>) {
      return any_of<Kind>(t);
    } else {
      bool all = true;
      Vec<A> power[1] = {t};
      quickly(power, all);
      return all                                      ? power[0]
             : ((t >= quick.low) & (t <= quick.high)) ? power[0]
                                                      : any_of<Kind>(t);  // the same whatever is beside it
    }
  }

 private:
  template <Raise Kind>
  MPSF_INLINE Vec<A> any_of(Vec<A> t) const {
    constexpr A kInfinity = static_cast<A>(__builtin_inf());
    if constexpr (Kind == Raise::zero) return splat(A(1));
    if constexpr (Kind == Raise::reciprocal) return 1 / t;
    if constexpr (Kind == Raise::root || Kind == Raise::root_root) {
      if constexpr (Kind == Raise::root) {
        const Vec<A> power = inverse_root_of(t + A(0));  // -0 becomes 0
        return t == -kInfinity ? Vec<A>{} : power;
      }
      const Vec<A> power = t == 0 ? splat(kInfinity) : root(root(t)) / t;  // two roundings in a row, and a quarter
      return (t == kInfinity) | (t == -kInfinity) ? Vec<A>{} : power;
    }
    if constexpr (sizeof(A) == 8) {
      for (int i = 0; i < lanes<A>; ++i) t[i] = static_cast<A>(__builtin_pow(static_cast<double>(t[i]), exponent));
      return t;
    } else {
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

// Calls f with the kind of a power as a constant.
template <typename A, typename F>
void by_kind(const Power<A>& power, const F& f) {
  switch (power.kind()) {
    case Raise::zero:
      return f.template operator()<Raise::zero>();
    case Raise::reciprocal:
      return f.template operator()<Raise::reciprocal>();
    case Raise::root:
      return f.template operator()<Raise::root>();
    case Raise::root_root:
      return f.template operator()<Raise::root_root>();
    case Raise::other:
      return f.template operator()<Raise::other>();
  }
}

// Calls f(i, n) for the vectors of so many elements.
template <typename A, typename F>
MPSF_INLINE void for_each(int64_t length, const F& f) {
  constexpr int L = lanes<A>;
  int64_t i = 0;
  for (; i + L <= length; i += L) f(i, L);
  if (i < length) f(i, static_cast<int>(length - i));
}

constexpr int kAtOnce = kRegisters == 32 ? 4 : 1;  // vectors

// Calls store(i, n, powers) with the powers of what load(i, n) gives, for all vectors of so many elements. First as if
// all were quick, which leaves the loop its registers, and if they were not, again: store() must not change what load()
// reads. A function of its own, for the same registers.
template <Raise Kind, typename A, typename Load, typename Store>
__attribute__((noinline)) void powers_of(const Power<A> power, int64_t length, const Load load, const Store store) {
  if constexpr (Power<A>::template kQuick<Kind>) {
    constexpr int L = lanes<A>;
    bool all = true;
    int64_t i = 0;
    for (; i + kAtOnce * L <= length; i += kAtOnce * L) {
      Vec<A> t[kAtOnce];
      for (int v = 0; v < kAtOnce; ++v) t[v] = load(i + v * L, L);
      power.quickly(t, all);
      for (int v = 0; v < kAtOnce; ++v) store(i + v * L, L, t[v]);
    }
    for_each<A>(
        length - i, [&](int64_t rest, int n) __attribute__((always_inline)) {
          Vec<A> t[1] = {load(i + rest, n)};
          power.quickly(t, all);
          store(i + rest, n, t[0]);
        });
    if (all) return;
  }
  for_each<A>(
      length, [&](int64_t i, int n)
                  __attribute__((always_inline)) { store(i, n, power.template of<Kind>(load(i, n))); });
}

template <typename A, typename Load, typename Store>
void for_powers(const Power<A>& power, int64_t length, const Load& load, const Store& store) {
  by_kind(power, [&]<Raise Kind>() { powers_of<Kind>(power, length, load, store); });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
