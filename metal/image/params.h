// Parameters of what picks or mixes rows and columns; the records of these names are in mpsfunc/image/params.py. What
// is read stands in tables.
#ifndef MPSF_IMAGE_PARAMS_H
#define MPSF_IMAGE_PARAMS_H
#include "shared/base.h"

// The size of the result. Two words: `constant` on Metal.
struct GatherPixelsLaunch {
  int height, width;
};

// The size of the result, its tiles, and positions of the first one that lie ahead of it. Six words: `constant` on
// Metal.
struct ResampleLaunch {
  int height, width;
  int tiles_down, tiles_across;
  int rows_ahead, cols_ahead;
};

#endif
