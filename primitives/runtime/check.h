// Refuses calls that a kernel could not survive. What users get wrong is said earlier, and better, in Python.
#pragma once
#include <optional>
#include <vector>

#include "runtime/dispatch.h"

namespace mpsf {

using Shape = std::vector<int>;
using Dtype = std::optional<Type>;  // nothing for those that no kernel knows

// An input, before there are data.
struct Array {
  Shape shape;
  Dtype dtype;
};

// What a call is made of.
struct Signature {
  Op op;
  const std::vector<Array>& inputs;
  const std::vector<int>& params;
  const std::vector<Shape>& shapes;  // of the outputs
  const std::vector<Dtype>& dtypes;
};

inline bool is_floating(Dtype dtype) {
  return dtype == Type::f32 || dtype == Type::f16 || dtype == Type::bf16 || dtype == Type::f64;
}

// Throws std::invalid_argument.
[[gnu::visibility("default")]] void check(const Signature& call);

// The same of a convolution with weights that are laid out, which have to be there before it is asked for: whether they
// are, and were made for it. Kernels believe what these say.
[[gnu::visibility("default")]] void check_laid_out(const Signature& call, const void* weights);

}  // namespace mpsf
