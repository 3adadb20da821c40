// Sums of g and of g * (x - mean) of each channel over this threadgroup's share of a set's pixels; sets follow one
// another. g is dy through the activation N of (x - mean) * scale + shift; R: all sets share scale and shift, and the
// scale is still to be divided by the root of var + eps.
// A thread owns V channels of a set and every grid-th pixel; a threadgroup folds its rows of threads in a fixed order.
const int channels = x_shape[3], lanes = channels / V;
const int width = params[0], height = params[1], sets = params[2];  // width and height of the threadgroup
const float eps = as_type<float>(params[3]);
const Activation known = activation_at(params, 4);
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, columns = lanes * sets;
const int set = column / lanes, c = column % lanes * V, row = thread_position_in_threadgroup.y;
const int slot = (row * width + int(thread_position_in_threadgroup.x)) * V;
threadgroup float sums[256 * V], dots[256 * V];

const long own = R ? c : long(column) * V;
float own_sum[V], own_dot[V], center[V], slope[V], level[V];
for (int j = 0; j < V; ++j) {
  own_sum[j] = own_dot[j] = 0;
  center[j] = column < columns ? float(mean[long(column) * V + j]) : 0.0f;
  slope[j] = column < columns ? float(scale[own + j]) : 0.0f;
  if (R) slope[j] = slope_of(slope[j], column < columns ? float(var[long(column) * V + j]) : 1.0f, eps);
  level[j] = column < columns ? float(shift[own + j]) : 0.0f;
}
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);
const long stride = threads_per_grid.y, first = set * pixels;
const long end = column < columns ? first + pixels : first;
for (long p = first + thread_position_in_grid.y; p < end; p += 64 * stride) {
  float sum_64[V], dot_64[V];  // two levels, so that the error of a long sum stays small
  for (int j = 0; j < V; ++j) sum_64[j] = dot_64[j] = 0;
  for (int k = 0; k < 64 && p + k * stride < end; k += B) {
    Pack<T, V> in_dy[B], in[B];  // under way together
    for (int i = 0; i < B; ++i) {
      const long at = p + (k + i) * stride;
      if (at < end) in_dy[i] = load<V>(dy + at * channels + c, wide_dy);
      if (at < end) in[i] = load<V>(x + at * channels + c, wide);
    }
    for (int i = 0; i < B && p + (k + i) * stride < end; ++i) {
      for (int j = 0; j < V; ++j) {
        const float off = float(in[i].v[j]) - center[j];
        const float g = passed<N>(float(in_dy[i].v[j]), off * slope[j] + level[j], known);
        sum_64[j] += g;
        dot_64[j] += g * off;
      }
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
if (row == 0 && column < columns) {
  const long at = (long(threadgroup_position_in_grid.y) * 2 * columns + column) * V;
  for (int j = 0; j < V; ++j) {
    partial[at + j] = sums[slot + j];
    partial[at + long(columns) * V + j] = dots[slot + j];
  }
}
