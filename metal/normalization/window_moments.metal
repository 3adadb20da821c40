// Mean and M2 over windows along one axis, in the way of window_sum, of elements that are, with F, the pixels of x, and
// else have moments themselves: of as many pixels as windows have in that row of the image. Means are told less the pixel
// in the middle, and are added up less one that all windows of a run hold, so that they keep their digits where the mean
// dwarfs the deviation, whatever is in other places.
#include "normalization/params.h"
#include "shared/moments.h"
const WindowLaunch launch = params_as<WindowLaunch>(params);
const int length = launch.length, inner = launch.inner, before = launch.before, after = launch.after;
const int run = launch.run, chunk = launch.chunk, height = x_shape[1];
const long lines = long(x_shape[0]) * height * x_shape[2] * x_shape[3] / length, line = thread_position_in_grid.x;
if (line >= lines) return;
const long start = line / inner * length * inner + line % inner;
const int row = line / inner % height;
const float count = F ? 1 : min_int(height, row + after + 1) - max_int(0, row - before);
Moments tops[R], own[R];
for (long from = long(thread_position_in_grid.y) * run; from < length; from += long(threads_per_grid.y) * run) {
  const int left = (from + run < length ? run : int(length - from)) - 1;  // elements that are not common to all
  const long low = from + left < before ? 0 : from + left - before, high = from + after;  // those that are
  const float pivot = float(x[start + low * inner]);
  Moments sum = {0, 0, 0}, prefix = {0, 0, 0};
  for (long q = low; q < length && q <= high; ++q) {
    sum = merged(sum, element<F>(x, mean, m2, start + q * inner, pivot, count));
  }
  for (int c = left / chunk; c >= 0; --c) {
    tops[c] = sum;
    for (int i = min_int(left, (c + 1) * chunk) - 1; i >= c * chunk && from - before + i >= 0; --i) {
      sum = merged(sum, element<F>(x, mean, m2, start + (from - before + i) * inner, pivot, count));
    }
  }
  for (int c = 0; c <= left / chunk; ++c) {
    const int end = min_int(left + 1, (c + 1) * chunk);
    sum = tops[c];
    for (int i = end - 1; i >= c * chunk; --i) {
      if (i < left && from - before + i >= 0) {
        sum = merged(sum, element<F>(x, mean, m2, start + (from - before + i) * inner, pivot, count));
      }
      own[i - c * chunk] = sum;
    }
    for (int i = c * chunk; i < end; ++i) {
      if (i > 0 && high + i < length) {
        prefix = merged(prefix, element<F>(x, mean, m2, start + (high + i) * inner, pivot, count));
      }
      const long to = start + (from + i) * inner;
      const Moments all = merged(own[i - c * chunk], prefix);
      out_mean[to] = all.mean - (float(x[to]) - pivot);
      out_m2[to] = all.m2;
    }
  }
}
