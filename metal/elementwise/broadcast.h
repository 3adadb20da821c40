// What works element by element: arithmetic on two operands, and where operands lie under a result of images.
#ifndef MPSF_BROADCAST_H
#define MPSF_BROADCAST_H
#include "elementwise/params.h"
#if !defined(MPSF_ISA)  // the CPU's kernels have vectors of their own
#include "shared/vector_load.h"
#endif

// Operands of an operation K, which arithmetic.py numbers: add, subtract, multiply, divide.
template <int K, typename A>
MPSF_FN A combined(A x, A y) {
  return K == 0 ? x + y : K == 1 ? x - y : K == 2 ? x * y : x / y;
}

// The derivative of (p * x) K (q * y) by x (S = 0) or by y.
template <int K, int S, typename A>
MPSF_FN A slope(A x, A y, A p, A q) {
  if (K == 2) return S == 0 ? p * q * y : p * q * x;
  if (K == 3) return S == 0 ? p / (q * y) : -(p * x / (q * y)) / y;
  return S == 0 ? p : K == 0 ? q : -q;
}

// x / d from d's reciprocal r: a division would cost more than random words do. Rounded as a division's result, unless
// that is subnormal. A template, since C++ includes this file too and has no fma.
template <typename A>
MPSF_FN A over(A x, A d, A r) {
  const A q = x * r;
  return q - q == 0 ? fma(fma(-q, d, x), r, q) : q;
}

MPSF_FN long entries(Operand u) { return long(u.h) * u.w * u.c; }
MPSF_FN long image_of(Operand u, int b) { return u.images == 1 ? 0 : b / u.per % u.images * entries(u); }

// Where pack p of V elements stands in an image of width w, with so many packs a pixel. Merged images are one line.
struct Place {
  int y, x, c;
};
template <int Merged, int V>
MPSF_FN Place place_at(int p, int w, int lanes) {
  Place at = {0, 0, p * V};
  if (Merged) return at;
  const int pixel = p / lanes;
  at.c = (p - pixel * lanes) * V;
  at.y = pixel / w;
  at.x = pixel - at.y * w;
  return at;
}
MPSF_FN int entry_of(Operand u, Place at) {
  return ((u.h == 1 ? 0 : at.y) * u.w + (u.w == 1 ? 0 : at.x)) * u.c + (u.c == 1 ? 0 : at.c);
}

#if defined(MPSF_VECTOR_LOAD_H)
// What an operand of T has under a pack: V entries from p on, or one V times. Nothing is loaded where Reads is 0.
template <int Reads, int V, typename T, typename P>
MPSF_FN Pack<T, V> lying(P p, bool along, bool wide) {
  if (!Reads) return nothing<T, V>();
  if (along) return load<V>(p, wide);
  Pack<T, V> r;
  const T one = *p;
  for (int j = 0; j < V; ++j) r.v[j] = one;
  return r;
}
#endif

// Whether a gradient depends on x, and on y, when bits of L tell which limits stop it.
template <int K, int S, int L>
struct Needs {
  enum { x = L != 0 || (S == 1 && K >= 2), y = L != 0 || K == 3 || (S == 0 && K == 2) };
};

// Comparisons of floats, and of integers, whose differences are told without a sign.
struct Floats {};
struct Integers {};
template <int Whole>
struct NumbersOf {
  typedef Floats kind;
};
template <>
struct NumbersOf<1> {
  typedef Integers kind;
};
template <typename T>
MPSF_FN bool alike(Floats, T x, T y, float threshold, unsigned long) {
  const float apart = float(x) > float(y) ? float(x) - float(y) : float(y) - float(x);
  return x == y || apart <= threshold;
}
template <typename T>
MPSF_FN bool alike(Integers, T x, T y, float, unsigned long threshold) {
  typedef unsigned long Wide;
  return (x > y ? Wide(x) - Wide(y) : Wide(y) - Wide(x)) <= threshold;
}

// Comparison K, which arithmetic.py numbers.
template <int K, typename T>
MPSF_FN bool holds(T x, T y, bool equal) {
  return K == 0 ? equal : K == 1 ? !equal : K == 2 ? x < y : K == 3 ? x <= y : K == 4 ? x > y : x >= y;
}

#endif
