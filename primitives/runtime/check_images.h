// Refuses calls of samples at places that a grid tells, and of correlations.
// Refuses calls of samples at places that a grid tells, or in boxes.
#pragma once
#include "image/params.h"
#include "runtime/check.h"

namespace mpsf {

// Images and a grid; a gradient by the images has that of the samples in their place, one by the grid both.
template <typename Check>
void grid_sample(const Check& c, const Signature& call) {
  const auto p = c.template params<GridSampleParams>();
  const bool by_image = call.op == Op::grid_sample_grad, by_grid = call.op == Op::grid_sample_grad_grid;
  const int x = by_grid ? 1 : 0, grid = by_grid ? 2 : 1;
  c.counts(by_grid ? 3 : 2, 1);
  c.require(p.mode >= 0 && p.mode <= 2 && p.edge >= 0 && p.edge <= 2, "a mode and an edge from 0 to 2");
  c.require(p.coordinates >= 0 && p.coordinates <= 3, "coordinates from 0 to 3");
  c.require(p.order_y >= 0 && p.order_y <= 8 && p.order_x >= 0 && p.order_x <= 8, "orders from 0 to 8");
  const Shape &images = by_image ? c.out(0) : c.in(x), &places = c.in(grid);
  c.require(images.size() == 4 && places.size() == 4, "images and a grid of rank 4");
  c.require(images[1] == p.height && images[2] == p.width, "images of the height and width");
  for (int length : {p.height, p.width, places[1], places[2]}) {
    c.require(length <= 1 << 24, "axes of at most 2^24");  // which a float tells apart
  }
  c.require(p.height >= 1 && p.width >= 1 && images[3] >= 1, "images with pixels");
  c.require(int64_t{p.height} * p.width < (int64_t{1} << 31) / images[3], "images of less than 2^31 elements");
  const Shape samples = {images[0], places[1], places[2], images[3]};
  c.input(grid, {images[0], places[1], places[2], 2}, c.accumulator());
  if (by_grid) {
    c.input(0, samples, c.image());
    c.input(1, images, c.image());
    return c.output(0, places, c.accumulator());
  }
  if (by_image) c.input(0, samples, c.image());
  c.output(0, by_image ? images : samples, c.image());
}

// Two images, or one of them and the gradient of their correlations.
template <typename Check>
void local_correlation(const Check& c, bool forward) {
  const auto p = c.template params<LocalCorrelationParams>();
  constexpr int kFar = 1 << 30;
  c.counts(2, 1);
  c.require(p.window_y >= 0 && p.window_x >= 0 && p.window_y < kFar && p.window_x < kFar, "windows from 0 to 2^30");
  c.require(p.stride_y >= 1 && p.stride_x >= 1, "positive strides");
  c.require(p.secondary == 0 || (p.secondary == 1 && !forward), "a gradient by one of two images");
  const Shape& images = c.in(1);
  c.require(images.size() == 4, "images of rank 4");
  c.require(images[1] >= 1 && images[2] >= 1 && images[3] >= 1, "images with pixels");
  const int64_t pixels = int64_t{images[1]} * images[2], most = int64_t{1} << 31;
  const int64_t features = (2 * int64_t{p.window_y} + 1) * (2 * int64_t{p.window_x} + 1);
  c.require(pixels < most / images[3] && pixels < most / features, "images of less than 2^31 elements");
  const Shape results = {images[0], images[1], images[2], static_cast<int>(features)};
  c.input(0, forward ? images : results, c.image());
  c.input(1, images, c.image());
  c.output(0, forward ? results : images, c.image());
}

// Images and boxes; a gradient by the images has that of the bins in their place, one by the boxes both.
template <typename Check>
void box_sample(const Check& c, const Signature& call) {
  const auto p = c.template params<BoxSampleParams<double>>();
  const bool by_image = call.op == Op::box_sample_grad, by_boxes = call.op == Op::box_sample_grad_boxes;
  const int x = by_boxes ? 1 : 0, boxes = by_boxes ? 2 : 1;
  c.counts(by_boxes ? 3 : 2, 1);
  c.require(p.rule >= 0 && p.rule <= 2 && p.samples >= (p.rule == 2 ? 0 : 1), "a rule from 0 to 2, and samples");
  c.require(p.samples <= 1 << 16 && (p.rule == 2 || p.samples == 1), "at most 2^16 samples, of crops one");
  c.require(p.order_y >= 0 && p.order_y <= 2 && p.order_x >= 0 && p.order_x <= 2, "orders from 0 to 2");
  const Shape& images = by_image ? c.out(0) : c.in(x);
  c.require(images.size() == 4 && c.in(boxes).size() == 2, "images of rank 4 and boxes of rank 2");
  c.require(images[0] == p.images && images[1] == p.height && images[2] == p.width, "images of that size");
  for (int length : {p.height, p.width, p.rows, p.cols}) {
    c.require(length >= 1 && length <= 1 << 24, "axes of 1 to 2^24");  // which a float tells apart
  }
  c.require(p.images >= 1 && images[3] >= 1, "images with pixels");
  const int64_t most = (int64_t{1} << 31) / images[3];
  c.require(int64_t{p.height} * p.width < most, "images of less than 2^31 elements");
  c.require(int64_t{p.rows} * p.cols < most, "bins of less than 2^31 elements");
  const int count = c.in(boxes)[0];
  const Shape bins = {count, p.rows, p.cols, images[3]};
  c.input(boxes, {count, 5}, c.accumulator());
  if (by_boxes) {
    c.input(0, bins, c.image());
    c.input(1, images, c.image());
    return c.output(0, {count, 5}, c.accumulator());
  }
  if (by_image) c.input(0, bins, c.image());
  c.output(0, by_image ? images : bins, c.image());
}

}  // namespace mpsf
