// total[i] = sum over the parts of partial[part, i], in a fixed order: 32 strided sums, then a tree.
const int parts = partial_shape[0];
const long length = long(partial_shape[1]);
const long i = thread_position_in_grid.x;
const int row = thread_position_in_threadgroup.y;
const int slot = row * 8 + int(thread_position_in_threadgroup.x);
threadgroup float sums[256];

float own = 0;
for (int part = row; i < length && part < parts; part += 32) own += partial[part * length + i];
sums[slot] = own;
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int half_height = 16; half_height > 0; half_height /= 2) {
  if (row < half_height) sums[slot] += sums[slot + half_height * 8];
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (row == 0 && i < length) total[i] = sums[slot];
