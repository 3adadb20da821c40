// What mx.vmap needs of a kernel. MLX maps not only a custom function's own rule but also every primitive
// behind the function, and then drops what those gave. So each of our primitives has a vmap, and its
// result says so if anything ever asks for its values.
#pragma once
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "binding/cuda_kernel.h"
#include "binding/run_ahead.h"
#include "mlx/array.h"
#include "mlx/primitives.h"

namespace mpsf {

namespace mx = mlx::core;

using Mapped = std::pair<std::vector<mx::array>, std::vector<int>>;

class Dropped : public mx::Primitive {
 public:
  using Primitive::Primitive;
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override { fail(); }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override { fail(); }
  const char* name() const override { return "mpsfunc::Dropped"; }

 private:
  [[noreturn]] static void fail() {
    throw std::logic_error("mpsfunc: a kernel was mapped without the rule of its operation");
  }
};

inline Mapped dropped(mx::Stream stream, const std::vector<mx::Shape>& shapes, const std::vector<mx::Dtype>& dtypes) {
  auto outputs = mx::array::make_arrays(shapes, dtypes, std::make_shared<Dropped>(stream), {});
  return {outputs, std::vector<int>(outputs.size(), -1)};  // -1: not mapped
}

// A kernel of MLX's own making (mx.fast.metal_kernel, mx.fast.cuda_kernel) with a vmap added, launched no further ahead
// of the GPU than memory allows, and without MLX where that is known how.
class GpuKernel : public mx::Primitive {
 public:
  GpuKernel(std::shared_ptr<mx::Primitive> kernel, std::vector<mx::Shape> shapes, std::vector<mx::Dtype> dtypes,
            CudaLaunch launch)
      : Primitive(kernel->stream()),
        kernel_(std::move(kernel)),
        shapes_(std::move(shapes)),
        dtypes_(std::move(dtypes)),
        launch_(std::move(launch)) {}

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override { kernel_->eval_cpu(in, out); }
  void eval_gpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    about_to_launch(stream(), in, out);
    if (!launch_directly(launch_, stream(), in, out)) kernel_->eval_gpu(in, out);
  }
  Mapped vmap(const std::vector<mx::array>&, const std::vector<int>&) override {
    return dropped(stream(), shapes_, dtypes_);
  }
  std::vector<mx::array> as_mlx_makes_it(const std::vector<mx::array>& inputs) const {
    return mx::array::make_arrays(shapes_, dtypes_, kernel_, inputs);
  }
  // Its own: by that of MLX's kernel mx.export_function would take it for one, and read what is not there.
  const char* name() const override { return "mpsfunc::GpuKernel"; }

 private:
  std::shared_ptr<mx::Primitive> kernel_;
  std::vector<mx::Shape> shapes_;
  std::vector<mx::Dtype> dtypes_;
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
