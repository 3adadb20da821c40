// How far results are made room for ahead of their use. MLX allocates those of up to a hundred launches before the
// first has run, while the memory that these will let go of is still taken, and a training takes more of it. A launch
// that runs and one that waits behind it keep the processor busy.
#pragma once
#include <stddef.h>

#include <condition_variable>
#include <memory>
#include <mutex>

#include "mlx/stream.h"

namespace mpsf {

namespace mx = mlx::core;

// The kernels of one stream that have not run yet: the thread that evaluates adds to them, the stream's takes away.
class Ahead {
 public:
  // Returns once so many bytes more are not too much. What keeps the stream from running may be waiting for this very
  // thread, as a transfer between processes can, so that only our own kernels are waited for without end.
  void wait_for_room(size_t bytes);

 private:
  friend class Launch;

  bool room(size_t bytes) const;

  std::mutex mutex_;
  std::condition_variable fewer_;
  size_t bytes_ = 0;
  int kernels_ = 0;
  bool running_ = false;
};

// A kernel that is ahead until it has run, or until MLX drops it because something before it failed.
class Launch {
 public:
  Launch(std::shared_ptr<Ahead> ahead, size_t bytes);
  ~Launch() { end(); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void begin();
  void end();

 private:
  std::shared_ptr<Ahead> ahead_;  // null once it ended, or where nothing is counted
  size_t bytes_;
};

// What is ahead on a stream; null where there is a GPU, since the CPU may wait for work that MLX has yet to hand to it.
std::shared_ptr<Ahead> ahead_of(mx::Stream stream);

}  // namespace mpsf
