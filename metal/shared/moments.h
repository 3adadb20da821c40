// Count, mean and sum of squared deviations of a set of values, and how two sets become one; and what local contrast
// normalization makes of them.
#ifndef MPSF_MOMENTS_H
#define MPSF_MOMENTS_H
#include "shared/base.h"

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

// What a row of threads adds up of parts that hold `columns` sums each, and as many sums of products behind them: every
// height-th part of one column. Eight sums apart, so that as many loads are under way together.
struct TwoSums {
  float of_g, of_products;
};
template <typename Partial>
MPSF_FN TwoSums row_sums(Partial partial, int parts, int columns, int column, int row, int height) {
  float g[8] = {0, 0, 0, 0, 0, 0, 0, 0}, products[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int part = row; part < parts; part += 8 * height) {
    for (int k = 0; k < 8; ++k) {
      if (part + height * k < parts) {
        const int at = (part + height * k) * 2 * columns + column;
        g[k] += partial[at];
        products[k] += partial[at + columns];
      }
    }
  }
  for (int k = 0; k < 4; ++k) {
    g[k] += g[k + 4];
    products[k] += products[k + 4];
  }
  TwoSums s = {(g[0] + g[1]) + (g[2] + g[3]), (products[0] + products[1]) + (products[2] + products[3])};
  return s;
}

// The sum of what some rows of a threadgroup's threads have left in one column: [first, end), `step` apart. A
// threadgroup folds its sums by two such, of eight rows and of what they made, which takes fewer turns than a tree.
template <typename Sums>
MPSF_FN float sum_of_rows(Sums sums, int column, int width, int first, int end, int step) {
  float sum = 0;
  for (int i = first; i < end; i += step) sum += sums[i * width + column];
  return sum;
}

// Element `at` of those that window_moments adds up, with its mean less the pivot: of F, a pixel, else of a window.
template <int F, typename X, typename Mean, typename M2>
MPSF_FN Moments element(X x, Mean mean, M2 m2, long at, float pivot, float count) {
  Moments m = {count, float(x[at]) - pivot + (F ? 0.0f : float(mean[at])), F ? 0.0f : float(m2[at])};
  return m;
}

MPSF_FN float median(float a, float b, float c) {
  const float least = a < b ? a : b, most = a < b ? b : a;
  return c < least ? least : (c < most ? c : most);
}

// Sums over a window of a, of b, and of c less b times the distance to a pivot.
struct Slopes {
  float a, b, c;
};
template <typename X, typename Sums>
MPSF_FN Slopes beside(Slopes s, X x, Sums a, Sums b, Sums c, long at, float pivot) {
  Slopes r = {s.a + a[at], s.b + b[at], s.c + (c[at] + (float(x[at]) - pivot) * b[at])};
  return r;
}

// A pixel in its window of `area` places, of which `count` are in the image and the others are zeros that count.
struct Contrast {
  float mean, variance;  // the mean less the pixel
};
MPSF_FN Contrast contrast(float x, float mean, float m2, float count, float area) {
  const float share = count / area, all = x + mean;
  Contrast r = {share * mean - (1 - share) * x, m2 / area + all * all * share * (1 - share)};
  return r;
}

#endif
