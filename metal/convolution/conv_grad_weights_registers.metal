// partial[part,o,t,c] = sum over this part's rows of output pixels of dy[n,oh,ow,o] * x[n, source(oh), source(ow), c].
// conv_grad_weights_simt.metal for few channels and small windows of KY by KX, S columns apart. A thread owns O by I
// channels at all taps and goes along rows of windows, so that each pixel is loaded once for all windows of a row that
// read it. A threadgroup of G has DOWN by ACROSS threads for channels of dy and x, as often as it has room for them to
// share its part's rows; what those sum up is added in order, as are the parts by sum_partials.
#include "convolution/params.h"
#include "convolution/register_tile.h"
#include "shared/vector_load.h"
const ConvGradWeightsLaunch launch = params_as<ConvGradWeightsLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int parts = launch.parts;
enum { LANES = DOWN * ACROSS, SLICES = G / LANES, OUTS = DOWN * O, INS = ACROSS * I };
const int part = threadgroup_position_in_grid.x, thread_id = thread_position_in_threadgroup.x;
const int o0 = int(threadgroup_position_in_grid.y) * OUTS, c0 = int(threadgroup_position_in_grid.z) * INS;
const int slice = thread_id / LANES, o = o0 + thread_id % LANES / ACROSS * O, c = c0 + thread_id % ACROSS * I;
const bool busy = slice < SLICES && o < OUT && c < IN, wide = aligned<I>(x) && aligned<O>(dy);

Products<KY, KX, O, I> own;
#pragma unroll
for (int t = 0; t < KY * KX; ++t) {
  #pragma unroll
  for (int i = 0; i < O * I; ++i) own.at[t][i] = 0;
}
const long lines = long(dy_shape[0]) * rows.n_out, share = (lines + parts * SLICES - 1) / (parts * SLICES);
const long begin = (long(part) * SLICES + slice) * share, end = begin + share < lines ? begin + share : lines;
const long next = long(rows.dilation) * cols.n_in * IN;
for (long line = begin; busy && line < end; ++line) {
  const int oh = line % rows.n_out, h = strided(rows, oh);
  int there = 0;
  #pragma unroll
  for (int q = 0; q < KY; ++q) there |= int(source(rows, oh, q) >= 0) << q;
  const long to_x = (line / rows.n_out * rows.n_in + h) * cols.n_in * IN + c, to_dy = line * cols.n_out * OUT + o;
  own = row_added<T, KY, KX, S, U, O, I, OUT, IN>(own, dy + to_dy, x + to_x, next, there, cols, wide);
}
threadgroup float sums[G * O * I];
#pragma unroll
for (int t = 0; t < KY * KX; ++t) {
  #pragma unroll
  for (int i = 0; i < O * I; ++i) sums[i * G + thread_id] = own.at[t][i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int e = thread_id; e < OUTS * INS; e += G) {
    const int down = e / INS, across = e % INS, lane = down / O * ACROSS + across / I, i = down % O * I + across % I;
    float sum = 0;
    for (int k = 0; k < SLICES; ++k) sum += sums[i * G + k * LANES + lane];
    if (o0 + down < OUT && c0 + across < IN) {
      partial[((long(part) * OUT + o0 + down) * (KY * KX) + t) * IN + c0 + across] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
