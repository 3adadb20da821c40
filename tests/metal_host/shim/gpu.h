// Between a kernel, compiled as a shared object, and the host that runs it (gpu.cpp).
#ifndef GPU_H
#define GPU_H

// Where a thread is, in Metal's words.
struct Ids {
  unsigned thread_position_in_grid[3], threads_per_grid[3];
  unsigned thread_position_in_threadgroup[3], threads_per_threadgroup[3];
  unsigned threadgroup_position_in_grid[3], threadgroups_per_grid[3];
  unsigned thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup, threads_per_simdgroup;
};

extern "C" {
// What the kernel provides. Buffers lie in the order of Metal's indices.
void gpu_kernel(void* const* buffers, const Ids& ids);

// What the host provides to the running thread. `line` says where in the text a group waits.
void gpu_threadgroup_barrier(int line, bool orders_memory);
void gpu_simdgroup_barrier(int line, bool orders_memory);
void* gpu_threadgroup_memory(int declaration, unsigned long bytes);
// Every lane gives a value of at most 16 bytes and sees those of its simdgroup. Returns the lanes that gave one.
unsigned gpu_simd_exchange(int line, const void* value, unsigned long bytes, void* of_lanes);
unsigned gpu_lane();
const Ids* gpu_ids();
// What a lane does in a call that all 32 lanes of its simdgroup must make alike: the host compares them when they meet.
void gpu_simd_agree(int line, const unsigned long* said, int count);
// Reads 8 by 8 elements at these distances, out of the sanitizers' sight.
void gpu_peek_matrix(const void* from, unsigned long bytes, unsigned long down, unsigned long across, void* to);
// Ends the run: Metal leaves this undefined, or unsaid.
[[noreturn]] void gpu_refuse(int line, const char* words);
}

#endif
