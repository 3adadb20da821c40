// Count, mean and sum of squared deviations of a set of values, and how two sets become one.
#ifndef MPSF_MOMENTS_H
#define MPSF_MOMENTS_H

struct Moments {
  float count, mean, m2;
};

// Chan, Golub and LeVeque 1979. An empty side leaves the other as it is.
MPSF_FN Moments merged(Moments a, Moments b) {
  const float count = a.count + b.count;
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const float delta = b.mean - a.mean, share = b.count / count;
  Moments m = {count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share};
  return m;
}

// From sums of (x - shift) and (x - shift)^2.
MPSF_FN Moments moments_of(float count, float shift, float sum, float squares) {
  Moments m = {count, shift + sum / count, squares - sum * (sum / count)};
  if (m.m2 < 0) m.m2 = 0;
  return m;
}

#endif
