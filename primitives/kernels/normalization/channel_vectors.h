// What is computed of vectors with one entry a channel between two passes over images: entry by entry, or over groups
// of neighbouring channels.
#pragma once
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

template <typename A>
A inverse_root(A var, A eps) {
  if constexpr (sizeof(A) == 4) return 1 / __builtin_sqrtf(var + eps);
  return 1 / __builtin_sqrt(var + eps);
}

// The gradient of a scale, and of what an image's gradient a * dy + b * (x - mean) + d is made.
template <typename A>
struct Factors {
  A dgamma, a, b, d;

  // From the sums dbeta of dy and dot of dy * (x - mean), and the gradients that others have of the statistics.
  Factors(A gamma, A var, A dmean, A dvar, A dbeta, A dot, A count, A eps) {
    const A root = inverse_root(var, eps);
    dgamma = dot * root;
    a = gamma * root;
    const A share = a / count;  // at once, since sums over many elements may overflow otherwise
    b = 2 * dvar / count - share * (root * dgamma);
    d = dmean / count - share * dbeta;
  }
};

// The moments of `size` channels together become those of each. Sums are of how far means are from the first, so that
// equal ones have no variance.
template <typename A>
void join_moments(const A* means, const A* variances, int64_t size, A* mean, A* var) {
  const double first = static_cast<double>(means[0]);
  double sum = 0, spread = 0;
  for (int64_t c = 0; c < size; ++c) sum += static_cast<double>(means[c]) - first;
  const double joined = first + sum / static_cast<double>(size);
  for (int64_t c = 0; c < size; ++c) {
    const double apart = static_cast<double>(means[c]) - joined;
    spread += static_cast<double>(variances[c]) + apart * apart;
  }
  for (int64_t c = 0; c < size; ++c) {
    mean[c] = static_cast<A>(joined);
    var[c] = static_cast<A>(spread / static_cast<double>(size));
  }
}

// The sum over `size` channels becomes that of each.
template <typename A>
void join_sum(const A* from, int64_t size, A* to) {
  double sum = 0;
  for (int64_t c = 0; c < size; ++c) sum += static_cast<double>(from[c]);
  for (int64_t c = 0; c < size; ++c) to[c] = static_cast<A>(sum);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
