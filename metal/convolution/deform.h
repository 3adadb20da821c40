// Which pixels a tap of a deformable convolution mixes, and by which weights. Metal, CUDA and C++ all include this
// file. Real is float or double.
#ifndef MPSF_DEFORM_H
#define MPSF_DEFORM_H
#include "convolution/params.h"

#ifndef MPSF_DEFORM_FLOOR
#define MPSF_DEFORM_FLOOR(x) floor(x)
#define MPSF_DEFORM_FN MPSF_FN
#endif

// Two pixels of an axis, `first` and the one behind it. One beyond the image weighs nothing.
template <typename Real>
struct DeformTaps {
  int first;
  Real weight[2];
};

// Those around a position, with the weights of a derivative by it: at a pixel that to its right. What is no position,
// or a pixel and more beyond the image, has none.
template <typename Real>
MPSF_DEFORM_FN DeformTaps<Real> deform_taps(int length, Real position, int order) {
  const bool near = position > -2 && position < Real(length + 1);
  const Real at = near ? position : Real(-2), whole = MPSF_DEFORM_FLOOR(at), t = at - whole;
  DeformTaps<Real> r;
  r.first = int(whole);
  const bool before = r.first >= 0 && r.first < length, after = r.first >= -1 && r.first < length - 1;
  r.weight[0] = !before || order > 1 ? Real(0) : order == 1 ? Real(-1) : 1 - t;
  r.weight[1] = !after || order > 1 ? Real(0) : order == 1 ? Real(1) : t;
  return r;
}

// Where a tap's offsets stand, among those of its output and its group.
MPSF_FN int deform_numbers(DeformParams p) { return p.masked != 0 ? 3 : 2; }

// Outputs that the G threads of a threadgroup look at together, one tap of each.
template <int G>
struct DeformChunk {
  enum { kAcross = 16, kDown = G / kAcross, kWords = G / 32 };
};

#endif
