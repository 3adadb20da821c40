// y = (x - mean[c]) * scale[c] + shift[c]. A thread owns V channels and every grid-th pixel, and
// has four of them under way together.
const int channels = x_shape[3], lanes = channels / V;
const long pixels = long(x_shape[0]) * x_shape[1] * x_shape[2];
const int lane = thread_position_in_grid.x, c = lane * V;
if (lane >= lanes) return;
float center[V], slope[V], level[V];
for (int j = 0; j < V; ++j) {
  center[j] = mean[c + j];
  slope[j] = scale[c + j];
  level[j] = shift[c + j];
}
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.y;
for (long p = thread_position_in_grid.y; p < pixels; p += 4 * stride) {
  Pack<T, V> in[4];
  for (int i = 0; i < 4; ++i) in[i] = load<V>(x + (p + i * stride < pixels ? p + i * stride : p) * channels + c, wide);
  for (int i = 0; i < 4 && p + i * stride < pixels; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T((float(in[i].v[j]) - center[j]) * slope[j] + level[j]);
    store(y + (p + i * stride) * channels + c, out);
  }
}
