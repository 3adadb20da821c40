// What a thread of conv_grad_weights_registers adds up.
#ifndef MPSF_REGISTER_TILE_H
#define MPSF_REGISTER_TILE_H
#include "shared/base.h"
#include "shared/geometry.h"
#include "shared/vector_load.h"

// For each tap of a window of KY by KX, sums of OfDy channels of dy times OfX of x.
template <int KY, int KX, int OfDy, int OfX>
struct Products {
  float at[KY * KX][OfDy * OfX];
};

// Adds a row of windows, U at a time, S pixels apart: dy begins at the first of them, x at the first pixel of the row
// under their first taps, `next` elements before the row under the second ones. Bit q of `there`: row q is in the
// image. Wide: what `wide` says of both pointers, that they allow loads of all channels at once.
template <typename T, int KY, int KX, int S, int U, int OfDy, int OfX, int Out, int In, int Wide, typename Dy,
          typename X>
MPSF_FN Products<KY, KX, OfDy, OfX> added(Products<KY, KX, OfDy, OfX> sums, Dy dy, X x, long next, int there,
                                          Axis cols) {
  enum { Columns = (U - 1) * S + KX, Kept = KX > S ? KX - S : 0 };  // pixels under U windows; shared with the next U
  Pack<T, OfX> in[KY][Columns];
#pragma unroll
  for (int j = 0; j < Kept; ++j) {
    const int w = j - cols.pad;
#pragma unroll
    for (int q = 0; q < KY; ++q) {
      in[q][j] = nothing<T, OfX>();
      if (w >= 0 && w < cols.n_in && (there >> q & 1)) in[q][j] = load<OfX>(x + (q * next + long(w) * In), Wide);
    }
  }
  for (int ow = 0; ow < cols.n_out; ow += U) {
    Staged<T, OfDy> g[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (ow + u < cols.n_out) g[u] = hold<OfDy>(dy + long(ow + u) * Out, Wide);
    }
#pragma unroll
    for (int j = Kept; j < Columns; ++j) {
      const int w = ow * S - cols.pad + j;
#pragma unroll
      for (int q = 0; q < KY; ++q) {
        in[q][j] = nothing<T, OfX>();
        if (j % S < KX && w >= 0 && w < cols.n_in && (there >> q & 1)) {
          in[q][j] = load<OfX>(x + (q * next + long(w) * In), Wide);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (ow + u < cols.n_out) {
#pragma unroll
        for (int t = 0; t < KY * KX; ++t) {
#pragma unroll
          for (int i = 0; i < OfDy * OfX; ++i) {
            sums.at[t][i] += staged_value(g[u], i / OfX) * float(in[t / KX][u * S + t % KX].v[i % OfX]);
          }
        }
      }
    }
#pragma unroll
    for (int q = 0; q < KY; ++q) {
#pragma unroll
      for (int j = 0; j < Kept; ++j) in[q][j] = in[q][j + Columns - Kept];
    }
  }
  return sums;
}
template <typename T, int KY, int KX, int S, int U, int OfDy, int OfX, int Out, int In, typename Dy, typename X>
MPSF_FN Products<KY, KX, OfDy, OfX> row_added(Products<KY, KX, OfDy, OfX> sums, Dy dy, X x, long next, int there,
                                              Axis cols, bool wide) {
  if (wide) return added<T, KY, KX, S, U, OfDy, OfX, Out, In, 1>(sums, dy, x, next, there, cols);
  return added<T, KY, KX, S, U, OfDy, OfX, Out, In, 0>(sums, dy, x, next, there, cols);
}

#endif
