// What every kernel text begins with, in Metal, CUDA and C++ alike.
#ifndef MPSF_BASE_H
#define MPSF_BASE_H
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define MPSF_FN __device__ inline
#elif defined(__METAL_VERSION__)
#define MPSF_FN inline
#else
#define MPSF_FN static inline
#endif

// Parameters travel as 32-bit words. A kernel reads them as the struct of its family's params.h whose layout they have.
// The type of the words is a template argument because MSL spells an address space in it: `constant` for less than
// eight words, else `device`.
//
// On a CPU reals are doubles, which lie behind ints without a gap: structs with a Real stand between these two.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__METAL_VERSION__)
#define MPSF_BEGIN_PARAMS
#define MPSF_END_PARAMS
#else
#define MPSF_BEGIN_PARAMS _Pragma("pack(push, 4)")
#define MPSF_END_PARAMS _Pragma("pack(pop)")
#endif
template <typename P, typename Words>
MPSF_FN P params_as(Words words) {
  union {
    int words[sizeof(P) / sizeof(int)];
    P params;
  } same;
  for (int i = 0; i < int(sizeof(P) / sizeof(int)); ++i) same.words[i] = words[i];
  return same.params;
}

// How many threads of a threadgroup stand side by side, and in how many rows. Two words: `constant` on Metal.
struct Threadgroup {
  int width, height;
};

MPSF_FN int min_int(int a, int b) { return a < b ? a : b; }
MPSF_FN int max_int(int a, int b) { return a > b ? a : b; }
// Quotients of a by b > 0, rounded down and up, without a sum that could overflow.
// Plain C division rounds toward zero.
MPSF_FN int floor_div(int a, int b) { return a >= 0 ? a / b : -1 - (-1 - a) / b; }
MPSF_FN int ceil_div(int a, int b) { return a > 0 ? 1 + (a - 1) / b : -(-a / b); }

#endif
