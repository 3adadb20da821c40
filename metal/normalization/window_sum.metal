// Sums over windows along one axis, y[p] = sum of x[q] or, with S, of x[q]^2, q in [p - before, p + after] where the line
// has such: after van Herk and Gil and Werman, by additions alone and in a few of them however long a window is.
// A thread makes a run of results for V lines, whose windows have elements in common. To their sum it adds suffix sums of
// what is to the left, of which it keeps a chunk of up to R at a time and one at the end of each chunk, and prefix sums
// of what is to the right.
#include "normalization/params.h"
#include "shared/vector_load.h"
const WindowLaunch launch = params_as<WindowLaunch>(params);
const int length = launch.length, inner = launch.inner, before = launch.before, after = launch.after;
const int run = launch.run, chunk = launch.chunk;
const long lines = long(x_shape[0]) * x_shape[1] * x_shape[2] * x_shape[3] / length;
const long line = long(thread_position_in_grid.x) * V;
if (line >= lines) return;
const long start = line / inner * length * inner + line % inner;
const bool wide = aligned<V>(x);
Pack<float, V> tops[R], own[R];
for (long from = long(thread_position_in_grid.y) * run; from < length; from += long(threads_per_grid.y) * run) {
  const int left = (from + run < length ? run : int(length - from)) - 1;  // elements that are not common to all
  const long low = from + left < before ? 0 : from + left - before, high = from + after;  // those that are
  Pack<float, V> sum = nothing<float, V>(), prefix = nothing<float, V>();
  for (long q = low; q < length && q <= high; ++q) sum = plus<S>(sum, load<V>(x + start + q * inner, wide));
  for (int c = left / chunk; c >= 0; --c) {
    tops[c] = sum;
    for (int i = min_int(left, (c + 1) * chunk) - 1; i >= c * chunk && from - before + i >= 0; --i) {
      sum = plus<S>(sum, load<V>(x + start + (from - before + i) * inner, wide));
    }
  }
  for (int c = 0; c <= left / chunk; ++c) {
    const int end = min_int(left + 1, (c + 1) * chunk);
    sum = tops[c];
    for (int i = end - 1; i >= c * chunk; --i) {
      if (i < left && from - before + i >= 0) {
        sum = plus<S>(sum, load<V>(x + start + (from - before + i) * inner, wide));
      }
      own[i - c * chunk] = sum;
    }
    for (int i = c * chunk; i < end; ++i) {
      if (i > 0 && high + i < length) prefix = plus<S>(prefix, load<V>(x + start + (high + i) * inner, wide));
      store(y + start + (from + i) * inner, plus<0>(prefix, own[i - c * chunk]));
    }
  }
}
