// What mx.vmap and mx.jvp need of a kernel. MLX maps not only a custom function's own rule but also every primitive
// behind the function, and differentiates it, and then drops what those gave. So each of our primitives has a vmap and
// a jvp, and their results say so if anything ever asks for their values.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "binding/cuda_kernel.h"
#include "binding/run_ahead.h"
#include "mlx/array.h"
#include "mlx/primitives.h"

namespace mpsf {

namespace mx = mlx::core;

using Mapped = std::pair<std::vector<mx::array>, std::vector<int>>;

// It has no derivatives, by which those of what nobody may use are errors too.
class Dropped : public mx::Primitive {
 public:
  Dropped(mx::Stream stream, const char* kernel)
      : Primitive(stream), message_(std::string(kernel) + ": mapped or differentiated without its operation's rule") {}
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override { fail(); }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override { fail(); }
  const char* name() const override { return "mpsfunc::Dropped"; }

 private:
  [[noreturn]] void fail() const { throw std::logic_error(message_); }

  std::string message_;
};

// A primitive of ours.
class Kernel : public mx::Primitive {
 public:
  Kernel(mx::Stream stream, std::vector<mx::Shape> shapes, std::vector<mx::Dtype> dtypes)
      : Primitive(stream), shapes_(std::move(shapes)), dtypes_(std::move(dtypes)) {}

  Mapped vmap(const std::vector<mx::array>&, const std::vector<int>&) override {
    return {dropped({}), std::vector<int>(shapes_.size(), -1)};  // -1: not mapped
  }
  std::vector<mx::array> jvp(const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents,
                             const std::vector<int>&) override {
    std::vector<mx::array> from = primals;
    from.insert(from.end(), tangents.begin(), tangents.end());
    return dropped(from);  // a derivative of them, too, comes to what has none
  }

 protected:
  std::vector<mx::Shape> shapes_;  // of its outputs
  std::vector<mx::Dtype> dtypes_;

 private:
  std::vector<mx::array> dropped(const std::vector<mx::array>& from) {
    return mx::array::make_arrays(shapes_, dtypes_, std::make_shared<Dropped>(stream(), name()), from);
  }
};

// A kernel of MLX's own making (mx.fast.metal_kernel, mx.fast.cuda_kernel) with a vmap added, launched no further ahead
// of the GPU than memory allows, and without MLX where that is known how.
class GpuKernel : public Kernel {
 public:
  GpuKernel(std::shared_ptr<mx::Primitive> kernel, std::vector<mx::Shape> shapes, std::vector<mx::Dtype> dtypes,
            CudaLaunch launch)
      : Kernel(kernel->stream(), std::move(shapes), std::move(dtypes)),
        kernel_(std::move(kernel)),
        launch_(std::move(launch)) {}

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override { kernel_->eval_cpu(in, out); }
  void eval_gpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    about_to_launch(stream(), in, out);
    if (!launch_directly(launch_, stream(), in, out)) kernel_->eval_gpu(in, out);
  }
  std::vector<mx::array> as_mlx_makes_it(const std::vector<mx::array>& inputs) const {
    return mx::array::make_arrays(shapes_, dtypes_, kernel_, inputs);
  }
  // Its own: by that of MLX's kernel mx.export_function would take it for one, and read what is not there.
  const char* name() const override { return "mpsfunc::GpuKernel"; }

 private:
  std::shared_ptr<mx::Primitive> kernel_;
  CudaLaunch launch_;
};

// Whether this thread is inside a transformation. Arrays do not tell: an inner transformation takes the mark off those
// that an outer one still follows. This one keeps its mark, which MLX heeds inside transformations only.
inline bool tracing() {
  static const mx::array* const marked = [] {
    auto* a = new mx::array(0.0f);  // never deleted: MLX may be gone before
    a->set_tracer(true);
    return a;
  }();
  return marked->is_tracer();
}

// Changes what an operation made of arrays behind mx.stop_gradient: its kernels read the arrays themselves, since each
// stop would be a node of every step. So do what moves elements or converts them. But mx.jvp differentiates all that
// reads an array without a stop, whatever is done with the result, and other operations of MLX may not have a
// derivative. So nothing is changed whose results one of those reads.
inline void read_directly(std::vector<mx::array> outputs, const std::vector<mx::array>& stopped,
                          const std::vector<mx::array>& arrays) {
  static const std::unordered_set<std::string_view> moving{"AsType",  "Broadcast", "Contiguous", "ExpandDims",
                                                           "Flatten", "Reshape",   "Slice",      "Split",
                                                           "Squeeze", "Transpose", "Unflatten"};
  std::unordered_map<uintptr_t, const mx::array*> known;
  for (size_t i = 0; i < stopped.size(); ++i) known.emplace(stopped[i].id(), &arrays.at(i));
  std::unordered_set<uintptr_t> seen, read_by_others;
  std::vector<mx::array> made;  // what an array is made of stands before it
  const std::function<void(mx::array&)> visit = [&](mx::array& a) {
    if (a.status() != mx::array::Status::unscheduled || !a.has_primitive() || known.contains(a.id())) return;
    if (!seen.insert(a.id()).second) return;
    for (const mx::array& each : a.siblings()) seen.insert(each.id());
    for (mx::array& input : a.inputs()) visit(input);
    made.push_back(a);
  };
  for (mx::array& each : outputs) visit(each);
  for (auto a = made.rbegin(); a != made.rend(); ++a) {
    const bool ours = dynamic_cast<const Kernel*>(&a->primitive());
    std::vector<mx::array> results = a->outputs();
    const bool direct = (ours || moving.contains(a->primitive().name())) &&
                        std::none_of(results.begin(), results.end(),
                                     [&](const mx::array& each) { return read_by_others.contains(each.id()); });
    for (mx::array& each : results) {
      for (mx::array& input : each.inputs()) {
        const auto found = known.find(input.id());
        if (!direct) {
          read_by_others.insert(input.id());
        } else if (found != known.end()) {
          input = *found->second;
        }
      }
    }
  }
}

// Whether an array is MLX's zeros(), not evaluated yet: a Full of a Broadcast of one zero.
inline bool is_lazy_zeros(const mx::array& a) {
  const auto made_by = [](const mx::array& made, const char* name) {
    return made.status() == mx::array::Status::unscheduled && made.has_primitive() && made.inputs().size() == 1 &&
           std::string(made.primitive().name()) == name;
  };
  if (!made_by(a, "Full") || !made_by(a.inputs()[0], "Broadcast")) return false;
  const mx::array& one = a.inputs()[0].inputs()[0];
  if (one.size() != 1 || one.status() != mx::array::Status::available) return false;
  if (one.dtype() == mx::float32) return *one.data<float>() == 0;
  return one.dtype() == mx::float64 && *one.data<double>() == 0;
}

// The two arrays whose sum an array is, if it is one that is not evaluated yet and neither was repeated.
inline std::optional<std::pair<mx::array, mx::array>> addends(const mx::array& a) {
  const bool lazy = a.status() == mx::array::Status::unscheduled && a.has_primitive() && a.inputs().size() == 2;
  if (!lazy || std::string(a.primitive().name()) != "Add") return std::nullopt;
  for (const mx::array& part : a.inputs()) {
    if (part.has_primitive() && std::string(part.primitive().name()) == "Broadcast") return std::nullopt;
  }
  return std::pair(a.inputs()[0], a.inputs()[1]);
}

// The value of an array of one int64, if it is there already and nothing that a transformation follows.
inline std::optional<int64_t> known_count(const mx::array& a) {
  if (a.dtype() != mx::int64 || a.size() != 1 || a.is_tracer() || !a.is_available()) return std::nullopt;
  return *a.data<int64_t>();
}

// The outputs of one GPU kernel as those of a GpuKernel, which they may be already.
inline std::vector<mx::array> of_gpu_kernel(std::vector<mx::array> outputs, CudaLaunch launch) {
  if (outputs.empty() || !outputs[0].has_primitive()) return outputs;
  if (dynamic_cast<const GpuKernel*>(outputs[0].primitive_ptr().get())) return outputs;
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const mx::array& a : outputs) {
    shapes.push_back(a.shape());
    dtypes.push_back(a.dtype());
  }
  auto kernel = std::make_shared<GpuKernel>(outputs[0].primitive_ptr(), shapes, dtypes, std::move(launch));
  return mx::array::make_arrays(std::move(shapes), dtypes, std::move(kernel), outputs[0].inputs());
}

// The outputs of one GPU kernel; of a GpuKernel while a transformation looks on or launches are counted, and otherwise
// as they are.
inline std::vector<mx::array> mappable(std::vector<mx::array> outputs) {
  return tracing() || counts_launches() ? of_gpu_kernel(std::move(outputs), {}) : outputs;
}

// The outputs of one kernel in machine code; of a GpuKernel that launches it without MLX, where there are no CUDA
// graphs.
inline std::vector<mx::array> launched(std::vector<mx::array> outputs, CudaLaunch launch) {
  return launches_one_by_one() ? of_gpu_kernel(std::move(outputs), std::move(launch)) : outputs;
}

}  // namespace mpsf
