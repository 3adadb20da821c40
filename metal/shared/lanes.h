// What all lanes of a simdgroup come to together, told to each of them.
#ifndef MPSF_LANES_H
#define MPSF_LANES_H
#include "shared/base.h"

MPSF_FN uint bits_of_lanes(uint bits) {
  for (int m = 16; m > 0; m /= 2) bits |= simd_shuffle_xor(bits, m);
  return bits;
}
MPSF_FN float sum_of_lanes(float value) {
  for (int m = 16; m > 0; m /= 2) value += simd_shuffle_xor(value, m);
  return value;
}
MPSF_FN int least_of_lanes(int value) {
  for (int m = 16; m > 0; m /= 2) value = min_int(value, simd_shuffle_xor(value, m));
  return value;
}
MPSF_FN int most_of_lanes(int value) {
  for (int m = 16; m > 0; m /= 2) value = max_int(value, simd_shuffle_xor(value, m));
  return value;
}

#endif
