// Mean and population variance of each channel from the threadgroups' partial moments, folded in a fixed order.
// Their means are less the image's first pixel.
const int parts = mean_shape[0], channels = mean_shape[1];
const int c = thread_position_in_grid.x, row = thread_position_in_threadgroup.y;
const int slot = row * 8 + int(thread_position_in_threadgroup.x);
threadgroup float counts[256], means[256], m2s[256];

Moments own = {0, 0, 0};
if (c < channels) {
  for (int part = row; part < parts; part += 32) {
    const int at = part * channels + c;
    own = merged(own, Moments{count[at], mean[at], m2[at]});
  }
}
counts[slot] = own.count;
means[slot] = own.mean;
m2s[slot] = own.m2;
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = 16; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    const int other = slot + half_height * 8;
    own = merged(own, Moments{counts[other], means[other], m2s[other]});
    counts[slot] = own.count;
    means[slot] = own.mean;
    m2s[slot] = own.m2;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && c < channels) {
  out_mean[c] = float(x[c]) + own.mean;
  out_var[c] = own.m2 / own.count;
}
