// How far launches may run ahead of a GPU. What a launch reads and writes stays in memory until the batch that it is
// committed with is over. So memory that waits is counted: whenever nothing waits and more is in use than ever before,
// that is what the work needs, and launches that wait may hold a share of it on top.
#pragma once
#include <stddef.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace mpsf {

// What batches ask of a GPU's stream.
struct CommandStream {
  virtual ~CommandStream() = default;
  // Bytes of arrays, of those that wait for the GPU too.
  virtual size_t in_use() const = 0;
  // Ends the batch of what was launched. The function is called by another thread once the GPU is through with it, and
  // its arrays are let go of soon after that.
  virtual void commit(std::function<void()> completed) = 0;
  // Ends a batch that nobody is told of.
  virtual void commit() = 0;
};

class Batches {
 public:
  static constexpr size_t fine = size_t(64) << 20;   // bytes that a batch has at least, where memory is nearly full
  static constexpr size_t least = size_t(64) << 20;  // bytes that may always wait

  // `needed` is of all streams: the most bytes that were in use when nothing waited.
  Batches(std::unique_ptr<CommandStream> stream, std::atomic<size_t>& needed)
      : stream_(std::move(stream)), needed_(needed), state_(std::make_shared<State>()) {}

  // Waits, before a launch that reads and writes so many bytes, while more than the share waits.
  void launch(size_t reads, size_t writes, double share) {
    const size_t slack = std::max(least, size_t(share * double(needed_)));
    const size_t batch = std::max(fine, slack / 8);  // where much may wait, few are enough: each takes a while to end
    if (bytes_ >= batch && in_use(writes) + slack > needed_) commit();
    if (in_use(writes) > needed_ + slack) wait(writes, slack);
    bytes_ += reads + writes;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable one_more;
    size_t completed = 0;
  };

  size_t in_use(size_t writes) const { return stream_->in_use() + writes; }

  void commit() {
    stream_->commit([state = state_]() {
      std::lock_guard lock(state->mutex);
      state->completed++;
      state->one_more.notify_all();
    });
    committed_++;
    bytes_ = 0;
  }

  void wait(size_t writes, size_t slack) {
    for (size_t past = completed(); past < committed_ && in_use(writes) > needed_ + slack; past = completed()) {
      wait_for(past + 1);  // while the GPU goes on with the others
    }
    if (in_use(writes) <= needed_ + slack) return;
    stream_->commit();  // what follows is told of when the arrays of all before are gone
    commit();
    wait_for(committed_);
    const size_t alone = in_use(writes);
    size_t before = needed_;
    while (before < alone && !needed_.compare_exchange_weak(before, alone)) {
    }
  }

  size_t completed() const {
    std::lock_guard lock(state_->mutex);
    return state_->completed;
  }

  void wait_for(size_t count) const {
    std::unique_lock lock(state_->mutex);
    state_->one_more.wait(lock, [&] { return state_->completed >= count; });
  }

  std::unique_ptr<CommandStream> stream_;
  std::atomic<size_t>& needed_;
  std::shared_ptr<State> state_;  // also of what the GPU has yet to tell
  size_t committed_ = 0;
  size_t bytes_ = 0;  // that launches read and wrote since the last commit
};

}  // namespace mpsf
