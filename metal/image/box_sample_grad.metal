// dx[n,h,w,c] adds up dy of the bins whose samples read the pixel, each times its weight, in a fixed order.
// A threadgroup of G threads owns a tile of DY by DX pixels and S packs of V channels. Of the boxes of its image it finds
// those that may read the tile. Of G / 32 of them at a time, and of 16 rows and 16 columns of bins of each, a thread adds
// up the weights that one row or column has of the tile's, E at most; then it gathers for its own pixel.
#include "image/boxes.h"
#include "shared/lanes.h"
#include "shared/vector_load.h"
const BoxSampleParams<float> p = params_as<BoxSampleParams<float> >(params);
const int channels = dy_shape[3];
const int slices = (channels / V + S - 1) / S, tiles_across = (p.width + DX - 1) / DX;
const int tile = threadgroup_position_in_grid.x, top = tile / tiles_across * DY, left = tile % tiles_across * DX;
const int own = thread_position_in_threadgroup.x, lane = own % 32, slot = own / 32;
const int row = own / (S * DX), col = own / S % DX;  // of the tile
const bool for_cols = lane >= 16;
const int length = for_cols ? p.width : p.height, bins = for_cols ? p.cols : p.rows, origin = for_cols ? left : top;
const int order_of = for_cols ? p.order_x : p.order_y;
const bool wide = aligned<V>(dy);
threadgroup uint near[G / 32];       // a bit for each box of G
threadgroup int chosen[G / 32];      // boxes of this turn
threadgroup int begins_of[G / 16];   // of each its first row and column of bins
threadgroup int blocks_of[G / 16];   // and how often 16 of them
threadgroup float table[G * E];      // weights: of a box 16 rows of bins, then 16 columns
threadgroup uint masks[G / 32 * E];  // of them those that are not 0, for each row and column of pixels

for (long item = threadgroup_position_in_grid.y; item < long(p.images) * slices; item += threads_per_grid.y) {
  const int n = item / slices, c = (int(item % slices) * S + own % S) * V;
  const bool owns = top + row < p.height && left + col < p.width && c < channels;
  const int end = begins[n + 1];
  float sum[V];
  for (int j = 0; j < V; ++j) sum[j] = 0;
  for (int first = begins[n]; first < end; first += G) {
    uint bits = 0;
    if (first + own < end) {
      auto box = boxes + 5 * long(order[first + own]);
      const bool down = may_read(p, p.rows, span_of<float>(box, 0), top, top + DY);
      const bool across = may_read(p, p.cols, span_of<float>(box, 1), left, left + DX);
      bits = uint(down && across) << lane;
    }
    bits = bits_of_lanes(bits);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) near[slot] = bits;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int word = 0;
    uint found = near[0];
    while (true) {
      int turn = 0, mine = -1;
      for (; turn < G / 32; ++turn) {
        while (found == 0 && word + 1 < G / 32) found = near[++word];
        if (found == 0) break;
        if (turn == slot) mine = order[first + word * 32 + int(ctz(found))];
        found &= found - 1;
      }
      if (turn == 0) break;
      Span<float> span;
      span.first = span.second = 0;
      BinRange range;
      range.begin = range.end = 0;
      int samples = 0;
      if (mine >= 0) {
        span = span_of<float>(boxes + 5 * long(mine), int(for_cols));
        samples = samples_of(p, span);
        range = bins_near(p, bins, span, origin, origin + E);
      }
      if (lane == 0) chosen[slot] = mine;
      if (lane % 16 == 0) {
        begins_of[own / 16] = range.begin;
        blocks_of[own / 16] = ceil_div(max_int(range.end - range.begin, 0), 16);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      int down_blocks = 1, across_blocks = 1;
      for (int k = 0; k < turn; ++k) {
        down_blocks = max_int(down_blocks, blocks_of[2 * k]);
        across_blocks = max_int(across_blocks, blocks_of[2 * k + 1]);
      }
      for (int block = 0; block < down_blocks * across_blocks; ++block) {
        const int row_block = block / across_blocks * 16, col_block = block % across_blocks * 16;
        for (int i = 0; i < E; ++i) table[own * E + i] = 0;
        const int bin = range.begin + (for_cols ? col_block : row_block) + lane % 16;
        if (bin < range.end) {
          const SampleRange near_samples = samples_near(p, length, bins, span, bin, samples);
          for (int s = near_samples.begin; s < near_samples.end; ++s) {
            const auto taps = box_weights(p, length, box_place(p, bins, span, bin, s, samples), order_of, samples);
            for (int k = 0; k < 2; ++k) {
              const int at = taps.index[k] - origin;
              if (at < 0 || at >= E) continue;
              table[own * E + at] += taps.weight[k];
            }
          }
        }
        for (int i = 0; i < E; ++i) {
          const uint some = bits_of_lanes(uint(table[own * E + i] != 0) << lane);
          if (lane == 0) masks[slot * E + i] = some;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int k = 0; k < turn && owns; ++k) {
          auto weights = table + k * 32 * E;
          const int first_row = begins_of[2 * k] + row_block, first_col = begins_of[2 * k + 1] + col_block;
          const uint on_cols = masks[k * E + col] >> 16;
          for (uint rows = masks[k * E + row] & 65535u; rows != 0; rows &= rows - 1) {
            const int i = int(ctz(rows));
            const float weight = weights[i * E + row];
            const long line = (long(chosen[k]) * p.rows + first_row + i) * p.cols + first_col;
            for (uint cols = on_cols; cols != 0; cols &= cols - 1) {
              const int j = int(ctz(cols));
              const float factor = weight * weights[(16 + j) * E + col];
              const Pack<T, V> in = load<V>(dy + (line + j) * channels + c, wide);
              for (int q = 0; q < V; ++q) sum[q] += factor * float(in.v[q]);
            }
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }
  if (!owns) continue;
  Pack<T, V> out;
  for (int j = 0; j < V; ++j) out.v[j] = T(sum[j]);
  store(dx + ((long(n) * p.height + top + row) * p.width + left + col) * channels + c, out);
}
