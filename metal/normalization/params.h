// Parameters of the normalization kernels; the records of these names are in mpsfunc/normalization/params.py and, of
// the launches of batch normalization and of vectors, in mpsfunc/channels/params.py.
#ifndef MPSF_NORMALIZATION_PARAMS_H
#define MPSF_NORMALIZATION_PARAMS_H
#include "activation/params.h"

// Batch normalization ------------------------------------------------------------------------------------

MPSF_BEGIN_PARAMS
// By the vectors of a state.
template <typename Real>
struct BnByStateParams {
  Real eps;
  Activation<Real> act;
};

// As a whole. There are so many `groups` of neighbouring channels that share statistics, or 0 where each channel has
// its own; so many `elements` share them.
template <typename Real>
struct BatchNormParams {
  int groups;
  Real eps, elements;
  Activation<Real> act;
};

// Of lines, along their last axis.
template <typename Real>
struct LayerNormParams {
  Real eps;
};
MPSF_END_PARAMS

// A thread has `fewest` pixels, and the first `longer` rows of threads one more; the first `kept` of a thread's pixels
// stay in a cache. Six words: `constant` on Metal.
struct BnStatsLaunch {
  Threadgroup group;
  int stat_groups, kept, fewest, longer;
};

// Each part had `tall` rows of threads, which had `fewest` and `longer` as above; a pixel is this share of its
// statistics group. Six words: `constant` on Metal.
struct BnStatsMergeLaunch {
  Threadgroup group;
  int tall, fewest, longer;
  float share;
};

// As for BnStatsLaunch.
struct BnStatsGradLaunch {
  Threadgroup group;
  int stat_groups, kept, fewest, longer;
  float eps;
  ActivationParams act;
};

// Of so many channels and pixels of a statistics group. Five words: `constant` on Metal.
struct BnStatsGradFactorsLaunch {
  Threadgroup group;
  int channels;
  float pixels, eps;
};

// Three words: `constant` on Metal.
struct BnStatsGradMergeLaunch {
  Threadgroup group;
  float eps;
};

// A threadgroup is `height` rows of threads high and has `share` rows of pixels for each.
struct BnNormalizeLaunch {
  int stat_groups, height, share;
  float eps;
  ActivationParams act;
};

// Likewise. Seven words: `constant` on Metal.
struct BnGradLaunch {
  int stat_groups, height, share;
  ActivationParams act;
};

// Vectors with one entry a channel -----------------------------------------------------------------------

// Two words: `constant` on Metal.
struct BnGradCoefficientsLaunch {
  int channels;
  float eps;
};

MPSF_BEGIN_PARAMS
template <typename Real>
struct BnSlopeParams {
  Real eps;
};

template <typename Real>
struct BnComposedFactorsParams {
  Real elements, eps;
};

// Statistics move by `share`; `unbiased` is 1 or 0.
template <typename Real>
struct BnRunningParams {
  Real share, unbiased;
};

// So many groups of neighbouring channels.
template <typename Real>
struct BnGroupParams {
  Real groups;
};
MPSF_END_PARAMS

// Three words: `constant` on Metal.
struct BnComposedFactorsLaunch {
  int size;
  BnComposedFactorsParams<float> params;
};

// Three words: `constant` on Metal.
struct BnRunningLaunch {
  int size;
  BnRunningParams<float> params;
};

// Channels of a group. One word: `constant` on Metal.
struct BnGroupLaunch {
  int size;
};

// Entries of a row. Two words: `constant` on Metal.
struct BnMessagesMergeLaunch {
  int size, processes;
};

// Windows ------------------------------------------------------------------------------------------------

// Windows [i - before, i + after] along axis 1, 2 or 3 of an image.
struct WindowSumParams {
  int axis, before, after;
};

MPSF_BEGIN_PARAMS
template <typename Real>
struct PowerParams {
  Real exponent;
};

// x * (delta + alpha / N * squares) ** -beta, where N is the size to the power of so many axes.
template <typename Real>
struct SquaresNormParams {
  int size;
  Real alpha, beta, delta;
};

// pm + ps * (x - p0 * mean) * (delta + alpha * variance) ** -beta.
template <typename Real>
struct LocalContrastParams {
  int size;
  Real alpha, beta, delta, p0, pm, ps;
};
MPSF_END_PARAMS

// Windows along one axis, of lines of `length` elements that are `inner` apart. A thread makes `run` results of a line
// by chunks of `chunk`. Six words: `constant` on Metal.
struct WindowLaunch {
  int length, inner, before, after, run, chunk;
};

// Of the sum of squares: share is alpha / N. Three words: `constant` on Metal.
struct SquaresNormLaunch {
  float share, beta, delta;
};

// Four words: `constant` on Metal. The factor is 2 * alpha * beta / N.
struct SquaresNormGradLaunch {
  float share, beta, delta, factor;
};

// Windows [i - before, i + after] along the rows and along the columns, whose size is `area` with what is outside.
struct LocalContrastLaunch {
  int before, after;
  float area, alpha, beta, delta, p0, pm, ps;
};

// Seven words: `constant` on Metal.
struct LocalContrastWeightsLaunch {
  int before, after;
  float area, alpha, beta, delta, p0;
};

// Factors of dy, of its mean and of what the variance adds. Three words: `constant` on Metal.
struct LocalContrastGradLaunch {
  float straight, around, along;
};

#endif
