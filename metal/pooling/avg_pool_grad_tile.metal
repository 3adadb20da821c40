// avg_pool_grad.metal where windows are alike: a thread owns V channels of a tile (tile.h), and loads each window that
// reads it once, for B images at a time.
#include "pooling/params.h"
#include "shared/vector_load.h"
#include "pooling/tile.h"
typedef Tile<KY, KX, SY, SX, DY, DX> Tiles;
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int across = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy);

for (int down = thread_position_in_grid.y; down < tiles_along(rows, DY); down += threads_per_grid.y) {
  const Tiles tile = tile_at<KY, KX, SY, SX, DY, DX>(rows, cols, down, across, channels, c);
  float share_y[Tiles::QY], share_x[Tiles::QX];
  for (int q = 0; q < Tiles::QY; ++q) share_y[q] = 1.0f / float(max_int(1, divisor(rows, tile.oh + q)));
  for (int k = 0; k < Tiles::QX; ++k) share_x[k] = 1.0f / float(max_int(1, divisor(cols, tile.ow + k)));
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    Pack<T, V> in[B * Tiles::Q];
    #pragma unroll
    for (int i = 0; i < B * Tiles::Q; ++i) {
      in[i] = nothing<T, V>();
      if (tile.at[i % Tiles::Q] >= 0 && n + i / Tiles::Q < images) {
        in[i] = load<V>(dy + (n + i / Tiles::Q) * dy_image + tile.at[i % Tiles::Q], wide);
      }
    }
    #pragma unroll
    for (int i = 0; i < B * Tiles::D; ++i) {
      if (tile.to[i % Tiles::D] < 0 || n + i / Tiles::D >= images) continue;
      Pack<T, V> out;
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        float sum = 0;
        #pragma unroll
        for (int q = 0; q < Tiles::Q; ++q) {
          const int window = i / Tiles::D * Tiles::Q + q;
          const int tap_y = i % Tiles::D / DX + (Tiles::PY - q / Tiles::QX) * SY;
          const int tap_x = i % DX + (Tiles::PX - q % Tiles::QX) * SX;
          if (tap_y < 0 || tap_y >= KY || tap_x < 0 || tap_x >= KX) continue;
          sum += float(in[window].v[j]) * (share_y[q / Tiles::QX] * share_x[q % Tiles::QX]);
        }
        out.v[j] = T(sum);
      }
      store(dx + (n + i / Tiles::D) * dx_image + tile.to[i % Tiles::D], out);
    }
  }
}
