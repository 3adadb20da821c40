// partial[part,o,t,c] = sum over this part's output pixels of dy[n,oh,ow,o] * x[n, source(oh), source(ow), c].
// A matrix product that is never laid out: 64 output channels by 64 (tap, channel) pairs a threadgroup, 16 by 32 a
// simdgroup, and 16 pixels at a time through threadgroup memory, V channels a load. The pixels are cut into parts, so
// that few weights still fill the GPU; sum_partials adds the parts in order.
#include "convolution/params.h"
#include "shared/vector_load.h"
const ConvGradWeightsLaunch launch = params_as<ConvGradWeightsLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int groups = launch.groups, parts = launch.parts;
const int in_channels = x_shape[3], out_channels = dy_shape[3];
const int in_width = in_channels / groups, out_width = out_channels / groups;
const int depth = rows.size * cols.size * in_width;
const int group = int(threadgroup_position_in_grid.z) / parts, part = int(threadgroup_position_in_grid.z) % parts;
const long pixels = long(dy_shape[0]) * rows.n_out * cols.n_out;
const long share = ((pixels + parts - 1) / parts + 15) / 16 * 16;
const long pixel_end = part * share + share < pixels ? part * share + share : pixels;
const int o0 = int(threadgroup_position_in_grid.x) * 64, k0 = int(threadgroup_position_in_grid.y) * 64;
// Two pairs of tiles take turns, so that one barrier a turn is enough. Each has 16 rows, of dy's channels and then of
// x's, and four floats behind every 64, so that rows and columns of a matrix both fall into different banks.
threadgroup float tiles[2 * 32 * 68];

// What this thread loads: these channels of every 4 * V-th pixel. It walks from one to the next without a division.
const int thread_id = thread_position_in_threadgroup.x, line = thread_id / (64 / V), column = thread_id % (64 / V) * V;
const int o = o0 + column, k = k0 + column;
const int tap_row = k / in_width / cols.size, tap_col = k / in_width % cols.size;
const long x_column = group * in_width + k % in_width;
const int on_w = 4 * V % cols.n_out, on_h = 4 * V / cols.n_out % rows.n_out, on_n = 4 * V / cols.n_out / rows.n_out;
long p = part * share + line, dy_at = p * out_channels + group * out_width + o;
int ow = p % cols.n_out, oh = p / cols.n_out % rows.n_out;
long image = p / cols.n_out / rows.n_out;
const bool wide = aligned<V>(x), wide_dy = aligned<V>(dy);

const int block = simdgroup_index_in_threadgroup, o_block = block / 2 * 16, k_block = block % 2 * 32;
const int busy = int(o0 + o_block < out_width && k0 + k_block < depth);
simdgroup_float8x8 sum[8];
for (int i = 0; i < 8; ++i) sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

int turn = 0;
for (long pixel0 = part * share; pixel0 < pixel_end; pixel0 += 16) {
  const int left = turn * 32 * 68, right = left + 16 * 68;
  for (int s = line; s < 16; s += 4 * V) {
    const int h = source(rows, oh, tap_row), w = source(cols, ow, tap_col);
    Pack<T, V> g = nothing<T, V>(), in = nothing<T, V>();
    if (p < pixel_end && o < out_width) g = load<V>(dy + dy_at, wide_dy);
    if (p < pixel_end && k < depth && h >= 0 && w >= 0) {
      in = load<V>(x + ((image * rows.n_in + h) * cols.n_in + w) * in_channels + x_column, wide);
    }
    for (int j = 0; j < V; ++j) {
      tiles[left + s * 68 + column + j] = float(g.v[j]);
      tiles[right + s * 68 + column + j] = float(in.v[j]);
    }
    p += 4 * V;
    dy_at += 4 * V * out_channels;
    ow += on_w;
    oh += on_h + int(ow >= cols.n_out);
    image += on_n + int(oh >= rows.n_out);
    ow -= ow >= cols.n_out ? cols.n_out : 0;
    oh -= oh >= rows.n_out ? rows.n_out : 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int s = 0; s < 16 * busy; s += 8) {
    simdgroup_float8x8 a[2], b[4];
    #pragma unroll
    for (int i = 0; i < 2; ++i) simdgroup_load(a[i], tiles + left + s * 68 + o_block + 8 * i, 68, 0, true);
    #pragma unroll
    for (int i = 0; i < 4; ++i) simdgroup_load(b[i], tiles + right + s * 68 + k_block + 8 * i, 68);
    #pragma unroll
    for (int i = 0; i < 8; ++i) simdgroup_multiply_accumulate(sum[i], a[i / 4], b[i % 4], sum[i]);
  }
  turn = 1 - turn;
}

// A matrix that hangs over the weights goes by way of threadgroup memory, 64 floats for each simdgroup.
threadgroup_barrier(mem_flags::mem_threadgroup);
const int scratch = block * 64;
#pragma unroll
for (int i = 0; i < 8; ++i) {
  const int to_o = o0 + o_block + i / 4 * 8, to_k = k0 + k_block + i % 4 * 8;
  const long to = (long(part) * out_channels + group * out_width + to_o) * depth + to_k;
  if (to_o + 8 <= out_width && to_k + 8 <= depth) {
    simdgroup_store(sum[i], partial + to, depth);
    continue;
  }
  simdgroup_store(sum[i], tiles + scratch, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int e = thread_index_in_simdgroup; e < 64; e += 32) {
    const int row = e / 8, col = e % 8;
    if (to_o + row < out_width && to_k + col < depth) partial[to + row * long(depth) + col] = tiles[scratch + e];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
