// Refuses calls of what normalizes by the statistics of channels.
#pragma once
#include "normalization/params.h"
#include "runtime/check.h"

namespace mpsf {

// Images in statistics groups, `vectors` inputs (stat_groups, channels) behind them, or (channels,) for one group, and
// outputs like the image or like those.
template <typename Check>
void channels(const Check& c, const Signature& call, size_t images, size_t vectors, bool image_out) {
  c.counts(images + vectors, image_out ? 1 : 2);
  for (size_t i = 1; i < images; ++i) c.input(static_cast<int>(i), c.in(0), c.image());
  const Shape vector = vectors > 0 ? c.in(static_cast<int>(images)) : c.out(0);
  const bool one_group = vector.size() == 1;
  c.require(c.in(0).size() >= 2 && (one_group || vector.size() == 2),
            "images of rank 2 or more, and vectors of rank 1 or 2");
  c.require(vector.back() == c.in(0).back(), "vectors with an entry a channel");
  c.require(one_group || (vector[0] > 0 ? c.in(0)[0] % vector[0] == 0 : c.in(0)[0] == 0),
            "statistics groups that divide the images");
  for (size_t i = 0; i < vectors; ++i) c.input(static_cast<int>(images + i), vector, c.accumulator());
  for (size_t i = 0; i < call.shapes.size(); ++i) {
    c.output(static_cast<int>(i), image_out ? c.in(0) : vector, image_out ? c.image() : c.accumulator());
  }
}

// A direction by a state: images, vectors (channels,), of a gradient of images the eighth a count, and outputs like the
// image or like the vectors. There are so many vectors without an activation, and with one.
struct Vectors {
  size_t plain, activated;
};
template <typename Check>
void by_state(const Check& c, const Signature& call, size_t images, Vectors known, bool image_out) {
  const auto act = c.template params<BnByStateParams<double>>().act;
  c.fused(act);
  const size_t vectors = act.kind == kNone ? known.plain : known.activated;
  c.counts(images + vectors, image_out ? 1 : 2);
  c.require(c.in(0).size() >= 2, "images of rank 2 or more");
  const Shape vector = {c.in(0).back()};
  for (size_t i = 1; i < images; ++i) c.input(static_cast<int>(i), c.in(0), c.image());
  for (size_t i = images; i < images + vectors; ++i) {
    const bool count = images == 2 && image_out && i == 7;
    c.input(static_cast<int>(i), count ? Shape{} : vector, count ? Type::i64 : c.accumulator());
  }
  for (size_t i = 0; i < call.shapes.size(); ++i) {
    c.output(static_cast<int>(i), image_out ? c.in(0) : vector, image_out ? c.image() : c.accumulator());
  }
}

// A direction as a whole: images, two vectors (channels,), and statistics (stat_groups, channels), or (channels,) where
// there is one statistics group. The gradient reads statistics, with an entry a channel or for several together, and
// has two more vectors of their gradients, or empty ones.
template <typename Check>
void whole(const Check& c, size_t images, bool gradient) {
  const auto p = c.template params<BatchNormParams<double>>();
  c.counts(images + (gradient ? 6 : 2), 3);
  c.fused(p.act);
  c.require(c.in(0).size() >= 2, "images of rank 2 or more");
  const int channels = c.in(0).back();
  for (size_t i = 1; i < images; ++i) c.input(static_cast<int>(i), c.in(0), c.image());
  for (size_t i = images; i < images + 2; ++i) c.input(static_cast<int>(i), {channels}, c.accumulator());
  const Shape& vector = c.out(1);
  const bool shared = vector.size() == 1;
  c.require(vector.size() == 1 || vector.size() == 2, "statistics of rank 1 or 2");
  c.require(vector.back() == channels && (shared || vector[0] == c.in(0)[0]), "statistics of all images or of each");
  c.output(0, c.in(0), c.image());
  for (int i = 1; i < 3; ++i) c.output(i, vector, c.accumulator());
  const int groups = p.groups;
  c.require(groups >= 0 && groups <= channels && (groups == 0 || channels % groups == 0),
            "groups that divide the channels");
  if (!gradient) return;
  Shape by_group = vector;
  by_group.back() = groups;
  const Shape& statistics = groups > 0 && c.in(4) == by_group ? by_group : vector;
  for (int i = 4; i < 6; ++i) c.input(i, statistics, c.accumulator());
  const Shape& gradients = c.in(6) == Shape{0} ? c.in(6) : vector;
  for (int i = 6; i < 8; ++i) c.input(i, gradients, c.accumulator());
}

// Lines (groups, lines, length) and vectors (groups, length) of theirs, of which so many go in and come out; what is
// differentiated again also reads what each of the gradients is multiplied with.
struct LinesAndVectors {
  int lines_in, vectors_in, lines_out, vectors_out;
};
template <typename Check>
void lines_of_groups(const Check& c, const Signature& call, LinesAndVectors known) {
  c.template params<LayerNormParams<double>>();
  const int in = known.lines_in + known.vectors_in, out = known.lines_out + known.vectors_out;
  const bool again = call.op == Op::layer_norm_grad_grad;
  c.counts(static_cast<size_t>(again ? in + 3 : in), static_cast<size_t>(out));
  c.require(c.in(0).size() == 3 && c.in(0)[2] >= 1, "lines of rank 3 with an element or more");
  const Shape vector = {c.in(0)[0], c.in(0)[2]};
  for (int i = 1; i < known.lines_in; ++i) c.input(i, c.in(0), c.image());
  for (int i = known.lines_in; i < in; ++i) c.input(i, vector, c.accumulator());
  if (again) {
    c.input(in, c.in(0), c.image());
    for (int i = in + 1; i < in + 3; ++i) c.input(i, vector, c.accumulator());
  }
  for (int i = 0; i < known.lines_out; ++i) c.output(i, c.in(0), c.image());
  for (int i = known.lines_out; i < out; ++i) c.output(i, vector, c.accumulator());
}

}  // namespace mpsf
