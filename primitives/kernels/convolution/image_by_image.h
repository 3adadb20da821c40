// Products that each image of a batch has for itself.
#pragma once
#include "kernels/convolution/products.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Calls f(image) for all: side by side where there are many, else one after the other, each shared among threads.
template <typename F>
void for_images(int64_t images, const F& f) {
  constexpr int64_t kMany = 8;
  if (images >= kMany) return parallel_for(images, f);
  for (int64_t image = 0; image < images; ++image) f(image);
}

// The convolution of one image with windows of a pixel.
inline Geometry of_pixels(const Tensor& image, int out_channels) {
  ConvParams<double> p = {};
  const auto alone = [](int length) { return Axis{length, length, 1, 1, 1, 0, 0, 0, 0, length, 0}; };
  p.rows = alone(image.shape[1]), p.cols = alone(image.shape[2]), p.groups = 1;
  const int weights[4] = {out_channels, 1, 1, image.shape[3]};
  return Geometry(p, 1, weights).flat();
}

// A part of an array.
template <typename T>
Tensor part_of(const Tensor& whole, int64_t part, int64_t parts) {
  Tensor t = whole;
  t.size /= parts, t.data = data<T>(whole) + part * t.size, t.shape[0] = 1;
  return t;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
