// y = (x - mean[c]) * scale[c] + shift[c], to which A adds another image, activated by N; each statistics group of images
// has vectors of its own. R: all groups share scale and shift, and the scale is still to be divided by the root of
// var[c] + eps. A threadgroup has `share` rows of pixels that follow one another; a thread owns V channels of a group and
// a pixel of each row, and has W of them under way.
#include "shared/vector_load.h"
#include "shared/norms.h"
#include "normalization/channel_sums.h"
#include "normalization/params.h"
const BnNormalizeLaunch launch = params_as<BnNormalizeLaunch>(params);
const int channels = x_shape[3], lanes = channels / V, height = launch.height;  // height of the threadgroup
const int stat_groups = launch.stat_groups;
const long share = launch.share;
const float eps = launch.eps;
const ActivationParams known = launch.act;
const long pixels = x_shape[0] / stat_groups * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, stat_group = column / lanes, lane = column % lanes, c = lane * V;
if (stat_group >= stat_groups) return;
const bool wide = aligned<V>(x) && (!A || aligned<V>(added));
const long first = stat_group * pixels, begin = first + long(threadgroup_position_in_grid.y) * share * height;
const long from = begin + thread_position_in_threadgroup.y;
const long end = begin + share * height < first + pixels ? begin + share * height : first + pixels;
const int many = int((end - from + height - 1) / height);
const long hop = long(height) * channels;
const long start = from * channels + c;
const int whole = int(wide) * (many / W * W);  // others go one by one
// Pixels are under way while the vectors are made ready, and then the next while one is stored.
Staged<T, V> in[W], more[W];
#pragma unroll
for (int i = 0; i < W; ++i) {
  if (i < whole) in[i] = hold<V>(x + (start + i * hop), true);
  if (A && i < whole) more[i] = hold<V>(added + (start + i * hop), true);
}
const int own = R ? lane : column;
Affine<V> by;
by.center = entries<V>(mean, column);
by.slope = entries<V>(scale, own);
by.level = entries<V>(shift, own);
if (R) {
  const Pack<float, V> spread = entries<V>(var, column);
  for (int j = 0; j < V; ++j) by.slope.v[j] = slope_of(by.slope.v[j], spread.v[j], eps);
}
for (int k = 0; k < whole; k += W) {
  const long at = start + k * hop, next = at + W * hop;
  #pragma unroll
  for (int i = 0; i < W; ++i) {
    store(y + (at + i * hop), normalized<T, N, A, V>(in[i], more[i], by, known));
    if (k + W < whole) in[i] = hold<V>(x + (next + i * hop), true);
    if (A && k + W < whole) more[i] = hold<V>(added + (next + i * hop), true);
  }
}
for (int k = whole; k < many; ++k) {
  const long at = start + k * hop;
  store(y + at, normalized<T, N, A, V>(hold<V>(x + at, wide), hold<V>(added + at, wide), by, known));
}
