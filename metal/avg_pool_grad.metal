// dx[n,h,w,c] = sum over the windows (oh, ow) that read (h, w) of dy[n,oh,ow,c] / (N(oh) N(ow)).
// A thread owns V channels of one input pixel and gathers, so there are no atomics and the bits repeat. It takes B
// images at a time as avg_pool.metal does. R bounds the windows that span a pixel along an axis, so that all loads are
// under way before the first is used; 0 leaves the bound open. A load that no window asks for goes to pixel 0.
const Axis rows = axis_at(params, 0), cols = axis_at(params, 1);
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int w = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (w >= cols.n_in) return;
const int ow_begin = reader_begin(cols, w), ow_end = reader_end(cols, w);
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy);
const bool uniform = rows.edge == 0;  // every window then has one and the same divisor
const float even_share = 1.0f / (float(rows.size) * float(cols.size));

for (int h = thread_position_in_grid.y; h < rows.n_in; h += threads_per_grid.y) {
  const int oh_begin = reader_begin(rows, h), oh_end = reader_end(rows, h);
  const int high = R > 0 ? R : oh_end - oh_begin, across = R > 0 ? R : ow_end - ow_begin;
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    float sum[B * V];
    for (int j = 0; j < B * V; ++j) sum[j] = 0;
    auto from = dy + n * dy_image + c;
    for (int q = 0; q < high; ++q) {
      const int oh = oh_begin + q;
      for (int k = 0; k < across; ++k) {
        const int ow = ow_begin + k;
        const bool live = oh < oh_end && ow < ow_end && reads(rows, oh, h) && reads(cols, ow, w);
        const float share = uniform ? even_share : 1.0f / (float(divisor(rows, oh)) * float(divisor(cols, ow)));
        const int at = live ? (oh * cols.n_out + ow) * channels : 0;
        Pack<T, V> in[B];
        for (int i = 0; i < B; ++i) in[i] = load<V>(from + at + (n + i < images ? i * dy_image : 0), wide);
        for (int j = 0; j < B * V; ++j) sum[j] += live ? float(in[j / V].v[j % V]) * share : 0.0f;
      }
    }
    for (int i = 0; i < B && n + i < images; ++i) {
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = T(sum[i * V + j]);
      store(dx + (n + i) * dx_image + (h * cols.n_in + w) * channels + c, out);
    }
  }
}
