// dx[n,h,w,c] adds up dcolumns of the samples that read the pixel, each times its weight, in an order that their places
// do not change. A threadgroup of G threads owns a tile of DY by DX pixels and S packs of V channels of a group. It goes
// over the chunks whose bounds touch the tile; a thread looks at one sample of a chunk, and then gathers for its own
// pixel from those that were found.
#include "convolution/deform.h"
#include "shared/lanes.h"
#include "shared/vector_load.h"
const DeformParams p = params_as<DeformParams>(params);
const int images = places_shape[0], height = p.rows.n_out, width = p.cols.n_out, numbers = deform_numbers(p);
const int taps = p.rows.size * p.cols.size, channels = dcolumns_shape[3] / taps, in_group = channels / p.groups;
const int slices = (in_group / V + S - 1) / S, tiles_across = (p.cols.n_in + DX - 1) / DX;
const int across = ceil_div(width, DeformChunk<G>::kAcross);
const int of_tap = across * ceil_div(height, DeformChunk<G>::kDown), chunks = of_tap * taps;
const int tile = threadgroup_position_in_grid.x, top = tile / tiles_across * DY, left = tile % tiles_across * DX;
const int own = thread_position_in_threadgroup.x;
const int row = top + own / (S * DX), col = left + own / S % DX;
const int words = DeformChunk<G>::kWords;
const bool wide = aligned<V>(dcolumns);
threadgroup uint near[DeformChunk<G>::kWords], hits[DeformChunk<G>::kWords];  // a bit for each chunk, and each sample
threadgroup float by_row[G * DY], by_col[G * DX];

for (long item = threadgroup_position_in_grid.y; item < long(images) * p.groups * slices; item += threads_per_grid.y) {
  const long image = item / slices, n = image / p.groups;
  const int group = int(image % p.groups), within = (int(item % slices) * S + own % S) * V;
  const int c = group * in_group + within;
  const bool owns = row < p.rows.n_in && col < p.cols.n_in && within < in_group;
  float sum[V];
  for (int j = 0; j < V; ++j) sum[j] = 0;
  for (int first_chunk = 0; first_chunk < chunks; first_chunk += G) {
    uint bits = 0;
    if (first_chunk + own < chunks) {
      auto bound = bounds + (image * chunks + first_chunk + own) * 4;
      const bool down = bound[0] < top + DY && bound[1] >= top;
      bits = uint(down && bound[2] < left + DX && bound[3] >= left) << own % 32;
    }
    bits = bits_of_lanes(bits);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (own % 32 == 0) near[own / 32] = bits;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int word = 0; word < words; ++word) {
      for (uint left_chunks = near[word]; left_chunks != 0; left_chunks &= left_chunks - 1) {
        const int chunk = first_chunk + word * 32 + int(ctz(left_chunks)), k = chunk / of_tap, at = chunk % of_tap;
        const int oh = at / across * DeformChunk<G>::kDown, ow = at % across * DeformChunk<G>::kAcross;
        const int own_oh = oh + own / DeformChunk<G>::kAcross, own_ow = ow + own % DeformChunk<G>::kAcross;
        uint hit = 0;
        if (own_oh < height && own_ow < width) {
          const long output = (n * height + own_oh) * width + own_ow;
          auto place = places + ((output * p.groups + group) * taps + k) * numbers;
          const int down = strided(p.rows, own_oh) + k / p.cols.size * p.rows.dilation;
          const int right = strided(p.cols, own_ow) + k % p.cols.size * p.cols.dilation;
          const auto rows = deform_taps<float>(p.rows.n_in, float(down) + place[0], p.order_y);
          const auto cols = deform_taps<float>(p.cols.n_in, float(right) + place[1], p.order_x);
          const float mask = p.masked != 0 && p.order_mask == 0 ? place[numbers - 1] : 1;
          bool on_rows = false, on_cols = false;
          for (int i = 0; i < DY; ++i) {
            const int before = top + i - rows.first;
            const float weight = before == 0 ? rows.weight[0] : before == 1 ? rows.weight[1] : 0;
            by_row[own * DY + i] = weight;
            on_rows = on_rows || weight != 0;
          }
          for (int i = 0; i < DX; ++i) {
            const int before = left + i - cols.first;
            const float weight = before == 0 ? cols.weight[0] : before == 1 ? cols.weight[1] : 0;
            by_col[own * DX + i] = weight == 0 ? 0 : mask * weight;
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
            const int its_oh = oh + which / DeformChunk<G>::kAcross, its_ow = ow + which % DeformChunk<G>::kAcross;
            const long sample = ((n * height + its_oh) * width + its_ow) * taps + k;
            const Pack<T, V> in = load<V>(dcolumns + sample * channels + c, wide);
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
  store(dx + ((n * p.rows.n_in + row) * p.cols.n_in + col) * channels + c, out);
}
