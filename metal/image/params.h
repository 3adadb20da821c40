// Parameters of what picks or mixes pixels; the records of these names are in mpsfunc/image/params.py. What rows and
// columns read stands in tables.
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

// The size of the result, and the rows of a strip of it. Three words: `constant` on Metal.
struct ResampleStripLaunch {
  int height, width;
  int strip;
};

// Samples at places that a grid tells, of images of a height and width. mode: 0 nearest, 1 bilinear, 2 bicubic. edge: 0
// zeros, 1 the border, 2 reflection. coordinates: 0 normalized, 1 normalized from the middle of the first pixel to that
// of the last, 2 pixels, 3 pixels from the sample's own position. The orders are those of a derivative by the grid.
// Seven words: `constant` on Metal.
struct GridSampleParams {
  int height, width;
  int mode, edge, coordinates;
  int order_y, order_x;
};

// Correlations of a pixel with those that lie up to `window` strides from it along each axis of another image.
// secondary: a gradient is by that image, instead of by the one whose pixels stand still. Five words: `constant` on
// Metal.
struct LocalCorrelationParams {
  int window_y, window_x;
  int stride_y, stride_x;
  int secondary;
};

// Samples in boxes, of so many images of a height and width, in rows and columns of bins. rule: 0 crops whose samples
// mix pixels, 1 crops that take the nearest, 2 means over bins of regions. samples: of a bin along an axis, 0 as many
// as it needs. The orders are 0, or 1 or 2 of the derivative by what a box says of rows or columns first or second.
// outside: what a sample outside is. Ten words: `device` on Metal.
MPSF_BEGIN_PARAMS
template <typename Real>
struct BoxSampleParams {
  int images, height, width;
  int rows, cols;
  int rule, samples;
  int order_y, order_x;
  Real outside;
};
MPSF_END_PARAMS

#endif
