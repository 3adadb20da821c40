// y[n,h,w,f] is the sum over channels of primary[n,h,w] times the pixel of secondary that lies offset number f away, and
// 0 if there is none. R threads of a simdgroup share kOffsets neighbours in a row of each of kRun pixels that are a
// stride apart, so that a pixel which they load serves several; each sums V channels in R * V.
#include "image/correlation.h"
#include "shared/vector_load.h"
const LocalCorrelationParams p = params_as<LocalCorrelationParams>(params);
const int images = primary_shape[0], height = primary_shape[1], width = primary_shape[2], channels = primary_shape[3];
const int across = features_across(p), features = (2 * p.window_y + 1) * across;
const int tiles_across = ceil_div(across, kOffsets), tiles = (2 * p.window_y + 1) * tiles_across;
const int all_runs = runs(p, width), step = runs_abreast(p, width), items = height * all_runs * tiles;
const int lane = thread_position_in_grid.x % R;
const bool primary_wide = aligned<V>(primary), secondary_wide = aligned<V>(secondary);

for (int n = thread_position_in_grid.y; n < images; n += threads_per_grid.y) {
  const long image = long(n) * height * width;
  // As often for all threads, which meet in the shuffles.
  for (long first = 0; first < items; first += threads_per_grid.x / R) {
    const long item = first + thread_position_in_grid.x / R;
    float sum[kRun * kOffsets];
    for (int i = 0; i < kRun * kOffsets; ++i) sum[i] = 0;
    const int tile = int(item) % tiles, place = int(item) / tiles;
    const int row = place / all_runs, col = first_column(p, width, place % all_runs);
    const int down = tile / tiles_across, left = tile % tiles_across * kOffsets;
    const Offsets rows = offsets_on(p.window_y, p.stride_y, row, height);
    if (item < items && down >= rows.first && down < rows.behind) {
      const long own = image + long(row) * width;
      const long other = image + (row + long(down - p.window_y) * p.stride_y) * width;
      for (int c = lane * V; c < channels; c += R * V) {
        Pack<T, V> near[kRun + kOffsets - 1];
        #pragma unroll
        for (int i = 0; i < kRun + kOffsets - 1; ++i) {
          const long x = col + long(left + i - p.window_x) * p.stride_x;
          near[i] = nothing<T, V>();
          if (x >= 0 && x < width) near[i] = load<V>(secondary + (other + x) * channels + c, secondary_wide);
        }
        #pragma unroll
        for (int i = 0; i < kRun; ++i) {
          if (col + i * step >= width) continue;
          const Pack<T, V> in = load<V>(primary + (own + col + i * step) * channels + c, primary_wide);
          #pragma unroll
          for (int k = 0; k < kOffsets; ++k) {
            for (int j = 0; j < V; ++j) sum[i * kOffsets + k] += float(in.v[j]) * float(near[i + k].v[j]);
          }
        }
      }
    }
    for (int m = R / 2; m > 0; m /= 2) {
      #pragma unroll
      for (int i = 0; i < kRun * kOffsets; ++i) sum[i] += simd_shuffle_xor(sum[i], m);
    }
    if (lane != 0 || item >= items) continue;
    for (int i = 0; i < kRun && col + i * step < width; ++i) {
      const Offsets cols = offsets_on(p.window_x, p.stride_x, col + i * step, width);
      auto to = y + (image + long(row) * width + col + i * step) * features + long(down) * across + left;
      for (int k = 0; k < kOffsets && left + k < across; ++k) {
        const bool there = left + k >= cols.first && left + k < cols.behind;
        to[k] = there ? T(sum[i * kOffsets + k]) : T(0);
      }
    }
  }
}
