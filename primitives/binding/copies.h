// MLX's copies of arrays by all threads, where each row of channels lies in one piece; others are MLX's. Nothing else
// about these nodes differs from MLX's, derivatives included.
#pragma once
#include <optional>
#include <vector>

#include "mlx/array.h"
#include "mlx/primitives.h"

namespace mpsf {

namespace mx = mlx::core;

// mx::contiguous
mx::array contiguous(const mx::array& a, mx::Stream stream);

// The arrays that one is the concatenation of along the last axis, if that is MLX's and on a CPU.
std::optional<std::vector<mx::array>> joined(const mx::array& a);

// mx::concatenate along the last axis
mx::array join(const std::vector<mx::array>& parts, mx::Stream stream);

}  // namespace mpsf
