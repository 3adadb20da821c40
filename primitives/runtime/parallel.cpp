// The thread pool. mlx/threadpool.h does not serve: a task there is a std::function, a shared future and two
// passes of one mutex, 0.4 microseconds where claiming a chunk here is one atomic addition; its caller does not help,
// its destructor joins when the interpreter exits, and a forked child inherits workers that do not exist.
#include "runtime/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace mpsf {
namespace {

// Waking a thread takes as long as a small operation. A worker waits actively through the gap between two operations of
// an evaluation, and through that between two evaluations it gives way to whoever has work.
constexpr std::chrono::microseconds kSpin{50}, kYield{1000};
constexpr int kMaxThreads = 1024, kMaxShares = 32;

constexpr int kNowhere = -1;

thread_local bool inside = false;  // this thread is running a chunk

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int current_processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return kNowhere;
#endif
}

// Waits actively for a while.
template <typename Ready>
bool spin_until(Ready ready) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      pause();
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > kYield) return false;
    if (waited > kSpin) sched_yield();
  }
}

// A run of chunks. Its thread begins with the first that nobody has claimed, and goes on with the other runs. So of
// equal jobs in a row each thread does the same part, which the caches of its processor may still have.
struct alignas(64) Share {
  std::atomic<int64_t> next;
  int64_t end;
};

// One call of run_chunks, on its caller's stack. What is not atomic is guarded by the pool's mutex.
struct Job {
  void* context;
  Task task;
  int places;  // helpers that may still join
  int shares;  // of the chunks, each a run of them in which one thread begins
  Share share[kMaxShares];
  std::atomic<int> helpers{0};  // inside now; lowered under the mutex
  std::exception_ptr error{};
  Job* following = nullptr;
};

bool has_chunks(const Job& job) {
  return std::any_of(job.share, job.share + job.shares,
                     [](const Share& share) { return share.next.load(std::memory_order_relaxed) < share.end; });
}

// A worker that may be asleep, and the processors that it had before it was kept away from one.
struct Bed {
  pthread_t thread;
  bool asleep = false, moved = false;
#if defined(__linux__)
  cpu_set_t allowed;
#endif
};

class Pool {
 public:
  void run(Job& job);
  void step_aside() const;

 private:
  void work(int worker);
  void take_part(Job& job, int first);
  Job* find_job();
  void keep_away(int workers);

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::atomic<int64_t> posted_{0};  // jobs so far; raised under the mutex
  Job* jobs_ = nullptr;
  std::atomic<int> workers_{0};  // raised under the mutex
  int sleepers_ = 0;
  std::atomic<int> processors_[kMaxThreads];  // where each worker waits actively, or kNowhere
  Bed beds_[kMaxThreads];                     // guarded by the mutex
};

// A thread may find itself on the processor where a worker waits, which then gets little of it until the system
// balances its load, milliseconds later. So it moves to one where nobody waits.
void Pool::step_aside() const {
#if defined(__linux__)
  const int here = sched_getcpu(), workers = workers_.load(std::memory_order_acquire);
  auto waits = [&](int processor) {
    return std::any_of(processors_, processors_ + workers,
                       [=](const std::atomic<int>& p) { return p.load(std::memory_order_relaxed) == processor; });
  };
  if (!waits(here)) return;
  cpu_set_t allowed, empty;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  CPU_ZERO(&empty);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed) && !waits(i)) CPU_SET(i, &empty);
  }
  if (CPU_COUNT(&empty) > 0 && sched_setaffinity(0, sizeof(empty), &empty) == 0) {
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
#endif
}

// Linux may wake a worker on the processor of the job's caller although others have nothing to do: one of a virtual
// machine that has nothing to do counts as taken. Then one of the two would wait for the other, so sleepers may not
// wake there. Each has its processors back as soon as it is awake. Called with the mutex.
void Pool::keep_away([[maybe_unused]] int workers) {
#if defined(__linux__)
  const int here = sched_getcpu();
  for (Bed* bed = beds_; bed != beds_ + workers; ++bed) {
    if (!bed->asleep || bed->moved) continue;
    if (pthread_getaffinity_np(bed->thread, sizeof(bed->allowed), &bed->allowed) != 0) continue;
    cpu_set_t others = bed->allowed;
    CPU_CLR(here, &others);
    bed->moved = CPU_COUNT(&others) > 0 && pthread_setaffinity_np(bed->thread, sizeof(others), &others) == 0;
  }
#endif
}

void Pool::run(Job& job) {
  int sleepers, workers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
      for (workers = workers_; workers < job.places; workers_ = ++workers) {
        processors_[workers].store(kNowhere, std::memory_order_relaxed);
        std::thread(&Pool::work, this, workers).detach();
      }
    } catch (const std::system_error&) {
      // The system grants no more threads: work with those there are.
    }
  }
  step_aside();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job.following = jobs_;
    jobs_ = &job;
    posted_.fetch_add(1, std::memory_order_release);
    sleepers = std::min(sleepers_, job.places);
    if (sleepers > 0) keep_away(workers);
  }
  for (int i = 0; i < sleepers; ++i) wake_.notify_one();
  take_part(job, 0);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->following;
    *link = job.following;
  }
  auto alone = [&job] { return job.helpers.load(std::memory_order_acquire) == 0; };
  if (!spin_until(alone)) {
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, alone);
  }
  if (job.error) std::rethrow_exception(job.error);
}

void Pool::work(int worker) {
  int64_t seen = 0;
  auto& processor = processors_[worker];
  Bed& bed = beds_[worker];
  bed.thread = pthread_self();
  auto news = [&] { return posted_.load(std::memory_order_acquire) != seen; };
  for (;;) {
    spin_until([&] {
      processor.store(current_processor(), std::memory_order_relaxed);
      return news();
    });
    processor.store(kNowhere, std::memory_order_relaxed);
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    bed.asleep = true;
    wake_.wait(lock, news);
    bed.asleep = false;
    --sleepers_;
#if defined(__linux__)
    if (bed.moved) pthread_setaffinity_np(bed.thread, sizeof(bed.allowed), &bed.allowed);
    bed.moved = false;
#endif
    seen = posted_.load(std::memory_order_relaxed);
    while (Job* job = find_job()) {
      --job->places;
      job->helpers.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      take_part(*job, worker + 1);
      lock.lock();
      // From zero on the job's caller may leave, and the job with it.
      if (job->helpers.fetch_sub(1, std::memory_order_release) == 1) finished_.notify_all();
    }
  }
}

Job* Pool::find_job() {
  for (Job* job = jobs_; job != nullptr; job = job->following) {
    if (job->places > 0 && has_chunks(*job)) return job;
  }
  return nullptr;
}

void Pool::take_part(Job& job, int first) {
  inside = true;
  try {
    for (int k = 0; k < job.shares; ++k) {
      Share& share = job.share[(first + k) % job.shares];
      for (int64_t i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) job.task(job.context, i);
    }
  } catch (...) {
    for (int k = 0; k < job.shares; ++k) job.share[k].next.store(job.share[k].end, std::memory_order_relaxed);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!job.error) job.error = std::current_exception();
  }
  inside = false;
}

// Never destroyed: its threads sleep in it until the process ends. A forked child has none of them, so it
// starts over with a pool of its own.
Pool*& pool() {
  static Pool* instance = [] {
    pthread_atfork(nullptr, nullptr, [] { pool() = new Pool; });
    return new Pool;
  }();
  return instance;
}

int check_threads(long threads, const std::string& name, const std::string& value) {
  if (threads >= 1 && threads <= kMaxThreads) return static_cast<int>(threads);
  throw std::invalid_argument(name + ": not a number of threads; got " + value + ", expected 1 to " +
                              std::to_string(kMaxThreads));
}

int default_threads() {
  if (const char* text = std::getenv("MPSFUNC_NUM_THREADS")) {
    char* end;
    long threads = std::strtol(text, &end, 10);
    return check_threads(*end == '\0' ? threads : 0, "MPSFUNC_NUM_THREADS", std::string("'") + text + "'");
  }
  int threads = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) threads = CPU_COUNT(&allowed);
#endif
  return std::clamp(threads, 1, kMaxThreads);
}

std::atomic<int>& thread_count() {
  static std::atomic<int> count{default_threads()};
  return count;
}

}  // namespace

int get_num_threads() { return thread_count().load(std::memory_order_relaxed); }

void set_num_threads(int threads) {
  thread_count().store(check_threads(threads, "set_num_threads", "threads=" + std::to_string(threads)));
}

Alone::Alone(bool alone) : before_(inside) { inside = inside || alone; }

Alone::~Alone() { inside = before_; }

void step_aside() { pool()->step_aside(); }

bool works_alone() { return inside || get_num_threads() == 1; }

void run_chunks(void* context, Task task, int64_t chunks) {
  int64_t threads = std::min<int64_t>(get_num_threads(), chunks);
  if (threads > 1 && !inside) {
    Job job;
    job.context = context, job.task = task;
    job.places = static_cast<int>(threads - 1);
    job.shares = static_cast<int>(std::min<int64_t>(threads, kMaxShares));
    for (int k = 0; k < job.shares; ++k) {
      job.share[k].next.store(chunks * k / job.shares, std::memory_order_relaxed);
      job.share[k].end = chunks * (k + 1) / job.shares;
    }
    pool()->run(job);
  } else {
    for (int64_t i = 0; i < chunks; ++i) task(context, i);
  }
}

// Not posix_memalign, whose remainders in front of and behind what it returns glibc keeps for the thread that asked.
// They part the memory around them for ever where threads do not end, as those behind MLX's streams: what each thread
// of Python evaluated in would cost half a megabyte. So the beginning of what malloc gives stands before what is
// returned.
void* scratch_alloc(int64_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t wanted = static_cast<size_t>(std::max<int64_t>(bytes, 1));
#if defined(MPSF_SANITIZE)
  void* memory = nullptr;  // not a byte more than asked for, so that a sanitizer sees the first beyond
  if (posix_memalign(&memory, kAlign, wanted) != 0) throw std::bad_alloc();
  return memory;
#else
  void* begin = std::malloc(wanted + kAlign + sizeof(void*));
  if (begin == nullptr) throw std::bad_alloc();
  const uintptr_t least = reinterpret_cast<uintptr_t>(begin) + sizeof(void*);
  void** memory = reinterpret_cast<void**>((least + kAlign - 1) / kAlign * kAlign);
  memory[-1] = begin;
  return memory;
#endif
}

void scratch_free(void* memory) noexcept {
#if !defined(MPSF_SANITIZE)
  if (memory != nullptr) memory = static_cast<void**>(memory)[-1];
#endif
  std::free(memory);
}

}  // namespace mpsf
