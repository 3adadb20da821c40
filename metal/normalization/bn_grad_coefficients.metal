// a, b and d of an image gradient a * g + b * (x - mean) + d, from what a batch's state holds. A thread takes a channel,
// and then the one a grid further.
#include "normalization/params.h"
#include "shared/norms.h"
const BnGradCoefficientsLaunch launch = params_as<BnGradCoefficientsLaunch>(params);
const int channels = launch.channels;
const float eps = launch.eps;
for (int c = thread_position_in_grid.x; c < channels; c += threads_per_grid.x) {
  // Read before anything is written, so that they are under way together.
  const float of_gamma = float(dgamma[c]), of_beta = float(dbeta[c]), pixels = float(count[0]);
  const float root = slope_of(1, var[c], eps), scaled = float(gamma[c]) * root, share = scaled / pixels;
  a[c] = scaled;
  b[c] = -share * (root * of_gamma);
  d[c] = -share * of_beta;
}
