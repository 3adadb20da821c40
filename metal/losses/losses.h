// Losses of elements and what is read for them.
#ifndef MPSF_LOSSES_H
#define MPSF_LOSSES_H
#include "losses/params.h"
#include "shared/base.h"
#include "shared/functions.h"
#include "shared/vector_load.h"

// V elements of one pixel: predictions, targets and weights.
template <int V>
struct Given {
  float y[V], t[V], w[V];
};

// Those from element `at` on, which is class c of a pixel. With L the target is a label a pixel; with W = 1 every
// element has a weight, with W = 2 every pixel.
template <int L, int W, int V, typename Y, typename Target, typename Weights>
MPSF_FN Given<V> given(Y y, Target target, Weights weights, long at, long pixel, int c, int classes,
                       LossNumbers<float> told) {
  Given<V> r;
  const int label = L ? int(target[pixel]) : 0;
  const float share = label >= 0 && label < classes ? told.share : 0.0f;
  const float weight = W == 2 ? float(weights[pixel]) : told.weight;
  auto seen = load<V>(y + at, aligned<V>(y));
  for (int j = 0; j < V; ++j) {
    r.y[j] = float(seen.v[j]);
    r.t[j] = label == c + j ? 1.0f : 0.0f;
    r.w[j] = weight;
  }
  if (!L) {
    auto wanted = load<V>(target + at, aligned<V>(target));
    for (int j = 0; j < V; ++j) r.t[j] = float(wanted.v[j]);
  }
  if (W == 1) {
    auto weighing = load<V>(weights + at, aligned<V>(weights));
    for (int j = 0; j < V; ++j) r.w[j] = float(weighing.v[j]);
  }
  for (int j = 0; j < V; ++j) r.t[j] = r.t[j] * told.kept + share;
  return r;
}

struct Term {
  float loss, slope;
};

// t * of, and 0 where t is.
MPSF_FN float weighed(float t, float of) { return t == 0 ? 0.0f : t * of; }

// q ** k for k >= 0, and 0 ** 0 is 1.
MPSF_FN float power_of(float q, float k) {
  if (k == 0) return 1;
  if (k == 1) return q;
  if (k == 2) return q * q;
  return q == 0 ? q : exp(log(q) * k);
}

// The loss of an element and its derivative by y, before weights; types are MPS's, without softmax cross-entropy, and
// 10, the focal loss, with alpha and gamma in the places of epsilon and delta, or 11, where gamma is 2.
template <int K>
MPSF_FN Term term(float y, float t, LossNumbers<float> told) {
  Term r;
  const float d = y - t, size = fabs(d);
  if (K == 0) {
    r.loss = size;
    r.slope = d > 0 ? 1.0f : d < 0 ? -1.0f : d;
  } else if (K == 1) {
    r.loss = d * d;
    r.slope = d + d;
  } else if (K == 3) {
    const float small = exp(-fabs(y)), above = 1 / (1 + small);
    r.loss = (y < 0 ? 0.0f : y) - y * t + log_1p(small);
    r.slope = (y < 0 ? small * above : above) - t;
  } else if (K == 4) {
    r.loss = -weighed(t, log(y));
    r.slope = -weighed(t, 1 / y);
  } else if (K == 5) {
    const float side = 1 - (t + t), margin = 1 + side * y;
    r.loss = margin <= 0 ? 0.0f : margin;
    r.slope = margin > 0 ? side : margin < 0 ? 0.0f : margin;
  } else if (K == 6) {
    r.loss = size > told.delta ? told.delta * (size - told.delta / 2) : d * d / 2;
    r.slope = size > told.delta ? (d < 0 ? -told.delta : told.delta) : d;
  } else if (K == 7) {
    r.loss = -y * t;
    r.slope = -t;
  } else if (K == 8) {
    const float at = y + told.epsilon, other = 1 - y + told.epsilon;
    r.loss = -weighed(t, log(at)) - weighed(1 - t, log(other));
    r.slope = weighed(1 - t, 1 / other) - weighed(t, 1 / at);
  } else if (K == 10 || K == 11) {
    const float small = exp(-fabs(y)), above = 1 / (1 + small), below = small * above;
    const float p = y < 0 ? below : above, rest = y < 0 ? above : below, off = p * (1 - t) + t * rest;
    const float alpha = told.epsilon < 0 ? 1.0f : t * told.epsilon + (1 - t) * (1 - told.epsilon);
    const float lost = (y < 0 ? 0.0f : y) - y * t + log_1p(small);
    const float raised = K == 11 ? off * off : power_of(off, told.delta), power = alpha * raised;
    const float less = K == 11 ? off + off : off > 0 ? told.delta * raised / off : 0.0f;  // the slope of raised
    r.loss = power * lost;
    r.slope = alpha * less * (p * rest) * (1 - (t + t)) * lost + power * (p - t);
  } else {
    r.loss = weighed(t, log(t)) - weighed(t, y);
    r.slope = -t;
  }
  return r;
}

#endif
