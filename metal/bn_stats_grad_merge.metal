// The scale's and the shift's gradients, grown by the parts' sums in a fixed order: up to 32 strided sums of
// eight, then a tree.
const int parts = partial_shape[0], channels = partial_shape[1] / 2;
const int width = params[0], height = params[1];  // of the threadgroup
const int c = thread_position_in_grid.x, row = thread_position_in_threadgroup.y;
const int slot = row * width + int(thread_position_in_threadgroup.x);
threadgroup float sums[256], dots[256];

float own_sum[8], own_dot[8];  // apart, so that loads are under way together
for (int k = 0; k < 8; ++k) own_sum[k] = own_dot[k] = 0;
for (int part = row; c < channels && part < parts; part += 8 * height) {
  for (int k = 0; k < 8; ++k) {
    if (part + height * k < parts) {
      const int at = (part + height * k) * 2 * channels + c;
      own_sum[k] += partial[at];
      own_dot[k] += partial[at + channels];
    }
  }
}
for (int k = 0; k < 4; ++k) {
  own_sum[k] += own_sum[k + 4];
  own_dot[k] += own_dot[k + 4];
}
sums[slot] = (own_sum[0] + own_sum[1]) + (own_sum[2] + own_sum[3]);
dots[slot] = (own_dot[0] + own_dot[1]) + (own_dot[2] + own_dot[3]);
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = height / 2; half_height > 0; half_height /= 2) {
  if (row < half_height) {
    sums[slot] += sums[slot + half_height * width];
    dots[slot] += dots[slot + half_height * width];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && c < channels) {
  new_dgamma[c] = dgamma[c] + dots[slot] / sqrt(var[c] + as_type<float>(params[2]));
  new_dbeta[c] = dbeta[c] + sums[slot];
}
