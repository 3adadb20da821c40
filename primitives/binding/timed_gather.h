// A gather across processes that ends. MLX's ring reports a connection that closes, but waits without end for a process
// that is stopped, cut off or doing something else; and when one connection closes, the processes at the others are
// left waiting. So a clock runs with each gather. When it runs out, this process shuts its own connections to the ring,
// which wakes its gather as well as its neighbours', theirs in turn, and mx.eval raises in all of them.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "binding/vmap.h"
#include "mlx/array.h"
#include "mlx/primitives.h"

namespace mpsf {

namespace mx = mlx::core;

// MLX's own gather, of rows that begin with the same word in every process, with a clock around it.
class Watched : public mx::Primitive {
 public:
  Watched(std::shared_ptr<mx::Primitive> gather, std::vector<mx::Shape> shapes, std::vector<mx::Dtype> dtypes,
          std::vector<int> sockets, double seconds)
      : Primitive(gather->stream()),
        gather_(std::move(gather)),
        shapes_(std::move(shapes)),
        dtypes_(std::move(dtypes)),
        sockets_(std::move(sockets)),
        seconds_(seconds) {}

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override;
  void eval_gpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override { gather_->eval_gpu(in, out); }
  Mapped vmap(const std::vector<mx::array>&, const std::vector<int>&) override {
    return dropped(stream(), shapes_, dtypes_);
  }
  const char* name() const override { return "mpsfunc::Gather"; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override { return shapes_; }

 private:
  std::shared_ptr<mx::Primitive> gather_;
  std::vector<mx::Shape> shapes_;
  std::vector<mx::Dtype> dtypes_;
  std::vector<int> sockets_;  // the connections that carry the gather; none where they are not known
  double seconds_;
};

// The result of mx.distributed.all_gather, if the CPU will make it, with a clock of so many seconds.
mx::array watched(const mx::array& gathered, std::vector<int> sockets, double seconds);

}  // namespace mpsf
