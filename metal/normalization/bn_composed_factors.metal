// The scale's gradient, and a, b and d of an image gradient a * dy + b * (x - mean) + d whose statistics have gradients
// of their own. A thread takes a channel of a statistics group, and then the one a grid further.
#include "normalization/params.h"
#include "shared/norms.h"
const BnComposedFactorsLaunch launch = params_as<BnComposedFactorsLaunch>(params);
const int size = launch.size;
const float count = launch.params.elements, eps = launch.params.eps;
for (int c = thread_position_in_grid.x; c < size; c += threads_per_grid.x) {
  // Read before anything is written, so that they are under way together.
  const float of_mean = dmean[c], of_var = dvar[c], sum = dbeta[c];
  const float root = slope_of(1, var[c], eps), scaled = gamma[c] * root, share = scaled / count, grown = dot[c] * root;
  dgamma[c] = grown;
  a[c] = scaled;
  b[c] = 2 * of_var / count - share * (root * grown);
  d[c] = of_mean / count - share * sum;
}
