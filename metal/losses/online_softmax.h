// The largest of some numbers and the sum of exp(number - largest), as they grow and as two sets become one. A NaN or
// an infinity makes the sum NaN. Nothing but -infinity has sum 0.
#ifndef MPSF_ONLINE_SOFTMAX_H
#define MPSF_ONLINE_SOFTMAX_H
#include "shared/base.h"
#include "shared/vector_load.h"

MPSF_FN float minus_infinity() { return as_type<float>(-8388608); }

struct Exponentials {
  float most, sum;
};

// What is subtracted before exponentials are taken, so that -infinity less it is no NaN.
MPSF_FN float subtracted(float most) { return most == minus_infinity() ? 0.0f : most; }

MPSF_FN Exponentials joined(Exponentials a, Exponentials b) {
  Exponentials r;
  r.most = max(a.most, b.most);
  const float less = subtracted(r.most);
  r.sum = a.sum * exp(a.most - less) + b.sum * exp(b.most - less);
  return r;
}

template <typename T, int V>
MPSF_FN Pack<float, V> widened(Pack<T, V> values) {
  Pack<float, V> r;
  for (int j = 0; j < V; ++j) r.v[j] = float(values.v[j]);
  return r;
}

// With N more numbers.
template <int N>
MPSF_FN Exponentials grown(Exponentials e, Pack<float, N> more) {
  Exponentials r;
  r.most = e.most;
  for (int i = 0; i < N; ++i) r.most = max(r.most, more.v[i]);
  const float less = subtracted(r.most);
  r.sum = e.sum * exp(e.most - less);
  for (int i = 0; i < N; ++i) r.sum += exp(more.v[i] - less);
  return r;
}

#endif
