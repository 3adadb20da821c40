// dx = a[c] * g + b[c] * (x - mean[c]) + d[c], where g is dy through the activation N of (x - mean[c]) * scale[c] +
// shift[c]; each set of images has vectors of its own, but for the shift where R. A thread owns V channels of a set and
// every grid-th pixel, and has B of them under way together.
const int channels = x_shape[3], lanes = channels / V, sets = params[0];
const Activation known = activation_at(params, 1);
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, set = column / lanes, c = column % lanes * V;
if (set >= sets) return;
float center[V], from_dy[V], from_x[V], lift[V], slope[V], level[V];
for (int j = 0; j < V; ++j) {
  center[j] = mean[long(column) * V + j];
  from_dy[j] = a[long(column) * V + j];
  from_x[j] = b[long(column) * V + j];
  lift[j] = d[long(column) * V + j];
  slope[j] = scale[long(column) * V + j];
  level[j] = shift[(R ? c : long(column) * V) + j];
}
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);
const long stride = threads_per_grid.y, first = set * pixels, end = first + pixels;
for (long p = first + thread_position_in_grid.y; p < end; p += B * stride) {
  Pack<T, V> in_dy[B], in[B];
  for (int i = 0; i < B; ++i) {
    const long at = (p + i * stride < end ? p + i * stride : p) * channels + c;
    in_dy[i] = load<V>(dy + at, wide_dy);
    in[i] = load<V>(x + at, wide);
  }
  for (int i = 0; i < B && p + i * stride < end; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      const float off = float(in[i].v[j]) - center[j];
      const float g = passed<N>(float(in_dy[i].v[j]), off * slope[j] + level[j], known);
      out.v[j] = T(from_dy[j] * g + (from_x[j] * off + lift[j]));
    }
    store(dx + (p + i * stride) * channels + c, out);
  }
}
