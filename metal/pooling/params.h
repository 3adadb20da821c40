// Parameters of the poolings; the records of these names are in mpsfunc/pooling/params.py.
#ifndef MPSF_POOLING_PARAMS_H
#define MPSF_POOLING_PARAMS_H
#include "shared/geometry.h"

// Windows along the rows and along the columns.
struct PoolParams {
  Axis rows, cols;
};

#endif
