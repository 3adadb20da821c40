#include "binding/run_ahead.h"

#include <unordered_map>

#include "binding/batches.h"
#include "binding/libmlx.h"
#include "mlx/memory.h"

namespace mpsf {
namespace {

// What is asked of libmlx. Members take the object first, as C++ on Linux calls them.
struct Backend {
  CommandEncoder& (*encoder_of)(mx::Stream) = nullptr;
  void (*add_completed_handler)(CommandEncoder*, std::function<void()>) = nullptr;
  void (*commit)(CommandEncoder*) = nullptr;

  bool complete() const { return encoder_of && add_completed_handler && commit; }
};

const Backend& backend() {
  static const Backend found = [] {
    Backend b;
    const Library libmlx(path_of_libmlx());
    libmlx.find(b.encoder_of, kEncoderOf);
    libmlx.find(b.add_completed_handler, "_ZN3mlx4core2cu14CommandEncoder21add_completed_handlerESt8functionIFvvEE");
    libmlx.find(b.commit, "_ZN3mlx4core2cu14CommandEncoder6commitEv");
    return b;
  }();
  return found;
}

class CudaStream : public CommandStream {
 public:
  explicit CudaStream(mx::Stream stream) : stream_(stream) {}

  size_t in_use() const override { return mx::get_active_memory(); }
  void commit(std::function<void()> completed) override {
    backend().add_completed_handler(&backend().encoder_of(stream_), std::move(completed));
    commit();
  }
  void commit() override { backend().commit(&backend().encoder_of(stream_)); }

 private:
  mx::Stream stream_;
};

std::atomic<double> share_ahead{0};
std::atomic<bool> one_by_one{false};
std::atomic<size_t> needed{0};

}  // namespace

bool set_run_ahead(double share) {
  if (!backend().complete()) return false;
  share_ahead = share;
  one_by_one = true;
  return true;
}

bool counts_launches() { return share_ahead > 0; }

bool launches_one_by_one() { return one_by_one; }

void about_to_launch(mx::Stream stream, const std::vector<mx::array>& in, const std::vector<mx::array>& out) {
  if (!counts_launches()) return;
  static thread_local std::unordered_map<int, Batches> of_streams;
  auto found = of_streams.find(stream.index);
  if (found == of_streams.end()) {
    found = of_streams.try_emplace(stream.index, std::make_unique<CudaStream>(stream), needed).first;
  }
  size_t reads = 0, writes = 0;
  for (const mx::array& a : in) reads += a.nbytes();
  for (const mx::array& a : out) writes += a.nbytes();
  found->second.launch(reads, writes, share_ahead);
}

}  // namespace mpsf
