// The register tile that reads rows where they lie, at any distance, and makes results of its sums while it has them.
#pragma once
#include "kernels/activation/apply.h"
#include "kernels/convolution/microkernel.h"

namespace mpsf::MPSF_ISA {
namespace {

// What the tiles of a line of outputs share: the lines that they read, null where there is none, of which a tap row's
// run has `length` elements, and the distances of two outputs there and in the result. Where a sum comes in parts,
// those before this one are in `before`, and unless it is the last one what they come to goes `to`, both as
// [row][lane].
template <typename T>
struct LineJob {
  const Acc<T>* const* lines;
  int count;
  int64_t pitch, length, result_pitch;
  const Neuron<Acc<T>>* neuron;
  bool streamed;
  const Acc<T>* before = nullptr;
  Acc<T>* to = nullptr;
  // Images like the result, which are added to it ahead of the activation, and where that begins.
  const T* added = nullptr;
  const T* results = nullptr;
};

// Memory that a tile fetches meanwhile, `step` bytes on with each product: a little at a time, since many lines of the
// cache at once make a core wait.
struct Meanwhile {
  const void* from;
  int64_t step;
};

template <typename T>
using LineTile = void (*)(const LineJob<T>& job, int64_t offset, const Acc<T>* weights, const Acc<T>* bias, int n,
                          Meanwhile next, T* result);

// result[r][lane] = bias[lane] + before[r][lane] + sum over lines and k < length of line[offset + r * pitch + k] *
// weights[k][lane]
template <typename T, int Rows, int Vectors>
void multiply_lines(const LineJob<T>& job, int64_t offset, const Acc<T>* weights, const Acc<T>* bias, int n,
                    Meanwhile next, T* result) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const int64_t bytes = job.pitch * static_cast<int64_t>(sizeof(A)), length = job.length;
  // All loops over it are unrolled: an index that is not a constant would have the sums live in memory.
  Vec<A> acc[Rows][Vectors];
#pragma GCC unroll 14
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) acc[r][v] = Vec<A>{};
  }
  const char* fetched = static_cast<const char*>(next.from);
  for (int line = 0; line < job.count; ++line) {
    const A* w = weights + line * length * kTileLanes<A>;
    if (!job.lines[line]) continue;
    // Rows are addressed from every fifth one. Hidden from the compiler, which would take a register for each.
    const char* base[3];
    for (int i = 0; i < 3; ++i) {
      base[i] = reinterpret_cast<const char*>(job.lines[line] + offset + (5 * i < Rows ? 5 * i : 0) * job.pitch);
      asm("" : "+r"(base[i]));
    }
    for (int64_t k = 0; k < length; ++k, w += kTileLanes<A>, fetched += next.step) {
      __builtin_prefetch(fetched, 0, 2);
      Vec<A> weight[Vectors];
      for (int v = 0; v < Vectors; ++v) weight[v] = load(w + v * L);
#pragma GCC unroll 14
      for (int r = 0; r < Rows; ++r) {
        const Vec<A> x = splat(*reinterpret_cast<const A*>(base[r / 5] + r % 5 * bytes));
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) acc[r][v] += x * weight[v];
      }
      for (int i = 0; i < 3; ++i) {
        base[i] += sizeof(A);
        asm("" : "+r"(base[i]));
      }
    }
  }
  if (job.before) {
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) acc[r][v] += load(job.before + r * kTileLanes<A> + v * L);
    }
  }
  if (job.to) {
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) store(job.to + r * kTileLanes<A> + v * L, acc[r][v]);
    }
    return;
  }
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    const int some = min_int(L, n - v * L);
    const Vec<A> start = load_some(bias + v * L, some);
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) acc[r][v] += start;
    if (!job.added) continue;
    const T* more = job.added + (result - job.results) + v * L;
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) acc[r][v] += load_some(more + r * job.result_pitch, some);
  }
  apply(acc, job.neuron);
  const bool streamed = job.streamed;
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    const int some = min_int(L, n - v * L);
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) store_result(result + r * job.result_pitch + v * L, acc[r][v], some, streamed);
  }
}

template <typename T, int Rows = kTileRows>
LineTile<T> line_tile(int rows, int vectors) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return line_tile<T, Rows - 1>(rows, vectors);
  }
  return vectors == 1 ? multiply_lines<T, Rows, 1> : multiply_lines<T, Rows, 2>;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
