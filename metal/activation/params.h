// Parameters of activations; the records of these names are in mpsfunc/channels/activation_spec.py.
#ifndef MPSF_ACTIVATION_PARAMS_H
#define MPSF_ACTIVATION_PARAMS_H
#include "shared/base.h"

// What a GPU is told of an activation, whose kind is a constant of the kernel. Four words, so where it is all that a
// kernel gets, it lies in `constant` on Metal. `log_c` is the logarithm of a base c, of which -1 is e.
struct ActivationParams {
  float a, b, c, log_c;
};

// What a CPU is told.
MPSF_BEGIN_PARAMS
template <typename Real>
struct Activation {
  int kind;
  Real a, b, c;
};
MPSF_END_PARAMS

#endif
