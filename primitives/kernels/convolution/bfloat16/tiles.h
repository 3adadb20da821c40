// The instructions of AMX that convolutions use, which tests also run over a model of them in C++, MPSF_TILE_MODEL.
// Of the eight tiles 0 to 3 hold sums, 2 * row tile + column tile; 4 and 5 rows, 6 and 7 columns.
#pragma once
#include <stdint.h>

#if defined(MPSF_TILE_MODEL)
#include MPSF_TILE_MODEL
#else
#include <immintrin.h>
#endif

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kTileSide = 16, kTileBytes = 64;  // rows, and bytes in each, of every tile

#if !defined(MPSF_TILE_MODEL)
// What the processor reads.
struct alignas(64) TileShapes {
  uint8_t palette, start_row, unused[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Tiles belong to a thread, and a pool's threads have other work: they are taken by a task and given back.
class Tiles {
 public:
  Tiles() {
    TileShapes shapes = {};
    shapes.palette = 1;
    for (int i = 0; i < 8; ++i) shapes.row_bytes[i] = kTileBytes, shapes.rows[i] = kTileSide;
    asm volatile("" ::: "memory");
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// The intrinsics are macros that want a digit. GCC's do not say that they read memory, so the barriers do.
#define MPSF_BY_TILE(call)      \
  if constexpr (Tile == 0)      \
    call(0);                    \
  else if constexpr (Tile == 1) \
    call(1);                    \
  else if constexpr (Tile == 2) \
    call(2);                    \
  else if constexpr (Tile == 3) \
    call(3);                    \
  else if constexpr (Tile == 4) \
    call(4);                    \
  else if constexpr (Tile == 5) \
    call(5);                    \
  else if constexpr (Tile == 6) \
    call(6);                    \
  else                          \
    call(7);

template <int Tile>
inline __attribute__((always_inline)) void tile_zero() {
#define MPSF_CALL(tile) _tile_zero(tile)
  MPSF_BY_TILE(MPSF_CALL)
#undef MPSF_CALL
}

// Rows are `stride` bytes apart.
template <int Tile>
inline __attribute__((always_inline)) void tile_load(const void* from, int64_t stride) {
  asm volatile("" ::: "memory");
#define MPSF_CALL(tile) _tile_loadd(tile, from, stride)
  MPSF_BY_TILE(MPSF_CALL)
#undef MPSF_CALL
}

template <int Tile>
inline __attribute__((always_inline)) void tile_store(void* to, int64_t stride) {
#define MPSF_CALL(tile) _tile_stored(tile, to, stride)
  MPSF_BY_TILE(MPSF_CALL)
#undef MPSF_CALL
  asm volatile("" ::: "memory");
}

// Adds the products of pairs: sums[m][n] += row[m][2k] * column[k][2n] + row[m][2k + 1] * column[k][2n + 1].
template <int Row, int Column>
inline __attribute__((always_inline)) void tile_multiply() {
  if constexpr (Row == 0 && Column == 0) _tile_dpbf16ps(0, 4, 6);
  if constexpr (Row == 0 && Column == 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (Row == 1 && Column == 0) _tile_dpbf16ps(2, 5, 6);
  if constexpr (Row == 1 && Column == 1) _tile_dpbf16ps(3, 5, 7);
}
#undef MPSF_BY_TILE
#endif

}  // namespace
}  // namespace mpsf::MPSF_ISA
