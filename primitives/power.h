// t ** e for one exponent and many t, vectors at a time. float goes through double: a logarithm with an error of 2^-34
// leaves powers of any size right to the last place or the one beside it. Edges are those of powf.
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

MPSF_INLINE Vec<double> widened(HalfFloats v) { return __builtin_convertvector(v, Vec<double>); }

MPSF_INLINE Pair split(Vec<float> v) {
  HalfFloats halves[2];
  memcpy(halves, &v, sizeof(v));
  return {widened(halves[0]), widened(halves[1])};
}

MPSF_INLINE Vec<float> join(Vec<double> low, Vec<double> high) {
  const HalfFloats halves[2] = {__builtin_convertvector(low, HalfFloats), __builtin_convertvector(high, HalfFloats)};
  Vec<float> v;
  memcpy(&v, halves, sizeof(v));
  return v;
}

// a ** e of normal positive a, to the precision of float; beyond its range something beyond it.
MPSF_INLINE Vec<double> raised(Vec<double> a, double e) {
  using Bits = Vec<uint64_t>;
  constexpr uint64_t kOne = 0x3ff0000000000000, kRootHalf = 0x3fe6a09e667f3bcd, kMantissa = 0x000fffffffffffff;
  // a = m * 2^k with m between the roots of 1/2 and 2.
  const Bits moved = bit_cast<Bits>(a) + (kOne - kRootHalf);
  const Vec<double> m = bit_cast<Vec<double>>((moved & kMantissa) + kRootHalf);
  const Vec<double> k = bit_cast<Vec<double>>((moved >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
  // log2(m) = 2 / ln(2) * atanh(s)
  const Vec<double> s = (m - 1) / (m + 1), z = s * s;
  constexpr double kLog = 2.8853900817779268;
  Vec<double> log = z * (kLog / 11) + kLog / 9;
  log = log * z + kLog / 7;
  log = log * z + kLog / 5;
  log = log * z + kLog / 3;
  log = log * z + kLog;
  Vec<double> p = (log * s + k) * e;
  p = p > 200 ? splat(200.0) : p;
  p = p < -200 ? splat(-200.0) : p;
  // 2 ** p = 2 ** whole * 2 ** r, where the low bits of `whole` hold the integer.
  const Vec<double> whole = p + 0x1.8p52, r = p - (whole - 0x1.8p52);
  Vec<double> power = r * 1.3215486790144307e-6 + 1.5252733804059840e-5;
  power = power * r + 1.5403530393381610e-4;
  power = power * r + 1.3333558146428443e-3;
  power = power * r + 9.6181291076284772e-3;
  power = power * r + 5.5504108664821580e-2;
  power = power * r + 2.4022650695910071e-1;
  power = power * r + 6.9314718055994531e-1;
  power = power * r + 1;
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
    return exponent == 0      ? Raise::zero
           : exponent == -1   ? Raise::reciprocal
           : exponent == -0.5 ? Raise::root
           : exponent == -0.75 ? Raise::root_root
                               : Raise::other;
  }

  template <Raise Kind>
  MPSF_INLINE Vec<A> of(Vec<A> t) const {
    constexpr A kInfinity = static_cast<A>(__builtin_inf());
    if constexpr (Kind == Raise::zero) return splat(A(1));
    if constexpr (Kind == Raise::reciprocal) return 1 / t;
    if constexpr (Kind == Raise::root || Kind == Raise::root_root) {
      const Vec<A> first = root(t + A(0));  // -0 becomes 0
      const Vec<A> power = 1 / (Kind == Raise::root ? first : first * root(first));
      return t == -kInfinity ? Vec<A>{} : power;
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

// Calls store(i, n, powers) with the powers of what load(i, n) gives, for all vectors of so many elements.
template <typename A, typename Load, typename Store>
void for_powers(const Power<A>& power, int64_t length, const Load& load, const Store& store) {
  constexpr int L = lanes<A>;
  const auto each = [&]<Raise Kind>() {
    int64_t i = 0;
    for (; i + L <= length; i += L) store(i, L, power.template of<Kind>(load(i, L)));
    if (i < length) store(i, static_cast<int>(length - i), power.template of<Kind>(load(i, static_cast<int>(length - i))));
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
