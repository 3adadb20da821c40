// Count, mean and M2 of each channel over this threadgroup's share of a set's pixels; sets follow one another. Means are
// told less the set's first pixel, so that they keep their digits where the mean dwarfs the deviation.
// A thread owns V channels of a set and every grid-th pixel; a threadgroup folds its rows of threads in a fixed order.
const int channels = x_shape[3], lanes = channels / V;
const int width = params[0], height = params[1], sets = params[2];  // width and height of the threadgroup
const long pixels = x_shape[0] / sets * long(x_shape[1]) * x_shape[2];
const int column = thread_position_in_grid.x, columns = lanes * sets;
const int set = column / lanes, c = column % lanes * V, row = thread_position_in_threadgroup.y;
const int slot = (row * width + int(thread_position_in_threadgroup.x)) * V;
threadgroup float counts[256 * V], means[256 * V], m2s[256 * V];

const long first = set * pixels, end = column < columns ? first + pixels : first;
Moments own[V];
float origin[V];
for (int j = 0; j < V; ++j) {
  own[j] = Moments{0, 0, 0};
  origin[j] = column < columns ? float(x[first * channels + c + j]) : 0.0f;
}
const bool wide = aligned<V>(x);
const long stride = threads_per_grid.y;
const long from = first + thread_position_in_grid.y;
// Sums around a pixel, of at most 64 of them; eight are under way together, with AHEAD while the eight before them are
// added.
float shift[V], sum[V], squares[V];
Pack<T, V> in[8], ahead[8];
#pragma unroll
for (int i = 0; i < 8; ++i) {
  if (AHEAD && from + i * stride < end) ahead[i] = load<V>(x + (from + i * stride) * channels + c, wide);
}
for (long block = from; AHEAD && block < end; block += 64 * stride) {
  for (int j = 0; j < V; ++j) {
    shift[j] = float(ahead[0].v[j]);
    sum[j] = squares[j] = 0;
  }
  int many = 0;
  for (long p = block; p < end && p < block + 64 * stride; p += 8 * stride) {
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
      in[i] = ahead[i];
      if (p + (8 + i) * stride < end) ahead[i] = load<V>(x + (p + (8 + i) * stride) * channels + c, wide);
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (p + i * stride < end) {
        ++many;
        for (int j = 0; j < V; ++j) {
          const float d = float(in[i].v[j]) - shift[j];
          sum[j] += d;
          squares[j] += d * d;
        }
      }
    }
  }
  for (int j = 0; j < V; ++j) own[j] = merged(own[j], moments_of(many, shift[j] - origin[j], sum[j], squares[j]));
}
for (long p = from; !AHEAD && p < end; p += 64 * stride) {
  const int many = (end - p + stride - 1) / stride < 64 ? (end - p + stride - 1) / stride : 64;
  const Pack<T, V> pivot = load<V>(x + p * channels + c, wide);
  for (int j = 0; j < V; ++j) {
    shift[j] = float(pivot.v[j]);
    sum[j] = squares[j] = 0;
  }
  for (int k = 1; k < many; k += 8) {  // where fewer are left the pivot, which adds nothing
    for (int i = 0; i < 8; ++i) in[i] = load<V>(x + (k + i < many ? p + (k + i) * stride : p) * channels + c, wide);
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < V; ++j) {
        const float d = float(in[i].v[j]) - shift[j];
        sum[j] += d;
        squares[j] += d * d;
      }
    }
  }
  for (int j = 0; j < V; ++j) own[j] = merged(own[j], moments_of(many, shift[j] - origin[j], sum[j], squares[j]));
}
for (int j = 0; j < V; ++j) {
  counts[slot + j] = own[j].count;
  means[slot + j] = own[j].mean;
  m2s[slot + j] = own[j].m2;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    const int other = slot + half_height * width * V;
    for (int j = 0; j < V; ++j) {
      own[j] = merged(own[j], Moments{counts[other + j], means[other + j], m2s[other + j]});
      counts[slot + j] = own[j].count;
      means[slot + j] = own[j].mean;
      m2s[slot + j] = own[j].m2;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && column < columns) {
  const long at = (long(threadgroup_position_in_grid.y) * columns + column) * V;
  for (int j = 0; j < V; ++j) {
    count[at + j] = own[j].count;
    mean[at + j] = own[j].mean;
    m2[at + j] = own[j].m2;
  }
}
