// The first and last row and column that each chunk of samples reads: bounds[n,chunk] = top, bottom, left, right, the
// bottom above the top where it reads none. A threadgroup owns a chunk, each of its G threads a sample.
#include "shared/lanes.h"
#include "image/sampling.h"
const GridSampleParams p = params_as<GridSampleParams>(params);
const int images = grid_shape[0], height = grid_shape[1], width = grid_shape[2];
const int across = ceil_div(width, Chunk<G>::kAcross), chunks = across * ceil_div(height, Chunk<G>::kDown);
const int chunk = threadgroup_position_in_grid.x, own = thread_position_in_threadgroup.x, words = Chunk<G>::kWords;
const int oh = chunk / across * Chunk<G>::kDown + own / Chunk<G>::kAcross;
const int ow = chunk % across * Chunk<G>::kAcross + own % Chunk<G>::kAcross;
threadgroup int found[4 * Chunk<G>::kWords];

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
  least_row = least_of_lanes(least_row);
  last_row = most_of_lanes(last_row);
  least_col = least_of_lanes(least_col);
  last_col = most_of_lanes(last_col);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (own % 32 == 0) {
    found[own / 8] = least_row;
    found[own / 8 + 1] = last_row;
    found[own / 8 + 2] = least_col;
    found[own / 8 + 3] = last_col;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (own < 4) {
    int bound = found[own];
    for (int i = 1; i < words; ++i) {
      const int other = found[4 * i + own];
      bound = own % 2 == 0 ? min_int(bound, other) : max_int(bound, other);
    }
    bounds[(long(n) * chunks + chunk) * 4 + own] = bound;
  }
}
