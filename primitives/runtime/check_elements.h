// Refuses calls of what works element by element: dropout, arithmetic and comparison. Their
// parameters hold the result in merged axes and how each operand lies under it (metal/elementwise/params.h).
#pragma once
#include <initializer_list>

#include "elementwise/params.h"
#include "runtime/requirements.h"

namespace mpsf {

class CheckElements : private Requirements {
 public:
  using Requirements::Requirements;

  void run() const {
    require(call_.shapes.size() == 1 && call_.dtypes.size() == 1, "one output");
    require(call_.shapes[0].size() <= 8, "a result of rank 8 at most");
    for (int length : call_.shapes[0]) require(length >= 0, "shapes without negative lengths");
    require(size_of(call_.shapes[0]) < kMostElements, "a result of less than 2^40 elements");
    switch (call_.op) {
      case Op::dropout: {
        const auto p = params<DropoutParams<double>>();
        counts(2, p, {p.x, p.mask});
        operand(0, p.x);
        require(p.mask.images == p.n && p.mask.per == 1, "a mask for each image");
        require(p.n % keys(1) == 0, "keys that divide the batch");
        return floating();
      }
      case Op::dropout_by_mask: {
        const auto p = params<DropoutByMaskParams<double>>();
        counts(2, p, {p.x, p.mask});
        operand(0, p.x);
        operand(1, p.mask);
        require(dtype(1) == Type::u8, "a mask of bytes");
        return floating();
      }
      case Op::dropout_mask:
        params<DropoutMaskParams>();
        require(call_.inputs.size() == 1, "keys and a bound");
        require(size_of(call_.shapes[0]) % keys(0) == 0, "keys that divide the mask");
        return require(call_.dtypes[0] == Type::u8, "a result of bytes");
      case Op::arithmetic: {
        const auto p = params<ArithmeticParams<double>>();
        counts(2, p, {p.x, p.y});
        operand(0, p.x);
        operand(1, p.y);
        require(dtype(1) == dtype(0), "operands of one dtype");
        below(p.operation, 4, "an operation");
        below(p.limits, 4, "limits");
        return floating();
      }
      case Op::arithmetic_grad:
        return gradient();
      default: {  // compare
        const auto p = params<CompareParams<double>>();
        counts(2, p, {p.x, p.y});
        operand(0, p.x);
        operand(1, p.y);
        below(p.comparison, 6, "a comparison");
        require(dtype(1) == dtype(0) && call_.dtypes[0] == dtype(0), "operands and a result of one dtype");
        require(dtype(0) == Type::i64 || dtype(0) == Type::u64 || floating_inputs(),
                "floating operands or wide integers");
      }
    }
  }

 private:
  static constexpr int64_t kMostElements = int64_t{1} << 40;

  void gradient() const {
    const auto p = params<ArithmeticGradParams<double>>();
    below(p.operation, 4, "an operation");
    below(p.operand, 2, "one of two operands");
    below(p.limits, 4, "limits");
    below(p.reads_x, 2, "a switch for x");
    below(p.reads_y, 2, "a switch for y");
    const bool x = p.reads_x != 0, y = p.reads_y != 0, second = p.operand != 0, limits = p.limits != 0;
    const bool product = p.operation == 2, quotient = p.operation == 3;
    require(x == (limits || (second && (product || quotient))), "x where it is read");
    require(y == (limits || quotient || (product && !second)), "y where it is read");
    counts(1 + x + y, p, {p.dy, p.x, p.y});
    operand(0, p.dy);
    require(p.dy.h * p.dy.w * p.dy.c == p.h * p.w * p.c && p.dy.images == p.n, "dy of the result's size");
    if (x) operand(1, p.x);
    if (y) operand(1 + x, p.y);
    for (const Array& a : call_.inputs) require(a.dtype == dtype(0), "operands of one dtype");
    require(floating_inputs(), "floating operands");
    const auto wide = dtype(0) == Type::f64 ? Type::f64 : Type::f32;
    require(call_.dtypes[0] == dtype(0) || call_.dtypes[0] == wide, "a result of dy's dtype or its accumulator's");
  }

  void below(int param, int count, const char* rule) const { require(0 <= param && param < count, rule); }

  Dtype dtype(int i) const { return call_.inputs[i].dtype; }
  bool floating_inputs() const { return is_floating(dtype(0)); }
  void floating() const {
    require(floating_inputs() && call_.dtypes[0] == dtype(0), "floating images and results alike");
  }

  // So many inputs, and operands that lie under the result.
  template <typename P>
  void counts(size_t inputs, const P& p, std::initializer_list<Operand> operands) const {
    require(call_.inputs.size() == inputs, "another number of inputs");
    for (const Array& a : call_.inputs) require(a.shape.size() >= 1 && a.shape.size() <= 8, "inputs of rank 1 to 8");
    require(p.n >= 1 && p.h >= 1 && p.w >= 1 && p.c >= 1, "a result with elements");
    constexpr int64_t kMost = int64_t{1} << 31;
    const int64_t lines = int64_t{p.h} * p.w;
    require(lines < kMost && lines * p.c < kMost, "images of less than 2^31 elements");
    require(size_of(call_.shapes[0]) == p.n * lines * p.c, "a result of its size");
    const auto fits = [](int length, int whole) { return length == 1 || length == whole; };
    for (const Operand& u : operands) {
      require(u.images >= 1 && u.per >= 1 && p.n % (int64_t{u.images} * u.per) == 0, "operands that divide the batch");
      require(fits(u.h, p.h) && fits(u.w, p.w) && fits(u.c, p.c), "operands as long as the result, or 1");
    }
  }

  // Input i is this operand.
  void operand(int i, const Operand& u) const {
    int64_t size = 1;
    for (int length : call_.inputs[i].shape) size *= length;
    require(size == u.images * (int64_t{u.h} * u.w * u.c), "operands of the size that the params say");
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
};

}  // namespace mpsf
