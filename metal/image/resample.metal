// y[n,oh,ow,c] adds up x[n,h,w,c] by weight over the rows h and columns w that (oh, ow) reads. A thread owns V channels
// of a tile of DY by DX output pixels, which load what they read together once, U columns and B images under way.
// `rows` and `cols` say for each tile where its list begins, and then list rows or columns of x, each with a weight for
// every row or column of the tile. The result has the dtype O. What has no weight does not count, not even infinity.
#include "image/params.h"
#include "shared/vector_load.h"
const ResampleLaunch p = params_as<ResampleLaunch>(params);
const int height = p.height, width = p.width, tiles_down = p.tiles_down, tiles_across = p.tiles_across;
const int images = x_shape[0], channels = x_shape[3], lanes = channels / V;
const int across = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (across >= tiles_across) return;
const int left = across * DX - p.cols_ahead, count = cols[across + 1] - cols[across];
auto list = cols + tiles_across + 1 + cols[across] * (1 + DX);
const long x_image = long(x_shape[1]) * x_shape[2] * channels, y_image = long(height) * width * channels;
const bool wide = aligned<V>(x);

// All of the thread's columns and their weights, where there are registers for K of them.
constexpr int HELD = K > 0 ? K : 1;
int column[HELD];
float share[HELD * DX];
for (int k = 0; k < K; ++k) {
  column[k] = k < count ? list[k * (1 + DX)] * channels : -1;
  for (int d = 0; d < DX; ++d) share[k * DX + d] = k < count ? as_type<float>(list[k * (1 + DX) + 1 + d]) : 0;
}

for (int down = thread_position_in_grid.y; down < tiles_down; down += threads_per_grid.y) {
  const int top = down * DY - p.rows_ahead, q_begin = rows[down], q_end = rows[down + 1];
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    float sum[B * DY * DX * V];
    for (int j = 0; j < B * DY * DX * V; ++j) sum[j] = 0;
    for (int q = q_begin; q < q_end; ++q) {
      const int row = tiles_down + 1 + q * (1 + DY);
      auto from = x + n * x_image + rows[row] * x_shape[2] * channels + c;
      float line[B * DX * V];
      for (int j = 0; j < B * DX * V; ++j) line[j] = 0;
      #pragma unroll
      for (int k = 0; k < (K > 0 ? K : count); k += U) {
        int at[U];
        for (int u = 0; u < U; ++u) {
          const bool there = k + u < (K > 0 ? K : count);
          at[u] = !there ? -1 : K > 0 ? column[(k + u) % HELD] : list[(k + u) * (1 + DX)] * channels;
        }
        Pack<T, V> in[B * U];
        #pragma unroll
        for (int i = 0; i < B * U; ++i) {
          in[i] = nothing<T, V>();
          if (at[i % U] >= 0 && n + i / U < images) in[i] = load<V>(from + i / U * x_image + at[i % U], wide);
        }
        #pragma unroll
        for (int u = 0; u < U; ++u) {
          for (int d = 0; d < DX && k + u < (K > 0 ? K : count); ++d) {
            const int entry = K > 0 ? 0 : (k + u) * (1 + DX) + 1 + d;
            const float weight = K > 0 ? share[(k + u) % HELD * DX + d] : as_type<float>(list[entry]);
            if (weight == 0) continue;
            for (int j = 0; j < B * V; ++j) {
              line[(j / V * DX + d) * V + j % V] += weight * float(in[j / V * U + u].v[j % V]);
            }
          }
        }
      }
      for (int d = 0; d < DY; ++d) {
        const float weight = as_type<float>(rows[row + 1 + d]);
        if (weight == 0) continue;
        for (int j = 0; j < B * DX * V; ++j) sum[(j / (DX * V) * DY + d) * DX * V + j % (DX * V)] += weight * line[j];
      }
    }
    for (int i = 0; i < B * DY * DX; ++i) {
      const int oh = top + i / DX % DY, ow = left + i % DX;
      if (n + i / (DY * DX) >= images || oh < 0 || oh >= height || ow < 0 || ow >= width) continue;
      Pack<O, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = O(sum[i * V + j]);
      store(y + (n + i / (DY * DX)) * y_image + (oh * width + ow) * channels + c, out);
    }
  }
}
