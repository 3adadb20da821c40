// A tile of an image under a pooling: DY by DX pixels, whole strides, that begin where a window does, so that which tap
// of a window falls on which pixel is a constant. Windows have KY by KX taps, without dilation, and are SY by SX apart.
#ifndef MPSF_TILE_H
#define MPSF_TILE_H
#include "shared/base.h"
#include "shared/geometry.h"

template <int KY, int KX, int SY, int SX, int DY, int DX>
struct Tile {
  enum { PY = (KY - 1) / SY, PX = (KX - 1) / SX };             // windows before the tile that read it
  enum { QY = DY / SY + PY, QX = DX / SX + PX, Q = QY * QX };  // all that read it
  enum { D = DY * DX };                                        // its pixels
  int oh, ow;                                                  // the first window, which may be none
  int at[Q];                                                   // positions of the windows; -1 where there is none
  int to[D];                                                   // of the pixels; likewise
};

// Tile (y, x) of those that touch the image, for the channels from c on.
template <int KY, int KX, int SY, int SX, int DY, int DX>
MPSF_FN Tile<KY, KX, SY, SX, DY, DX> tile_at(Axis rows, Axis cols, int y, int x, int channels, int c) {
  Tile<KY, KX, SY, SX, DY, DX> t;
  y += floor_div(rows.pad, DY);
  x += floor_div(cols.pad, DX);
  const int top = y * DY - rows.pad, left = x * DX - cols.pad;
  t.oh = y * (DY / SY) - t.PY;
  t.ow = x * (DX / SX) - t.PX;
  for (int i = 0; i < t.Q; ++i) {
    const int row = t.oh + i / t.QX, col = t.ow + i % t.QX;
    t.at[i] = selected(rows, row) && selected(cols, col) ? (row * cols.n_out + col) * channels + c : -1;
  }
  for (int i = 0; i < t.D; ++i) {
    const int h = top + i / DX, w = left + i % DX;
    const bool inside = h >= 0 && h < rows.n_in && w >= 0 && w < cols.n_in;
    t.to[i] = inside ? (h * cols.n_in + w) * channels + c : -1;
  }
  return t;
}

// How many tiles of such a length touch the image along an axis.
MPSF_FN int tiles_along(Axis a, int length) {
  return floor_div(a.n_in - 1 + a.pad, length) - floor_div(a.pad, length) + 1;
}

#endif
