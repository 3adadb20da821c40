// dx[n,h,w,c] adds up dy of the samples that read the pixel, each times its weight, in an order that their places do not
// change. A threadgroup of G threads owns a tile of DY by DX pixels and S packs of V channels. It goes over the chunks
// whose bounds touch the tile; a thread looks at one sample of a chunk, and then gathers for its own pixel from those
// that were found.
#include "shared/lanes.h"
#include "image/sampling.h"
#include "shared/vector_load.h"
const GridSampleParams p = params_as<GridSampleParams>(params);
const int images = dy_shape[0], height = dy_shape[1], width = dy_shape[2], channels = dy_shape[3];
const int slices = (channels / V + S - 1) / S, tiles_across = (p.width + DX - 1) / DX;
const int across = ceil_div(width, Chunk<G>::kAcross), chunks = across * ceil_div(height, Chunk<G>::kDown);
const int tile = threadgroup_position_in_grid.x, top = tile / tiles_across * DY, left = tile % tiles_across * DX;
const int own = thread_position_in_threadgroup.x;
const int row = top + own / (S * DX), col = left + own / S % DX;
const int words = Chunk<G>::kWords;
const bool wide = aligned<V>(dy);
threadgroup uint near[Chunk<G>::kWords], hits[Chunk<G>::kWords];  // a bit for each chunk, and each sample
threadgroup float by_row[G * DY], by_col[G * DX];

for (long item = threadgroup_position_in_grid.y; item < long(images) * slices; item += threads_per_grid.y) {
  const int n = item / slices, c = (int(item % slices) * S + own % S) * V;
  const bool owns = row < p.height && col < p.width && c < channels;
  float sum[V];
  for (int j = 0; j < V; ++j) sum[j] = 0;
  for (int first = 0; first < chunks; first += G) {
    uint bits = 0;
    if (first + own < chunks) {
      auto bound = bounds + (long(n) * chunks + first + own) * 4;
      const bool down = bound[0] < top + DY && bound[1] >= top;
      bits = uint(down && bound[2] < left + DX && bound[3] >= left) << own % 32;
    }
    bits = bits_of_lanes(bits);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (own % 32 == 0) near[own / 32] = bits;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int word = 0; word < words; ++word) {
      for (uint left_chunks = near[word]; left_chunks != 0; left_chunks &= left_chunks - 1) {
        const int chunk = first + word * 32 + int(ctz(left_chunks));
        const int oh = chunk / across * Chunk<G>::kDown, ow = chunk % across * Chunk<G>::kAcross;
        const int own_oh = oh + own / Chunk<G>::kAcross, own_ow = ow + own % Chunk<G>::kAcross;
        uint hit = 0;
        if (own_oh < height && own_ow < width) {
          const long at = ((long(n) * height + own_oh) * width + own_ow) * 2;
          const auto rows = sample_taps<K>(p, p.height, place_of(p, p.height, grid[at + 1], own_oh), p.order_y);
          const auto cols = sample_taps<K>(p, p.width, place_of(p, p.width, grid[at], own_ow), p.order_x);
          bool on_rows = false, on_cols = false;
          for (int i = 0; i < DY; ++i) {
            float weight = 0;
            for (int k = 0; k < K; ++k) weight += rows.index[k] == top + i ? rows.weight[k] : 0;
            by_row[own * DY + i] = weight;
            on_rows = on_rows || weight != 0;
          }
          for (int i = 0; i < DX; ++i) {
            float weight = 0;
            for (int k = 0; k < K; ++k) weight += cols.index[k] == left + i ? cols.weight[k] : 0;
            by_col[own * DX + i] = weight;
            on_cols = on_cols || weight != 0;
          }
          hit = uint(on_rows && on_cols) << own % 32;
        }
        hit = bits_of_lanes(hit);
        if (own % 32 == 0) hits[own / 32] = hit;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int some = 0; some < words && owns; ++some) {
          for (uint left_samples = hits[some]; left_samples != 0; left_samples &= left_samples - 1) {
            const int which = some * 32 + int(ctz(left_samples));
            const float weight = by_row[which * DY + row - top] * by_col[which * DX + col - left];
            if (weight == 0) continue;
            const long sample = (long(n) * height + oh + which / Chunk<G>::kAcross) * width + ow + which % Chunk<G>::kAcross;
            const Pack<T, V> in = load<V>(dy + sample * channels + c, wide);
            for (int j = 0; j < V; ++j) sum[j] += weight * float(in.v[j]);
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }
  if (!owns) continue;
  Pack<T, V> out;
  for (int j = 0; j < V; ++j) out.v[j] = T(sum[j]);
  store(dx + ((long(n) * p.height + row) * p.width + col) * channels + c, out);
}
