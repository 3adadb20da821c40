// y[n,oh,ow,c] adds up x[n,h,w,c] by weight over the rows h and columns w that (oh, ow) reads, where all results read TY
// rows and TX columns, as far as these are there, and those of a tile lie as its neighbour's do, DOWN rows or ACROSS
// columns on. A thread owns V channels of a tile of DY by DX pixels and goes down its rows, with only those results in
// registers that a row adds to. `rows` and `cols` list for each tile its rows or columns of x, -1 outside, each with a
// weight for every row or column of the tile.
#include "image/params.h"
#include "shared/vector_load.h"
const ResampleLaunch p = params_as<ResampleLaunch>(params);
const int images = x_shape[0], channels = x_shape[3], lanes = channels / V;
const int across = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (across >= p.tiles_across) return;
const long x_line = long(x_shape[2]) * channels, y_line = long(p.width) * channels;
const int left = across * DX - p.cols_ahead;
const bool wide = aligned<V>(x);

constexpr int COLUMNS = (DX - 1) * ACROSS / DX + TX, ROWS = (DY - 1) * DOWN / DY + TY;
int column[COLUMNS];
float share[DX * TX];
for (int k = 0; k < COLUMNS; ++k) column[k] = cols[(across * COLUMNS + k) * (1 + DX)];
for (int i = 0; i < DX * TX; ++i) {
  const int d = i / TX, k = d * ACROSS / DX + i % TX;
  share[i] = as_type<float>(cols[(across * COLUMNS + k) * (1 + DX) + 1 + d]);
}

for (int down = thread_position_in_grid.y; down < p.tiles_down; down += threads_per_grid.y) {
  const int top = down * DY - p.rows_ahead;
  for (int n = thread_position_in_grid.z; n < images; n += threads_per_grid.z) {
    auto from = x + long(n) * x_shape[1] * x_line + c;
    auto to = y + (long(n) * p.height + top) * y_line + long(left) * channels + c;
    float sum[DY * DX * V];
    for (int j = 0; j < DY * DX * V; ++j) sum[j] = 0;
    #pragma unroll
    for (int q = 0; q < ROWS; ++q) {
      const int row = (down * ROWS + q) * (1 + DY), h = rows[row];
      if (h >= 0) {
        Pack<T, V> in[COLUMNS];
        #pragma unroll
        for (int k = 0; k < COLUMNS; ++k) {
          in[k] = nothing<T, V>();
          if (column[k] >= 0) in[k] = load<V>(from + h * x_line + long(column[k]) * channels, wide);
        }
        float line[DX * V];
        for (int j = 0; j < DX * V; ++j) line[j] = 0;
        #pragma unroll
        for (int i = 0; i < DX * TX; ++i) {
          const int d = i / TX, k = d * ACROSS / DX + i % TX;
          for (int j = 0; j < V; ++j) line[d * V + j] += share[i] * float(in[k].v[j]);
        }
        #pragma unroll
        for (int d = 0; d < DY; ++d) {
          const int t = q - d * DOWN / DY;
          if (t < 0 || t >= TY) continue;
          const float weight = as_type<float>(rows[row + 1 + d]);
          for (int j = 0; j < DX * V; ++j) sum[d * DX * V + j] += weight * line[j];
        }
      }
      #pragma unroll
      for (int i = 0; i < DY * DX; ++i) {  // results whose last row this was
        const int d = i / DX, oh = top + d, ow = left + i % DX;
        if (d * DOWN / DY + TY - 1 != q) continue;
        if (oh < 0 || oh >= p.height || ow < 0 || ow >= p.width) continue;
        Pack<T, V> out;
        for (int j = 0; j < V; ++j) out.v[j] = T(sum[i * V + j]);
        store(to + d * y_line + i % DX * channels, out);
      }
    }
  }
}
