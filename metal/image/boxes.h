// Which pixels the samples in a box mix, along one axis, and by which weights. Metal, CUDA and C++ all include this
// file, and none says it again. Real is float or double.
#ifndef MPSF_BOXES_H
#define MPSF_BOXES_H
#include "image/sampling.h"

enum { kCropBilinear = 0, kCropNearest = 1, kRoiAlign = 2 };

// A box along an axis, in pixels, 0 the middle of the first: of a crop the first place and the last, of a region where
// it begins and how long a bin is. A row of `boxes` is the number of an image, then this for rows and for columns.
template <typename Real>
struct Span {
  Real first, second;
};
template <typename Real, typename Box>
MPSF_SAMPLING_FN Span<Real> span_of(Box box, int axis) {
  Span<Real> r;
  r.first = box[1 + 2 * axis];
  r.second = box[2 + 2 * axis];
  return r;
}

// The image that a box is of, -1 if there is none of that number.
template <typename P, typename Real>
MPSF_SAMPLING_FN int image_of(P p, Real number) {
  return number >= 0 && number < Real(p.images) ? int(number) : -1;
}

// The list that a box is in: of its image, or behind them all.
template <typename P, typename Real>
MPSF_SAMPLING_FN int list_of(P p, Real number) {
  const int image = image_of(p, number);
  return image < 0 ? p.images : image;
}

// How many samples a bin has along an axis: if the parameters do not say, as many as it has pixels, rounded up, none
// where it has no length, and at most 65536.
template <typename P, typename Real>
MPSF_SAMPLING_FN int samples_of(P p, Span<Real> span) {
  if (p.samples > 0) return p.samples;
  const Real wanted = -MPSF_FLOOR(-span.second), most = 65536;
  return wanted >= 1 ? int(wanted < most ? wanted : most) : 0;
}

// The samples of a bin that can lie on the image, from one on and before another; more than these, if in doubt. Where a
// bin has few all of them.
struct SampleRange {
  int begin, end;
};
template <typename P, typename Real>
MPSF_SAMPLING_FN SampleRange samples_near(P p, int length, int bins, Span<Real> span, int bin, int count) {
  SampleRange r;
  r.begin = 0;
  r.end = count;
  if (p.samples > 0 || count <= 8) return r;  // a length of its own, which is not negative
  const Real doubt = 2 + Real(count) * Real(bins) * Real(1e-6f), most = Real(count);
  const Real low = MPSF_FLOOR(((-1 - span.first) / span.second - Real(bin)) * most - doubt);
  const Real high = MPSF_FLOOR(((Real(length) - span.first) / span.second - Real(bin)) * most + doubt);
  if (low > 0) r.begin = low < most ? int(low) : count;
  if (high < most) r.end = high > 0 ? int(high) : 0;
  return r;
}

// Where a sample of a bin lies, and the derivatives of that by both of what the span says.
template <typename Real>
struct BoxPlace {
  Real at, by_first, by_second;
};
template <typename P, typename Real>
MPSF_SAMPLING_FN BoxPlace<Real> box_place(P p, int bins, Span<Real> span, int bin, int sample, int count) {
  BoxPlace<Real> r;
  if (p.rule == kRoiAlign) {
    r.by_first = 1;
    r.by_second = Real(bin) + (Real(sample) + Real(0.5f)) / Real(count);
    r.at = span.first + span.second * r.by_second;
    return r;
  }
  const Real steps = Real(bins - 1), length = span.second - span.first;
  r.by_second = bins > 1 ? Real(bin) / steps : Real(0.5f);
  r.by_first = bins > 1 ? Real(bins - 1 - bin) / steps : Real(0.5f);
  // From the nearer end, so that the outermost places are where the box says.
  r.at = r.by_second <= r.by_first ? span.first + length * r.by_second : span.second - length * r.by_first;
  return r;
}

// The two pixels of an axis that a sample mixes; what lies outside mixes none.
template <typename Real>
struct BoxTaps {
  int index[2];
  Real weight[2];
  bool inside;
};

// Those of a sample at a place, or their derivative by the place, times a factor. Where slopes jump, at whole pixels,
// they are those to the right, on the last pixel of a crop those to the left. A region goes on for one pixel beyond the
// image, as the outermost one, and has no slope from there on.
template <typename P, typename Real>
MPSF_SAMPLING_FN BoxTaps<Real> box_taps(P p, int length, Real at, bool steep, Real factor) {
  const Real last = Real(length - 1), margin = p.rule == kRoiAlign ? Real(1) : Real(0);
  Place<Real> place;
  place.at = at;
  place.slope = 1;
  const Place<Real> on = onto_pixels(place, last);
  BoxTaps<Real> r;
  r.inside = at >= -margin && at <= last + margin;
  if (p.rule == kCropNearest) {  // of two that are as near the one to the right
    const Real whole = MPSF_FLOOR(on.at), nearest = on.at - whole >= Real(0.5f) ? whole + 1 : whole;
    r.index[0] = r.index[1] = int(nearest);
    r.weight[0] = r.inside && !steep ? factor : Real(0);
    r.weight[1] = 0;
    return r;
  }
  const Real whole = MPSF_FLOOR(on.at), first = whole < last || length == 1 ? whole : last - 1;
  const Real t = on.at - first, slope = length == 1 ? Real(0) : p.rule == kRoiAlign ? on.slope : Real(1);
  r.index[0] = int(first);
  r.index[1] = min_int(int(first) + 1, length - 1);
  const Real scale = r.inside ? factor : Real(0);
  r.weight[0] = steep ? -slope * scale : (1 - t) * scale;
  r.weight[1] = steep ? slope * scale : t * scale;
  return r;
}

// The weights of a sample along an axis: of the value, by order 1 or 2 of the derivative by the span's first or second.
template <typename P, typename Real>
MPSF_SAMPLING_FN BoxTaps<Real> box_weights(P p, int length, BoxPlace<Real> place, int order, int count) {
  const Real by = order == 0 ? Real(1) : order == 1 ? place.by_first : place.by_second;
  return box_taps(p, length, place.at, order != 0, by / Real(count));
}

// The bins of a box that may read pixels of an axis from `begin` on and before `end`; more than these, if in doubt.
struct BinRange {
  int begin, end;
};
template <typename P, typename Real>
MPSF_SAMPLING_FN BinRange bins_near(P p, int bins, Span<Real> span, int begin, int end) {
  const bool region = p.rule == kRoiAlign;
  const Real step = region ? span.second : (span.second - span.first) / Real(bins - 1);
  const Real other = region ? span.first + span.second * Real(bins) : span.second;
  const Real size = (span.first < 0 ? -span.first : span.first) + (other < 0 ? -other : other);
  const Real doubt = Real(1.5f) + size * Real(1e-6f), bins_of_doubt = 2 + Real(bins) * Real(1e-6f);
  const Real low = (Real(begin) - doubt - span.first) / step, high = (Real(end) + doubt - span.first) / step;
  const Real first = MPSF_FLOOR((step < 0 ? high : low) - bins_of_doubt);
  const Real last = MPSF_FLOOR((step < 0 ? low : high) + bins_of_doubt);
  BinRange r;
  r.begin = 0;
  r.end = bins;
  if (bins == 1 || step == 0) return r;  // in the middle of a crop; all in one place, where -0 has another order
  if (first > 0) r.begin = first < Real(bins) ? int(first) : bins;
  if (last < Real(bins)) r.end = last > 0 ? int(last) : 0;
  return r;
}

// Whether a box may read pixels of an axis from `begin` on and before `end`; yes, if in doubt.
template <typename P, typename Real>
MPSF_SAMPLING_FN bool may_read(P p, int bins, Span<Real> span, int begin, int end) {
  const Real other = p.rule == kRoiAlign ? span.first + span.second * Real(bins) : span.second;
  const bool forth = span.first <= other;
  const Real low = forth ? span.first : other, high = forth ? other : span.first;
  const Real size = (low < 0 ? -low : low) + (high < 0 ? -high : high), doubt = Real(1.5f) + size * Real(1e-6f);
  return high + doubt > Real(begin) && low - doubt < Real(end);
}

#endif
