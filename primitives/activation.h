// What a fused neuron makes of z, and what it lets through of a gradient. NaN passes.
#pragma once
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// Numbers of the neurons, as Python gives them.
enum Neuron : int { kNone = 0, kRelu = 1 };

template <int N, typename V>
MPSF_INLINE V activated(V z) {
  if constexpr (N == kRelu) return z < 0 ? V{} : z;
  return z;
}

// g times the neuron's derivative at z; at 0 that is the one from the right.
template <int N, typename V>
MPSF_INLINE V passed(V g, [[maybe_unused]] V z) {
  if constexpr (N == kRelu) return z < 0 ? V{} : g;
  return g;
}

// Calls f with the neuron as a constant.
template <typename F>
MPSF_INLINE void by_neuron(int neuron, const F& f) {
  if (neuron == kRelu) return f.template operator()<kRelu>();
  f.template operator()<kNone>();
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
