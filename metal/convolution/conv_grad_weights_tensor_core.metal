// partial[part,o,t,c] = sum over this part's output pixels of dy[n,oh,ow,o] * x[n, source(oh), source(ow), c].
// conv_grad_weights_registers.metal in sixteen bits, by matrices that NVIDIA's tensor cores multiply: a simdgroup for
// each tap of a window of KY by KX, SY by SX pixels apart. R rows of N windows and the pixels that they see lie in
// threadgroup memory, O channels of dy and I of x, so that each is loaded once for all taps.
#include "convolution/params.h"
#include "convolution/simdgroup_mma.h"
#include "shared/vector_load.h"
const ConvGradWeightsLaunch launch = params_as<ConvGradWeightsLaunch>(params);
const Axis rows = launch.rows, cols = launch.cols;
const int parts = launch.parts;
enum { ROWS = (R - 1) * SY + KY, COLS = (N - 1) * SX + KX, TURNS = (N + 7) / 8, APART = (COLS + SX - 1) / SX };
// Sixteens of channels, and eights from pixel to pixel: odd, so that pixels that follow one another have other banks.
enum { DOWN = (O + 15) / 16, ACROSS = (I + 15) / 16, OF_DY = 2 * DOWN + 1, OF_X = 2 * ACROSS + 1 };
// Eights of a row, and how many rows all threads load at a time.
enum { THREADS = KY * KX * 32, DY_ROW = TURNS * 8 * DOWN * 2, X_ROW = COLS * ACROSS * 2 };
enum { DY_ROWS = THREADS / DY_ROW + int(THREADS < DY_ROW), X_ROWS = THREADS / X_ROW + int(THREADS < X_ROW) };
typedef Pack<T, 8> Eight;
threadgroup Eight left[(R * TURNS + 1) * 8 * OF_DY], right[ROWS * SX * APART * OF_X];

const int out = dy_shape[3], in = x_shape[3], part = threadgroup_position_in_grid.x;
const int o0 = int(threadgroup_position_in_grid.y) * O, c0 = int(threadgroup_position_in_grid.z) * I;
const int tap = simdgroup_index_in_threadgroup, thread_id = thread_position_in_threadgroup.x;
const bool wide = aligned<8>(x) && aligned<8>(dy);
// Matrices take sixteen windows: those behind the last row count as zeros.
for (int e = thread_id; e < 8 * OF_DY; e += THREADS) left[R * TURNS * 8 * OF_DY + e] = nothing<T, 8>();
Sums16 sum[DOWN * ACROSS];
for (int i = 0; i < DOWN * ACROSS; ++i) sum[i] = no_sums16();

const int an_image = (rows.n_out + R - 1) / R;
const long strips = long(dy_shape[0]) * an_image, share = (strips + parts - 1) / parts;
const long begin = part * share, end = begin + share < strips ? begin + share : strips;
for (long strip = begin; strip < end; ++strip) {
  const long image = strip / an_image;
  const int oh = int(strip % an_image) * R, many = min(int(R), rows.n_out - oh), top = oh * SY - rows.pad;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int e = thread_id % DY_ROW; e < DY_ROW; e += THREADS) {
    // The last eight windows of a row begin where they fit; those that had their turn count as zeros as well.
    const int window = e / (DOWN * 2), eight = e % (DOWN * 2);
    const int ow = min(window / 8 * 8, N - 8) + window % 8;
    const int here = thread_id < DY_ROWS * DY_ROW ? thread_id / DY_ROW : R;
    const int live = ow >= window / 8 * 8 && eight * 8 < O ? many : 0;
    const long at = (image * rows.n_out + oh) * N * out + (ow * out + o0 + eight * 8);
    const int slot = window * OF_DY + eight;
    keep_rows<T, R, DY_ROWS>(left + slot, TURNS * 8 * OF_DY, dy + at, N * out, here, 0, live, wide);
  }
  for (int e = thread_id % X_ROW; e < X_ROW; e += THREADS) {
    const int col = e / (ACROSS * 2), eight = e % (ACROSS * 2), w = col - cols.pad;
    const int slot = (col % SX * APART + col / SX) * OF_X + eight;  // every SX-th column side by side
    const int here = thread_id < X_ROWS * X_ROW ? thread_id / X_ROW : ROWS, line = cols.n_in * in;
    const int live = w >= 0 && w < cols.n_in && eight * 8 < I ? rows.n_in - top : 0;
    const long at = (image * rows.n_in + top) * line + (w * in + c0 + eight * 8);
    keep_rows<T, ROWS, X_ROWS>(right + slot, SX * APART * OF_X, x + at, line, here, -top, live, wide);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int turns = many * TURNS, under = (tap / KX * SX + tap % KX % SX) * APART + tap % KX / SX;
  #pragma unroll 2
  for (int turn = 0; turn < turns; turn += 2) {
    const int next = min(turn + 1, turns - 1);
    const int first = under + turn / TURNS * (SY * SX * APART) + min(turn % TURNS * 8, N - 8);
    const int second = under + next / TURNS * (SY * SX * APART) + min(next % TURNS * 8, N - 8);
    Pixels16<T> a[DOWN];
    #pragma unroll
    for (int i = 0; i < DOWN; ++i) {
      const int at = turn * 8 * OF_DY + i * 2;
      a[i] = load16<1, T>(left[at].v, left[at + 8 * OF_DY].v, OF_DY * 8);
    }
    #pragma unroll
    for (int j = 0; j < ACROSS; ++j) {
      const Pixels16<T> b = load16<0, T>(right[first * OF_X + j * 2].v, right[second * OF_X + j * 2].v, OF_X * 8);
      #pragma unroll
      for (int i = 0; i < DOWN; ++i) sum[i * ACROSS + j] = with_products(sum[i * ACROSS + j], a[i], b);
    }
  }
}
#pragma unroll
for (int i = 0; i < DOWN * ACROSS; ++i) {
  const int o = i / ACROSS * 16, c = i % ACROSS * 16;
  const long to = ((long(part) * out + o0 + o) * (KY * KX) + tap) * in + c0 + c;
  store16(sum[i], partial + to, KY * KX * in, O - o, I - c);
}
