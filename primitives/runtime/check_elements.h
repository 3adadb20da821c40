// Refuses calls of what works element by element: dropout, arithmetic and comparison. Their params begin with the
// result in merged axes and how each operand lies under it (metal/elementwise/broadcast.h).
#pragma once
#include <stdexcept>
#include <string>

#include "runtime/check.h"

namespace mpsf {

class CheckElements {
 public:
  explicit CheckElements(const Signature& call) : call_(call), params_(call.params) {}

  void run() const {
    require(call_.shapes.size() == 1 && call_.dtypes.size() == 1, "one output");
    require(call_.shapes[0].size() <= 8, "a result of rank 8 at most");
    for (int length : call_.shapes[0]) require(length >= 0, "shapes without negative lengths");
    require(size_of(call_.shapes[0]) < kMostElements, "a result of less than 2^40 elements");
    switch (call_.op) {
      case Op::dropout:
        counts(2, 2, 3);
        operand(0, 0);
        require(params_[9] == params_[0] && params_[10] == 1, "a mask for each image");
        require(params_[0] % keys(1) == 0, "keys that divide the batch");
        return floating();
      case Op::dropout_by_mask:
        counts(2, 2, 2);
        operand(0, 0);
        operand(1, 1);
        require(dtype(1) == Type::u8, "a mask of bytes");
        return floating();
      case Op::dropout_mask:
        require(call_.inputs.size() == 1 && params_.size() == 1, "keys and a bound");
        require(size_of(call_.shapes[0]) % keys(0) == 0, "keys that divide the mask");
        return require(call_.dtypes[0] == Type::u8, "a result of bytes");
      case Op::arithmetic:
        counts(2, 2, 12);
        operand(0, 0);
        operand(1, 1);
        require(dtype(1) == dtype(0), "operands of one dtype");
        below(14, 4, "an operation");
        below(15, 4, "limits");
        return floating();
      case Op::arithmetic_grad:
        return gradient();
      default:  // compare
        counts(2, 2, 3);
        operand(0, 0);
        operand(1, 1);
        below(14, 6, "a comparison");
        require(dtype(1) == dtype(0) && call_.dtypes[0] == dtype(0), "operands and a result of one dtype");
        require(dtype(0) == Type::i64 || dtype(0) == Type::u64 || floating_inputs(),
                "floating operands or wide integers");
    }
  }

 private:
  static constexpr int64_t kMostElements = int64_t{1} << 40;

  void gradient() const {
    require(params_.size() == 34, "another number of params");
    below(19, 4, "an operation");
    below(20, 2, "one of two operands");
    below(21, 4, "limits");
    below(22, 2, "a switch for x");
    below(23, 2, "a switch for y");
    const bool x = params_[22] != 0, y = params_[23] != 0, second = params_[20] != 0, limits = params_[21] != 0;
    const bool product = params_[19] == 2, quotient = params_[19] == 3;
    require(x == (limits || (second && (product || quotient))), "x where it is read");
    require(y == (limits || quotient || (product && !second)), "y where it is read");
    counts(1 + x + y, 3, 15);
    operand(0, 0);
    require(params_[6] * params_[7] * params_[8] == params_[1] * params_[2] * params_[3] && params_[4] == params_[0],
            "dy of the result's size");
    if (x) operand(1, 1);
    if (y) operand(1 + x, 2);
    for (const Array& a : call_.inputs) require(a.dtype == dtype(0), "operands of one dtype");
    require(floating_inputs(), "floating operands");
    const auto wide = dtype(0) == Type::f64 ? Type::f64 : Type::f32;
    require(call_.dtypes[0] == dtype(0) || call_.dtypes[0] == wide, "a result of dy's dtype or its accumulator's");
  }

  void require(bool holds, const char* rule) const {
    if (!holds) throw std::invalid_argument(std::string(op_name(call_.op)) + ": expected " + rule);
  }
  void below(int param, int count, const char* rule) const {
    require(0 <= params_[param] && params_[param] < count, rule);
  }
  Dtype dtype(int i) const { return call_.inputs[i].dtype; }
  bool floating_inputs() const { return is_floating(dtype(0)); }
  void floating() const {
    require(floating_inputs() && call_.dtypes[0] == dtype(0), "floating images and results alike");
  }

  // So many inputs, operands that the params lay under the result, and params behind those.
  void counts(size_t inputs, size_t operands, size_t rest) const {
    require(call_.inputs.size() == inputs, "another number of inputs");
    require(params_.size() == 4 + 5 * operands + rest, "another number of params");
    for (const Array& a : call_.inputs) require(a.shape.size() >= 1 && a.shape.size() <= 8, "inputs of rank 1 to 8");
    for (int i = 0; i < 4; ++i) require(params_[i] >= 1, "a result with elements");
    constexpr int64_t kMost = int64_t{1} << 31;
    const int64_t lines = int64_t{params_[1]} * params_[2];
    require(lines < kMost && lines * params_[3] < kMost, "images of less than 2^31 elements");
    require(size_of(call_.shapes[0]) == params_[0] * lines * params_[3], "a result of its size");
    for (size_t i = 0; i < operands; ++i) {
      const int* u = params_.data() + 4 + 5 * i;
      require(u[0] >= 1 && u[1] >= 1 && params_[0] % (int64_t{u[0]} * u[1]) == 0, "operands that divide the batch");
      for (int axis = 1; axis < 4; ++axis) {
        require(u[axis + 1] == 1 || u[axis + 1] == params_[axis], "operands as long as the result, or 1");
      }
    }
  }

  // Input i is operand `which`.
  void operand(int i, int which) const {
    const int* u = params_.data() + 4 + 5 * which;
    int64_t size = 1;
    for (int length : call_.inputs[i].shape) size *= length;
    require(size == u[0] * (int64_t{u[2]} * u[3] * u[4]), "operands of the size that the params say");
  }

  int keys(int i) const {
    const Array& a = call_.inputs[i];
    require(a.shape.size() == 2 && a.shape[1] == 2 && a.shape[0] >= 1 && a.dtype == Type::u32,
            "keys of two uint32 each");
    return a.shape[0];
  }

  // Elements of a result; where they are kMostElements or more, that many.
  static int64_t size_of(const Shape& shape) {
    int64_t count = 1;
    for (int length : shape) {
      if (length == 0) return 0;
      count = count >= kMostElements ? kMostElements : count * length;
    }
    return count < kMostElements ? count : kMostElements;
  }

  const Signature& call_;
  const std::vector<int>& params_;
};

}  // namespace mpsf
