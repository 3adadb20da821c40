// avg_pool_grad.metal where at most R windows span a pixel along an axis: their places and shares are worked out once
// for all images, and the loads of all of them for B images are under way together. What does not exist has the share
// 0, and its load goes to pixel 0 or repeats an image.
const Axis rows = axis_at(params, 0), cols = axis_at(params, 1);
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int w = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (w >= cols.n_in) return;
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy);

float left_share[R], top_share[R];
int left_at[R], top_at[R];
const int ow = reader_begin(cols, w), ow_end = reader_end(cols, w);
for (int k = 0; k < R; ++k) {
  const bool live = ow + k < ow_end && reads(cols, ow + k, w);
  left_share[k] = live ? 1.0f / float(divisor(cols, ow + k)) : 0.0f;
  left_at[k] = live ? (ow + k) * channels : 0;
}
for (int h = thread_position_in_grid.y; h < rows.n_in; h += threads_per_grid.y) {
  const int oh = reader_begin(rows, h), oh_end = reader_end(rows, h);
  for (int q = 0; q < R; ++q) {
    const bool live = oh + q < oh_end && reads(rows, oh + q, h);
    top_share[q] = live ? 1.0f / float(divisor(rows, oh + q)) : 0.0f;
    top_at[q] = live ? (oh + q) * cols.n_out * channels : 0;
  }
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    auto from = dy + n * dy_image + c;
    Pack<T, V> in[B * R * R];
    #pragma unroll
    for (int i = 0; i < B * R * R; ++i) {
      const long image = n + i / (R * R) < images ? i / (R * R) * dy_image : 0;
      in[i] = load<V>(from + image + top_at[i / R % R] + left_at[i % R], wide);
    }
    #pragma unroll
    for (int i = 0; i < B && n + i < images; ++i) {
      Pack<T, V> out;
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        float sum = 0;
        #pragma unroll
        for (int q = 0; q < R * R; ++q) {  // an infinity that no window reads must not become NaN
          const float share = top_share[q / R] * left_share[q % R];
          sum += share > 0 ? float(in[i * R * R + q].v[j]) * share : 0.0f;
        }
        out.v[j] = T(sum);
      }
      store(dx + (n + i) * dx_image + (h * cols.n_in + w) * channels + c, out);
    }
  }
}
