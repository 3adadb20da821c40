// Count, mean and M2 of each channel over this threadgroup's share of a set's pixels; sets follow one another. Means are
// told less the set's first pixel, so that they keep their digits where the mean dwarfs the deviation.
// A thread owns V channels of a set and every grid-th pixel; a threadgroup folds its rows of threads in a fixed order.
const int channels = x_shape[3], lanes = channels / V;
const int width = params[0], height = params[1], sets = params[2];  // width and height of the threadgroup
const int kept = params[3];  // the first of a thread's pixels that stay in a cache
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, columns = lanes * sets;
const int set = column / lanes, c = column % lanes * V, row = thread_position_in_threadgroup.y;
const int slot = row * width + int(thread_position_in_threadgroup.x);
threadgroup float counts[256], means[256 * V], m2s[256 * V];

const long first = set * pixels, end = column < columns ? first + pixels : first;
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.y, hop = -stride * channels, from = first + thread_position_in_grid.y;
const int many = int((end - from + stride - 1) / stride);
counts[slot] = 0;
// The pixels go from the last to the first, which is the first that is read again when the image is normalized, so that
// a part of it is still in the cache. W of them are under way at any time: the next takes the place of each that has been
// added. Those that are left over, or cannot be loaded at once, go one by one.
const long start = (first + end - 1 - from) * channels + c;
const int whole = int(wide) * (many / W * W);
Held<T, V> in[W];
#pragma unroll
for (int i = 0; i < W; ++i) {
  if (i < whole) in[i] = hold<V>(x + (start + i * hop), keeping<1>(i, kept));
}
for (int block = 0; block < many; block += 64) {  // sums of at most 64, so that their errors stay small
  const int until = min(many, block + 64), rest = max(block, min(whole, until));
  Spread<V> s = spread_from<V>(hold<V>(x + (start + block * hop), wide));
  for (int k = block; k < rest; k += W) {
    const long next = start + (k + W) * hop;
    #pragma unroll
    for (int i = 0; i < W; ++i) {
      s = spread_with<V>(s, in[i]);
      if (k + W < whole) in[i] = hold<V>(x + (next + i * hop), keeping<1>(k + W, kept));
    }
  }
  for (int k = rest; k < until; ++k) s = spread_with<V>(s, hold<V>(x + (start + k * hop), wide));
  for (int j = 0; j < V; ++j) {
    const Moments before = {counts[slot], means[slot + 256 * j], m2s[slot + 256 * j]};
    const float origin = x[first * channels + c + j];
    const Moments m = merged(before, moments_of(until - block, s.shift[j] - origin, s.sum[j], s.squares[j]));
    means[slot + 256 * j] = m.mean;
    m2s[slot + 256 * j] = m.m2;
  }
  counts[slot] += until - block;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    const int other = slot + half_height * width;
    for (int j = 0; j < V; ++j) {
      const Moments mine = {counts[slot], means[slot + 256 * j], m2s[slot + 256 * j]};
      const Moments m = merged(mine, Moments{counts[other], means[other + 256 * j], m2s[other + 256 * j]});
      means[slot + 256 * j] = m.mean;
      m2s[slot + 256 * j] = m.m2;
    }
    counts[slot] += counts[other];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && column < columns) {
  const long to = (long(threadgroup_position_in_grid.y) * columns + column) * V;
  for (int j = 0; j < V; ++j) {
    count[to + j] = counts[slot];
    mean[to + j] = means[slot + 256 * j];
    m2[to + j] = m2s[slot + 256 * j];
  }
}
