// dx = a[c] * g + b[c] * (x - mean[c]) + d[c], where g is dy through the activation N of (x - mean[c]) * scale[c] +
// shift[c]; each set of images has vectors of its own. R: all sets share the shift, and the scale is a. S: a, b and d are
// a batch's gamma, dgamma and dbeta, of which they are yet to be made. A threadgroup has `share` rows of pixels that
// follow one another; a thread owns V channels of a set and a pixel of each row, and loads W of them at a time.
const int channels = x_shape[3], lanes = channels / V, sets = params[0], height = params[1];  // height of the threadgroup
const long share = params[2];
const float eps = as_type<float>(params[3]);
const Activation known = activation_at(params, 4);
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, set = column / lanes, c = column % lanes * V;
if (set >= sets) return;
Affine<V> by;
Factors<V> f;
for (int j = 0; j < V; ++j) {
  by.center[j] = mean[long(column) * V + j];
  f.of_g[j] = a[long(column) * V + j];
  f.of_x[j] = b[long(column) * V + j];
  f.lift[j] = d[long(column) * V + j];
  by.slope[j] = by.level[j] = 0;
}
for (int j = 0; j < V * S; ++j) {
  const float root = slope_of(1, var[c + j], eps);
  f.of_g[j] *= root;
  const float by_pixel = f.of_g[j] / float(count[0]);
  f.of_x[j] *= -by_pixel * root;
  f.lift[j] *= -by_pixel;
}
for (int j = 0; j < V * int(N != 0); ++j) {
  by.slope[j] = R ? f.of_g[j] : float(scale[long(column) * V + j]);
  by.level[j] = shift[(R ? c : long(column) * V) + j];
}
const bool wide = aligned<V>(x) && aligned<V>(dy);
const long first = set * pixels, begin = first + long(threadgroup_position_in_grid.y) * share * height;
const long from = begin + thread_position_in_threadgroup.y;
const long end = begin + share * height < first + pixels ? begin + share * height : first + pixels;
const int many = int((end - from + height - 1) / height);
const long hop = long(height) * channels;
const long start = from * channels + c;
const int whole = int(wide) * (many / W * W);  // others go one by one
for (int k = 0; k < whole; k += W) {
  Held<T, V> in[W], in_dy[W];
  #pragma unroll
  for (int i = 0; i < W; ++i) {
    in_dy[i] = hold<V>(dy + (start + (k + i) * hop), true);
    in[i] = hold<V>(x + (start + (k + i) * hop), true);
  }
  #pragma unroll
  for (int i = 0; i < W; ++i) store(dx + (start + (k + i) * hop), combined<T, N, V>(in_dy[i], in[i], f, by, known));
}
for (int k = whole; k < many; ++k) {
  const long at = start + k * hop;
  store(dx + at, combined<T, N, V>(hold<V>(dy + at, wide), hold<V>(x + at, wide), f, by, known));
}
