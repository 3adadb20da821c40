// y = (x - mean[c]) * scale[c] + shift[c], activated by N; each set of images has vectors of its own. R: all sets share
// scale and shift, and the scale is still to be divided by the root of var[c] + eps. A thread owns V channels of a set and
// every grid-th pixel, and has four of them under way together.
const int channels = x_shape[3], lanes = channels / V, sets = params[0];
const float eps = as_type<float>(params[1]);
const Activation known = activation_at(params, 2);
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, set = column / lanes, c = column % lanes * V;
if (set >= sets) return;
const long own = R ? c : long(column) * V;
float center[V], slope[V], level[V];
for (int j = 0; j < V; ++j) {
  center[j] = mean[long(column) * V + j];
  slope[j] = scale[own + j];
  if (R) slope[j] = slope_of(slope[j], var[long(column) * V + j], eps);
  level[j] = shift[own + j];
}
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.y, first = set * pixels, end = first + pixels;
for (long p = first + thread_position_in_grid.y; p < end; p += 4 * stride) {
  Pack<T, V> in[4];
  for (int i = 0; i < 4; ++i) in[i] = load<V>(x + (p + i * stride < end ? p + i * stride : p) * channels + c, wide);
  for (int i = 0; i < 4 && p + i * stride < end; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(activated<N>((float(in[i].v[j]) - center[j]) * slope[j] + level[j], known));
    store(y + (p + i * stride) * channels + c, out);
  }
}
