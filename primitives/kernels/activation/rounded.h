// Activations of what is rounded to bfloat16 next: within 2 ** -13 of a result, where that rounding is 2 ** -8. With
// float32's digits they would cost more than the products of a small convolution.
#pragma once
#include "kernels/activation/apply.h"

namespace mpsf::MPSF_ISA {
namespace {

#if defined(__AVX512DQ__)

// 2 ** x within 2 ** -18.
MPSF_INLINE Vec<float> rough_power_of_two(Vec<float> x) {
  const Vec<float> f = _mm512_maskz_reduce_ps(0xffff, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
  Vec<float> p = fused(f, splat(0.0135371104f), splat(0.0520052658f));
  p = fused(p, f, splat(0.241446853f));
  p = fused(p, f, splat(0.693003047f));
  p = fused(p, f, splat(1.00000257f));
  return _mm512_maskz_scalef_ps(0xffff, p, x);
}

// 1 / x within 2 ** -14; 0 of infinity.
MPSF_INLINE Vec<float> rough_reciprocal(Vec<float> x) { return _mm512_maskz_rcp14_ps(0xffff, x); }

// What is closer to 0 than 2e-36 becomes 0.
MPSF_INLINE Vec<float> rough_silu(Vec<float> x) {
  const Vec<float> small = rough_power_of_two(x * -1.44269504f);
  return at_least(x, -128) * rough_reciprocal(small + 1);
}

// As activations.h has it: the normal distribution's tail is its density by a polynomial of 1 / (1 + 0.375 |x|).
MPSF_INLINE Vec<float> rough_gelu(Vec<float> x) {
  const Vec<float> size = at_most(absolute(x), 40), t = rough_reciprocal(fused(size, splat(0.375f), splat(1.0f)));
  const Vec<float> bell = rough_power_of_two(size * size * -0.72134752f);
  Vec<float> p = fused(t, splat(-0.090642692f), splat(0.200281417f));
  p = fused(p, t, splat(0.0835642238f));
  p = fused(p, t, splat(0.157733935f));
  p = fused(p, t, splat(0.149061032f));
  return fused(-size * t * p, bell, at_least(x, 0));
}

// What `apply` calls where results are rounded so.
__attribute__((noinline)) inline void finish_roughly(Vec<float>* z, int count, const Neuron<float>& neuron) {
  if (neuron.form == kSwished) {
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) z[i] = rough_silu(z[i]);
  } else if (neuron.kind == kGelu) {
#pragma GCC unroll 2
    for (int i = 0; i < count; ++i) z[i] = rough_gelu(z[i]);
  } else {
    finish_others(z, count, neuron);
  }
}

#else  // where AMX is a model in C++

inline void finish_roughly(Vec<float>* z, int count, const Neuron<float>& neuron) { finish_others(z, count, neuron); }

#endif

}  // namespace
}  // namespace mpsf::MPSF_ISA
