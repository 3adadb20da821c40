// Parameters of the convolutions; the records of these names are in mpsfunc/convolution/params.py.
#ifndef MPSF_CONVOLUTION_PARAMS_H
#define MPSF_CONVOLUTION_PARAMS_H
#include "activation/params.h"
#include "shared/geometry.h"

// A convolution, or the gradient of its images, as a CPU runs them: the windows, the activation behind the sums, which
// is Activation's, whether Winograd's algorithm may run where it can, and whether the weights' inputs and outputs have
// changed places: (channels, rows, columns, outputs), as a transposed convolution has those of the one that leads back.
MPSF_BEGIN_PARAMS
template <typename Real>
struct ConvParams {
  Axis rows, cols;
  int groups, kind, winograd, exchanged;
  Real a, b, c;
};
MPSF_END_PARAMS

// Weights laid out ahead for an instruction set, by its number.
struct ConvLayoutParams {
  int isa, groups;
};

// The gradient of the weights on a CPU.
struct ConvGradWeightsParams {
  Axis rows, cols;
  int groups, winograd, exchanged;
};

// A convolution, or the gradient of its images, on a GPU.
struct ConvLaunch {
  Axis rows, cols;
  int groups, kind;
  ActivationParams activation;
};

// The gradient of the weights on a GPU, which cuts the pixels into so many parts.
struct ConvGradWeightsLaunch {
  Axis rows, cols;
  int groups, parts;
};

// The same where every channel is a group.
struct ConvDepthwiseGradWeightsLaunch {
  Axis rows, cols;
  int groups;
  Threadgroup threadgroup_size;
};

// The samples of a deformable convolution: the windows, how many groups of channels have offsets of their own, whether
// a mask follows each pair of offsets, and the orders of a derivative by y, x and the mask.
struct DeformParams {
  Axis rows, cols;
  int groups, masked;
  int order_y, order_x, order_mask;
};

#endif
