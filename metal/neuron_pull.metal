// dz = dy where y > 0 and 0 elsewhere: the slope of a relu, told from what it returned. A thread has four packs of V
// elements under way together.
const long packs = long(dy_shape[0]) * dy_shape[1] * dy_shape[2] * dy_shape[3] / V;
const bool wide = aligned<V>(dy), wide_y = aligned<V>(y);
const long stride = threads_per_grid.x;
for (long p = thread_position_in_grid.x; p < packs; p += 4 * stride) {
  Pack<T, V> g[4], came[4];
  for (int i = 0; i < 4; ++i) {
    const long at = (p + i * stride < packs ? p + i * stride : p) * V;
    g[i] = load<V>(dy + at, wide);
    came[i] = load<V>(y + at, wide_y);
  }
  for (int i = 0; i < 4 && p + i * stride < packs; ++i) {
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) out.v[j] = T(float(came[i].v[j]) > 0 ? float(g[i].v[j]) : 0.0f);
    store(dz + (p + i * stride) * V, out);
  }
}
