// Losses of elements and their derivatives, all but softmax cross-entropy.
#pragma once
#include "kernels/losses/job.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/vector_math.h"

namespace mpsf::MPSF_ISA {
namespace {

// Numbers of the types, as MPS has them, and of what it has not: the focal loss, and sigmoid cross-entropy of which
// each of the two terms has a factor.
enum Kind : int {
  kAbsolute,
  kSquared,
  kSoftmax,
  kSigmoid,
  kCategorical,
  kHinge,
  kHuber,
  kCosine,
  kLog,
  kDivergence,
  kFocal,
  kTerms
};

// t * by, and 0 where t is.
template <typename V>
MPSF_INLINE V by(V t, V of) {
  return t == 0 ? V{} : t * of;
}

// q ** k for k >= 0, and 0 ** 0 is 1.
template <typename V, typename A>
MPSF_INLINE V power_of(V q, A k) {
  if (k == 0) return filled(q, A(1));
  if (k == 1) return q;
  if (k == 2) return q * q;
  return q == 0 ? q : exp(log(q) * k);
}

// The loss of elements and its derivative by y, before weights.
template <int K, typename V, typename T>
MPSF_INLINE void of_elements(V y, V t, const Job<T>& job, V& element, V& slope) {
  const V d = y - t, one = filled(y, Acc<T>(1));
  if constexpr (K == kAbsolute) {
    element = absolute(d);
    slope = d > 0 ? one : d < 0 ? -one : d;
  } else if constexpr (K == kSquared) {
    element = d * d;
    slope = d + d;
  } else if constexpr (K == kSigmoid) {
    const V small = decay(y), above = 1 / (1 + small);
    element = (y < 0 ? V{} : y) - y * t + log_1p(small);
    slope = (y < 0 ? small * above : above) - t;
  } else if constexpr (K == kCategorical) {
    element = -by(t, log(y));
    slope = -by(t, 1 / y);
  } else if constexpr (K == kHinge) {
    const V side = 1 - (t + t), margin = 1 + side * y;
    element = margin <= 0 ? V{} : margin;
    slope = margin > 0 ? side : margin < 0 ? V{} : margin;
  } else if constexpr (K == kHuber) {
    const V size = absolute(d), bound = filled(y, job.delta);
    element = size > bound ? bound * (size - bound / 2) : d * d / 2;
    slope = size > bound ? (d < 0 ? -bound : bound) : d;
  } else if constexpr (K == kCosine) {
    element = -y * t;
    slope = -t;
  } else if constexpr (K == kLog) {
    const V at = y + job.epsilon, other = 1 - y + job.epsilon;
    element = -by(t, log(at)) - by(1 - t, log(other));
    slope = by(1 - t, 1 / other) - by(t, 1 / at);
  } else if constexpr (K == kFocal) {
    // With alpha and gamma in the places of epsilon and delta; `off` is the share that is given to the wrong answer.
    const V small = decay(y), above = 1 / (1 + small), below = small * above;
    const V p = y < 0 ? below : above, rest = y < 0 ? above : below, off = p * (1 - t) + t * rest;
    const V alpha = job.epsilon < 0 ? one : t * job.epsilon + (1 - t) * (1 - job.epsilon);
    const V lost = (y < 0 ? V{} : y) - y * t + log_1p(small), power = alpha * power_of(off, job.delta);
    const V growth = off > 0 ? p * rest * (1 - (t + t)) / off : V{};
    element = power * lost;
    slope = power * (job.delta * growth * lost + (p - t));
  } else {
    element = by(t, log(t)) - by(t, y);
    slope = -t;
  }
}

// -a log p - b log(1 - p), with p the sigmoid of y, and its derivative by y. Each term by itself, since a target of
// a / (a + b) would round away the smaller factor.
template <typename V>
MPSF_INLINE void of_terms(V y, V a, V b, V& element, V& slope) {
  const V small = decay(y), above = 1 / (1 + small), below = small * above, rest = log_1p(small);
  element = a * ((y < 0 ? -y : V{}) + rest) + b * ((y < 0 ? V{} : y) + rest);
  slope = b * (y < 0 ? below : above) - a * (y < 0 ? above : below);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
