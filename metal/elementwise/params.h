// Parameters of what works element by element; the records of these names are in mpsfunc/elementwise/params.py, and
// that of Operand in mpsfunc/channels/broadcast.py. All begin with the lengths of the result in merged axes.
#ifndef MPSF_ELEMENTWISE_PARAMS_H
#define MPSF_ELEMENTWISE_PARAMS_H
#include "shared/base.h"

// An operand is as long as the result along an axis, or 1. Image b of the result reads its image b / per % images.
struct Operand {
  int images, per, h, w, c;
};

MPSF_BEGIN_PARAMS
// The numbers of (primary_scale * x) op (secondary_scale * y) + bias between two limits.
template <typename Real>
struct ArithmeticFactors {
  Real primary_scale, secondary_scale, bias, minimum, maximum;
};

// Arithmetic on two operands. Bit 0 of `limits` says that there is a minimum, bit 1 that there is a maximum.
template <typename Real>
struct ArithmeticParams {
  int n, h, w, c;
  Operand x, y;
  int operation, limits;
  ArithmeticFactors<Real> factors;
};

// The gradient for operand 0 or 1, and whether it reads x and y; what it does not read, dy stands in for.
template <typename Real>
struct ArithmeticGradParams {
  int n, h, w, c;
  Operand dy, x, y;
  int operation, operand, limits, reads_x, reads_y;
  ArithmeticFactors<Real> factors;
};

// A comparison on a CPU.
template <typename Real>
struct CompareParams {
  int n, h, w, c;
  Operand x, y;
  int comparison;
  Real threshold;
};

// Dropout: a random word below the bound keeps an element.
template <typename Real>
struct DropoutParams {
  int n, h, w, c;
  Operand x, mask;
  unsigned int bound;
  Real keep;
};

// Dropout with a mask that is given.
template <typename Real>
struct DropoutByMaskParams {
  int n, h, w, c;
  Operand x, mask;
  Real keep;
};
MPSF_END_PARAMS

// A comparison on a GPU. Integers have the threshold as 64 bits, the lower half first.
struct CompareLaunch {
  int n, h, w, c;
  Operand x, y;
  float threshold;
  unsigned int threshold_low, threshold_high;
};

// The masks of dropout on a CPU.
struct DropoutMaskParams {
  unsigned int bound;
};

// The masks of dropout on a GPU, and how many entries one has, as 64 bits. Three words: `constant` on Metal.
struct DropoutMaskLaunch {
  unsigned int entries_low, entries_high;
  unsigned int bound;
};

MPSF_FN unsigned long joined(unsigned int low, unsigned int high) {
  return (unsigned long)(low) | (unsigned long)(high) << 32;
}

#endif
