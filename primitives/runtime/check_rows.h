// Refuses calls of what works by rows of classes: softmax and losses.
#pragma once
#include "runtime/check.h"

namespace mpsf {

// Images (n, pixels, classes), a target, and perhaps weights and a factor for each image.
template <typename Check>
void loss(const Check& c, const Signature& call, bool gradient) {
  const std::vector<int>& params = call.params;
  const size_t flags = gradient ? 5 : 4;
  c.require(params.size() == flags + 12, "another number of params");
  c.switches({params[1], params[2], params[3], params[flags - 1]});
  const size_t inputs = 2 + params[3] + (gradient ? params[4] : 0);
  c.counts(inputs, flags + 12, !gradient && call.shapes.size() == 2 ? 2 : 1);
  c.require(params[0] >= 0 && params[0] <= 9, "a type from 0 to 9");
  const Shape& y = c.in(0);
  c.require(y.size() == 3 && is_floating(c.image()), "floating images of rank 3");
  c.require(y[1] >= 1 && y[2] >= 1 && int64_t{y[1]} * y[2] < (int64_t{1} << 31), "images of 1 to 2^31 - 1 elements");
  if (params[2]) {
    c.require(params[0] == 2 || params[0] == 4, "a type with labels");
    c.input(1, {y[0], y[1]}, Type::u32);
  } else {
    c.input(1, y, c.image());
  }
  if (params[3]) c.input(2, {y[0], y[1], c.in(2).size() == 3 && c.in(2)[2] == 1 ? 1 : y[2]}, c.accumulator());
  if (gradient && params[4]) c.input(static_cast<int>(inputs) - 1, {y[0]}, c.accumulator());
  if (gradient || params[1]) {
    c.output(0, y, c.image());
  } else {
    c.output(0, {y[0]}, c.accumulator());
  }
  if (call.shapes.size() == 2) c.output(1, y, c.image());
}

// So many arrays (outer, length, inner).
template <typename Check>
void lines(const Check& c, size_t arrays, size_t params) {
  c.counts(arrays, params, 1);
  c.require(c.in(0).size() == 3, "arrays of rank 3");
  for (size_t i = 1; i < arrays; ++i) c.input(static_cast<int>(i), c.in(0), c.image());
  c.output(0, c.in(0), c.image());
}

}  // namespace mpsf
