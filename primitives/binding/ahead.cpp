#include "binding/ahead.h"

#include <chrono>
#include <unordered_map>
#include <utility>

#include "mlx/device.h"

namespace mpsf {
namespace {

constexpr size_t kMostBytes = 4 << 20;
constexpr int kFewKernels = 2;  // however large: one that runs, and the next
constexpr std::chrono::milliseconds kMoment{20};

}  // namespace

bool Ahead::room(size_t bytes) const { return kernels_ < kFewKernels || bytes_ + bytes <= kMostBytes; }

void Ahead::wait_for_room(size_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!fewer_.wait_for(lock, kMoment, [&] { return room(bytes); }) && running_) {
  }
}

Launch::Launch(std::shared_ptr<Ahead> ahead, size_t bytes) : ahead_(std::move(ahead)), bytes_(bytes) {
  if (!ahead_) return;
  const std::lock_guard<std::mutex> lock(ahead_->mutex_);
  ahead_->bytes_ += bytes_;
  ++ahead_->kernels_;
}

void Launch::begin() {
  if (!ahead_) return;
  const std::lock_guard<std::mutex> lock(ahead_->mutex_);
  ahead_->running_ = true;
}

void Launch::end() {
  const std::shared_ptr<Ahead> ahead = std::exchange(ahead_, nullptr);
  if (!ahead) return;
  {
    const std::lock_guard<std::mutex> lock(ahead->mutex_);
    ahead->running_ = false;
    ahead->bytes_ -= bytes_;
    --ahead->kernels_;
  }
  ahead->fewer_.notify_one();
}

std::shared_ptr<Ahead> ahead_of(mx::Stream stream) {
  static const bool gpu = mx::is_available(mx::Device::gpu);
  if (gpu) return nullptr;
  static std::mutex mutex;
  static std::unordered_map<int, std::shared_ptr<Ahead>> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Ahead>& ahead = streams[stream.index];
  if (!ahead) ahead = std::make_shared<Ahead>();
  return ahead;
}

}  // namespace mpsf
