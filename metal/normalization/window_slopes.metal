// Sums of a, b and c over windows along one axis, in the way of window_sum, where c is b times a distance to the pixel
// of x in the same place, and is to be b times that to the pixel in the middle of the window. Distances are added up
// less that to a pixel of the run, so that they keep their digits where the image dwarfs them: of three the middle
// value, so that no single pixel that dwarfs all others takes their digits away.
#include "normalization/params.h"
#include "shared/moments.h"
const WindowLaunch launch = params_as<WindowLaunch>(params);
const int length = launch.length, inner = launch.inner, before = launch.before, after = launch.after;
const int run = launch.run, chunk = launch.chunk;
const long lines = long(x_shape[0]) * x_shape[1] * x_shape[2] * x_shape[3] / length, line = thread_position_in_grid.x;
if (line >= lines) return;
const long start = line / inner * length * inner + line % inner;
Slopes tops[R], own[R];
for (long from = long(thread_position_in_grid.y) * run; from < length; from += long(threads_per_grid.y) * run) {
  const int left = (from + run < length ? run : int(length - from)) - 1;  // elements that are not common to all
  const long low = from + left < before ? 0 : from + left - before, high = from + after;  // those that are
  const float pivot = median(float(x[start + from * inner]), float(x[start + (from + left / 2) * inner]),
                             float(x[start + (from + left) * inner]));
  Slopes sum = {0, 0, 0}, prefix = {0, 0, 0};
  for (long q = low; q < length && q <= high; ++q) sum = beside(sum, x, a, b, c, start + q * inner, pivot);
  for (int part = left / chunk; part >= 0; --part) {
    tops[part] = sum;
    for (int i = min_int(left, (part + 1) * chunk) - 1; i >= part * chunk && from - before + i >= 0; --i) {
      sum = beside(sum, x, a, b, c, start + (from - before + i) * inner, pivot);
    }
  }
  for (int part = 0; part <= left / chunk; ++part) {
    const int end = min_int(left + 1, (part + 1) * chunk);
    sum = tops[part];
    for (int i = end - 1; i >= part * chunk; --i) {
      if (i < left && from - before + i >= 0) {
        sum = beside(sum, x, a, b, c, start + (from - before + i) * inner, pivot);
      }
      own[i - part * chunk] = sum;
    }
    for (int i = part * chunk; i < end; ++i) {
      if (i > 0 && high + i < length) prefix = beside(prefix, x, a, b, c, start + (high + i) * inner, pivot);
      const long to = start + (from + i) * inner;
      const Slopes mine = own[i - part * chunk];
      const float all_b = mine.b + prefix.b;
      out_a[to] = mine.a + prefix.a;
      out_b[to] = all_b;
      out_c[to] = mine.c + prefix.c - (float(x[to]) - pivot) * all_b;
    }
  }
}
