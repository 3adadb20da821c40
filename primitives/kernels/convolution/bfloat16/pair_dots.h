// Few pixels: pairs of neighbouring channels of images by those of weights, both where they lie.
#pragma once
#include "kernels/convolution/bfloat16/pair_tile.h"
#include "kernels/convolution/dot_products.h"

namespace mpsf::MPSF_ISA {
namespace {

#if defined(__AVX512BF16__)
struct PairDots {
  using Image = Bfloat;
  using Weight = Bfloat;
  static constexpr int kStep = 2 * lanes<float>;
#if defined(MPSF_TILES)
  static constexpr int kMostPixels = 8;  // tiles soon multiply faster
#else
  static constexpr int kMostPixels = 128;
#endif
  static MPSF_INLINE __m512i read(const Bfloat* from) {
    __m512i bits;
    memcpy(&bits, from, sizeof(bits));
    return bits;
  }
  static MPSF_INLINE __m512i read(const Bfloat* from, int n) {
    return _mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1, from);
  }
  static MPSF_INLINE Vec<float> add(Vec<float> sums, __m512i image, __m512i weights) {
    return add_products(sums, image, weights);
  }
};

inline bool few_forward(const Geometry& g, const Call& call, const Neuron<float>& neuron) {
  return forward_dots<PairDots>(g, call, neuron);
}
inline bool few_input(const Geometry& g, const Call& call, const Neuron<float>& neuron) {
  return input_dots<PairDots>(g, call, neuron);
}
#else  // where AMX is a model in C++
inline bool few_forward(const Geometry&, const Call&, const Neuron<float>&) { return false; }
inline bool few_input(const Geometry&, const Call&, const Neuron<float>&) { return false; }
#endif

}  // namespace
}  // namespace mpsf::MPSF_ISA
