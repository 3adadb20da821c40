// dx[n,h,w,c] adds up the neighbours of a pixel, each times what dy says of the two: by the primary image dy of the pixel
// itself and pixels of the secondary one, by the secondary one dy of the neighbours and their own pixels. A thread owns V
// channels of kRun pixels that are a stride apart, and loads a pixel once for all of them.
#include "image/correlation.h"
#include "shared/vector_load.h"
const LocalCorrelationParams p = params_as<LocalCorrelationParams>(params);
const int images = x_shape[0], height = x_shape[1], width = x_shape[2], channels = x_shape[3];
const int lanes = channels / V, across = features_across(p), features = (2 * p.window_y + 1) * across;
const int run = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (run >= runs(p, width)) return;
const int step = runs_abreast(p, width), col = first_column(p, width, run), last = col + (kRun - 1) * step;
const Offsets from_first = offsets_on(p.window_x, p.stride_x, col, width);
// Neighbours of the run's first pixel by number, up to those of its last.
const int behind = last < width ? offsets_on(p.window_x, p.stride_x, last, width).behind + kRun - 1
                                : p.window_x + (width - 1 - col) / p.stride_x + 1;
const bool wide = aligned<V>(x);

for (int row = thread_position_in_grid.y; row < height; row += threads_per_grid.y) {
  const Offsets rows = offsets_on(p.window_y, p.stride_y, row, height);
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    const long image = long(n) * height * width, own = image + long(row) * width + col;
    float sum[kRun * V];
    for (int j = 0; j < kRun * V; ++j) sum[j] = 0;
    for (int down = rows.first; down < rows.behind; ++down) {
      const long line = image + (row + long(down - p.window_y) * p.stride_y) * width + col;
      const long on_row = long(p.secondary ? 2 * p.window_y - down : down) * across;
      for (int k = from_first.first; k < behind; ++k) {
        const long source = line + long(k - p.window_x) * p.stride_x;
        const Pack<T, V> in = load<V>(x + source * channels + c, wide);
        #pragma unroll
        for (int i = 0; i < kRun; ++i) {
          if (k - i < 0 || k - i >= across || col + i * step >= width) continue;
          const long pull = p.secondary ? source * features + on_row + across - 1 - (k - i)
                                        : (own + i * step) * features + on_row + k - i;
          const float weight = float(dy[pull]);
          for (int j = 0; j < V; ++j) sum[i * V + j] += weight * float(in.v[j]);
        }
      }
    }
    for (int i = 0; i < kRun && col + i * step < width; ++i) {
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = T(sum[i * V + j]);
      store(dx + (own + i * step) * channels + c, out);
    }
  }
}
