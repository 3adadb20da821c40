// total[i] = sum over the parts of partial[part, i], in a fixed order: 32 strided sums of four, then a tree.
const int parts = partial_shape[0];
const long length = long(partial_shape[1]);
const long i = thread_position_in_grid.x;
const int row = thread_position_in_threadgroup.y;
const int slot = row * 8 + int(thread_position_in_threadgroup.x);
threadgroup float sums[256];

float own[4] = {0, 0, 0, 0};  // apart, so that four loads are under way together
for (int part = row; i < length && part < parts; part += 128) {
  for (int k = 0; k < 4; ++k) {
    if (part + 32 * k < parts) own[k] += partial[(part + 32 * k) * length + i];
  }
}
sums[slot] = (own[0] + own[1]) + (own[2] + own[3]);
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = 16; half_height > 0; half_height /= 2) {
  if (row < half_height) sums[slot] += sums[slot + half_height * 8];
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && i < length) total[i] = sums[slot];
