// Elementary functions of a float for activations.h on GPUs; primitives/kernels/vector/vector_math.h has those of
// vectors.
#ifndef MPSF_FUNCTIONS_H
#define MPSF_FUNCTIONS_H
#include "activation/params.h"

#define MPSF_POINTWISE MPSF_FN
#define MPSF_NUMBER(digits) digits##f  // of whatever Real is

MPSF_FN float filled(float, float value) { return value; }
MPSF_FN float absolute(float x) { return fabs(x); }
// The bound where x is beyond it; NaN stays.
MPSF_FN float at_most(float x, float bound) { return x > bound ? bound : x; }
MPSF_FN float at_least(float x, float bound) { return x < bound ? bound : x; }
MPSF_FN float reciprocal(float x) { return 1 / x; }
MPSF_FN float decay(float x) { return exp(-fabs(x)); }
MPSF_FN float without_infinity(float x) { return at_least(at_most(x, 3.40282347e38f), -3.40282347e38f); }

// e ** x - 1 for x <= 0
MPSF_FN float exp_m1(float x) {
  const float t = tanh(at_least(x, -40) * 0.5f);
  return 2 * t / (1 - t);
}

// log(1 + x) for x from 0 to 1: what the sum loses of x cancels.
MPSF_FN float log_1p(float x) {
  const float sum = 1 + x;
  return sum == 1 ? x : log(sum) * (x / (sum - 1));
}

// The density of the normal distribution. An error in the square would be as many times larger as the square is.
MPSF_FN float bell(float x) {
  const float square = x * x, lost = fma(x, x, -square);
  return exp(-0.5f * square) * (0.398942280f - 0.199471140f * lost);
}

// z ** (c - less), also of negative numbers, which not every pow() knows.
MPSF_FN float power(float z, ActivationParams p, int less) {
  const float exponent = p.c - less, made = pow(fabs(z), exponent);
  const bool whole = floor(exponent) == exponent;
  if (whole && floor(exponent * 0.5f) * 2 != exponent) return z < 0 || 1 / z < 0 ? -made : made;
  return z < 0 && !whole && z >= -3.40282347e38f ? log(z) : made;  // NaN
}

#endif
