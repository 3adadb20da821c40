// The instructions of AMX as Intel's manual has them, for tests of tiles.h where no processor has them. What the
// processor would refuse ends the program: tiles that nobody has taken.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace mpsf::MPSF_ISA {
namespace {

struct ModelTiles {
  bool taken;
  uint8_t bytes[8][16][64];
};
thread_local ModelTiles model_tiles;

inline ModelTiles& taken_tiles() {
  if (!model_tiles.taken) abort();
  return model_tiles;
}

class Tiles {
 public:
  Tiles() {
    if (model_tiles.taken) abort();
    memset(&model_tiles, 0, sizeof(model_tiles));
    model_tiles.taken = true;
  }
  ~Tiles() { model_tiles.taken = false; }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int Tile>
void tile_zero() {
  memset(taken_tiles().bytes[Tile], 0, sizeof(model_tiles.bytes[Tile]));
}
template <int Tile>
void tile_load(const void* from, int64_t stride) {
  for (int r = 0; r < 16; ++r) {
    memcpy(taken_tiles().bytes[Tile][r], static_cast<const char*>(from) + r * stride, 64);
  }
}
template <int Tile>
void tile_store(void* to, int64_t stride) {
  for (int r = 0; r < 16; ++r) memcpy(static_cast<char*>(to) + r * stride, taken_tiles().bytes[Tile][r], 64);
}

// Subnormal numbers count as zeros, and become zeros of their sign.
inline float model_flushed(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7f800000) == 0) bits &= 0x80000000;
  memcpy(&value, &bits, sizeof(bits));
  return value;
}
inline float model_wide(const uint8_t* bfloat) {
  const uint32_t bits = static_cast<uint32_t>(bfloat[0]) << 16 | static_cast<uint32_t>(bfloat[1]) << 24;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return model_flushed(value);
}

// The even products of a row and a column are added up by themselves, so are the odd ones.
template <int Row, int Column>
void tile_multiply() {
  auto& tiles = taken_tiles().bytes;
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float parts[2] = {0, 0};
      for (int k = 0; k < 16; ++k) {
        for (int odd = 0; odd < 2; ++odd) {
          const float a = model_wide(&tiles[4 + Row][m][4 * k + 2 * odd]);
          const float b = model_wide(&tiles[6 + Column][k][4 * n + 2 * odd]);
          parts[odd] = model_flushed(__builtin_fmaf(a, b, parts[odd]));
        }
      }
      float sum;
      memcpy(&sum, &tiles[2 * Row + Column][m][4 * n], sizeof(sum));
      sum = model_flushed(model_flushed(sum) + model_flushed(parts[0] + parts[1]));
      memcpy(&tiles[2 * Row + Column][m][4 * n], &sum, sizeof(sum));
    }
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
