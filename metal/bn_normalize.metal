// y = (x - mean[c]) * scale[c] + shift[c], activated by N; each set of images has vectors of its own. A thread owns V
// channels and every grid-th pixel of a set, and has four of them under way together.
const int channels = x_shape[3], lanes = channels / V, sets = params[0];
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int lane = thread_position_in_grid.x, c = lane * V;
if (lane >= lanes) return;
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.y;
for (int set = thread_position_in_grid.z; set < sets; set += threads_per_grid.z) {
  const long first = set * pixels, vector = long(set) * channels + c;
  float center[V], slope[V], level[V];
  for (int j = 0; j < V; ++j) {
    center[j] = mean[vector + j];
    slope[j] = scale[vector + j];
    level[j] = shift[vector + j];
  }
  for (long p = thread_position_in_grid.y; p < pixels; p += 4 * stride) {
    Pack<T, V> in[4];
    for (int i = 0; i < 4; ++i) {
      in[i] = load<V>(x + (first + (p + i * stride < pixels ? p + i * stride : p)) * channels + c, wide);
    }
    for (int i = 0; i < 4 && p + i * stride < pixels; ++i) {
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = T(activated((float(in[i].v[j]) - center[j]) * slope[j] + level[j], N));
      store(y + (first + p + i * stride) * channels + c, out);
    }
  }
}
