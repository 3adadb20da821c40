// avg_pool_grad.metal where windows of KY by KX taps, without dilation, stand SY by SX pixels apart. A thread owns V
// channels of a tile of DY by DX pixels, whole strides, and loads each window that reads it once, for B images at a
// time. Tiles begin where windows do, so that every tap is a constant.
const Axis rows = axis_at(params, 0), cols = axis_at(params, 1);
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
// Windows that read a tile, and those of them that begin before it.
constexpr int PY = (KY - 1) / SY, QY = DY / SY + PY, PX = (KX - 1) / SX, QX = DX / SX + PX, Q = QY * QX, D = DY * DX;
const int c = thread_position_in_grid.x % lanes * V;
const int tile_x = thread_position_in_grid.x / lanes + floor_div(cols.pad, DX), left = tile_x * DX - cols.pad;
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy);

const int ow = tile_x * (DX / SX) - PX;
float share_x[QX];
for (int k = 0; k < QX; ++k) share_x[k] = 1.0f / float(greater(1, divisor(cols, ow + k)));
const int first_y = floor_div(rows.pad, DY), end_y = floor_div(rows.n_in - 1 + rows.pad, DY) + 1;
for (int tile_y = first_y + thread_position_in_grid.y; tile_y < end_y; tile_y += threads_per_grid.y) {
  const int top = tile_y * DY - rows.pad, oh = tile_y * (DY / SY) - PY;
  float share_y[QY];
  for (int q = 0; q < QY; ++q) share_y[q] = 1.0f / float(greater(1, divisor(rows, oh + q)));
  int at[Q], to[D];  // of the windows and of the pixels; -1 where there is none
  for (int i = 0; i < Q; ++i) {
    const int row = oh + i / QX, col = ow + i % QX;
    at[i] = selected(rows, row) && selected(cols, col) ? (row * cols.n_out + col) * channels + c : -1;
  }
  for (int i = 0; i < D; ++i) {
    const int h = top + i / DX, w = left + i % DX;
    const bool inside = h >= 0 && h < rows.n_in && w >= 0 && w < cols.n_in;
    to[i] = inside ? (h * cols.n_in + w) * channels + c : -1;
  }
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    Pack<T, V> in[B * Q];
    #pragma unroll
    for (int i = 0; i < B * Q; ++i) {
      in[i] = nothing<T, V>();
      if (at[i % Q] >= 0 && n + i / Q < images) {
        in[i] = load<V>(dy + (n + i / Q) * dy_image + at[i % Q], wide);
      }
    }
    #pragma unroll
    for (int i = 0; i < B * D; ++i) {
      if (to[i % D] < 0 || n + i / D >= images) continue;
      Pack<T, V> out;
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        float sum = 0;
        #pragma unroll
        for (int q = 0; q < QY; ++q) {
          #pragma unroll
          for (int k = 0; k < QX; ++k) {
            const int tap_y = i % D / DX + (PY - q) * SY, tap_x = i % DX + (PX - k) * SX;
            const int window = i / D * Q + q * QX + k;
            if (tap_y < 0 || tap_y >= KY || tap_x < 0 || tap_x >= KX) continue;
            sum += float(in[window].v[j]) * (share_y[q] * share_x[k]);
          }
        }
        out.v[j] = T(sum);
      }
      store(dx + (n + i / D) * dx_image + to[i % D], out);
    }
  }
}
