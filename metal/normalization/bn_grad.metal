// dx = a[c] * g + b[c] * (x - mean[c]) + d[c], where g is dy through the activation N of (x - mean[c]) * scale[c] +
// shift[c]; each statistics group of images has vectors of its own. R: all groups share the shift, and the scale is a.
// A threadgroup has `share` rows of pixels that follow one another; a thread owns V channels of a group and a pixel of
// each row, and has W of them under way.
#include "shared/vector_load.h"
#include "normalization/channel_sums.h"
#include "normalization/params.h"
const BnGradLaunch launch = params_as<BnGradLaunch>(params);
const int channels = x_shape[3], lanes = channels / V, height = launch.height;  // height of the threadgroup
const int stat_groups = launch.stat_groups;
const long share = launch.share;
const ActivationParams known = launch.act;
const long pixels = x_shape[0] / stat_groups * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, stat_group = column / lanes, lane = column % lanes, c = lane * V;
if (stat_group >= stat_groups) return;
const bool wide = aligned<V>(x) && aligned<V>(dy);
const long first = stat_group * pixels, begin = first + long(threadgroup_position_in_grid.y) * share * height;
const long from = begin + thread_position_in_threadgroup.y;
const long end = begin + share * height < first + pixels ? begin + share * height : first + pixels;
const int many = int((end - from + height - 1) / height);
const long hop = long(height) * channels;
const long start = from * channels + c;
const int whole = int(wide) * (many / W * W);  // others go one by one
// Pixels are under way while the vectors are made ready, and then the next while one is stored.
Staged<T, V> in[W], in_dy[W];
#pragma unroll
for (int i = 0; i < W; ++i) {
  if (i < whole) in_dy[i] = hold<V>(dy + (start + i * hop), true);
  if (i < whole) in[i] = hold<V>(x + (start + i * hop), true);
}
Affine<V> by;
Factors<V> f;
by.center = entries<V>(mean, column);
f.of_g = entries<V>(a, column);
f.of_x = entries<V>(b, column);
f.lift = entries<V>(d, column);
by.slope = entries<V, N != 0 && !R>(scale, column);
for (int j = 0; j < V * R; ++j) by.slope.v[j] = f.of_g.v[j];
by.level = entries<V, N != 0>(shift, R ? lane : column);
for (int k = 0; k < whole; k += W) {
  const long at = start + k * hop, next = at + W * hop;
  #pragma unroll
  for (int i = 0; i < W; ++i) {
    store(dx + (at + i * hop), combined<T, N, V>(in_dy[i], in[i], f, by, known));
    if (k + W < whole) in_dy[i] = hold<V>(dy + (next + i * hop), true);
    if (k + W < whole) in[i] = hold<V>(x + (next + i * hop), true);
  }
}
for (int k = whole; k < many; ++k) {
  const long at = start + k * hop;
  store(dx + at, combined<T, N, V>(hold<V>(dy + at, wide), hold<V>(x + at, wide), f, by, known));
}
