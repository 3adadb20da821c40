// mpsfunc._primitives: one lazy function an operation, and the settings of the pool and the dispatch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "binding/copies.h"
#include "binding/cpu_op.h"
#include "binding/exportable.h"
#include "binding/heap.h"
#include "binding/reading.h"
#include "binding/timed_gather.h"
#include "mlx/ops.h"
#include "mlx/utils.h"
#include "runtime/check.h"
#include "runtime/operations.h"
#include "runtime/parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mpsf {
namespace {

using Shapes = std::vector<Shape>;

std::vector<mx::array> make(Op op, std::vector<mx::array> inputs, std::vector<int> params, const Shapes& out_shapes,
                            const std::vector<mx::Dtype>& out_dtypes, mx::StreamOrDevice where) {
  std::vector<Array> read;
  read.reserve(inputs.size());
  for (const mx::array& a : inputs) read.push_back({{a.shape().begin(), a.shape().end()}, type_of(a.dtype())});
  std::vector<Dtype> written;
  for (mx::Dtype dtype : out_dtypes) written.push_back(type_of(dtype));
  check({op, read, params, out_shapes, written});
  if (op == Op::conv_laid_out) {
    const bool there = inputs[1].is_available() && inputs[1].flags().row_contiguous;
    check_laid_out({op, read, params, out_shapes, written}, there ? inputs[1].data<void>() : nullptr);
  }
  std::vector<mx::Shape> in, out;
  for (const Shape& shape : out_shapes) out.emplace_back(shape.begin(), shape.end());
  mx::Stream stream = mx::to_stream(where, mx::Device::cpu);
  if (stream.device != mx::Device::cpu) {
    throw std::invalid_argument(std::string(op_name(op)) + ": expected a stream of the CPU");
  }
  for (mx::array& a : inputs) {
    // An evaluated array has its layout, although MLX calls it available only once somebody asked. To tell that of
    // others would save nodes, which cost less than the memory that MLX makes further ahead without them.
    bool known = a.status() != mx::array::Status::unscheduled && (a.size() == 0 || a.flags().row_contiguous);
    if (!known) a = contiguous(a, stream);
    in.push_back(a.shape());
  }
  auto primitive = std::make_shared<CpuOp>(stream, op, std::move(params), std::move(in), out, out_dtypes);
  return mx::array::make_arrays(std::move(out), out_dtypes, primitive, inputs);
}

}  // namespace
}  // namespace mpsf

NB_MODULE(_primitives, m) {
  using namespace mpsf;
  m.doc() = "CPU kernels of mpsfunc as lazy MLX primitives.";
  if (std::string(interface()) != MPSF_DIGEST) {
    throw nb::import_error("it was built for the kernels of another mpsfunc");
  }

#define MPSF_BIND(op)                                                                              \
  m.def(                                                                                           \
      #op,                                                                                         \
      [](std::vector<mx::array> inputs, std::vector<int> params, const Shapes& out_shapes,         \
         const std::vector<mx::Dtype>& out_dtypes, mx::StreamOrDevice stream) {                    \
        return make(Op::op, std::move(inputs), std::move(params), out_shapes, out_dtypes, stream); \
      },                                                                                           \
      "inputs"_a, "params"_a, "out_shapes"_a, "out_dtypes"_a, "stream"_a = nb::none());
  MPSF_KERNELS(MPSF_BIND)
#undef MPSF_BIND

  m.def("tracing", &tracing, "Whether this thread is inside mx.grad, mx.vmap, mx.compile or another transformation.");
  m.def(
      "keep_cuda_kernel",
      [](std::string name, nb::bytes code) {
        return keep_cuda_kernel(std::move(name), {code.c_str(), code.size()});
      },
      "name"_a, "code"_a,
      "Keeps a kernel in an NVIDIA GPU's machine code, and gives the number by which to launch it.");
  m.def(
      "launches_directly", [] { return launches_one_by_one() && cuda_functions().complete(); },
      "Whether kernels in machine code are launched without MLX's primitive for them.");
  m.def(
      "launched",
      [](std::vector<mx::array> outputs, int kernel, std::vector<int> numbers, std::array<int, 3> grid,
         std::array<int, 3> threadgroup) {
        return launched(std::move(outputs), {kernel, std::move(numbers), grid, threadgroup});
      },
      "outputs"_a, "kernel"_a, "numbers"_a, "grid"_a, "threadgroup"_a,
      "The outputs of mx.fast.precompiled_cuda_kernel, launched without it where MLX has no CUDA graphs.");
  m.def("mappable", &mappable, "outputs"_a, "The outputs of one GPU kernel, so that mx.vmap can pass them by.");
  m.def(
      "same", [](const mx::array& a, const mx::array& b) { return a.id() == b.id(); }, "a"_a, "b"_a,
      "Whether two objects hold one array; not so once either has been changed in place.");
  m.def("is_lazy_zeros", &is_lazy_zeros, "a"_a, "Whether an array is an mx.zeros that is not evaluated yet.");
  m.def("addends", &addends, "a"_a, "The two arrays that a sum, which is not evaluated yet, is of, or None.");
  m.def("channel_factors", &channel_factors, "a"_a,
        "Images and the numbers of their channels whose product an array is, which is not evaluated yet, or None.");
  m.def("channel_scale", &channel_scale, "a"_a,
        "Images and a vector of their channels whose product an array is, which is not evaluated yet, or None.");
  m.def(
      "become", [](mx::array& a, const mx::array& b) { a.overwrite_descriptor(b); }, "a"_a, "b"_a,
      "Has an object hold another array of the same shape and dtype, as an assignment to all of it does.");
  m.def("joined", &joined, "a"_a,
        "The arrays that one, which is not evaluated yet, is the concatenation of along the last axis, or None.");
  m.def(
      "join",
      [](const std::vector<mx::array>& parts) { return join(parts, mx::default_stream(mx::Device(mx::Device::cpu))); },
      "parts"_a, "What mx.concatenate along the last axis makes, in all threads.");
  m.def("hard_sigmoid_of", &hard_sigmoid_of, "a"_a,
        "What an array, not evaluated yet, is the hard sigmoid of, relu6(x + 3) / 6; None of others.");
  m.def("mean_of", &mean_of, "a"_a, "The images of whose pixels an array, not evaluated yet, is the mean, or None.");
  m.def("known_count", &known_count, "a"_a, "The value of an int64 that is not to be computed, or None.");
  m.def("exportable", &exportable, "outputs"_a, "inputs"_a,
        "What a traced function made of its inputs, as mx.export_function can write it.");
  m.def("watched", &watched, "gathered"_a, "sockets"_a, "seconds"_a,
        "What mx.distributed.all_gather makes of a row of uint32 on the CPU, with a limit to how long it may take.");
  m.def("set_run_ahead", &set_run_ahead, "share"_a,
        "How much more memory than the work needs launches to an NVIDIA GPU may hold; False where MLX cannot tell.");
  m.def("keep_freed", &keep_freed, "bytes"_a,
        "Has malloc make all memory of one piece and keep what is freed; False where malloc is not glibc's.");
  m.def("get_num_threads", &get_num_threads);
  m.def("set_num_threads", &set_num_threads, "threads"_a);
  m.def("isas", &isas, "Instruction sets compiled and present here, widest first.");
  m.def("isa", &active_isa, "The instruction set in use.");
  m.def("set_isa", &set_isa, "name"_a);
  m.def("isa_number", &isa_number, "By which laid out weights name the instruction set in use.");
  m.def(
      "conv_layout_words",
      [](int isa, mx::Dtype weights, const std::vector<int>& shape, int groups) {
        const Dtype dtype = type_of(weights);
        const bool known = dtype && is_floating(dtype) && *dtype != Type::f64 && shape.size() == 4;
        return known ? conv_layout_words(isa, *dtype, shape.data(), groups) : 0;
      },
      "isa"_a, "weights"_a, "shape"_a, "groups"_a,
      "Words that weights (o, rows, cols, c / groups) take when they are laid out for an instruction set, or 0.");

  // A wrong MPSFUNC_ISA or MPSFUNC_NUM_THREADS is an error of the import, not of some later evaluation.
  active_isa();
  get_num_threads();
}
