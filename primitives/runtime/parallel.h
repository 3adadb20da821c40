// Threads and scratch memory for kernels. The functions live in generic code (parallel.cpp); the templates
// have internal linkage, so that each instruction set keeps its own.
#pragma once
#include <stdint.h>

namespace mpsf {

using Task = void (*)(void* context, int64_t chunk);

// Calls task(context, i) once for every i in [0, chunks), from up to num_threads() threads, and returns when
// all have. The first exception of a chunk is thrown here, after which chunks not yet begun are dropped.
void run_chunks(void* context, Task task, int64_t chunks);

// Whether this thread has to do all that is cut up for threads: it runs a chunk already, or there is no other.
bool works_alone();

// Leaves the processor to a worker that waits there for a job, if one does: before this thread waits for a job that
// another begins. Where it stayed, it would wake behind the worker, and each of the two threads on a processor that
// sleeps.
[[gnu::visibility("default")]] void step_aside();

[[gnu::visibility("default")]] int get_num_threads();
[[gnu::visibility("default")]] void set_num_threads(int threads);  // at least 1

// While it lives, this thread does all that is cut up for threads, if so asked: waking another takes as long as some
// work.
class Alone {
 public:
  explicit Alone(bool alone);
  ~Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  const bool before_;
};

// Aligned to 64 bytes, uninitialised. Throws std::bad_alloc.
void* scratch_alloc(int64_t bytes);
void scratch_free(void* memory) noexcept;

namespace {

// Calls f(i) for every i in [0, chunks). Which thread runs a chunk, and in which order, is not defined: for
// equal bits at every thread count, cut the work by shape alone and combine results in a fixed order.
template <typename F>
inline void parallel_for(int64_t chunks, const F& f) {
  run_chunks(
      const_cast<void*>(static_cast<const void*>(&f)),
      [](void* context, int64_t chunk) { (*static_cast<const F*>(context))(chunk); }, chunks);
}

// Uninitialised memory for count elements of T.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count) : data_(static_cast<T*>(scratch_alloc(count * static_cast<int64_t>(sizeof(T))))) {}
  ~Scratch() { scratch_free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
};

}  // namespace
}  // namespace mpsf
