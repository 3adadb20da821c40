// The first and last row and column that each chunk of samples reads: bounds[n,group,chunk] = top, bottom, left, right,
// the bottom above the top where it reads none. A chunk has one tap of neighbouring outputs; a threadgroup owns it, each
// of its G threads a sample.
#include "convolution/deform.h"
#include "shared/lanes.h"
const DeformParams p = params_as<DeformParams>(params);
const int images = places_shape[0], height = p.rows.n_out, width = p.cols.n_out, numbers = deform_numbers(p);
const int taps = p.rows.size * p.cols.size;
const int across = ceil_div(width, DeformChunk<G>::kAcross), tiles = across * ceil_div(height, DeformChunk<G>::kDown);
const int chunk = threadgroup_position_in_grid.x, k = chunk / tiles, tile = chunk % tiles;
const int own = thread_position_in_threadgroup.x, words = DeformChunk<G>::kWords;
const int oh = tile / across * DeformChunk<G>::kDown + own / DeformChunk<G>::kAcross;
const int ow = tile % across * DeformChunk<G>::kAcross + own % DeformChunk<G>::kAcross;
threadgroup int found[4 * DeformChunk<G>::kWords];

for (int image = threadgroup_position_in_grid.y; image < images * p.groups; image += threads_per_grid.y) {
  int least_row = p.rows.n_in, last_row = -1, least_col = p.cols.n_in, last_col = -1;
  if (oh < height && ow < width) {
    const long output = (long(image / p.groups) * height + oh) * width + ow;
    auto place = places + ((output * p.groups + image % p.groups) * taps + k) * numbers;
    const int down = strided(p.rows, oh) + k / p.cols.size * p.rows.dilation;
    const int right = strided(p.cols, ow) + k % p.cols.size * p.cols.dilation;
    const auto rows = deform_taps<float>(p.rows.n_in, float(down) + place[0], p.order_y);
    const auto cols = deform_taps<float>(p.cols.n_in, float(right) + place[1], p.order_x);
    for (int i = 0; i < 2; ++i) {
      if (rows.weight[i] != 0) {
        least_row = min_int(least_row, rows.first + i);
        last_row = max_int(last_row, rows.first + i);
      }
      if (cols.weight[i] != 0) {
        least_col = min_int(least_col, cols.first + i);
        last_col = max_int(last_col, cols.first + i);
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
    bounds[(long(image) * tiles * taps + chunk) * 4 + own] = bound;
  }
}
