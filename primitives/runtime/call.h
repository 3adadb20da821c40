// What one CPU kernel is handed. Shared by the instruction-set objects and the generic code, so it holds
// plain data only: an inline function or a std type here would leak AVX code into generic callers.
#pragma once
#include <stdint.h>

namespace mpsf {

enum class Type : int { f32, f16, bf16, f64, i64, u64, u8, u16, u32 };  // integers: counts, winners, images to compare

// A row-contiguous array. The data is aligned to its element only.
struct Tensor {
  void* data;
  int64_t size;  // elements
  int shape[8];
  int ndim;
  Type type;
  bool streamed;  // a large output in memory that is not new, aligned to 64 bytes: better stored past the caches
};

// What laid out weights begin with, ahead of what tiles read. They hold what a convolution of so many outputs, each of
// so many products, reads in each group.
struct Layout {
  unsigned magic;
  int isa, pairs, groups, out_channels, depth;
  int unused[10];  // up to a line of the cache

  static constexpr unsigned kMagic = 0x6c616964;
  static constexpr int kWords = 16;
};

struct Call {
  const Tensor* in;
  const Tensor* out;
  int out_count;
  const int* params;  // the words of a struct of metal/<family>/params.h
  int in_count = 0;   // which only operations with inputs of a choice look at
};

}  // namespace mpsf
