// Refuses calls that a kernel could not survive. What users get wrong is said earlier, and better, in Python.
#pragma once
#include <vector>

#include "mlx/array.h"
#include "runtime/dispatch.h"

namespace mpsf {

// What a call is made of, before there are data.
struct Signature {
  Op op;
  const std::vector<mlx::core::array>& inputs;
  const std::vector<int>& params;
  const std::vector<mlx::core::Shape>& shapes;  // of the outputs
  const std::vector<mlx::core::Dtype>& dtypes;
};

// Throws std::invalid_argument.
void check(const Signature& call);

}  // namespace mpsf
