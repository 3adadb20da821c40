// max_pool_grad.metal where at most R windows span a pixel along an axis and no tap is moved to the edge: which tap each
// has on the pixel is worked out once for all images, and all loads for B images are under way together. What does not
// exist is loaded from pixel 0 or from another image, and left out of the sum.
const Axis rows = axis_at(params, 0), cols = axis_at(params, 1);
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int w = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (w >= cols.n_in) return;
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy), wide_winners = aligned<V>(winners);

int left_tap[R], left_at[R], top_at[R], code[R * R];
const int ow = reader_begin(cols, w), ow_end = reader_end(cols, w);
for (int k = 0; k < R; ++k) {
  left_tap[k] = ow + k < ow_end ? max_tap(cols, ow + k, w) : -1;
  left_at[k] = left_tap[k] >= 0 ? (ow + k) * channels : 0;
}
for (int h = thread_position_in_grid.y; h < rows.n_in; h += threads_per_grid.y) {
  const int oh = reader_begin(rows, h), oh_end = reader_end(rows, h);
  for (int q = 0; q < R; ++q) {
    const int tap = oh + q < oh_end ? max_tap(rows, oh + q, h) : -1;
    top_at[q] = tap >= 0 ? (oh + q) * cols.n_out * channels : 0;
    for (int k = 0; k < R; ++k) {  // a number that no winner has stands for no tap
      code[q * R + k] = tap >= 0 && left_tap[k] >= 0 ? tap * cols.size + left_tap[k] : -2;
    }
  }
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    const long from = n * dy_image + c;
    Pack<T, V> in[B * R * R];
    Pack<W, V> codes[B * R * R];
    #pragma unroll
    for (int i = 0; i < B * R * R; ++i) {
      const long image = n + i / (R * R) < images ? i / (R * R) * dy_image : 0;
      in[i] = load<V>(dy + from + image + top_at[i / R % R] + left_at[i % R], wide);
      codes[i] = load<V>(winners + from + image + top_at[i / R % R] + left_at[i % R], wide_winners);
    }
    #pragma unroll
    for (int i = 0; i < B && n + i < images; ++i) {
      Pack<T, V> out;
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        float sum = 0;
        #pragma unroll
        for (int q = 0; q < R * R; ++q) {
          sum += int(codes[i * R * R + q].v[j]) == code[q] ? float(in[i * R * R + q].v[j]) : 0.0f;
        }
        out.v[j] = T(sum);
      }
      store(dx + (n + i) * dx_image + (h * cols.n_in + w) * channels + c, out);
    }
  }
}
