// Sums of dy and of dy * (x - mean) of each channel over this threadgroup's share of the pixels.
// A thread owns V channels and every grid-th pixel; a threadgroup folds its rows of threads in a fixed order.
const int channels = x_shape[3], lanes = channels / V;
const long pixels = long(x_shape[0]) * x_shape[1] * x_shape[2];
const int width = params[0], height = params[1];  // of the threadgroup
const int lane = thread_position_in_grid.x, c = lane * V;
const int row = thread_position_in_threadgroup.y;
const int slot = (row * width + int(thread_position_in_threadgroup.x)) * V;
threadgroup float sums[256 * V], dots[256 * V];

float own_sum[V], own_dot[V], center[V];
for (int j = 0; j < V; ++j) {
  own_sum[j] = own_dot[j] = 0;
  center[j] = lane < lanes ? float(mean[c + j]) : 0.0f;
}
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);
const long stride = threads_per_grid.y;
for (long p = thread_position_in_grid.y; lane < lanes && p < pixels; p += 64 * stride) {
  float sum_64[V], dot_64[V];  // two levels, so that the error of a long sum stays small
  for (int j = 0; j < V; ++j) sum_64[j] = dot_64[j] = 0;
  for (int k = 0; k < 64 && p + k * stride < pixels; ++k) {
    const Pack<T, V> g = load<V>(dy + (p + k * stride) * channels + c, wide_dy);
    const Pack<T, V> in = load<V>(x + (p + k * stride) * channels + c, wide);
    for (int j = 0; j < V; ++j) {
      sum_64[j] += float(g.v[j]);
      dot_64[j] += float(g.v[j]) * (float(in.v[j]) - center[j]);
    }
  }
  for (int j = 0; j < V; ++j) {
    own_sum[j] += sum_64[j];
    own_dot[j] += dot_64[j];
  }
}
for (int j = 0; j < V; ++j) {
  sums[slot + j] = own_sum[j];
  dots[slot + j] = own_dot[j];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    const int other = slot + half_height * width * V;
    for (int j = 0; j < V; ++j) {
      sums[slot + j] += sums[other + j];
      dots[slot + j] += dots[other + j];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && lane < lanes) {
  const int at = int(threadgroup_position_in_grid.y) * 2 * channels + c;
  for (int j = 0; j < V; ++j) {
    partial[at + j] = sums[slot + j];
    partial[at + channels + j] = dots[slot + j];
  }
}
