// Runs one kernel over its whole grid: every GPU thread is a fibre, and a barrier hands over to the next one.
//
//   gpu KERNEL.so JOB RESULT
//
// A job is 64-bit ints: grid[3], threadgroup[3], options, buffers; for each buffer its role, bytes and bytes of an
// element; then the contents of the inputs. The result holds the outputs, then bytes loaded and stored per buffer.
// Misuse that Metal leaves undefined (a barrier that not all threads reach, too much threadgroup memory) ends in
// exit status 3; what a sanitizer finds ends in its own.
#include "gpu.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fibre.h"

#if GPU_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace {

enum Option { kReverseLanes = 1, kRoundGridUp = 2, kShiftInputs = 4 };
enum Role { kConstant, kInput, kOutput };

[[noreturn]] void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("metal host: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputs("\n", stderr);
  std::exit(3);
}

// Not memset and memcpy: the thread sanitizer would take them for accesses of the running fibre.
void poison(void* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(memory)[i] = char(0xff);
}
void copy(void* to, const void* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(to)[i] = static_cast<const volatile char*>(from)[i];
}

struct Buffer {
  int64_t role, bytes, element;
  char* memory;
  int64_t loaded, stored;
};
std::vector<Buffer> buffers;

// Threads ------------------------------------------------------------------------------------------------

enum class State { kReady, kBarrier, kSimdgroup, kDone };
enum { kThreadgroupMemory = 32 * 1024, kSimdWidth = 32 };

struct Fibre {
  Stack stack;
  void* tsan;
  State state;
  int line;
  unsigned exchanges;
  unsigned waits[2];  // so far, for lanes of its simdgroup and for all threads
  unsigned together;  // lanes of its simdgroup that were let go with it
  uint64_t agreed;    // a hash of the calls that the lanes of its simdgroup must make alike, and the last of them
  int agreed_line;
  Ids ids;
};

std::vector<Fibre> fibres;  // of the running threadgroup, by thread index
Fibre* running;
void (*kernel)(void* const*, const Ids&);
std::vector<void*> arguments;

// Clocks that only the thread sanitizer reads: of a threadgroup, of each of its simdgroups, and of the whole grid,
// whose end the host waits for.
char group_clocks[2], simdgroup_clocks[32][2], grid_clock;

struct SimdSlots {
  char value[2][kSimdWidth][16];  // two, because a lane may give its next value before another has read this one
};
SimdSlots simd_slots[32];

struct Declaration {
  void* memory;
  size_t bytes;
};
std::vector<Declaration> declarations;  // threadgroup memory of the running threadgroup

#if GPU_TSAN
void* scheduler_fiber;
void switch_sanitizer(void* to) { __tsan_switch_to_fiber(to, 1); }  // 1: switching orders no memory accesses
#endif

void to_scheduler() {
  Fibre* self = running;
#if GPU_TSAN
  switch_sanitizer(scheduler_fiber);
#endif
  self->stack.hand_back();
}

void resume(Fibre& fibre) {
  running = &fibre;
#if GPU_TSAN
  switch_sanitizer(fibre.tsan);
#endif
  fibre.stack.resume();
}

void fibre_main() {
  kernel(arguments.data(), running->ids);
#if GPU_TSAN
  __tsan_release(&grid_clock);
#endif
  running->state = State::kDone;
  to_scheduler();
}

// The clocks of two barriers take turns: a thread that is let go from one must not learn from another what that did on
// its way to the next.
void wait(State state, int line, bool orders_memory, char* clocks) {
#if GPU_TSAN
  char* clock = orders_memory ? &clocks[running->waits[state == State::kBarrier]++ % 2] : nullptr;
  if (orders_memory) __tsan_release(clock);
#endif
  running->state = state;
  running->line = line;
  to_scheduler();
#if GPU_TSAN
  if (orders_memory) __tsan_acquire(clock);
#endif
  (void)orders_memory, (void)clocks;
}

// Whether the lanes of each simdgroup of the threads [from, to) that are in `state` or done made the same calls.
void compare_lanes(unsigned from, unsigned to, State state) {
  for (unsigned i = from; i < to; ++i) {
    const Fibre &lane = fibres[i], &first = fibres[i - i % kSimdWidth];
    if (lane.state != state && lane.state != State::kDone) continue;
    if (lane.agreed != first.agreed) {
      fail("lanes of a simdgroup used matrices differently, up to lines %d and %d", first.agreed_line,
           lane.agreed_line);
    }
  }
}

// Lets the threads [from, to) go on if all of them wait in `state` at one place; those that left the kernel count
// where `all` says so. Returns whether it did.
bool release(unsigned from, unsigned to, State state, bool all) {
  int line = 0;
  unsigned waiting = 0, done = 0;
  for (unsigned i = from; i < to; ++i) {
    if (fibres[i].state == State::kDone) {
      ++done;
    } else if (fibres[i].state != state) {
      return false;
    } else {
      if (waiting++ && fibres[i].line != line) fail("threads wait at lines %d and %d", line, fibres[i].line);
      line = fibres[i].line;
    }
  }
  if (waiting == 0) return false;
  if (all && done) fail("%u of %u threads left before the barrier at line %d", done, to - from, line);
  if (done == 0) compare_lanes(from, to, state);  // otherwise at the end
  unsigned together = 0;
  for (unsigned i = from; i < to && state == State::kSimdgroup; ++i)
    together |= unsigned(fibres[i].state == state) << (i - from);
  for (unsigned i = from; i < to; ++i) {
    if (fibres[i].state != state) continue;
    fibres[i].state = State::kReady;
    fibres[i].together = together;
  }
  return true;
}

void run_threadgroup(unsigned threads, bool reversed) {
  for (unsigned i = 0; i < threads; ++i) {
    Fibre& fibre = fibres[i];
    fibre.stack.prepare(fibre_main);
    fibre.state = State::kReady;
    fibre.exchanges = 0;
    fibre.waits[0] = fibre.waits[1] = 0;
    fibre.agreed = 0;
    fibre.agreed_line = 0;
  }
  for (bool moved = true; moved;) {
    for (unsigned i = 0; i < threads; ++i) {
      Fibre& fibre = fibres[reversed ? threads - 1 - i : i];
      if (fibre.state == State::kReady) resume(fibre);
    }
    moved = false;
    for (unsigned i = 0; i < threads; i += kSimdWidth) {
      moved |= release(i, i + kSimdWidth < threads ? i + kSimdWidth : threads, State::kSimdgroup, false);
    }
    if (!moved) moved = release(0, threads, State::kBarrier, true);
  }
  for (unsigned i = 0; i < threads; ++i) {
    if (fibres[i].state != State::kDone) fail("a thread waits at line %d for others that never come", fibres[i].line);
  }
  compare_lanes(0, threads, State::kDone);
#if !GPU_TSAN
  for (Declaration& d : declarations) std::free(d.memory);
#endif
  declarations.clear();
}

void run_grid(const int64_t* grid, const int64_t* threadgroup, int64_t options) {
  unsigned group[3], groups[3], whole[3];
  for (int a = 0; a < 3; ++a) {
    // Metal runs exactly the grid, in threadgroups no larger than it; CUDA runs whole blocks.
    const bool round_up = options & kRoundGridUp;
    group[a] = unsigned(round_up || threadgroup[a] < grid[a] ? threadgroup[a] : grid[a]);
    groups[a] = unsigned((grid[a] + group[a] - 1) / group[a]);
    whole[a] = round_up ? groups[a] * group[a] : unsigned(grid[a]);
  }
  const unsigned most = group[0] * group[1] * group[2];
  if (most > 1024) fail("%u threads in a threadgroup", most);
  fibres.resize(most);
  for (Fibre& fibre : fibres) {
    if (!fibre.stack.allocate()) fail("no memory for stacks");
#if GPU_TSAN
    fibre.tsan = __tsan_create_fiber(0);  // goes with its stack from threadgroup to threadgroup
#endif
  }
  unsigned at[3];
  for (at[2] = 0; at[2] < groups[2]; ++at[2]) {
    for (at[1] = 0; at[1] < groups[1]; ++at[1]) {
      for (at[0] = 0; at[0] < groups[0]; ++at[0]) {
        unsigned size[3];  // of this threadgroup: those at the far edges may be smaller
        for (int a = 0; a < 3; ++a)
          size[a] = whole[a] - at[a] * group[a] < group[a] ? whole[a] - at[a] * group[a] : group[a];
        const unsigned threads = size[0] * size[1] * size[2];
        for (unsigned i = 0; i < threads; ++i) {
          Ids& ids = fibres[i].ids;
          const unsigned in_group[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
          for (int a = 0; a < 3; ++a) {
            ids.thread_position_in_grid[a] = at[a] * group[a] + in_group[a];
            ids.threads_per_grid[a] = whole[a];
            ids.thread_position_in_threadgroup[a] = in_group[a];
            ids.threads_per_threadgroup[a] = size[a];
            ids.threadgroup_position_in_grid[a] = at[a];
            ids.threadgroups_per_grid[a] = groups[a];
          }
          ids.thread_index_in_threadgroup = i;
          ids.thread_index_in_simdgroup = i % kSimdWidth;
          ids.simdgroup_index_in_threadgroup = i / kSimdWidth;
          ids.simdgroups_per_threadgroup = (threads + kSimdWidth - 1) / kSimdWidth;
          ids.threads_per_simdgroup = kSimdWidth;
        }
        run_threadgroup(threads, options & kReverseLanes);
      }
    }
  }
}

// Files --------------------------------------------------------------------------------------------------

void read(std::FILE* file, void* to, size_t bytes) {
  if (std::fread(to, 1, bytes, file) != bytes) fail("the job is too short");
}

void load_job(const char* path, int64_t (&header)[8]) {
  std::FILE* file = std::fopen(path, "rb");
  if (!file) fail("no job %s", path);
  read(file, header, sizeof header);
  for (int64_t i = 0; i < header[7]; ++i) {
    Buffer buffer = {};
    read(file, &buffer, 3 * sizeof(int64_t));
    buffers.push_back(buffer);
  }
  for (Buffer& buffer : buffers) {
    // Exactly as large as the array, so that the address sanitizer sees the byte behind it. MLX aligns arrays to their
    // elements only: a shifted input stands for a view that starts one element in.
    const int64_t shift = buffer.role == kInput && header[6] & kShiftInputs ? buffer.element : 0;
    buffer.memory = static_cast<char*>(std::malloc(buffer.bytes + shift)) + shift;
    if (buffer.role == kOutput) {
      poison(buffer.memory, buffer.bytes);
    } else {
      read(file, buffer.memory, buffer.bytes);
    }
  }
  std::fclose(file);
}

void save_result(const char* path) {
  std::FILE* file = std::fopen(path, "wb");
  if (!file) fail("cannot write %s", path);
  for (const Buffer& buffer : buffers) {
    if (buffer.role == kOutput) std::fwrite(buffer.memory, 1, buffer.bytes, file);
  }
  for (const Buffer& buffer : buffers) std::fwrite(&buffer.loaded, sizeof(int64_t), 2, file);
  std::fclose(file);
}

void count(const void* address, int64_t bytes, int64_t Buffer::*counter) {
  const char* at = static_cast<const char*>(address);
  for (Buffer& buffer : buffers) {
    if (at >= buffer.memory && at < buffer.memory + buffer.bytes) buffer.*counter += bytes;
  }
}

}  // namespace

extern "C" {

void gpu_threadgroup_barrier(int line, bool orders_memory) { wait(State::kBarrier, line, orders_memory, group_clocks); }

void gpu_simdgroup_barrier(int line, bool orders_memory) {
  wait(State::kSimdgroup, line, orders_memory, simdgroup_clocks[running->ids.simdgroup_index_in_threadgroup]);
}

void* gpu_threadgroup_memory(int declaration, unsigned long bytes) {
  if (size_t(declaration) >= declarations.size()) declarations.resize(declaration + 1);
  Declaration& d = declarations[declaration];
  if (!d.memory) {
    d.bytes = bytes;
    size_t total = 0;
    for (const Declaration& each : declarations) total += each.bytes;
    if (total > kThreadgroupMemory) fail("%zu bytes of threadgroup memory, Metal has %d", total, kThreadgroupMemory);
#if GPU_TSAN
    // Never used before and never again: the sanitizer knows no access to it, nor that of another threadgroup.
    static char arena[256 << 20];
    static size_t used;
    if (used + bytes > sizeof arena) fail("the grid is too large for the thread sanitizer");
    d.memory = arena + used;
    used += (bytes + 63) / 64 * 64;
#else
    d.memory = std::malloc(bytes);
#endif
    poison(d.memory, bytes);
  }
  return d.memory;
}

unsigned gpu_lane() { return running->ids.thread_index_in_simdgroup; }

const Ids* gpu_ids() { return &running->ids; }

void gpu_refuse(int line, const char* words) { fail("line %d: Metal does not say %s", line, words); }

void gpu_simd_agree(int line, const unsigned long* said, int count) {
  const Ids& ids = running->ids;
  const unsigned* size = ids.threads_per_threadgroup;
  if ((ids.simdgroup_index_in_threadgroup + 1) * kSimdWidth > size[0] * size[1] * size[2]) {
    fail("line %d: a simdgroup with matrices has fewer than %d lanes", line, kSimdWidth);
  }
  running->agreed_line = line;
  running->agreed = (running->agreed + line) * 0x9e3779b97f4a7c15;
  for (int i = 0; i < count; ++i) {
    running->agreed = (running->agreed ^ running->agreed >> 29 ^ said[i]) * 0x9e3779b97f4a7c15;
  }
}

void gpu_peek_matrix(const void* from, unsigned long bytes, unsigned long down, unsigned long across, void* to) {
  for (unsigned i = 0; i < 64; ++i) {
    const void* at = static_cast<const char*>(from) + (i / 8 * down + i % 8 * across) * bytes;
    std::memcpy(static_cast<char*>(to) + i * bytes, at, bytes);
  }
}

unsigned gpu_simd_exchange(int line, const void* value, unsigned long bytes, void* of_lanes) {
  SimdSlots& slots = simd_slots[running->ids.simdgroup_index_in_threadgroup];
  const unsigned turn = running->exchanges++ % 2, lane = gpu_lane();
  copy(slots.value[turn][lane], value, bytes);
  wait(State::kSimdgroup, line, false, nullptr);
  for (unsigned i = 0; i < kSimdWidth; ++i) copy(static_cast<char*>(of_lanes) + i * bytes, slots.value[turn][i], bytes);
  return running->together;
}

// Called by the instrumentation of clang's -fsanitize-coverage=trace-loads,trace-stores.
#define GPU_COUNT(bytes)                                                                            \
  void __sanitizer_cov_load##bytes(const void* address) { count(address, bytes, &Buffer::loaded); } \
  void __sanitizer_cov_store##bytes(const void* address) { count(address, bytes, &Buffer::stored); }
GPU_COUNT(1)
GPU_COUNT(2)
GPU_COUNT(4)
GPU_COUNT(8)
GPU_COUNT(16)
void __sanitizer_cov_trace_pc_guard(uint32_t*) {}
void __sanitizer_cov_trace_pc_guard_init(uint32_t*, uint32_t*) {}
}

int main(int argc, char** argv) {
  if (argc != 4) fail("usage: gpu KERNEL.so JOB RESULT");
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) fail("%s", dlerror());
  kernel = reinterpret_cast<decltype(kernel)>(dlsym(library, "gpu_kernel"));
  if (!kernel) fail("%s", dlerror());
  int64_t header[8];
  load_job(argv[2], header);
  for (const Buffer& buffer : buffers) arguments.push_back(buffer.memory);
#if GPU_TSAN
  scheduler_fiber = __tsan_get_current_fiber();
#endif
  run_grid(header, header + 3, header[6]);
#if GPU_TSAN
  __tsan_acquire(&grid_clock);
#endif
  save_result(argv[3]);
}
