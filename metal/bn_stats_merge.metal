// Mean and population variance of each set's channels from the threadgroups' partial moments, folded in a fixed order.
// Their means are less the first pixel of the set.
const int parts = mean_shape[0], columns = mean_shape[1], channels = x_shape[3];
const int width = params[0], height = params[1];  // of the threadgroup
const long pixels = x_shape[0] / (columns / channels) * long(x_shape[1]) * x_shape[2];  // of a set
const int column = thread_position_in_grid.x, row = thread_position_in_threadgroup.y;
const int slot = row * width + int(thread_position_in_threadgroup.x);
threadgroup float counts[256], means[256], m2s[256];

const bool told = row == 0 && column < columns;
float pivot = 0;
if (told) pivot = x[column / channels * pixels * channels + column % channels];  // while the parts are read
Moments own = {0, 0, 0};
if (column < columns) {
  for (int part = row; part < parts; part += 8 * height) {
    Moments some[8];  // read before any is merged, since each read takes longer than a merger
    for (int i = 0; i < 8; ++i) {
      const int at = (part + i * height) * columns + column;
      some[i] = Moments{0, 0, 0};
      if (part + i * height < parts) some[i] = Moments{count[at], mean[at], m2[at]};
    }
    for (int apart = 1; apart < 8; apart *= 2) {
      for (int i = 0; i < 8; i += 2 * apart) some[i] = merged(some[i], some[i + apart]);
    }
    own = merged(own, some[0]);
  }
}
counts[slot] = own.count;
means[slot] = own.mean;
m2s[slot] = own.m2;
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    const int other = slot + half_height * width;
    own = merged(own, Moments{counts[other], means[other], m2s[other]});
    counts[slot] = own.count;
    means[slot] = own.mean;
    m2s[slot] = own.m2;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (told) {
  out_mean[column] = pivot + own.mean;
  out_var[column] = own.m2 / own.count;
}
