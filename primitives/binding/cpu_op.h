// Every operation on the CPU is one lazy MLX primitive: an Op with its ints. Derivatives and vmap are rules
// of the Python package; vmap.h says what vmap the primitive needs all the same.
#pragma once
#include <sys/mman.h>

#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "binding/ahead.h"
#include "binding/vmap.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "runtime/check.h"
#include "runtime/dispatch.h"
#include "runtime/parallel.h"

namespace mpsf {

namespace mx = mlx::core;

inline Dtype type_of(mx::Dtype dtype) {
  if (dtype == mx::float32) return Type::f32;
  if (dtype == mx::float16) return Type::f16;
  if (dtype == mx::bfloat16) return Type::bf16;
  if (dtype == mx::float64) return Type::f64;
  if (dtype == mx::int64) return Type::i64;
  if (dtype == mx::uint64) return Type::u64;
  if (dtype == mx::uint8) return Type::u8;
  if (dtype == mx::uint16) return Type::u16;
  if (dtype == mx::uint32) return Type::u32;
  return std::nullopt;
}

inline Tensor tensor_of(const mx::array& a, void* data, bool streamed = false) {
  Tensor tensor{data,    static_cast<int64_t>(a.size()), {}, static_cast<int>(a.ndim()), type_of(a.dtype()).value(),
                streamed};
  for (int i = 0; i < tensor.ndim; ++i) tensor.shape[i] = a.shape(i);
  return tensor;
}

// Bytes of an output from which on it is stored past the caches: 4 MB of what a network reads again only after much
// else, which makes its training steps shorter. On the other operations no step depends, and a caller who reads the
// result at once has it in the caches if it is smaller than they are.
inline size_t streamed_from(Op op) {
  switch (op) {
    case Op::conv:
    case Op::conv_grad_input:
    case Op::conv_grad_weights:
    case Op::bn_normalize:
    case Op::bn_normalize_add:
    case Op::bn_grad:
    case Op::batch_norm:
    case Op::batch_norm_add:
    case Op::batch_norm_grad:
      return size_t{4} << 20;
    default:
      return size_t{16} << 20;
  }
}

// A large output may lie in memory that was used before, or in pages that the system has yet to make. The former is
// fastest to store to past the caches. The latter comes through the caches anyway, zeroed, and costs a fault for
// every page: a quarter of the time where they are huge. Returns whether it is the former, and large enough.
inline bool prepare([[maybe_unused]] Op op, [[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
  constexpr size_t kLarge = 4 << 20, kPage = 4096;
  if (bytes < kLarge) return false;
  char* begin = static_cast<char*>(data) + (kPage - reinterpret_cast<uintptr_t>(data) % kPage) % kPage;
  size_t whole = (bytes - kPage) / kPage * kPage;
  unsigned char present = 0;
  if (mincore(begin + whole / 2 / kPage * kPage, kPage, &present) != 0) present = 0;
  madvise(begin, whole, MADV_HUGEPAGE);
  return (present & 1) != 0 && bytes >= streamed_from(op);
#endif
  return false;
}

// Memory for an output, aligned to the widest vectors: MLX's own begins wherever malloc's does. Large ones begin on a
// page, as MLX's large inputs nearly do: a load waits for the stores before it that went to the same place of a page.
inline void allocate(mx::array& a) {
  constexpr size_t kVector = 64, kPage = 4096, kSmall = kPage, kLarge = 1 << 17;
  const size_t align = a.nbytes() < kSmall ? 1 : a.nbytes() < kLarge ? kVector : kPage;
  a.set_data(mx::allocator::malloc(a.nbytes() + align - 1));
  if (a.nbytes() > 0 && a.data<void>() == nullptr) throw std::bad_alloc();  // MLX says nothing
  if (align == 1) return;
  size_t ahead = (align - reinterpret_cast<uintptr_t>(a.data<void>()) % align) % align;
  a.copy_shared_buffer(a, a.strides(), a.flags(), a.size(), static_cast<int64_t>(ahead / a.itemsize()));
}

class CpuOp : public mx::Primitive {
 public:
  CpuOp(mx::Stream stream, Op op, std::vector<int> params, std::vector<mx::Shape> in, std::vector<mx::Shape> out,
        std::vector<mx::Dtype> dtypes)
      : Primitive(stream),
        op_(op),
        params_(std::move(params)),
        in_(std::move(in)),
        out_(std::move(out)),
        dtypes_(std::move(dtypes)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<Tensor> in, out;
    for (const mx::array& a : inputs) {
      encoder.set_input_array(a);
      in.push_back(tensor_of(a, const_cast<void*>(a.data<void>())));
    }
    size_t bytes = 0;
    for (const mx::array& a : outputs) bytes += a.nbytes();
    std::shared_ptr<Ahead> ahead = ahead_of(stream());
    if (ahead) ahead->wait_for_room(bytes);
    for (mx::array& a : outputs) {
      allocate(a);
      bool streamed = prepare(op_, a.data<void>(), a.nbytes());
      encoder.set_output_array(a);
      out.push_back(tensor_of(a, a.data<void>(), streamed));
    }
    step_aside();
    auto launch = std::make_shared<Launch>(std::move(ahead), bytes);
    encoder.dispatch([op = op_, params = params_, in = std::move(in), out = std::move(out), launch] {
      launch->begin();
      run_kernel(op,
                 Call{in.data(), out.data(), static_cast<int>(out.size()), params.data(), static_cast<int>(in.size())});
      launch->end();
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(name()) + ": this primitive runs on the CPU only");
  }

  Mapped vmap(const std::vector<mx::array>&, const std::vector<int>&) override {
    return dropped(stream(), out_, dtypes_);
  }

  const char* name() const override { return op_name(op_); }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const CpuOp&>(other);
    return op_ == that.op_ && params_ == that.params_ && in_ == that.in_ && out_ == that.out_ &&
           dtypes_ == that.dtypes_;
  }

  // The parameters hold sizes, so a shapeless trace stands only for the shapes it was made with.
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].shape() != in_[i]) {
        throw std::invalid_argument(std::string(name()) + ": traced for other shapes; compile without shapeless");
      }
    }
    return out_;
  }

 private:
  Op op_;
  std::vector<int> params_;
  std::vector<mx::Shape> in_, out_;
  std::vector<mx::Dtype> dtypes_;
};

}  // namespace mpsf
