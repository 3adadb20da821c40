// dx[n,h,w,c] = sum over the windows (oh, ow) that read (h, w) of dy[n,oh,ow,c] / (N(oh) N(ow)).
// A thread owns V channels of one input pixel and gathers, so there are no atomics and the bits repeat. It takes B
// images and up to two by two windows at a time, so that all their loads are under way before the first is used. What
// does not exist has the share 0, and its load goes to pixel 0 or repeats an image.
const Axis rows = axis_at(params, 0), cols = axis_at(params, 1);
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int w = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (w >= cols.n_in) return;
const int ow_begin = reader_begin(cols, w), ow_end = reader_end(cols, w);
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy);

for (int h = thread_position_in_grid.y; h < rows.n_in; h += threads_per_grid.y) {
  const int oh_begin = reader_begin(rows, h), oh_end = reader_end(rows, h);
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    auto from = dy + n * dy_image + c;
    float sum[B * V];
    for (int j = 0; j < B * V; ++j) sum[j] = 0;
    for (int oh = oh_begin; oh < oh_end; oh += 2) {
      const float top = share(rows, oh, h), bottom = share(rows, oh + 1, h);
      const int top_at = top > 0 ? oh * cols.n_out * channels : 0;
      const int bottom_at = bottom > 0 ? (oh + 1) * cols.n_out * channels : 0;
      for (int ow = ow_begin; ow < ow_end; ow += 2) {
        const float left = share(cols, ow, w), right = share(cols, ow + 1, w);
        const float shares[4] = {top * left, top * right, bottom * left, bottom * right};
        const int left_at = left > 0 ? ow * channels : 0, right_at = right > 0 ? (ow + 1) * channels : 0;
        const int at[4] = {top_at + left_at, top_at + right_at, bottom_at + left_at, bottom_at + right_at};
        Pack<T, V> in[4 * B];
        for (int i = 0; i < 4 * B; ++i) {
          in[i] = load<V>(from + at[i % 4] + (n + i / 4 < images ? i / 4 * dy_image : 0), wide);
        }
        for (int i = 0; i < 4 * B; ++i) {
          for (int j = 0; j < V; ++j) {  // an infinity that no window reads must not become NaN
            sum[i / 4 * V + j] += shares[i % 4] > 0 ? float(in[i].v[j]) * shares[i % 4] : 0.0f;
          }
        }
      }
    }
    for (int i = 0; i < B && n + i < images; ++i) {
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = T(sum[i * V + j]);
      store(dx + (n + i) * dx_image + (h * cols.n_in + w) * channels + c, out);
    }
  }
}
