// total[i] = sum over the parts of partial[part, i], in a fixed order: up to 128 strided
// sums of eight, then two turns.
#include "shared/moments.h"
const int parts = partial_shape[0];
const long length = long(partial_shape[1]);
const long i = thread_position_in_grid.x;
const Threadgroup group = params_as<Threadgroup>(params);
const int width = group.width, height = group.height;
const int row = thread_position_in_threadgroup.y;
const int top = thread_position_in_threadgroup.x, slot = row * width + top;
threadgroup float sums[256];

float own[8] = {0, 0, 0, 0, 0, 0, 0, 0};  // apart, so that eight loads are under way together
for (int part = row; i < length && part < parts; part += 8 * height) {
  for (int k = 0; k < 8; ++k) {
    if (part + height * k < parts) own[k] += partial[(part + height * k) * length + i];
  }
}
for (int k = 0; k < 4; ++k) own[k] += own[k + 4];
sums[slot] = (own[0] + own[1]) + (own[2] + own[3]);
threadgroup_barrier(mem_flags::mem_threadgroup);
const int rows = min(8, height);
if (row < rows) sums[slot] = sum_of_rows(sums, top, width, row, height, rows);
threadgroup_barrier(mem_flags::mem_threadgroup);
if (row == 0 && i < length) total[i] = sum_of_rows(sums, top, width, 0, rows, 1);
