// Refuses calls of what works by rows of classes, softmax and losses, and by halves of an axis.
#pragma once
#include "losses/params.h"
#include "runtime/check.h"

namespace mpsf {

// Images (n, pixels, classes), a target, and perhaps weights and a factor for each image. A loss is that of elements or
// a sum for each image.
template <typename Check>
void loss(const Check& c, const Signature& call, bool gradient) {
  struct {
    int type, labelled, weighted, scaled, elements;
  } p;
  if (gradient) {
    const auto known = c.template params<LossGradParams<double>>();
    c.switches({known.exact, known.labelled, known.weighted, known.scaled});
    p = {known.type, known.labelled, known.weighted, known.scaled, 1};
  } else {
    const auto known = c.template params<LossParams<double>>();
    c.switches({known.elements, known.labelled, known.weighted});
    p = {known.type, known.labelled, known.weighted, 0, known.elements};
  }
  c.counts(2 + p.weighted + p.scaled, !gradient && call.shapes.size() == 2 ? 2 : 1);
  constexpr int kTerms = 11;
  c.require(p.type >= 0 && p.type <= kTerms, "a type from 0 to 11");
  const Shape& y = c.in(0);
  c.require(y.size() == 3 && is_floating(c.image()), "floating images of rank 3");
  c.require(y[1] >= 1 && y[2] >= 1 && int64_t{y[1]} * y[2] < (int64_t{1} << 31), "images of 1 to 2^31 - 1 elements");
  if (p.labelled) {
    c.require(p.type == 2 || p.type == 4, "a type with labels");
    c.input(1, {y[0], y[1]}, Type::u32);
  } else {
    c.input(1, y, c.image());
  }
  if (p.type == kTerms) {  // whose weights are factors of the elements
    c.require(p.weighted, "weights");
    c.input(2, y, c.accumulator());
  }
  if (p.weighted) c.input(2, {y[0], y[1], c.in(2).size() == 3 && c.in(2)[2] == 1 ? 1 : y[2]}, c.accumulator());
  if (p.scaled) c.input(2 + p.weighted, {y[0]}, c.accumulator());
  if (p.elements) {
    c.output(0, y, c.image());
  } else {
    c.output(0, {y[0]}, c.accumulator());
  }
  if (call.shapes.size() == 2) c.output(1, y, c.image());
}

// Images (n, pixels, classes) and a target. Sums are for each class of each image, and so is what a gradient is made
// of.
template <typename Check>
void dice(const Check& c, const DiceParams& p, bool gradient, bool of_sums) {
  c.require(p.activation >= 0 && p.activation <= 2, "an activation from 0 to 2");
  c.switches({p.squared, p.labelled});
  c.counts(of_sums ? 4 : 2, gradient ? 1 : 3);
  const Shape& y = c.in(0);
  c.require(y.size() == 3 && is_floating(c.image()), "floating images of rank 3");
  c.require(y[1] >= 1 && y[2] >= 1 && int64_t{y[1]} * y[2] < (int64_t{1} << 31), "images of 1 to 2^31 - 1 elements");
  if (p.labelled) {
    c.input(1, {y[0], y[1]}, Type::u32);
  } else {
    c.input(1, y, c.image());
  }
  const Shape sums = {y[0], y[2]};
  for (int i = 2; of_sums && i < 4; ++i) c.input(i, sums, c.accumulator());
  if (gradient) return c.output(0, y, c.image());
  for (int i = 0; i < 3; ++i) c.output(i, sums, c.accumulator());
}

// The sides (2, 4, n, boxes) of the boxes of n images, whether each is there, its number and perhaps its class.
template <typename Check>
void nms(const Check& c, const Signature& call) {
  const auto p = c.template params<NmsParams<double>>();
  const bool classes = call.inputs.size() == 4;
  c.counts(classes ? 4 : 3, 2);
  const Shape& sides = c.in(0);
  c.require(sides.size() == 4 && sides[0] == 2 && sides[1] == 4, "two sides of four numbers");
  c.require(c.image() == c.accumulator(), "float32 or float64");
  c.require(p.threshold >= 0 && p.most >= 0, "no negative number");
  const Shape boxes = {sides[2], sides[3]};
  c.input(1, boxes, c.image());
  c.input(2, boxes, Type::u32);
  if (classes) c.input(3, boxes, Type::i64);
  c.output(0, {boxes[0], p.most}, Type::u32);
  c.output(1, {boxes[0]}, Type::u32);
}

// So many arrays (outer, length, inner).
template <typename Check>
void lines(const Check& c, size_t arrays) {
  c.counts(arrays, 1);
  c.require(c.in(0).size() == 3, "arrays of rank 3");
  for (size_t i = 1; i < arrays; ++i) c.input(static_cast<int>(i), c.in(0), c.image());
  c.output(0, c.in(0), c.image());
}

// An array (outer, 2, half, inner), and one that is like half of it: the result, or what its gradient is made of.
template <typename Check>
void halves(const Check& c, bool gradient) {
  c.no_params();
  c.counts(gradient ? 2 : 1, 1);
  const Shape &x = c.in(gradient ? 1 : 0), &half = gradient ? c.in(0) : c.out(0);
  c.require(x.size() == 4 && x[1] == 2, "two halves");
  c.require(half == Shape{x[0], x[2], x[3]}, "shapes that a half fits");
  if (gradient) c.input(1, x, c.image());
  c.output(0, gradient ? x : half, c.image());
}

}  // namespace mpsf
