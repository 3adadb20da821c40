// The bodies are written for Metal. These are the words of theirs that CUDA does not have, in its own terms.
#define device
#define threadgroup __shared__
typedef unsigned int uint;
#define thread_position_in_grid                                                           \
  make_uint3(blockIdx.x* blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, \
             blockIdx.z * blockDim.z + threadIdx.z)
#define thread_position_in_threadgroup make_uint3(threadIdx.x, threadIdx.y, threadIdx.z)
#define threads_per_grid make_uint3(gridDim.x* blockDim.x, gridDim.y* blockDim.y, gridDim.z* blockDim.z)
#define threadgroup_position_in_grid make_uint3(blockIdx.x, blockIdx.y, blockIdx.z)
#define thread_index_in_threadgroup ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x)
#define thread_index_in_simdgroup (thread_index_in_threadgroup % 32)
#define simdgroup_index_in_threadgroup (thread_index_in_threadgroup / 32)
#define threadgroup_barrier(flags) __syncthreads()
#define simdgroup_barrier(flags) __syncwarp()
// All lanes of a warp take part.
template <typename V>
__device__ inline V simd_shuffle_xor(V value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <typename To>
__device__ inline To as_type(int bits) {
  return __int_as_float(bits);
}
__device__ inline int ctz(uint bits) { return __ffs(int(bits)) - 1; }
__device__ inline int popcount(uint bits) { return __popc(bits); }
