// Which pixels a sample mixes at a place that a grid tells, and by which weights. Metal, CUDA and C++ all include this
// file, and none says it again. Real is float or double. What depends on a place is chosen without branches, so that
// C++ makes vectors of the loops over places.
#ifndef MPSF_SAMPLING_H
#define MPSF_SAMPLING_H
#include "image/params.h"
#include "shared/base.h"

#ifndef MPSF_FLOOR
#define MPSF_FLOOR(x) floor(x)
#define MPSF_SAMPLING_FN MPSF_FN
#endif

// A position along an axis in pixels, 0 the middle of the first, and its derivative by what the grid says.
template <typename Real>
struct Place {
  Real at, slope;
};

// A position that goes back and forth between low and low + span; the slope is -1 where it is on the way back.
template <typename Real>
MPSF_SAMPLING_FN Place<Real> reflected(Real at, Real low, Real span) {
  const bool below = at < low;
  const Real distance = below ? low - at : at - low;
  const Real folds = MPSF_FLOOR(distance / span), rest = distance - folds * span;
  const bool odd = folds != 2 * MPSF_FLOOR(folds / 2);
  Place<Real> r;
  r.at = low + (odd ? span - rest : rest);
  r.slope = below != odd ? Real(-1) : Real(1);
  return r;
}

// The nearest position from 0 to last, where it stands still at both ends and beyond; NaN is the first.
template <typename Real>
MPSF_SAMPLING_FN Place<Real> onto_pixels(Place<Real> place, Real last) {
  const bool within = place.at > 0 && place.at < last;
  Place<Real> r;
  r.at = within ? place.at : place.at > 0 ? last : Real(0);
  r.slope = within ? place.slope : Real(0);
  return r;
}

// What reflects positions: the middles of the first pixel and the last, or the outer edges of the two.
template <typename Real>
MPSF_SAMPLING_FN Place<Real> mirrored(GridSampleParams p, int length, Real at) {
  const bool middles = p.coordinates == 1;
  Place<Real> still;
  still.at = still.slope = 0;
  if (middles && length == 1) return still;
  return reflected(at, middles ? Real(0) : Real(-0.5f), Real(middles ? length - 1 : length));
}

// Where sample number `own` along an axis of `length` pixels lies, if the grid says `given`. Far outside of zeros it
// lies as far as nothing is read; beside a border it is on the image, but for a cubic, whose pixels are brought there
// one by one; NaN is the first pixel, and with reflection so is infinity.
template <typename Real>
MPSF_SAMPLING_FN Place<Real> place_of(GridSampleParams p, int length, Real given, int own) {
  const Real last = Real(length - 1), outside = -4, far = 1073741824;
  Place<Real> r;
  r.at = given;
  r.slope = 1;
  if (p.coordinates == 0) {
    r.at = ((given + 1) * Real(length) - 1) / 2;
    r.slope = Real(length) / 2;
  } else if (p.coordinates == 1) {
    r.at = (given + 1) / 2 * last;
    r.slope = last / 2;
  } else if (p.coordinates == 3) {
    r.at = given + Real(own);
  }
  if (p.edge == 2) {
    const bool near = r.at > -far && r.at < far;
    r.at = near ? r.at : Real(0);
    r.slope = near ? r.slope : Real(0);
    if (p.mode == 2) return r;
    const Place<Real> on = mirrored(p, length, r.at);
    r.at = on.at;
    r.slope *= on.slope;
  }
  if (p.edge != 0 && p.mode != 2) return onto_pixels(r, last);
  const bool near = r.at > outside && r.at < last - outside;
  r.slope = near ? r.slope : Real(0);
  r.at = near ? r.at : r.at > outside ? last - outside : outside;
  return r;
}

// The pixel that a whole position stands for, or -1.
template <typename Real>
MPSF_SAMPLING_FN int pixel_at(GridSampleParams p, int length, Real at) {
  const Real last = Real(length - 1);
  if (p.mode == 2 && p.edge == 2) at = MPSF_FLOOR(mirrored(p, length, at).at + Real(0.5f));
  const Real low = at > 0 ? at : Real(0), on = low < last ? low : last;
  return on == at || (p.mode == 2 && p.edge != 0) ? int(on) : -1;
}

// A derivative of the cubic curve of a pixel, by the distance from it: up to 1, and from there to 2.
template <typename Real>
MPSF_SAMPLING_FN Real cubic_near(Real d, int order) {
  const Real a = Real(-0.75f);
  if (order == 0) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (order == 1) return (3 * (a + 2) * d - 2 * (a + 3)) * d;
  if (order == 2) return 6 * (a + 2) * d - 2 * (a + 3);
  return order == 3 ? 6 * (a + 2) : Real(0);
}
template <typename Real>
MPSF_SAMPLING_FN Real cubic_far(Real d, int order) {
  const Real a = Real(-0.75f);
  if (order == 0) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  if (order == 1) return (3 * a * d - 10 * a) * d + 8 * a;
  if (order == 2) return 6 * a * d - 10 * a;
  return order == 3 ? 6 * a : Real(0);
}

// The pixels of an axis that a sample mixes: 1, 2 or 4 of them, as the mode says. What is none, -1, weighs nothing.
template <int K, typename Real>
struct SampleTaps {
  int index[K];
  Real weight[K];
};

// Those of a sample at a place, with the weights of a derivative by the grid.
template <int K, typename Real>
MPSF_SAMPLING_FN SampleTaps<K, Real> sample_taps(GridSampleParams p, int length, Place<Real> place, int order) {
  const Real whole = MPSF_FLOOR(place.at), t = place.at - whole;
  Real first = whole;
  SampleTaps<K, Real> r;
  if (K == 1) {  // of two that are as near the even one
    const Real odd = whole - 2 * MPSF_FLOOR(whole / 2);
    first = whole + (t > Real(0.5f) ? Real(1) : Real(0)) + (t == Real(0.5f) ? odd : Real(0));
    r.weight[0] = order == 0 ? Real(1) : Real(0);
  } else if (K == 2) {
    r.weight[0] = order == 0 ? 1 - t : order == 1 ? Real(-1) : Real(0);
    r.weight[K - 1] = order == 0 ? t : order == 1 ? Real(1) : Real(0);
  } else {
    const Real sign = order % 2 == 0 ? Real(1) : Real(-1);
    first = whole - 1;
    r.weight[0] = cubic_far(t + 1, order);
    r.weight[1 % K] = cubic_near(t, order);
    r.weight[2 % K] = sign * cubic_near(1 - t, order);
    r.weight[3 % K] = sign * cubic_far(2 - t, order);
  }
  const Real slope = place.slope;  // orders beyond have no weights
  const Real scale = order == 0 ? Real(1) : order == 1 ? slope : order == 2 ? slope * slope : slope * slope * slope;
  for (int k = 0; k < K; ++k) {
    r.index[k] = pixel_at(p, length, first + Real(k));
    r.weight[k] = r.index[k] < 0 ? Real(0) : r.weight[k] * scale;
  }
  return r;
}

// Samples that the G threads of a threadgroup look at together, one each.
template <int G>
struct Chunk {
  enum { kAcross = 16, kDown = G / kAcross, kWords = G / 32 };
};

#endif
