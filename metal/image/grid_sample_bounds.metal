// The first and last row and column that each chunk of samples reads: bounds[n,chunk] = top, bottom, left, right, the
// bottom above the top where it reads none. A threadgroup owns a chunk, each of its threads a sample.
#include "image/sampling.h"
const GridSampleParams p = params_as<GridSampleParams>(params);
const int images = grid_shape[0], height = grid_shape[1], width = grid_shape[2];
const int across = chunks_along(width), chunks = across * chunks_along(height), chunk = threadgroup_position_in_grid.x;
const int thread = thread_position_in_threadgroup.x;
const int oh = chunk / across * Chunk::kSide + thread / Chunk::kSide;
const int ow = chunk % across * Chunk::kSide + thread % Chunk::kSide;
threadgroup int found[4 * Chunk::kSamples / 32];

for (int n = threadgroup_position_in_grid.y; n < images; n += threads_per_grid.y) {
  int least_row = p.height, last_row = -1, least_col = p.width, last_col = -1;
  if (oh < height && ow < width) {
    const long sample = (long(n) * height + oh) * width + ow;
    const auto rows = sample_taps<K>(p, p.height, place_of(p, p.height, grid[2 * sample + 1], oh), p.order_y);
    const auto cols = sample_taps<K>(p, p.width, place_of(p, p.width, grid[2 * sample], ow), p.order_x);
    for (int k = 0; k < K; ++k) {
      if (rows.weight[k] != 0) {
        least_row = min_int(least_row, rows.index[k]);
        last_row = max_int(last_row, rows.index[k]);
      }
      if (cols.weight[k] != 0) {
        least_col = min_int(least_col, cols.index[k]);
        last_col = max_int(last_col, cols.index[k]);
      }
    }
  }
  for (int m = 16; m > 0; m /= 2) {
    least_row = min_int(least_row, simd_shuffle_xor(least_row, m));
    last_row = max_int(last_row, simd_shuffle_xor(last_row, m));
    least_col = min_int(least_col, simd_shuffle_xor(least_col, m));
    last_col = max_int(last_col, simd_shuffle_xor(last_col, m));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread % 32 == 0) {
    found[thread / 8] = least_row;
    found[thread / 8 + 1] = last_row;
    found[thread / 8 + 2] = least_col;
    found[thread / 8 + 3] = last_col;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread < 4) {
    int bound = found[thread];
    for (int i = 1; i < Chunk::kSamples / 32; ++i) {
      const int other = found[4 * i + thread];
      bound = thread % 2 == 0 ? min_int(bound, other) : max_int(bound, other);
    }
    bounds[(long(n) * chunks + chunk) * 4 + thread] = bound;
  }
}
