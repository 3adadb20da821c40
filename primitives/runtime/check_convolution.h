// Refuses calls of convolutions.
#pragma once
#include "convolution/params.h"
#include "runtime/check.h"

namespace mpsf {

template <typename Check>
void count_weights(const Check& c, const Shape& weights) {
  int64_t size = weights[3];
  for (int i = 0; i < 3; ++i) size = size < (int64_t{1} << 31) ? size * weights[i] : size;
  c.require(size < (int64_t{1} << 31), "less than 2^31 weights");
}

template <typename Check, typename P>
void convolution(const Check& c, const P& p, const Shape& source, const Shape& result, const Shape& weights) {
  c.image_axes(p.rows, p.cols, source, result);
  c.switches({p.winograd, p.exchanged});
  const int groups = p.groups;
  c.require(weights.size() == 4 && groups >= 1, "weights of rank 4 and groups >= 1");
  c.require(p.exchanged == 0 || groups == 1, "one group where inputs and outputs have changed places");
  const int in = weights[p.exchanged ? 0 : 3], out = weights[p.exchanged ? 3 : 0];
  c.require(source[3] == int64_t{in} * groups, "channels that the weights fit");
  c.require(result[3] == out && out % groups == 0, "output channels that the groups divide");
  c.require(p.rows.size == weights[1] && p.cols.size == weights[2], "axes of the weights' size");
  c.require(p.rows.edge == 0 && p.cols.edge == 0, "edge 0");
  count_weights(c, weights);
}

// Forward, or the gradient of the images.
template <typename Check>
void conv(const Check& c, bool forward) {
  const auto p = c.template params<ConvParams<double>>();
  c.counts(3, 1);
  const Dtype weights = c.dtype(1);
  c.require(weights == c.image() || weights == c.accumulator(), "weights of the images' dtype or the accumulator's");
  convolution(c, p, forward ? c.in(0) : c.out(0), forward ? c.out(0) : c.in(0), c.in(1));
  c.fused({p.kind, p.a, p.b, p.c});
  c.input(2, {c.out(0)[3]}, c.accumulator());
  c.output(0, c.out(0), c.image());
}

template <typename Check>
void conv_grad_weights(const Check& c, const Signature& call) {
  const auto p = c.template params<ConvGradWeightsParams>();
  const bool with_bias = call.shapes.size() == 2;
  c.counts(2, with_bias ? 2 : 1);
  c.input(1, c.in(1), c.image());
  convolution(c, p, c.in(1), c.in(0), c.out(0));
  if (with_bias) c.output(1, {c.in(0)[3]}, c.accumulator());
  const Dtype made = call.dtypes[0];
  c.require(made == c.image() || made == c.accumulator(), "gradients of the images' dtype or the accumulator's");
}

// Pixels of two images multiplied, or those of one by a matrix: one for each image of a batch.
template <typename Check>
void gram_matrix(const Check& c, bool sums) {
  c.no_params();
  c.counts(2, 1);
  const Shape &first = c.in(0), &second = sums ? c.in(1) : c.out(0);
  c.require(first.size() == 4 && second.size() == 4, "images of rank 4");
  const int images = first[0], from = sums ? first[3] : second[3], to = sums ? second[3] : first[3];
  for (const Shape& shape : {first, second}) {
    c.require(shape[1] >= 1 && shape[2] >= 1 && shape[3] >= 1, "images with pixels");
    const int64_t size = int64_t{shape[1]} * shape[2];
    c.require(size < (int64_t{1} << 31) / shape[3], "images of less than 2^31 elements");
  }
  c.require(int64_t{from} * to < (int64_t{1} << 31), "matrices of less than 2^31 elements");
  const Shape other = {images, first[1], first[2], second[3]}, square = {images, 1, from, to};
  if (sums) {
    c.input(1, other, c.image());
    return c.output(0, square, c.accumulator());
  }
  c.input(1, square, c.accumulator());
  c.output(0, other, c.image());
}

template <typename Check>
void conv_layout(const Check& c) {
  const auto p = c.template params<ConvLayoutParams>();
  c.counts(1, 1);
  c.require(c.in(0).size() == 4 && p.groups >= 1 && c.in(0)[0] % p.groups == 0, "weights of rank 4 in groups");
  c.require(c.image() != Type::f64, "weights of 32 or 16 bits");
  count_weights(c, c.in(0));
  const int64_t words = conv_layout_words(p.isa, *c.image(), c.in(0).data(), p.groups);
  c.require(words > 0 && words < (int64_t{1} << 30), "weights that are laid out, and a set of this machine");
  c.output(0, {static_cast<int>(words)}, Type::u32);
}

// Of weights that are laid out.
template <typename Check>
Shape weights_shape(const Check& c, const ConvParams<double>& p) {
  return {c.out(0)[3], p.rows.size, p.cols.size, c.in(0)[3] / p.groups};
}

template <typename Check>
void conv_laid_out(const Check& c, bool adds) {
  const auto p = c.template params<ConvParams<double>>();
  c.counts(adds ? 4 : 3, 1);
  c.require(c.in(0).size() == 4 && c.out(0).size() == 4 && p.groups >= 1, "images of rank 4 and groups >= 1");
  c.require(c.image() != Type::f64, "images of 32 or 16 bits");
  c.require(p.rows.size >= 1 && p.cols.size >= 1, "windows");
  c.require(p.exchanged == 0, "inputs and outputs in their places");
  convolution(c, p, c.in(0), c.out(0), weights_shape(c, p));
  c.fused({p.kind, p.a, p.b, p.c});
  c.require(c.in(1).size() == 1 && c.dtype(1) == Type::u32, "weights as conv_layout lays them out");
  c.input(2, {c.out(0)[3]}, Type::f32);
  if (adds) {
    const auto whole = [](const Axis& a) { return a.begin == 0 && a.end == a.n_out; };
    c.input(3, c.out(0), c.image());
    c.require(whole(p.rows) && whole(p.cols), "windows for all results where images are added");
  }
  c.output(0, c.out(0), c.image());
}

// What such weights say of themselves, which are null where they are not there.
template <typename Check>
void laid_out_for(const Check& c, const void* weights) {
  const auto p = c.template params<ConvParams<double>>();
  const int words = c.in(1)[0];
  c.require(weights != nullptr && words > Layout::kWords, "laid out weights that are there");
  const Layout& known = *static_cast<const Layout*>(weights);
  const Shape shape = weights_shape(c, p);
  c.require(shape[0] >= 1, "outputs");
  const bool fits = known.magic == Layout::kMagic && known.groups == p.groups &&
                    known.depth == shape[1] * shape[2] * shape[3] &&
                    int64_t{known.out_channels} * p.groups == shape[0] && (!known.pairs || c.image() == Type::bf16);
  const Type dtype = known.pairs ? Type::bf16 : Type::f32;
  c.require(fits && words == conv_layout_words(known.isa, dtype, shape.data(), p.groups),
            "weights that were laid out for this convolution");
}

// Samples of a deformable convolution, their gradient by the images, and that by their places.
template <typename Check>
void deform_columns(const Check& c, const Signature& call) {
  const auto p = c.template params<DeformParams>();
  const bool by_image = call.op == Op::deform_columns_grad, by_places = call.op == Op::deform_places_grad;
  c.counts(by_places ? 3 : 2, 1);
  const Shape &images = by_image ? c.out(0) : c.in(by_places ? 1 : 0), &places = c.in(by_places ? 2 : 1);
  c.require(c.image() == c.accumulator(), "float32 or float64 images");
  c.require(images.size() == 4 && places.size() == 4, "images and places of rank 4");
  c.require(images[0] == places[0], "as many images as places are for");
  for (const Axis* a : {&p.rows, &p.cols}) {
    c.axis(*a, images[a == &p.rows ? 1 : 2], places[a == &p.rows ? 1 : 2]);
    c.require(a->edge == 0 && a->begin == 0 && a->end == a->n_out, "edge 0 and all outputs");
    for (int length : {a->n_in, a->n_out}) {
      c.require(length >= 1 && length <= 1 << 24, "axes of 1 to 2^24");  // which a float tells apart
    }
  }
  c.switches({p.masked});
  for (int order : {p.order_y, p.order_x, p.order_mask}) c.require(order >= 0 && order <= 8, "orders from 0 to 8");
  c.require(p.groups >= 1 && images[3] >= 1 && images[3] % p.groups == 0, "groups that divide the channels");
  const int64_t taps = int64_t{p.rows.size} * p.cols.size, limit = int64_t{1} << 31;
  c.require(taps < limit / images[3], "less than 2^31 samples of a pixel");
  c.require(int64_t{images[1]} * images[2] < limit / images[3], "images of less than 2^31 elements");
  c.require(places[3] == taps * p.groups * (2 + p.masked), "a place for each tap and group");
  const Shape samples = {images[0], places[1], places[2], static_cast<int>(taps * images[3])};
  c.input(by_places ? 2 : 1, places, c.accumulator());
  if (by_places) {
    c.input(0, samples, c.image());
    c.input(1, images, c.image());
    return c.output(0, places, c.accumulator());
  }
  if (by_image) c.input(0, samples, c.image());
  c.output(0, by_image ? images : samples, c.image());
}

}  // namespace mpsf
