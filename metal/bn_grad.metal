// dx = a[c] * g + b[c] * (x - mean[c]) + d[c], where g is dy through the activation N of (x - mean[c]) * scale[c] +
// shift[c]; each set of images has vectors of its own. A thread owns V channels and every grid-th pixel of a set, and
// has four of them under way together.
const int channels = x_shape[3], lanes = channels / V, sets = params[0];
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int lane = thread_position_in_grid.x, c = lane * V;
if (lane >= lanes) return;
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);
const long stride = threads_per_grid.y;
for (int set = thread_position_in_grid.z; set < sets; set += threads_per_grid.z) {
  const long first = set * pixels, vector = long(set) * channels + c;
  float center[V], from_dy[V], from_x[V], lift[V], slope[V], level[V];
  for (int j = 0; j < V; ++j) {
    center[j] = mean[vector + j];
    from_dy[j] = a[vector + j];
    from_x[j] = b[vector + j];
    lift[j] = d[vector + j];
    slope[j] = N ? float(scale[vector + j]) : 0.0f;
    level[j] = N ? float(shift[vector + j]) : 0.0f;
  }
  for (long p = thread_position_in_grid.y; p < pixels; p += 4 * stride) {
    Pack<T, V> in_dy[4], in[4];
    for (int i = 0; i < 4; ++i) {
      const long at = (first + (p + i * stride < pixels ? p + i * stride : p)) * channels + c;
      in_dy[i] = load<V>(dy + at, wide_dy);
      in[i] = load<V>(x + at, wide);
    }
    for (int i = 0; i < 4 && p + i * stride < pixels; ++i) {
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) {
        const float off = float(in[i].v[j]) - center[j];
        const float g = through_neuron(float(in_dy[i].v[j]), off * slope[j] + level[j], N);
        out.v[j] = T(from_dy[j] * g + (from_x[j] * off + lift[j]));
      }
      store(dx + (first + p + i * stride) * channels + c, out);
    }
  }
}
