#include "binding/copies.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "binding/cpu_op.h"
#include "binding/reading.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "runtime/dispatch.h"

namespace mpsf {
namespace {

constexpr size_t kFewBytes = 1 << 16;  // that one thread copies as soon
constexpr int64_t kChunkBytes = 1 << 15;

// Rows of so many bytes, `pitch` bytes apart.
struct Rows {
  const char* data;
  int64_t bytes, pitch;
};

// The last axis of an array as rows, if they lie in one piece each and equally far apart.
std::optional<Rows> rows_of(const mx::array& a) {
  const int last = static_cast<int>(a.ndim()) - 1;
  if (last < 1 || a.size() == 0 || (a.shape(last) > 1 && a.strides(last) != 1)) return std::nullopt;
  int64_t pitch = a.shape(last), expected = 0;
  bool first = true;
  for (int axis = last - 1; axis >= 0; --axis) {
    if (a.shape(axis) == 1) continue;
    if (first) pitch = expected = a.strides(axis);  // negative where the axis is flipped
    first = false;
    if (a.strides(axis) != expected) return std::nullopt;
    expected *= a.shape(axis);
  }
  const int64_t size = static_cast<int64_t>(a.itemsize());
  return Rows{a.data<char>(), a.shape(last) * size, pitch * size};
}

// Of a known size a copy is a few instructions.
template <size_t Bytes>
void copy_known(char* to, int64_t to_pitch, const Rows& from, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * to_pitch, from.data + i * from.pitch, Bytes);
}

void copy_rows(char* to, int64_t to_pitch, const Rows& from, int64_t begin, int64_t end) {
  switch (from.bytes) {
    case 64:
      return copy_known<64>(to, to_pitch, from, begin, end);
    case 128:
      return copy_known<128>(to, to_pitch, from, begin, end);
    case 256:
      return copy_known<256>(to, to_pitch, from, begin, end);
    case 512:
      return copy_known<512>(to, to_pitch, from, begin, end);
    default:
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(to + i * to_pitch, from.data + i * from.pitch, static_cast<size_t>(from.bytes));
      }
  }
}

// Rows side by side make those of `out`.
void put_side_by_side(std::vector<Rows> parts, mx::array& out, mx::Stream stream) {
  allocate(out);
  auto& encoder = mx::cpu::get_command_encoder(stream);
  encoder.set_output_array(out);
  const int64_t pitch = out.shape(-1) * static_cast<int64_t>(out.itemsize());
  const int64_t rows = static_cast<int64_t>(out.nbytes()) / pitch, chunk = kChunkBytes / pitch + 1;
  encoder.dispatch([parts = std::move(parts), to = out.data<char>(), pitch, rows, chunk] {
    struct Copy {
      const std::vector<Rows>& parts;
      char* to;
      int64_t pitch, rows, chunk;
    } copy{parts, to, pitch, rows, chunk};
    const auto task = [](void* context, int64_t i) {
      const Copy& c = *static_cast<const Copy*>(context);
      const int64_t begin = i * c.chunk, end = begin + c.chunk < c.rows ? begin + c.chunk : c.rows;
      char* at = c.to;
      for (const Rows& part : c.parts) {
        copy_rows(at, c.pitch, part, begin, end);
        at += part.bytes;
      }
    };
    run_on_pool(&copy, task, (rows + chunk - 1) / chunk);
  });
}

// A node of MLX's that puts rows side by side, of one array or of several; this one does so in all threads. It holds
// MLX's primitive rather than being one, whose classes are not exported.
class SideBySide : public mx::Primitive {
 public:
  SideBySide(mx::Stream stream, std::shared_ptr<mx::Primitive> mlx) : Primitive(stream), mlx_(std::move(mlx)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    std::vector<Rows> parts;
    const bool there = inputs.size() == 1 && inputs[0].flags().row_contiguous;
    bool rows = !there && outputs[0].nbytes() >= kFewBytes;
    for (size_t i = 0; rows && i < inputs.size(); ++i) {
      if (inputs[i].size() == 0) continue;
      const std::optional<Rows> part = rows_of(inputs[i]);
      rows = part.has_value();
      if (rows) parts.push_back(*part);
    }
    if (!rows) return mlx_->eval_cpu(inputs, outputs);
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const mx::array& a : inputs) encoder.set_input_array(a);
    put_side_by_side(std::move(parts), outputs[0], stream());
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mlx_->eval_gpu(inputs, outputs);
  }

  std::vector<mx::array> jvp(const std::vector<mx::array>& primals, const std::vector<mx::array>& tangents,
                             const std::vector<int>& argnums) override {
    return mlx_->jvp(primals, tangents, argnums);
  }
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>& outputs) override {
    return mlx_->vjp(primals, cotangents, argnums, outputs);
  }
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                           const std::vector<int>& axes) override {
    return mlx_->vmap(inputs, axes);
  }

  const char* name() const override { return mlx_->name(); }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto* that = dynamic_cast<const SideBySide*>(&other);
    return that != nullptr && mlx_->is_equivalent(*that->mlx_);
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return mlx_->output_shapes(inputs);
  }

 private:
  std::shared_ptr<mx::Primitive> mlx_;
};

mx::array in_threads(const mx::array& a) {
  return mx::array(a.shape(), a.dtype(), std::make_shared<SideBySide>(a.primitive().stream(), a.primitive_ptr()),
                   a.inputs());
}

}  // namespace

mx::array contiguous(const mx::array& a, mx::Stream stream) {
  return in_threads(mx::contiguous(a, /* allow_col_major = */ false, stream));
}

std::optional<std::vector<mx::array>> joined(const mx::array& a) {
  if (!made_by(a, "Concatenate") || dynamic_cast<const SideBySide*>(&a.primitive()) != nullptr) return std::nullopt;
  const int axis = static_cast<const mx::Concatenate&>(a.primitive()).state();
  const bool channels = a.primitive().device() == mx::Device::cpu && axis == static_cast<int>(a.ndim()) - 1;
  return channels ? std::optional(a.inputs()) : std::nullopt;
}

mx::array join(const std::vector<mx::array>& parts, mx::Stream stream) {
  const mx::array made = mx::concatenate(parts, -1, stream);
  return joined(made) ? in_threads(made) : made;  // of one part it is that one
}

}  // namespace mpsf
