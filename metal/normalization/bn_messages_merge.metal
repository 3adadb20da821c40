// Mean, variance and count of all processes, in the order of their ranks, from four rows of each: mean, variance, and
// its count as so many times 2^16 and the rest. A thread takes an entry of the rows, and then the one a grid further.
#include "normalization/params.h"
const BnMessagesMergeLaunch launch = params_as<BnMessagesMergeLaunch>(params);
const int size = launch.size, processes = launch.processes;
for (int c = thread_position_in_grid.x; c < size; c += threads_per_grid.x) {
  float of_mean = rows[c], of_var = rows[long(size) + c];
  long all = long(rows[2 * long(size) + c]) * 65536 + long(rows[3 * long(size) + c]);
  for (int process = 1; process < processes; ++process) {
    const long at = 4 * long(process) * size + c;
    const float apart = rows[at] - of_mean, their_var = rows[at + size];
    const long theirs = long(rows[at + 2 * long(size)]) * 65536 + long(rows[at + 3 * long(size)]);
    all += theirs;
    const float share = all == 0 ? 0.0f : float(theirs) / float(all);
    of_mean += share * apart;
    of_var += share * (their_var - of_var) + share * (1 - share) * apart * apart;
  }
  whole_mean[c] = of_mean;
  whole_var[c] = of_var;
  counts[c] = all;
}
