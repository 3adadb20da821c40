// Powers that normalizations divide by.
#ifndef MPSF_POWERS_H
#define MPSF_POWERS_H
#include "shared/base.h"

// t ** -beta and 1 / t.
struct Inverse {
  float power, once;
};

// CUDA's own square root is exact to the last digit, by a subroutine that may take ten times as long.
#if defined(__CUDA_ARCH__)
MPSF_FN float near_root(float t) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(t));
  return root;
}
#else
MPSF_FN float near_root(float t) { return sqrt(t); }
#endif

// Beta is Q quarters, and of products and square roots its power costs far less than one in general, for which Q is
// more than 32.
template <int Q>
MPSF_FN Inverse inverse_power(float t, float beta) {
  Inverse r;
  if (Q > 32) {
    r.power = pow(t, -beta);
    r.once = 1 / t;
    return r;
  }
  r.power = 1;
  if (Q % 4 == 0) {
    r.once = 1 / t;
  } else {
    const float root = rsqrt(t);
    r.once = root * root;
    if (Q & 2) r.power = root;
    if (Q & 1) r.power *= near_root(root);
  }
  const float twice = r.once * r.once, fourth = twice * twice;
  if (Q & 4) r.power *= r.once;
  if (Q & 8) r.power *= twice;
  if (Q & 16) r.power *= fourth;
  if (Q & 32) r.power *= fourth * fourth;
  return r;
}

#endif
