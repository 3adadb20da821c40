// What the kernels of losses are asked.
#pragma once
#include "kernels/vector/simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// What is asked for, and of what; absent arrays are null.
template <typename T>
struct Job {
  using A = Acc<T>;
  int64_t images, pixels, classes;
  const T* y;
  const T* target;         // or
  const uint32_t* labels;  // a class a pixel
  const A* weights;        // one an element, or
  const A* pixel_weights;
  const A* scales;  // one an image
  A* values;        // one an image, or
  T* elements;
  T* gradient;
  bool exact;  // the gradient is the derivative
  bool elements_streamed, gradient_streamed;
  A kept, share, epsilon, delta, weight, factor;
};

}  // namespace
}  // namespace mpsf::MPSF_ISA
