// l2_pool_grad.metal on the tiles of avg_pool_grad_tile.metal; no tap is moved to the edge.
#include "pooling/params.h"
#include "shared/vector_load.h"
#include "shared/norms.h"
#include "pooling/tile.h"
typedef Tile<KY, KX, SY, SX, DY, DX> Tiles;
const PoolParams windows = params_as<PoolParams>(params);
const Axis rows = windows.rows, cols = windows.cols;
const int images = dy_shape[0], channels = dy_shape[3], lanes = channels / V;
const int across = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
const long dx_image = long(rows.n_in) * cols.n_in * channels, dy_image = long(rows.n_out) * cols.n_out * channels;
const bool wide = aligned<V>(dy) && aligned<V>(x) && aligned<V>(norms);

for (int down = thread_position_in_grid.y; down < tiles_along(rows, DY); down += threads_per_grid.y) {
  const Tiles tile = tile_at<KY, KX, SY, SX, DY, DX>(rows, cols, down, across, channels, c);
  for (int n = thread_position_in_grid.z * B; n < images; n += threads_per_grid.z * B) {
    Pack<T, V> in[B * Tiles::Q], own[B * Tiles::D];
    Pack<float, V> inverses[B * Tiles::Q];
    #pragma unroll
    for (int i = 0; i < B * Tiles::Q; ++i) {
      in[i] = nothing<T, V>();
      inverses[i] = nothing<float, V>();
      if (tile.at[i % Tiles::Q] >= 0 && n + i / Tiles::Q < images) {
        const long at = (n + i / Tiles::Q) * dy_image + tile.at[i % Tiles::Q];
        in[i] = load<V>(dy + at, wide);
        inverses[i] = load<V>(norms + at, wide);
      }
    }
    #pragma unroll
    for (int i = 0; i < B * Tiles::D; ++i) {
      const int to = tile.to[i % Tiles::D];
      own[i] = nothing<T, V>();
      if (to >= 0 && n + i / Tiles::D < images) own[i] = load<V>(x + (n + i / Tiles::D) * dx_image + to, wide);
    }
    #pragma unroll
    for (int i = 0; i < B * Tiles::Q * V; ++i) inverses[i / V].v[i % V] = inverse(inverses[i / V].v[i % V]);
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
          sum += through_inverse(float(own[i].v[j]), inverses[window].v[j], float(in[window].v[j]));
        }
        out.v[j] = T(sum);
      }
      store(dx + (n + i / Tiles::D) * dx_image + tile.to[i % Tiles::D], out);
    }
  }
}
