// Which neighbours an image is correlated with. Metal, CUDA and C++ all include this file, and none says it again.
#ifndef MPSF_CORRELATION_H
#define MPSF_CORRELATION_H
#include "image/params.h"
#include "shared/base.h"

// Offset number k along an axis is (k - window) * stride. Those of [first, behind) lead from a position onto an axis
// of so many pixels; number `window` always does.
struct Offsets {
  int first, behind;
};
MPSF_FN Offsets offsets_on(int window, int stride, int at, int length) {
  Offsets r;
  r.first = window - min_int(window, at / stride);
  r.behind = window + min_int(window, (length - 1 - at) / stride) + 1;
  return r;
}

// Features of a pixel, and of a row of offsets.
MPSF_FN int features_across(LocalCorrelationParams p) { return 2 * p.window_x + 1; }

// A GPU's threads own kRun columns that are a stride apart, which read the same neighbours: run number i begins at
// column first_column, and there are runs() of them.
enum { kRun = 4, kOffsets = 3 };
MPSF_FN int runs_abreast(LocalCorrelationParams p, int width) { return min_int(p.stride_x, width); }
MPSF_FN int runs(LocalCorrelationParams p, int width) {
  const int abreast = runs_abreast(p, width);
  return abreast * ceil_div(ceil_div(width, abreast), kRun);
}
MPSF_FN int first_column(LocalCorrelationParams p, int width, int run) {
  const int abreast = runs_abreast(p, width);
  return run / abreast * kRun * abreast + run % abreast;
}

#endif
