// Sums of g and of g * (x - mean) of each channel over this threadgroup's share of a set's pixels; sets follow one
// another. g is dy through the activation N of (x - mean) * scale + shift; R: all sets share scale and shift, and the
// scale is still to be divided by the root of var + eps.
// A thread owns V channels of a set and every grid-th pixel; a threadgroup folds its rows of threads in a fixed order.
const int channels = x_shape[3], lanes = channels / V;
const int width = params[0], height = params[1], sets = params[2];  // width and height of the threadgroup
const int kept = params[3];  // the first of a thread's pixels that stay in a cache
const float eps = as_type<float>(params[4]);
const Activation known = activation_at(params, 5);
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, columns = lanes * sets;
const int set = column / lanes, c = column % lanes * V, row = thread_position_in_threadgroup.y;
const int slot = row * width + int(thread_position_in_threadgroup.x);
threadgroup float sums[256 * V], dots[256 * V];

const int own = R ? c / V : column;
Affine<V> by;
for (int j = 0; j < V; ++j) {
  sums[slot + 256 * j] = dots[slot + 256 * j] = 0;
  by.center.v[j] = by.slope.v[j] = by.level.v[j] = 0;
}
if (column < columns) by.center = entries<V>(mean, column);
if (N != 0 && column < columns) {
  by.slope = entries<V>(scale, own);
  by.level = entries<V>(shift, own);
}
for (int j = 0; j < V * int(R && N != 0 && column < columns); ++j) {
  by.slope.v[j] = slope_of(by.slope.v[j], var[long(column) * V + j], eps);
}
const long first = set * pixels, end = column < columns ? first + pixels : first;
const bool wide = aligned<V>(x) && aligned<V>(dy);
const long stride = threads_per_grid.y, hop = -stride * channels, from = first + thread_position_in_grid.y;
const int many = int((end - from + stride - 1) / stride);
// From the last pixel to the first, with which bn_grad begins; W of them are under way at any time. Told which to keep,
// an H200 takes 5 % longer in four bytes, and an eighth less in two with an activation.
const long start = (first + end - 1 - from) * channels + c;
const int whole = int(wide) * (many / W * W);
const auto keep = keeping<sizeof(T) == 2>();
Held<T, V> in[W], in_dy[W];
#pragma unroll
for (int i = 0; i < W; ++i) {
  if (i < whole) in_dy[i] = hold<V>(dy + (start + i * hop), keep, i < kept);
  if (i < whole) in[i] = hold<V>(x + (start + i * hop), keep, i < kept);
}
for (int block = 0; block < many; block += 64) {  // sums of at most 64, so that the error of a long sum stays small
  const int until = min(many, block + 64), rest = max(block, min(whole, until));
  Pulls<V> s = no_pulls<V>();
  for (int k = block; k < rest; k += W) {
    const long next = start + (k + W) * hop;
    #pragma unroll
    for (int i = 0; i < W; ++i) {
      s = pulls_with<N, V>(s, in_dy[i], in[i], by, known);
      if (k + W < whole) in_dy[i] = hold<V>(dy + (next + i * hop), keep, k + W < kept);
      if (k + W < whole) in[i] = hold<V>(x + (next + i * hop), keep, k + W < kept);
    }
  }
  for (int k = rest; k < until; ++k) {
    const long at = start + k * hop;
    s = pulls_with<N, V>(s, hold<V>(dy + at, wide), hold<V>(x + at, wide), by, known);
  }
  for (int j = 0; j < V; ++j) {
    sums[slot + 256 * j] += s.sum[j];
    dots[slot + 256 * j] += s.dot[j];
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    const int other = slot + half_height * width;
    for (int j = 0; j < V; ++j) {
      sums[slot + 256 * j] += sums[other + 256 * j];
      dots[slot + 256 * j] += dots[other + 256 * j];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && column < columns) {
  const long to = (long(threadgroup_position_in_grid.y) * 2 * columns + column) * V;
  for (int j = 0; j < V; ++j) {
    partial[to + j] = sums[slot + 256 * j];
    partial[to + long(columns) * V + j] = dots[slot + 256 * j];
  }
}
