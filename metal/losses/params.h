// Parameters of losses and softmaxes; the records of these names are in mpsfunc/losses/params.py.
#ifndef MPSF_LOSSES_PARAMS_H
#define MPSF_LOSSES_PARAMS_H
#include "shared/base.h"

// A target becomes kept * target + share, but for a label that is no class, whose targets stay zeros; a loss is
// multiplied by the weight, a sum by the factor. Six words on a GPU: `constant` on Metal.
MPSF_BEGIN_PARAMS
template <typename Real>
struct LossNumbers {
  Real kept, share, epsilon, delta, weight, factor;
};

// What a CPU is told; all but the type are switches.
template <typename Real>
struct LossParams {
  int type, elements, labelled, weighted;
  LossNumbers<Real> numbers;
};
template <typename Real>
struct LossGradParams {
  int type, exact, labelled, weighted, scaled;
  LossNumbers<Real> numbers;
};
MPSF_END_PARAMS

// Parts that an image is summed in on a GPU. Seven words: `constant` on Metal.
struct LossLaunch {
  int parts;
  LossNumbers<float> numbers;
};

// Which derivative a CPU computes: 0 the gradient, 1 its own by y, 2 of a logarithm, its own by dy.
struct SoftmaxGradParams {
  int derivative;
};

// What a CPU's kernels of the Dice loss are told: what makes probabilities, 0 nothing, 1 a sigmoid, 2 softmax; and
// switches.
struct DiceParams {
  int activation, squared, labelled;
};

// The same of what makes the gradient of the loss: what is added above and below, and the share of a class.
MPSF_BEGIN_PARAMS
template <typename Real>
struct DiceLossParams {
  DiceParams sums;
  Real smooth, share;
};

// What suppression is told: the overlap that is allowed, and how many boxes are looked for in each image.
template <typename Real>
struct NmsParams {
  int most;
  Real threshold;
};
MPSF_END_PARAMS

#endif
