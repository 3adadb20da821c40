// The words of CUDA that metal/shared/cuda.h and the headers behind it use, on the Metal host. msl.h comes first; the
// text of a kernel follows in a namespace of its own, in which the words of cuda.h hide those of msl.h.
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#define __CUDACC_RTC__
#define __device__
#define __shared__
#define memcpy __builtin_memcpy
#define threadIdx shim::thread_index()
#define blockDim shim::block_size()
#define blockIdx shim::block_index()
#define gridDim shim::grid_size()
#define __syncthreads() gpu_threadgroup_barrier(__LINE__, true)
#define __syncwarp() gpu_simdgroup_barrier(__LINE__, true)
#undef device
#undef threadgroup

namespace shim {
inline uint3 vector(const unsigned (&of)[3]) { return uint3{of[0], of[1], of[2]}; }
// Apart from the words above, which contain words of cuda.h's.
inline uint3 thread_index() { return vector(gpu_ids()->thread_position_in_threadgroup); }
inline uint3 block_size() { return vector(gpu_ids()->threads_per_threadgroup); }
inline uint3 block_index() { return vector(gpu_ids()->threadgroup_position_in_grid); }
inline uint3 grid_size() { return vector(gpu_ids()->threadgroups_per_grid); }
}  // namespace shim

inline uint3 make_uint3(uint x, uint y, uint z) { return uint3{x, y, z}; }
typedef half __half;
typedef bfloat __nv_bfloat16;
inline float __int_as_float(int bits) { return as_type<float>(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(uint bits) { return __builtin_popcount(bits); }
template <typename V>
V __shfl_sync(uint lanes, V value, int lane, int line = __builtin_LINE()) {
  if (lanes != 0xffffffffu) gpu_refuse(line, "what a shuffle of some lanes does");
  return shim::from_lane(value, uint(lane), line);
}
template <typename V>
V __shfl_xor_sync(uint lanes, V value, int mask, int line = __builtin_LINE()) {
  if (lanes != 0xffffffffu) gpu_refuse(line, "what a shuffle of some lanes does");
  return shim::from_lane(value, gpu_lane() ^ uint(mask), line);
}

#endif
