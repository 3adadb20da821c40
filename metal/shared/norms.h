// The arithmetic of norms, in float.
#ifndef MPSF_NORMS_H
#define MPSF_NORMS_H
#include "shared/base.h"

// What values are multiplied by whose squares add up to `sum`, so that squares of up to 2^31 values keep their digits.
MPSF_FN float square_scale(float sum) {
  if (sum > 1.26765060e30f) return 8.27180613e-25f;      // 2^100 and 2^-80
  return sum < 8.27180613e-25f ? 1.23794004e27f : 1.0f;  // 2^-80 and 2^90
}

// What `by` brings through the derivative of a norm by one of its values, which is at most 1; nothing where all are 0.
MPSF_FN float through(float value, float norm, float by) { return norm == 0 ? 0.0f : value / norm * by; }

// The same from an inverse that serves several values. That of a small norm could overflow, so it is scaled, which the
// sign tells; 0 stands for none.
MPSF_FN float inverse(float norm) {
  if (norm < 8.27180613e-25f) return norm == 0 ? 0.0f : -1.0f / (norm * 1.23794004e27f);
  return 1.0f / norm;
}
MPSF_FN float through_inverse(float value, float inverse, float by) {
  const float slope = inverse < 0 ? value * 1.23794004e27f * -inverse : value * inverse;
  return inverse == 0 ? 0.0f : slope * by;
}

// What an image less its mean is multiplied with, from the scale and the variance that is to become 1.
MPSF_FN float slope_of(float scale, float var, float eps) { return scale * rsqrt(var + eps); }

#endif
