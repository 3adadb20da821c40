// Parameters of the poolings; the records of these names are in mpsfunc/pooling/params.py.
#ifndef MPSF_POOLING_PARAMS_H
#define MPSF_POOLING_PARAMS_H
#include "shared/geometry.h"

// Windows along the rows and along the columns.
struct PoolParams {
  Axis rows, cols;
};

// Of sums over the middle axis of (outer, length, inner). mean: they are divided by the length. One word.
struct ReduceSumParams {
  int mean;
};

// Of extremes over that axis: the largest, or the least. results: 0 values, 1 places, 2 both. Two words.
struct ReduceExtremeParams {
  int largest, results;
};

#endif
