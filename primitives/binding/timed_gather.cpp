#include "binding/timed_gather.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/scheduler.h"

namespace mpsf {
namespace {

using Clock = std::chrono::steady_clock;

// What a gather may still take at most once its connections are shut, before the process is ended.
constexpr double kGrace = 10;

struct Run {  // one evaluation of one gather
  std::vector<int> sockets;
  double seconds;
  std::atomic<bool> late{false};
};

// Whether the other end has closed: then no gather can end well any more, and a later one would not end at all.
bool closed(int socket) {
  char byte;
  ssize_t got = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool any_closed(const std::vector<int>& sockets) {
  for (int socket : sockets) {
    if (closed(socket)) return true;
  }
  return false;
}

void shut(const std::vector<int>& sockets) {
  for (int socket : sockets) shutdown(socket, SHUT_RDWR);
}

std::string why(const Run& run) {
  std::ostringstream text;
  if (run.late) {
    text << "mpsfunc: no answer from the group's other processes in " << run.seconds
         << " s (MPSFUNC_DISTRIBUTED_TIMEOUT)";
  } else {
    text << "mpsfunc: another process of the group ended, or gave up waiting";
  }
  return text.str();
}

Clock::time_point from_now(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// One thread, from the first gather on.
class Watch {
 public:
  static Watch& instance() {
    static Watch* watch = new Watch;  // never deleted: streams may outlive it
    return *watch;
  }

  void begin(std::shared_ptr<Run> run) {
    std::lock_guard lock(mutex_);
    auto until = from_now(run->seconds);
    running_.push_back({until, std::move(run)});
    if (!started_) std::thread([this] { watch(); }).detach();
    started_ = true;
    changed_.notify_one();
  }

  void end(const std::shared_ptr<Run>& run) {
    std::lock_guard lock(mutex_);
    std::erase_if(running_, [&](const Entry& entry) { return entry.run == run; });
  }

 private:
  struct Entry {
    Clock::time_point until;
    std::shared_ptr<Run> run;
  };

  void watch() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !running_.empty(); });
      Entry* first = &running_[0];
      for (Entry& entry : running_) {
        if (entry.until < first->until) first = &entry;
      }
      const auto until = first->until;
      if (Clock::now() < until) {
        changed_.wait_until(lock, until);
        continue;
      }
      if (first->run->late) {  // still running: there were no connections to shut, or it is not they that it waits for
        std::fprintf(stderr, "%s; the gather cannot be interrupted, so this process ends\n", why(*first->run).c_str());
        std::_Exit(EXIT_FAILURE);
      }
      first->run->late = true;
      first->until = from_now(std::min(kGrace, first->run->seconds));
      shut(first->run->sockets);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> running_;
  bool started_ = false;
};

// Enqueueing throws where an earlier task of the stream failed, once for each failure.
template <typename Task>
void enqueue_surely(mx::cpu::CommandEncoder& encoder, const Task& task) {
  try {
    encoder.dispatch(task);
  } catch (const std::exception&) {
    encoder.dispatch(task);
    throw;
  }
}

bool in_step(const uint32_t* rows, int count, int64_t length) {
  for (int i = 1; i < count; ++i) {
    if (rows[i * length] != rows[0]) return false;
  }
  return true;
}

}  // namespace

void Watched::eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) {
  auto run = std::make_shared<Run>();
  run->sockets = sockets_;
  run->seconds = seconds_;
  if (any_closed(sockets_)) {
    shut(sockets_);
    throw std::runtime_error(why(*run));
  }
  auto& encoder = mx::cpu::get_command_encoder(stream());
  encoder.dispatch([run] { Watch::instance().begin(run); });
  try {
    gather_->eval_cpu(in, out);
  } catch (const std::exception&) {
    enqueue_surely(encoder, [run] { Watch::instance().end(run); });
    throw;
  }
  enqueue_surely(encoder, [run, where = stream(), data = out[0].data_shared_ptr(), rows = out[0].data<uint32_t>(),
                           count = out[0].shape(0), length = int64_t{out[0].shape(1)}] {
    Watch::instance().end(run);
    try {
      mx::scheduler::check_error(where);
    } catch (const std::exception& error) {
      // The ring may have left a task that writes here once more bytes come.
      static auto* kept = new std::vector<std::shared_ptr<mx::array::Data>>;
      static std::mutex keeping;
      {
        std::lock_guard<std::mutex> lock(keeping);
        kept->push_back(data);
      }
      if (!run->late && !any_closed(run->sockets)) throw;
      shut(run->sockets);
      throw std::runtime_error(why(*run) + ": " + error.what());
    }
    if (!in_step(rows, count, length)) {
      shut(run->sockets);
      throw std::runtime_error("mpsfunc: the group's processes are not in step; expected the same evaluations in all");
    }
  });
}

mx::array watched(const mx::array& gathered, std::vector<int> sockets, double seconds) {
  if (!gathered.has_primitive() || gathered.primitive().stream().device != mx::Device::cpu ||
      std::strcmp(gathered.primitive().name(), "AllGather") != 0) {
    return gathered;
  }
  std::vector<mx::Shape> shapes{gathered.shape()};
  std::vector<mx::Dtype> dtypes{gathered.dtype()};
  auto primitive = std::make_shared<Watched>(gathered.primitive_ptr(), shapes, dtypes, std::move(sockets), seconds);
  return mx::array::make_arrays(shapes, dtypes, primitive, gathered.inputs())[0];
}

}  // namespace mpsf
