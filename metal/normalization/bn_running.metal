// Running statistics moved a share of the way to those of a batch of so many elements; none leaves them where they are,
// and one, which has no variance, makes the variance NaN.
#include "normalization/params.h"
const BnRunningLaunch launch = params_as<BnRunningLaunch>(params);
const int size = launch.size;
const float share = launch.params.share, unbiased = launch.params.unbiased;
const long seen = count[0];
const float elements = float(seen), wider = unbiased != 0 ? elements / (elements - 1) : 1.0f;
const float factor = seen == 1 ? as_type<float>(0x7fc00000) : wider;
for (int c = thread_position_in_grid.x; c < size; c += threads_per_grid.x) {
  const float known_mean = float(running_mean[c]), known_var = float(running_var[c]);
  const float found_mean = float(mean[c]), found_var = float(var[c]) * factor;
  moved_mean[c] = T(seen == 0 ? known_mean : known_mean + share * (found_mean - known_mean));
  moved_var[c] = T(seen == 0 ? known_var : known_var + share * (found_var - known_var));
}
