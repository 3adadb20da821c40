// dx = a[c] * dy + b[c] * (x - mean[c]) + d[c]. A thread owns V channels and every grid-th pixel,
// and has four of them under way together.
const int channels = x_shape[3], lanes = channels / V;
const long pixels = long(x_shape[0]) * x_shape[1] * x_shape[2];
const int lane = thread_position_in_grid.x, c = lane * V;
if (lane >= lanes) return;
float center[V], from_dy[V], from_x[V], level[V];
for (int j = 0; j < V; ++j) {
  center[j] = mean[c + j];
  from_dy[j] = a[c + j];
  from_x[j] = b[c + j];
  level[j] = d[c + j];
}
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);
const long stride = threads_per_grid.y;
for (long p = thread_position_in_grid.y; p < pixels; p += 4 * stride) {
  Pack<T, V> g[4], in[4];
  for (int i = 0; i < 4; ++i) {
    const long at = (p + i * stride < pixels ? p + i * stride : p) * channels + c;
    g[i] = load<V>(dy + at, wide_dy);
    in[i] = load<V>(x + at, wide);
  }
  for (int i = 0; i < 4 && p + i * stride < pixels; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      const float along_x = from_x[j] * (float(in[i].v[j]) - center[j]) + level[j];
      out.v[j] = T(from_dy[j] * float(g[i].v[j]) + along_x);
    }
    store(dx + (p + i * stride) * channels + c, out);
  }
}
