// Steps of launches over a GPU that a thread plays: what they read and wrote is given back when their batch is over,
// right behind the function that tells of it, as MLX has it.
//
// run_ahead SHARE STEPS LAUNCHES KEPT EACH prints the most megabytes in use, those that the steps need, and batches
// ended. A launch writes one array of 32 MB and reads the last one; of every second, KEPT in a step, it stays until the
// end. Every EACH-th launch is one of ours, the others of MLX.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "binding/batches.h"

namespace {

constexpr size_t array_bytes = size_t(32) << 20;

struct Memory {
  std::atomic<size_t> used{0}, peak{0};
  void take(size_t bytes) {
    const size_t now = used += bytes;
    size_t before = peak;
    while (before < now && !peak.compare_exchange_weak(before, now)) {
    }
  }
};

struct Batch {
  std::vector<std::function<void()>> tasks;
  int launches = 0;
};

class Played : public mpsf::CommandStream {
 public:
  explicit Played(Memory& memory) : memory_(memory), thread_([this] { run(); }) {}
  ~Played() override {
    commit();
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  size_t in_use() const override { return memory_.used; }
  void commit(std::function<void()> completed) override {
    open_.tasks.push_back(std::move(completed));
    commit();
  }
  void commit() override {
    if (dying_ > 0) open_.tasks.push_back([this, bytes = dying_] { memory_.used -= bytes; });
    dying_ = 0;
    {
      std::lock_guard lock(mutex_);
      batches_.push_back(std::move(open_));
    }
    open_ = {};
    count++;
    changed_.notify_all();
  }

  // What a launch writes, and what nobody needs behind it.
  void launch(size_t writes, size_t dies) {
    memory_.take(writes);
    dying_ += dies;
    if (++open_.launches > 100) commit();
  }

  int count = 0;

 private:
  void run() {
    for (;;) {
      Batch batch;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || !batches_.empty(); });
        if (batches_.empty()) return;
        batch = std::move(batches_.front());
        batches_.pop_front();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20 * batch.launches));
      for (auto& task : batch.tasks) {
        task();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  }

  Memory& memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> batches_;
  Batch open_;
  size_t dying_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const double share = std::atof(argv[1]);
  const int steps = std::atoi(argv[2]), launches = std::atoi(argv[3]), kept = std::atoi(argv[4]);
  const int each = std::atoi(argv[5]);
  Memory memory;
  std::atomic<size_t> needed{0};
  int count = 0;
  {
    auto owned = std::make_unique<Played>(memory);
    Played& gpu = *owned;
    mpsf::Batches batches(std::move(owned), needed);
    size_t last = 0;
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < launches; ++i) {
        if (share > 0 && (i + 1) % each == 0) batches.launch(last, array_bytes, share);
        const bool stays = i % 2 == 0 && i < 2 * kept, ends = i == launches - 1;
        gpu.launch(array_bytes, last + (ends ? kept * array_bytes : 0));
        last = stays ? 0 : array_bytes;
      }
    }
    count = gpu.count;
  }
  std::printf("%zu %zu %d\n", memory.peak >> 20, needed >> 20, count);
}
